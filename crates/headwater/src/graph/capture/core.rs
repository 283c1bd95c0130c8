//! The state of one private pool: pieces, blocks, lanes, counts. No lock, no driver.
//!
//! Where a block goes when it is given back depends on when that is:
//! - *during the capture it was made for*: into its stream's lane of that capture, at once. The next request of the same captured
//!   stream uses it, because captured work of one stream stays in order. When the capture ends, it is free for anyone: whatever
//!   comes later in this pool is in another graph, and graphs of one pool do not run at once.
//! - *later, or for work outside of captures*: into its stream's lane outside. Another stream gets it when that stream has
//!   finished, and so does a capture: its graph may be launched anywhere.
//!
//! A block that other streams use waits for them first: for those in the same capture until the order is known or the capture
//! ends, for those outside until they have finished.

use std::collections::{BTreeMap, BTreeSet};

use headwater_driver::DevicePtr;
use smallvec::SmallVec;

use super::carver::{Carver, Lane};
use super::lanes::{LaneKey, Lanes};
use crate::allocator::Request;
use crate::error::AllocError;
use crate::graph::fixed_memory::Grown;
use crate::stats::{DeviceStats, PoolKind};

/// What sizes and addresses are multiples of, as in the caching allocator.
pub(super) const GRAIN_BYTES: u64 = 512;
/// Requests up to this size keep to themselves, so that they do not cut up the memory of large ones.
const SMALL_BYTES: u64 = 1 << 20;
/// Lanes are looked through for unused ones when there are this many.
const SWEEP_LANES: usize = 64;

/// Small or large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Small,
    Large,
}

impl Half {
    pub(super) const BOTH: [Self; 2] = [Self::Small, Self::Large];

    pub(super) fn kind(self) -> PoolKind {
        match self {
            Self::Small => PoolKind::SmallPool,
            Self::Large => PoolKind::LargePool,
        }
    }
}

/// A request, rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) requested_bytes: u64,
    pub(super) bytes: u64,
    pub(super) alignment_bytes: u64,
    pub(super) half: Half,
    pub(super) lane: LaneKey,
}

impl Wanted {
    pub(super) fn new(request: &Request, lane: LaneKey) -> Self {
        let bytes = request.bytes.max(1).next_multiple_of(GRAIN_BYTES);
        Self {
            requested_bytes: request.bytes,
            bytes,
            alignment_bytes: request.alignment_bytes.max(GRAIN_BYTES),
            half: if bytes <= SMALL_BYTES { Half::Small } else { Half::Large },
            lane,
        }
    }

    /// What memory at any address needs to hold it.
    pub(super) fn worst_bytes(&self) -> u64 {
        self.bytes + (self.alignment_bytes - GRAIN_BYTES)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) half: Half,
    pub(super) lane: LaneKey,
    uses: SmallVec<[LaneKey; 2]>,
}

/// A block that was given back and waits.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) address: u64,
    pub(super) block: Live,
    /// Where it goes.
    target: LaneKey,
    waits: SmallVec<[LaneKey; 2]>,
    given_back_at: u64,
}

/// The state of one pool.
#[derive(Debug, Default)]
pub(super) struct Core {
    small: Carver,
    large: Carver,
    pub(super) lanes: Lanes,
    open_routes: BTreeSet<u64>,
    pub(super) live: BTreeMap<u64, Live>,
    pub(super) pending: Vec<Pending>,
    clock: u64,
    pub(super) stats: DeviceStats,
}

impl Core {
    pub(super) fn carver(&self, half: Half) -> &Carver {
        match half {
            Half::Small => &self.small,
            Half::Large => &self.large,
        }
    }

    pub(super) fn carver_mut(&mut self, half: Half) -> &mut Carver {
        match half {
            Half::Small => &mut self.small,
            Half::Large => &mut self.large,
        }
    }

    /// Now; everything freed so far was freed at this time or before.
    pub(super) fn now(&self) -> u64 {
        self.clock
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Blocks that callers hold or streams still use.
    pub(super) fn blocks(&self) -> usize {
        self.live.len() + self.pending.len()
    }

    /// Captures of this route may allocate from now on.
    pub(super) fn open_route(&mut self, route: u64) {
        self.open_routes.insert(route);
    }

    /// Serves a request from free memory.
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<DevicePtr> {
        if self.lanes.len() >= SWEEP_LANES {
            self.sweep_lanes();
        }
        let own = self.lanes.number(wanted.lane);
        let seen: SmallVec<[(Lane, u64); 4]> = self.lanes.seen_by(own).collect();
        let always = u64::MAX;
        let sources = [(own, always)].into_iter().chain(seen).chain([(Lane::ANYONE, always)]);
        let carver = self.carver_mut(wanted.half);
        let mut found = None;
        for (lane, until) in sources {
            found = carver.take(lane, until, wanted.bytes, wanted.alignment_bytes);
            if found.is_some() {
                break;
            }
        }
        let address = found?;
        let Wanted { bytes, requested_bytes, half, lane, .. } = *wanted;
        self.count_in(half, bytes, requested_bytes);
        self.live.insert(address, Live { bytes, requested_bytes, half, lane, uses: SmallVec::new() });
        Some(DevicePtr::new(address))
    }

    /// Lanes of streams that have nothing free would pile up in a program that makes streams all the time.
    fn sweep_lanes(&mut self) {
        let needed: BTreeSet<LaneKey> = self
            .pending
            .iter()
            .flat_map(|pending| pending.waits.iter().copied().chain([pending.target]))
            .collect();
        let (small, large) = (&self.small, &self.large);
        self.lanes.sweep(|key, lane| small.has_free(lane) || large.has_free(lane) || needed.contains(&key));
    }

    pub(super) fn count_in(&mut self, half: Half, bytes: u64, requested_bytes: u64) {
        let (stats, kind) = (&mut self.stats, half.kind());
        stats.allocation.increase(kind, 1);
        stats.active.increase(kind, 1);
        stats.allocated_bytes.increase(kind, bytes);
        stats.active_bytes.increase(kind, bytes);
        stats.requested_bytes.increase(kind, requested_bytes);
    }

    pub(super) fn count_given_back(&mut self, block: &Live) {
        let (stats, kind) = (&mut self.stats, block.half.kind());
        stats.allocation.decrease(kind, 1);
        stats.allocated_bytes.decrease(kind, block.bytes);
        stats.requested_bytes.decrease(kind, block.requested_bytes);
    }

    /// The free bytes before `end` that this request could use together with what comes there, and their lane.
    pub(super) fn usable_before(&mut self, end: u64, wanted: &Wanted) -> (Lane, u64) {
        let own = self.lanes.number(wanted.lane);
        match self.carver(wanted.half).free_before(end) {
            Some((lane, bytes)) if lane == own || lane == Lane::ANYONE => (lane, bytes),
            _ => (Lane::ANYONE, 0),
        }
    }

    /// Takes over memory from the driver.
    pub(super) fn admit(&mut self, half: Half, grown: Grown, segments: u64, lane: Lane) {
        let now = self.now();
        self.carver_mut(half).admit(grown.base, grown.bytes, grown.starts_region, lane, now);
        self.stats.segment.increase(half.kind(), segments);
        self.stats.reserved_bytes.increase(half.kind(), grown.bytes);
        self.stats.num_device_alloc += segments;
    }

    /// Takes out a region that is free for anyone, all of it.
    pub(super) fn take_out(&mut self, half: Half, base: u64, bytes: u64) -> bool {
        let taken = self.carver_mut(half).remove_range(base, bytes);
        if taken {
            self.stats.segment.decrease(half.kind(), 1);
            self.stats.reserved_bytes.decrease(half.kind(), bytes);
            self.stats.num_device_free += 1;
        }
        taken
    }

    /// The driver refused a region that was taken out.
    pub(super) fn put_back(&mut self, half: Half, base: u64, bytes: u64) {
        let now = self.now();
        self.carver_mut(half).admit(base, bytes, true, Lane::ANYONE, now);
        self.stats.segment.increase(half.kind(), 1);
        self.stats.reserved_bytes.increase(half.kind(), bytes);
        self.stats.num_owed_give_backs += 1;
    }

    /// Takes a block back.
    pub(super) fn give_back(&mut self, ptr: DevicePtr) -> Result<(), AllocError> {
        self.find_live(ptr)?;
        let address = ptr.raw();
        let Some(block) = self.live.remove(&address) else { return Ok(()) };
        self.count_given_back(&block);
        let given_back_at = self.tick();
        let target = if self.is_open(block.lane) { block.lane } else { block.lane.outside() };
        let own = self.lanes.number(target);
        let mut waits = SmallVec::new();
        for using in &block.uses {
            // A capture that is over has its graph as the user, and that comes in turn with the others of the pool.
            let is_over = using.scope.is_some() && !self.is_open(*using);
            if *using == target || is_over {
                continue;
            }
            let lane = self.lanes.number(*using);
            if !self.lanes.has_seen(own, lane, given_back_at) {
                waits.push(*using);
            }
        }
        if waits.is_empty() {
            self.free(address, &block, target);
        } else {
            self.pending.push(Pending { address, block, target, waits, given_back_at });
        }
        Ok(())
    }

    fn is_open(&self, key: LaneKey) -> bool {
        key.scope.is_some_and(|scope| self.open_routes.contains(&scope.route))
    }

    fn free(&mut self, address: u64, block: &Live, target: LaneKey) {
        let (stats, kind) = (&mut self.stats, block.half.kind());
        stats.active.decrease(kind, 1);
        stats.active_bytes.decrease(kind, block.bytes);
        // A capture that ended while the block waited: its graph is the last user.
        let lane = if target.scope.is_none() || self.is_open(target) {
            self.lanes.number(target)
        } else {
            Lane::ANYONE
        };
        let stamp = self.tick();
        self.carver_mut(block.half).release(address, lane, stamp);
    }

    /// Ends the waits that `has_ended` names, and frees the blocks that wait no more.
    fn end_waits(&mut self, has_ended: impl Fn(&Lanes, &Pending, LaneKey) -> bool) {
        let mut still = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            let mut waits = std::mem::take(&mut pending.waits);
            waits.retain(|wait| !has_ended(&self.lanes, &pending, *wait));
            if waits.is_empty() {
                self.free(pending.address, &pending.block, pending.target);
            } else {
                still.push(Pending { waits, ..pending });
            }
        }
        self.pending = still;
    }

    /// Another stream uses the block.
    pub(super) fn record_use(&mut self, ptr: DevicePtr, lane: LaneKey) -> Result<(), AllocError> {
        self.find_live(ptr)?;
        if let Some(block) = self.live.get_mut(&ptr.raw())
            && block.lane != lane
            && !block.uses.contains(&lane)
        {
            block.uses.push(lane);
        }
        Ok(())
    }

    /// What comes in `after` waits for all that is in `before`.
    pub(super) fn order(&mut self, before: LaneKey, after: LaneKey) {
        let now = self.now();
        let (before, after) = (self.lanes.number(before), self.lanes.number(after));
        self.lanes.order(before, after, now);
        let numbers: BTreeMap<LaneKey, Lane> = self
            .pending
            .iter()
            .flat_map(|pending| pending.waits.iter().copied().chain([pending.target]))
            .map(|key| (key, self.lanes.number(key)))
            .collect();
        self.end_waits(|lanes, pending, wait| {
            let (own, other) = (numbers.get(&pending.target), numbers.get(&wait));
            own.zip(other).is_some_and(|(own, other)| lanes.has_seen(*own, *other, pending.given_back_at))
        });
    }

    /// The captures of this route have ended: what they freed is free for anyone.
    pub(super) fn close_route(&mut self, route: u64) {
        self.open_routes.remove(&route);
        for lane in self.lanes.close(route) {
            for half in Half::BOTH {
                self.carver_mut(half).move_lane(lane, Lane::ANYONE, u64::MAX);
            }
        }
        self.end_waits(|_, _, wait| wait.scope.is_some_and(|scope| scope.route == route));
    }

    /// Streams outside of captures whose work has to be finished before others can use what they freed.
    pub(super) fn unfinished(&self) -> Vec<LaneKey> {
        let mut unfinished: BTreeSet<LaneKey> = self
            .lanes
            .outside()
            .filter(|(_, lane)| Half::BOTH.iter().any(|half| self.carver(*half).has_free(*lane)))
            .map(|(key, _)| key)
            .collect();
        let waits = self.pending.iter().flat_map(|pending| &pending.waits);
        unfinished.extend(waits.filter(|wait| wait.scope.is_none()));
        unfinished.into_iter().collect()
    }

    /// All that the stream had at time `until` is finished.
    pub(super) fn finished(&mut self, key: LaneKey, until: u64) {
        // First the waits: what they free goes into lanes that may be finished too.
        self.end_waits(|_, pending, wait| wait == key && pending.given_back_at <= until);
        let lane = self.lanes.number(key);
        for half in Half::BOTH {
            self.carver_mut(half).move_lane(lane, Lane::ANYONE, until);
        }
    }

    /// The same for all streams outside of captures.
    pub(super) fn all_finished(&mut self, until: u64) {
        for key in self.unfinished() {
            self.finished(key, until);
        }
    }

    /// The live block that starts at `ptr`, or what is wrong with the address.
    pub(super) fn find_live(&self, ptr: DevicePtr) -> Result<&Live, AllocError> {
        let address = ptr.raw();
        match self.live.range(..=address).next_back() {
            Some((at, block)) if *at == address => Ok(block),
            Some((at, block)) if address - at < block.bytes => {
                Err(AllocError::InsideBlock { ptr, block: DevicePtr::new(*at) })
            }
            _ => Err(AllocError::AlreadyGivenBack { ptr }),
        }
    }

    /// A block that streams still use.
    pub(super) fn first_pending(&self) -> Option<(u64, u64)> {
        self.pending.first().map(|pending| (pending.address, pending.block.bytes))
    }
}
