//! What is ordered before what, and what hazards that leaves.
//!
//! Actors are streams and the branches of launched graphs. Every piece of work gets its actor's next time and the clock of
//! everything ordered before it; the shadow compares that with the last uses of the same bytes.
//!
//! The host is one party with one clock, whatever its threads: what any thread has waited for counts as known to every
//! later call of every thread. Threads hand each other knowledge through locks and channels that a driver cannot
//! see; a clock a thread would call every such hand-over a race. The price: a thread that reuses memory without having
//! been told is not found, unless its stream betrays it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use headwater_driver::Stream;

use crate::hazards::{Hazard, HazardLog, Party, Place, Removal, UseKind};
use crate::shadow::{AccessKind, Conflict, OpId, Shadow, Use};
use crate::vector_clock::{Actor, VectorClock};
use crate::work::Operation;

/// How many pieces of work are remembered by name. Older ones are reported as forgotten.
const OPERATIONS_REMEMBERED: usize = 1 << 12;

/// How many retired actors are looked at for one to use again: the oldest, which the host most likely knows.
const RETIRED_SCANNED: usize = 64;

/// Uses, orders and hazards.
#[derive(Debug)]
pub(crate) struct Detector {
    shadow: Shadow,
    operations: VecDeque<Started>,
    /// The number of the oldest remembered piece of work.
    first: u64,
    log: HazardLog,
    host_clock: VectorClock,
    /// Counts changes of the host's clock, so that streams need not join it at every call.
    host_version: u64,
    actors: Actors,
}

/// What is remembered of a piece of work: as little as names it, so that the ring stays in the processor's cache. With
/// four times as many a launch took half as long again.
#[derive(Debug)]
struct Started {
    label: Cow<'static, str>,
    stream: Stream,
    time_ns: Range<u64>,
    /// The addresses it uses; the last two cover all the rest.
    ranges: [Range<u64>; 2],
}

impl Started {
    fn new(operation: &Operation, time_ns: Range<u64>) -> Self {
        let mut ranges = [const { 0..0 }; 2];
        for (index, access) in operation.accesses.iter().enumerate() {
            let range = &mut ranges[index.min(1)];
            *range = if range.end == 0 {
                access.range.clone()
            } else {
                range.start.min(access.range.start)..range.end.max(access.range.end)
            };
        }
        Self { label: operation.label.clone(), stream: operation.stream, time_ns, ranges }
    }
}

/// Actors in use, and those that can be used again.
#[derive(Debug, Default)]
struct Actors {
    next: u32,
    /// Actors whose stream or graph is gone, with their last time.
    retired: VecDeque<(Actor, u64)>,
}

/// Where the bytes of one access lie: their place in the shadow, and what to call them.
#[derive(Clone, Debug)]
pub(crate) struct Touched {
    pub(crate) places: Range<u64>,
    /// What hazards call the first byte.
    pub(crate) name: Place,
}

impl Touched {
    /// The name of a part of it.
    fn name_of(&self, places: &Range<u64>) -> Place {
        let (skip, bytes) = (places.start - self.places.start, places.end - places.start);
        match &self.name {
            Place::Device(range) => Place::Device(range.start + skip..range.start + skip + bytes),
            Place::Host { block, bytes: range } => {
                Place::Host { block: *block, bytes: range.start + skip..range.start + skip + bytes }
            }
        }
    }
}

impl Detector {
    pub(crate) fn new(hazard_limit: usize) -> Self {
        Self {
            shadow: Shadow::new(),
            operations: VecDeque::new(),
            first: 0,
            log: HazardLog::new(hazard_limit),
            host_clock: VectorClock::new(),
            host_version: 1,
            actors: Actors::default(),
        }
    }

    pub(crate) fn log(&self) -> &HazardLog {
        &self.log
    }

    pub(crate) fn log_mut(&mut self) -> &mut HazardLog {
        &mut self.log
    }

    /// An actor for a new stream or branch, and the clock it starts with: the host's.
    ///
    /// An actor that is gone is used again where the host knows all it ever did: whoever is ordered after the new
    /// one is then truly ordered after the old one too. That keeps clocks as short as there are streams at once.
    pub(crate) fn new_actor(&mut self) -> (Actor, VectorClock) {
        let known = |(actor, time): &(Actor, u64)| self.host_clock.covers(*actor, *time);
        let actor = match self.actors.retired.iter().take(RETIRED_SCANNED).position(known) {
            Some(index) => self.actors.retired.remove(index).map(|(actor, _)| actor),
            None => None,
        };
        let actor = actor.unwrap_or_else(|| {
            self.actors.next += 1;
            Actor(self.actors.next)
        });
        (actor, self.host_clock.clone())
    }

    /// The stream or branch of `actor` is gone; `clock` is the last it knew.
    pub(crate) fn retire_actor(&mut self, actor: Actor, clock: &VectorClock) {
        self.actors.retired.push_back((actor, clock.get(actor)));
    }

    /// What the host has waited for, and its version.
    pub(crate) fn host(&self) -> (&VectorClock, u64) {
        (&self.host_clock, self.host_version)
    }

    /// The host has waited for what `clock` covers.
    pub(crate) fn host_learns(&mut self, clock: &VectorClock) {
        self.host_clock.join(clock);
        self.host_version += 1;
    }

    /// Gives a piece of work its number.
    pub(crate) fn start(&mut self, operation: &Operation, time_ns: Range<u64>) -> OpId {
        if self.operations.len() == OPERATIONS_REMEMBERED {
            self.operations.pop_front();
            self.first += 1;
        }
        self.operations.push_back(Started::new(operation, time_ns));
        OpId(self.first + self.operations.len() as u64 - 1)
    }

    /// Notes a use and reports what it races with.
    pub(crate) fn touch(&mut self, touched: &Touched, new: Use, clock: &VectorClock) {
        let conflicts =
            self.shadow.access(touched.places.clone(), new.kind, new.actor, new.time, clock, new.op);
        for Conflict { range, earlier } in conflicts {
            let hazard = Hazard::Race {
                first: self.party(earlier.op, earlier.kind),
                second: self.party(new.op, new.kind),
                place: touched.name_of(&range),
            };
            self.log.add(hazard);
        }
    }

    /// Reports uses of memory that is being taken away and that the host has not waited for.
    ///
    /// A handle can be mapped twice, and its uses are remembered by physical place: a use through the other address does
    /// no harm. So a use counts only where the piece of work named these very addresses, or is forgotten.
    pub(crate) fn remove(&mut self, touched: &Touched, removal: Removal) {
        for Conflict { range, earlier } in self.shadow.last_uses(touched.places.clone()) {
            if self.host_clock.covers(earlier.actor, earlier.time) {
                continue;
            }
            let place = touched.name_of(&range);
            if let Place::Device(addresses) = &place
                && !self.may_have_used(earlier.op, addresses)
            {
                continue;
            }
            let user = self.party(earlier.op, earlier.kind);
            self.log.add(Hazard::RemovedInUse { user, removal, place });
        }
    }

    /// The memory behind `places` is gone for good.
    pub(crate) fn forget(&mut self, places: Range<u64>) {
        self.shadow.forget(places);
    }

    fn may_have_used(&self, op: OpId, addresses: &Range<u64>) -> bool {
        self.started(op).is_none_or(|started| {
            let overlaps = |range: &Range<u64>| range.start < addresses.end && addresses.start < range.end;
            started.ranges.iter().any(overlaps)
        })
    }

    fn started(&self, op: OpId) -> Option<&Started> {
        self.operations.get(op.0.checked_sub(self.first)? as usize)
    }

    /// The party that `op` is in a hazard.
    pub(crate) fn party(&self, op: OpId, kind: AccessKind) -> Party {
        let kind = match kind {
            AccessKind::Read => UseKind::Read,
            AccessKind::Write => UseKind::Write,
            AccessKind::Atomic => UseKind::Atomic,
        };
        match self.started(op) {
            Some(started) => Party {
                label: started.label.to_string(),
                stream: Some(started.stream),
                kind,
                time_ns: started.time_ns.clone(),
            },
            None => Party { label: "(forgotten)".into(), stream: None, kind, time_ns: 0..0 },
        }
    }
}
