//! Hits: from a request to a live block, by a search among free ranges.

use headwater_driver::DevicePtr;

use super::Core;
use super::extents::Region;
use super::handles::HandleId;
use super::policy::{CUT_MIN_BYTES, NEAR_PEAK_PERCENT, SMALL_MAX_BYTES};
use crate::caching::classic::blocks::State;
use crate::caching::classic::{BlockId, Tag, Wanted};
use crate::config::MIN_BLOCK_BYTES;

/// A handle that a hit would strand the end of, and where to cut it instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutPoint {
    pub(crate) handle: HandleId,
    /// The size of the front part, in whole pages.
    pub(crate) front_bytes: u64,
}

impl Core {
    /// Serves a request from free memory that its stream may use. Nothing where there is none, or where a handle should be
    /// cut first.
    pub(crate) fn take(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        let (id, region) = self.fitting(wanted, tag)?;
        if region == self.region_for(wanted) && self.cut_point(id, wanted).is_some() {
            return None;
        }
        self.unlist(id);
        Some(self.carve(id, wanted, tag, false))
    }

    /// The same, and no handle is cut.
    pub(crate) fn take_uncut(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        let (id, _) = self.fitting(wanted, tag)?;
        self.unlist(id);
        Some(self.carve(id, wanted, tag, false))
    }

    /// The same from any region, for when nothing else is left.
    pub(crate) fn take_anywhere(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        let fits =
            Region::ALL.into_iter().filter_map(|region| self.best_fit(region, wanted.padded_bytes, tag));
        let id = fits.min_by_key(|id| self.order(*id))?;
        self.unlist(id);
        Some(self.carve(id, wanted, tag, false))
    }

    /// The free range that a request is served from: in its own region, or else in that of the other large blocks.
    pub(super) fn fitting(&self, wanted: &Wanted, tag: Tag) -> Option<(BlockId, Region)> {
        let own = self.region_for(wanted);
        let other = match own {
            Region::Small => None,
            Region::Long => Some(Region::Short),
            Region::Short => Some(Region::Long),
        };
        let regions = std::iter::once(own).chain(other);
        regions.filter_map(|region| Some((self.best_fit(region, wanted.padded_bytes, tag)?, region))).next()
    }

    /// Where a request belongs.
    pub(super) fn region_for(&self, wanted: &Wanted) -> Region {
        if wanted.padded_bytes <= SMALL_MAX_BYTES {
            Region::Small
        } else if self.lifetimes.is_short(wanted.padded_bytes) {
            Region::Short
        } else {
            Region::Long
        }
    }

    /// The smallest free range that holds `bytes` and is the stream's own or everybody's; the lowest among equals.
    fn best_fit(&self, region: Region, bytes: u64, tag: Tag) -> Option<BlockId> {
        let index = &self.free[region.place()];
        let first = |tag: Tag| index.at_least(tag, bytes).next().map(|(_, id)| id);
        match (first(tag), first(Tag::ANY)) {
            (Some(own), Some(any)) => Some(if self.order(own) <= self.order(any) { own } else { any }),
            (own, any) => own.or(any),
        }
    }

    fn order(&self, id: BlockId) -> (u64, u64) {
        let block = &self.blocks[id];
        (block.bytes, block.ptr)
    }

    /// Whether the request would be served near the peak of live memory.
    fn is_near_peak(&self, wanted: &Wanted) -> bool {
        let live = u128::from(self.stats.requested_bytes.all.current + wanted.requested_bytes);
        live * 100 > u128::from(self.peak_live_bytes) * u128::from(NEAR_PEAK_PERCENT)
    }

    /// Where the request, served at the beginning of `id`, would strand much of a handle that is free as a whole now.
    pub(super) fn cut_point(&self, id: BlockId, wanted: &Wanted) -> Option<CutPoint> {
        if wanted.padded_bytes <= SMALL_MAX_BYTES || !self.is_near_peak(wanted) {
            return None;
        }
        let block = &self.blocks[id];
        let end = block.ptr + wanted.padded_bytes;
        let handle = self.handle_at(block.segment.0 as usize, end - 1)?;
        let mapped = self.handles.get(handle)?;
        let is_whole = mapped.address >= block.ptr && mapped.end() <= block.ptr + block.bytes;
        if !is_whole || mapped.end() - end < CUT_MIN_BYTES {
            return None;
        }
        let front_bytes = (end - mapped.address).next_multiple_of(self.granularity_bytes);
        (front_bytes < mapped.bytes).then_some(CutPoint { handle, front_bytes })
    }

    /// Makes a block that is out of the index live, and lists what is not needed of it. `is_new`: it was never in the index.
    pub(super) fn carve(&mut self, id: BlockId, wanted: &Wanted, tag: Tag, is_new: bool) -> DevicePtr {
        let block = &self.blocks[id];
        let inner_offset = block.ptr.next_multiple_of(wanted.alignment_bytes) - block.ptr;
        // Whole block units, so that the rest begins at one.
        let needed_bytes =
            (inner_offset + wanted.block_bytes).next_multiple_of(MIN_BLOCK_BYTES).min(block.bytes);
        if needed_bytes < block.bytes {
            let rest = self.split(id, needed_bytes);
            if is_new {
                // What was just put together may have a neighbour that it belongs to.
                self.settle(rest);
            } else {
                self.list(rest);
            }
        }
        self.allocations += 1;
        let born_at = self.allocations;
        let block = &mut self.blocks[id];
        block.tag = tag;
        block.state = State::Live;
        block.requested_bytes = wanted.requested_bytes;
        block.inner_offset = inner_offset;
        block.born_at = born_at;
        let (ptr, bytes, start, extent) =
            (block.outer_ptr(), block.bytes, block.ptr, block.segment.0 as usize);
        self.live.insert(ptr, id);
        self.change_use(extent, start..start + bytes, true);
        let pool = self.extents[extent].region.pool();
        let stats = &mut self.stats;
        stats.allocation.increase(pool, 1);
        stats.allocated_bytes.increase(pool, bytes);
        stats.requested_bytes.increase(pool, wanted.requested_bytes);
        stats.active.increase(pool, 1);
        stats.active_bytes.increase(pool, bytes);
        self.peak_live_bytes = self.peak_live_bytes.max(stats.requested_bytes.all.current);
        ptr
    }
}
