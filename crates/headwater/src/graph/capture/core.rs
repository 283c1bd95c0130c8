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
//!
//! What has just become free lies on a shelf (`shelf.rs`) until somebody needs the free pieces. [`Core::carver_mut`] settles it first,
//! and there is no other way to change them.

use std::collections::{BTreeMap, BTreeSet};

use headwater_driver::DevicePtr;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::captured_order::End;
use super::carver::{Carver, Lane};
use super::lanes::{LaneKey, Lanes};
use super::shelf::{Shelf, Shelved};
use super::wanted::{Half, Wanted};
use crate::error::AllocError;
use crate::graph::fixed_memory::Grown;
use crate::stats::DeviceStats;

/// Lanes are looked through for unused ones when there are this many.
const SWEEP_LANES: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) half: Half,
    pub(super) lane: LaneKey,
    /// Rarely any: a vector keeps the table of blocks small, and an empty one costs nothing.
    uses: Vec<LaneKey>,
}

/// A block that was given back and waits.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) address: u64,
    pub(super) block: Live,
    /// Where it goes.
    pub(super) target: LaneKey,
    pub(super) waits: SmallVec<[LaneKey; 2]>,
    pub(super) given_back_at: u64,
    /// Where captured streams that it waits for ended, where that is looked at.
    pub(super) ends: Vec<End>,
}

/// The memory of one half: pieces, and the used ones among them that are free already.
#[derive(Debug, Default)]
struct Pieces {
    carver: Carver,
    shelf: Shelf,
}

impl Pieces {
    /// What lies on the shelf becomes free pieces, as of when it was given back.
    fn settle(&mut self, lanes: &mut Lanes) {
        for Shelved { address, lane, stamp, .. } in self.shelf.clear() {
            self.carver.release(address, lanes.number(lane), stamp);
        }
    }
}

/// What a give-back led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenBack {
    /// The block waits for other streams.
    pub(super) is_pending: bool,
    /// It was the last block, and no capture is under way.
    pub(super) was_last: bool,
}

impl GivenBack {
    /// Whether there is more to do than to take the block back.
    pub(super) fn needs_care(self) -> bool {
        self.is_pending || self.was_last
    }
}

/// The state of one pool.
#[derive(Debug, Default)]
pub(super) struct Core {
    small: Pieces,
    large: Pieces,
    pub(super) lanes: Lanes,
    open_routes: BTreeSet<u64>,
    /// Blocks that callers hold, by address.
    live: FxHashMap<u64, Live>,
    pub(super) pending: Vec<Pending>,
    clock: u64,
    pub(super) stats: DeviceStats,
}

impl Core {
    fn half(&self, half: Half) -> &Pieces {
        match half {
            Half::Small => &self.small,
            Half::Large => &self.large,
        }
    }

    fn half_mut(&mut self, half: Half) -> (&mut Pieces, &mut Lanes) {
        match half {
            Half::Small => (&mut self.small, &mut self.lanes),
            Half::Large => (&mut self.large, &mut self.lanes),
        }
    }

    /// The pieces of a half as they lie. Those on the shelf are used ones: only for looking.
    pub(super) fn carver(&self, half: Half) -> &Carver {
        &self.half(half).carver
    }

    /// What lies on the shelf of a half.
    pub(super) fn shelf(&self, half: Half) -> &Shelf {
        &self.half(half).shelf
    }

    /// The pieces of a half, settled: everything that is free is a free piece.
    pub(super) fn carver_mut(&mut self, half: Half) -> &mut Carver {
        let (pieces, lanes) = self.half_mut(half);
        if !pieces.shelf.is_empty() {
            pieces.settle(lanes);
        }
        &mut pieces.carver
    }

    /// Settles both halves.
    pub(super) fn settle(&mut self) {
        self.small.settle(&mut self.lanes);
        self.large.settle(&mut self.lanes);
    }

    /// Now; everything freed so far was freed at this time or before.
    pub(super) fn now(&self) -> u64 {
        self.clock
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Blocks that callers hold, in the order of their half and address.
    pub(super) fn live(&self) -> impl Iterator<Item = (u64, &Live)> + '_ {
        let pieces = Half::BOTH.into_iter().flat_map(|half| self.carver(half).pieces());
        pieces.filter_map(|piece| Some((piece.address, self.live.get(&piece.address)?)))
    }

    /// The block that a caller holds at exactly this address.
    pub(super) fn live_at(&self, address: u64) -> Option<&Live> {
        self.live.get(&address)
    }

    /// How many blocks callers hold.
    pub(super) fn live_len(&self) -> usize {
        self.live.len()
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
        let (pieces, _) = self.half_mut(wanted.half);
        let address = match pieces.shelf.take(wanted) {
            Some(address) => address,
            None => self.carve(wanted)?,
        };
        let Wanted { bytes, requested_bytes, half, lane, .. } = *wanted;
        self.put_live(address, Live { bytes, requested_bytes, half, lane, uses: Vec::new() });
        Some(DevicePtr::new(address))
    }

    /// The best fit among the free pieces that the request's stream may use.
    fn carve(&mut self, wanted: &Wanted) -> Option<u64> {
        if self.lanes.len() >= SWEEP_LANES {
            self.sweep_lanes();
        }
        let own = self.lanes.number(wanted.lane);
        let seen: SmallVec<[(Lane, u64); 4]> = self.lanes.seen_by(own).collect();
        let always = u64::MAX;
        let mut sources = [(own, always)].into_iter().chain(seen).chain([(Lane::ANYONE, always)]);
        let carver = self.carver_mut(wanted.half);
        sources.find_map(|(lane, until)| carver.take(lane, until, wanted.bytes, wanted.alignment_bytes))
    }

    /// Lanes of streams that have nothing free would pile up in a program that makes streams all the time.
    fn sweep_lanes(&mut self) {
        let needed: BTreeSet<LaneKey> = self
            .pending
            .iter()
            .flat_map(|pending| pending.waits.iter().copied().chain([pending.target]))
            .collect();
        self.settle();
        let (small, large) = (&self.small.carver, &self.large.carver);
        self.lanes.sweep(|key, lane| small.has_free(lane) || large.has_free(lane) || needed.contains(&key));
    }

    fn count_in(&mut self, half: Half, bytes: u64, requested_bytes: u64) {
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
        match self.carver_mut(wanted.half).free_before(end) {
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
    pub(super) fn give_back(&mut self, ptr: DevicePtr) -> Result<GivenBack, AllocError> {
        let address = ptr.raw();
        let Some(block) = self.live.remove(&address) else { return Err(self.no_block(ptr)) };
        self.count_given_back(&block);
        let given_back_at = self.tick();
        let target = if self.is_open(block.lane) { block.lane } else { block.lane.outside() };
        let waits = if block.uses.is_empty() {
            SmallVec::new()
        } else {
            self.waits(&block.uses, target, given_back_at)
        };
        let is_pending = !waits.is_empty();
        if is_pending {
            self.pending.push(Pending { address, block, target, waits, given_back_at, ends: Vec::new() });
        } else {
            self.shelve(address, &block, target);
        }
        Ok(GivenBack { is_pending, was_last: self.blocks() == 0 && self.open_routes.is_empty() })
    }

    /// Those of a block's users that a block given back to `target` now has to wait for.
    fn waits(&mut self, uses: &[LaneKey], target: LaneKey, given_back_at: u64) -> SmallVec<[LaneKey; 2]> {
        let own = self.lanes.number(target);
        let mut waits = SmallVec::new();
        for using in uses {
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
        waits
    }

    fn is_open(&self, key: LaneKey) -> bool {
        key.scope.is_some_and(|scope| self.open_routes.contains(&scope.route))
    }

    /// A block that waited is free.
    fn free(&mut self, address: u64, block: &Live, target: LaneKey) {
        if target.scope.is_none() || self.is_open(target) {
            self.shelve(address, block, target);
        } else {
            // A capture that ended while the block waited: its graph is the last user.
            let stamp = self.count_free(block);
            self.carver_mut(block.half).release(address, Lane::ANYONE, stamp);
        }
    }

    /// A block is free in `target`, which is outside of captures or in one that is under way.
    fn shelve(&mut self, address: u64, block: &Live, target: LaneKey) {
        let stamp = self.count_free(block);
        let (pieces, lanes) = self.half_mut(block.half);
        if pieces.shelf.is_full() {
            pieces.settle(lanes);
        }
        pieces.shelf.put(Shelved { address, bytes: block.bytes, lane: target, stamp });
    }

    /// Counts a block that nobody uses any more. Returns the time.
    fn count_free(&mut self, block: &Live) -> u64 {
        let (stats, kind) = (&mut self.stats, block.half.kind());
        stats.active.decrease(kind, 1);
        stats.active_bytes.decrease(kind, block.bytes);
        self.tick()
    }

    /// Takes out all blocks that callers hold, in the order of [`live`](Self::live).
    pub(super) fn take_live(&mut self) -> Vec<(u64, Live)> {
        let all = self.live().map(|(address, block)| (address, block.clone())).collect();
        self.live.clear();
        all
    }

    /// A block that a caller holds from now on: its piece is used already.
    pub(super) fn put_live(&mut self, address: u64, block: Live) {
        self.count_in(block.half, block.bytes, block.requested_bytes);
        self.live.insert(address, block);
    }

    /// Ends the waits that `has_ended` names, and frees the blocks that wait no more.
    pub(super) fn end_waits(&mut self, has_ended: impl Fn(&Lanes, &Pending, LaneKey) -> bool) {
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
        let Some(block) = self.live.get_mut(&ptr.raw()) else { return Err(self.no_block(ptr)) };
        if block.lane != lane && !block.uses.contains(&lane) {
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
        // While its lanes still have numbers.
        self.settle();
        self.open_routes.remove(&route);
        for lane in self.lanes.close(route) {
            for half in Half::BOTH {
                self.carver_mut(half).move_lane(lane, Lane::ANYONE, u64::MAX);
            }
        }
        self.end_waits(|_, _, wait| wait.scope.is_some_and(|scope| scope.route == route));
    }

    /// Streams outside of captures whose work has to be finished before others can use what they freed.
    pub(super) fn unfinished(&mut self) -> Vec<LaneKey> {
        self.settle();
        let (small, large) = (&self.small.carver, &self.large.carver);
        let mut unfinished: BTreeSet<LaneKey> = self
            .lanes
            .outside()
            .filter(|(_, lane)| small.has_free(*lane) || large.has_free(*lane))
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

    /// What is wrong with an address at which no live block starts.
    #[cold]
    fn no_block(&self, ptr: DevicePtr) -> AllocError {
        let piece = Half::BOTH.into_iter().find_map(|half| self.carver(half).piece_at(ptr.raw()));
        match piece.filter(|piece| self.live.contains_key(&piece.address)) {
            Some(piece) => AllocError::InsideBlock { ptr, block: DevicePtr::new(piece.address) },
            None => AllocError::AlreadyGivenBack { ptr },
        }
    }

    /// A block that streams still use.
    pub(super) fn first_pending(&self) -> Option<(u64, u64)> {
        self.pending.first().map(|pending| (pending.address, pending.block.bytes))
    }
}
