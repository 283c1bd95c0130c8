//! Work on its way: from the call that submits it to the moment it ends.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use headwater_driver::{Call, DeviceId, Result};
use smallvec::SmallVec;

use super::address_space::{Fault, FaultKind};
use super::{Machine, StreamKey, Touched};
use crate::hazards::{Hazard, Place};
use crate::shadow::{OpId, Use};
use crate::vector_clock::{Actor, VectorClock};
use crate::work::{Access, Effect, Operation, Reach};

/// What a query that says "not yet" takes at least: the measured 0.4 us. Without it, a loop that polls would never see
/// the end where calls are free of charge.
const POLL_NS: u64 = 400;

/// Work that has been submitted and has not ended.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) end_ns: u64,
    /// The order of submission, for work that ends at the same moment.
    pub(crate) sequence: u64,
    pub(super) op: OpId,
    pub(super) operation: Arc<Operation>,
    /// What a copy from pageable memory read at the call.
    pub(super) staged: Option<Box<[u8]>>,
    /// Set where it uses an address it may not: the device is lost when it ends.
    pub(super) doomed: bool,
    /// How often addresses had been taken away when it was submitted.
    pub(super) removals: u64,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.end_ns, self.sequence).cmp(&(other.end_ns, other.sequence))
    }
}

/// One event.
#[derive(Debug)]
pub(crate) struct EventState {
    pub(crate) device: DeviceId,
    pub(crate) timing: bool,
    pub(crate) made_at_ns: u64,
    pub(crate) point: EventPoint,
}

/// What an event last recorded.
#[derive(Clone, Debug)]
pub(crate) enum EventPoint {
    /// Nothing.
    Never,
    /// The end of a stream at one moment; `known` once the host has seen it reached.
    At { time_ns: u64, clock: VectorClock, known: bool },
    /// A point of a capture: the nodes before it.
    Captured { capture: u64, frontier: SmallVec<[u32; 4]> },
}

impl Machine {
    /// Gives `operation` to a stream: it runs, or becomes a node where the stream is captured. Returns when it ends, or
    /// nothing for a node.
    pub(crate) fn submit(
        &mut self,
        call: Call,
        key: StreamKey,
        mut operation: Operation,
        staged: Option<Box<[u8]>>,
    ) -> Result<Option<u64>> {
        operation.accesses.retain(|access| !access.range.is_empty());
        self.forbid_implicit(call, key)?;
        let operation = Arc::new(operation);
        if self.is_captured(call, key)? {
            self.add_node(key, operation);
            return Ok(None);
        }
        let start_ns = self.ready_ns(key);
        let end_ns = start_ns.saturating_add(operation.duration_ns);
        let Some(stream) = self.streams.get_mut(key) else { return Ok(None) };
        stream.tail_ns = end_ns;
        let actor = stream.actor;
        let mut clock = std::mem::take(&mut stream.clock);
        self.start(operation, staged, actor, &mut clock, start_ns..end_ns);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.clock = clock;
        }
        Ok(Some(end_ns))
    }

    /// Starts a piece of work whose place in order (`clock`) and time is known.
    pub(super) fn start(
        &mut self,
        operation: Arc<Operation>,
        staged: Option<Box<[u8]>>,
        actor: Actor,
        clock: &mut VectorClock,
        time_ns: Range<u64>,
    ) {
        let time = clock.tick(actor);
        let end_ns = time_ns.end;
        let op = self.detector.start(&operation, time_ns);
        let mut doomed = false;
        for access in &operation.accesses {
            let new = Use { kind: access.kind, actor, time, op };
            if let Err(fault) = self.touch(access, new, clock) {
                self.report_fault(op, access, fault);
                doomed = true;
            }
        }
        if doomed || !operation.accesses.is_empty() || matches!(operation.effect, Effect::Kernel(_)) {
            self.submitted += 1;
            let sequence = self.submitted;
            let removals = self.space.removals();
            let pending = Pending { end_ns, sequence, op, operation, staged, doomed, removals };
            self.pending.push(std::cmp::Reverse(pending));
        }
    }

    /// Notes one access with the detector.
    fn touch(&mut self, access: &Access, new: Use, clock: &VectorClock) -> std::result::Result<(), Fault> {
        let mut resolved = Ok(());
        if access.reach != Reach::Host {
            let (physical, detector) = (&self.physical, &mut self.detector);
            resolved = self.space.resolve(&access.range, access.reach, |segment| {
                let place = physical.place_of(&segment);
                let name = Place::Device(segment.start..segment.start + segment.bytes);
                detector.touch(&Touched { places: place..place + segment.bytes, name }, new, clock);
            });
            if resolved.is_ok() {
                return resolved;
            }
        }
        // Host memory, or a kernel that uses pinned memory by its host address. What is not pinned was copied at the
        // call, or is the caller's business.
        let (start, bytes) = (access.range.start, access.range.end - access.range.start);
        if let Some((range, offset)) = self.host.find(start, bytes) {
            let place = range.place + offset;
            let name = Place::Host { block: range.block, bytes: offset..offset + bytes };
            self.detector.touch(&Touched { places: place..place + bytes, name }, new, clock);
            return Ok(());
        }
        resolved
    }

    /// Adds the hazard of an address that cannot be used.
    pub(super) fn report_fault(&mut self, op: OpId, access: &Access, fault: Fault) {
        let user = self.detector.party(op, access.kind);
        let place = Place::Device(fault.address..access.range.end);
        self.detector.log_mut().add(match fault.kind {
            FaultKind::Removed(removal) => Hazard::UseAfterFree { user, removal, place },
            FaultKind::Unmapped => Hazard::Unmapped { user, place },
            FaultKind::NoAccess(device) => Hazard::NoAccess { user, device, place },
            FaultKind::NeverAllocated => Hazard::NeverAllocated { user, place },
        });
    }

    /// The end of a stream as an event sees it.
    pub(crate) fn point_of(&mut self, key: StreamKey) -> EventPoint {
        let time_ns = self.ready_ns(key);
        match self.streams.get_mut(key) {
            Some(stream) => {
                stream.tail_ns = stream.tail_ns.max(time_ns);
                EventPoint::At { time_ns, clock: stream.clock.clone(), known: false }
            }
            None => EventPoint::Never,
        }
    }

    /// Makes the stream's next piece of work wait for a point.
    pub(crate) fn wait_for_point(&mut self, key: StreamKey, time_ns: u64, clock: &VectorClock) {
        self.ready_ns(key);
        if let Some(stream) = self.streams.get_mut(key) {
            stream.tail_ns = stream.tail_ns.max(time_ns);
            stream.clock.join(clock);
        }
    }

    /// A query said "not yet".
    pub(crate) fn poll(&mut self) {
        if self.cost.cost_ns(Call::EventQuery, 0, 1) == 0 {
            self.advance_to(self.now_ns + POLL_NS);
        }
    }
}
