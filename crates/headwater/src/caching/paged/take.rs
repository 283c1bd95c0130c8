//! Hits: from a request to a live block, by a search among free ranges.

use headwater_driver::DevicePtr;

use super::Core;
use super::extents::Region;
use super::lifetimes::Habit;
use super::policy::{CROSS_HANDLES, NEAR_PEAK_PERCENT, SMALL_MAX_BYTES, handle_cap_bytes};
use crate::caching::classic::blocks::State;
use crate::caching::classic::{BlockId, Tag, Wanted};
use crate::config::MIN_BLOCK_BYTES;

impl Core {
    /// Serves a request from free memory that its stream may use, where blocks like it lie.
    pub(crate) fn take(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        let id = self.fitting(wanted, tag)?;
        self.unlist(id);
        Some(self.carve(id, wanted, tag, false))
    }

    /// The same from among all large blocks, for a large request that can have no memory moved to where it belongs.
    pub(crate) fn take_crossing(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        if wanted.padded_bytes <= SMALL_MAX_BYTES {
            return None;
        }
        self.take_from(&[Region::Long, Region::Short], wanted, tag)
    }

    /// The same from any region, for when nothing else is left.
    pub(crate) fn take_anywhere(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        self.take_from(&Region::ALL, wanted, tag)
    }

    fn take_from(&mut self, regions: &[Region], wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        let fits = regions.iter().filter_map(|region| self.best_fit(*region, wanted.padded_bytes, tag));
        let id = fits.min_by_key(|id| self.order(*id))?;
        self.unlist(id);
        Some(self.carve(id, wanted, tag, false))
    }

    /// The free range that a request is served from: in its own region, or else in that of the other large blocks where it may
    /// cross over.
    pub(super) fn fitting(&self, wanted: &Wanted, tag: Tag) -> Option<BlockId> {
        let own = self.region_for(wanted, tag);
        let other = match own {
            Region::Small => None,
            Region::Long => Some(Region::Short),
            Region::Short => Some(Region::Long),
        };
        let fit = |region: Region| self.best_fit(region, wanted.padded_bytes, tag);
        fit(own).or_else(|| other.filter(|_| self.may_cross(wanted)).and_then(fit))
    }

    /// Whether a request may be served among blocks of the other kind. Away from the peak, always: it costs nothing. Near it a
    /// block in the wrong place strands a handle when waste counts, and so a few handles are moved instead.
    fn may_cross(&self, wanted: &Wanted) -> bool {
        let live = u128::from(self.stats.requested_bytes.all.current + wanted.requested_bytes);
        let is_near_peak = live * 100 > u128::from(self.peak_live_bytes) * u128::from(NEAR_PEAK_PERCENT);
        let cap_bytes = handle_cap_bytes(self.peak_reserved_bytes, self.granularity_bytes);
        !is_near_peak || wanted.padded_bytes > CROSS_HANDLES * cap_bytes
    }

    /// Where a request belongs.
    pub(super) fn region_for(&self, wanted: &Wanted, tag: Tag) -> Region {
        if wanted.padded_bytes <= SMALL_MAX_BYTES {
            Region::Small
        } else if self.lifetimes.is_short(self.lifetimes.habit(tag, wanted.padded_bytes)) {
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
        let habit = if wanted.padded_bytes > SMALL_MAX_BYTES {
            self.lifetimes.served(tag, wanted.padded_bytes)
        } else {
            Habit::default()
        };
        let block = &mut self.blocks[id];
        block.tag = tag;
        block.state = State::Live;
        block.requested_bytes = wanted.requested_bytes;
        block.inner_offset = inner_offset;
        block.born_at = born_at;
        block.habit = habit;
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
