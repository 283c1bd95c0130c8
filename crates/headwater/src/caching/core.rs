//! One core behind the lock, of one of two kinds. What both can do is here; what only one can is asked of it by name.

use headwater_driver::{DeviceId, DevicePtr, Stream};
use smallvec::SmallVec;

use super::classic::blocks::{Block, BlockTable};
use super::classic::{self, BlockId, Tag, Tags, Wanted};
use super::paged;
use crate::AllocError;
use crate::allocator::BlockFacts;
use crate::stats::{DeviceStats, PoolKind, WalkedTotals};

/// The core of either backing.
#[derive(Debug)]
pub(crate) enum Core {
    /// Segments of plain memory.
    Classic(Box<classic::Core>),
    /// Handles in an arena.
    Paged(Box<paged::Core>),
}

/// Calls the same method on whichever there is.
macro_rules! either {
    ($self:ident, $core:ident => $call:expr) => {
        match $self {
            Core::Classic($core) => $call,
            Core::Paged($core) => $call,
        }
    };
}

impl Core {
    pub(crate) fn classic_mut(&mut self) -> Option<&mut classic::Core> {
        match self {
            Self::Classic(core) => Some(core),
            Self::Paged(_) => None,
        }
    }

    pub(crate) fn paged(&self) -> Option<&paged::Core> {
        match self {
            Self::Paged(core) => Some(core),
            Self::Classic(_) => None,
        }
    }

    pub(crate) fn paged_mut(&mut self) -> Option<&mut paged::Core> {
        match self {
            Self::Paged(core) => Some(core),
            Self::Classic(_) => None,
        }
    }

    pub(crate) fn tags(&self) -> &Tags {
        either!(self, core => &core.tags)
    }

    pub(crate) fn tags_mut(&mut self) -> &mut Tags {
        either!(self, core => &mut core.tags)
    }

    pub(crate) fn stats(&self) -> &DeviceStats {
        either!(self, core => &core.stats)
    }

    pub(crate) fn stats_mut(&mut self) -> &mut DeviceStats {
        either!(self, core => &mut core.stats)
    }

    fn blocks_mut(&mut self) -> &mut BlockTable {
        either!(self, core => &mut core.blocks)
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        either!(self, core => core.limit_bytes())
    }

    pub(crate) fn set_limit_bytes(&mut self, limit_bytes: Option<u64>) {
        either!(self, core => core.set_limit_bytes(limit_bytes));
    }

    pub(crate) fn now(&self) -> u64 {
        either!(self, core => core.now())
    }

    pub(crate) fn tick(&mut self) -> u64 {
        either!(self, core => core.tick())
    }

    pub(crate) fn take(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        either!(self, core => core.take(wanted, tag))
    }

    pub(crate) fn find_live(&self, ptr: DevicePtr) -> Result<BlockId, AllocError> {
        either!(self, core => core.find_live(ptr))
    }

    pub(crate) fn add_use(&mut self, ptr: DevicePtr, tag: Tag) -> Result<bool, AllocError> {
        either!(self, core => core.add_use(ptr, tag))
    }

    pub(crate) fn give_back(&mut self, ptr: DevicePtr) -> Result<BlockId, AllocError> {
        either!(self, core => core.give_back(ptr))
    }

    pub(crate) fn take_uses(&mut self, id: BlockId) -> SmallVec<[Tag; 2]> {
        either!(self, core => core.take_uses(id))
    }

    pub(crate) fn renew_give_back(&mut self, id: BlockId) {
        either!(self, core => core.renew_give_back(id));
    }

    pub(crate) fn free(&mut self, id: BlockId) {
        either!(self, core => core.free(id));
    }

    pub(crate) fn disown(&mut self, tag: Tag) {
        either!(self, core => core.disown(tag));
    }

    pub(crate) fn block(&self, id: BlockId) -> Option<&Block> {
        either!(self, core => core.block(id))
    }

    /// So many requests were served in front of the core, by blocks that it has as live.
    pub(crate) fn count_hits(&mut self, hits: u64) {
        if let Self::Paged(core) = self {
            core.count_hits(hits);
        }
    }

    /// The live block at `ptr` was last held for so many requests, whatever it did before.
    pub(crate) fn set_life(&mut self, ptr: DevicePtr, requests: u64) {
        if let Self::Paged(core) = self {
            core.set_life(ptr, requests);
        }
    }

    /// The pool that a block is counted in.
    pub(crate) fn pool_of(&self, id: BlockId) -> PoolKind {
        either!(self, core => core.pool_of(id))
    }

    pub(crate) fn block_at(&self, ptr: DevicePtr, device: DeviceId) -> Option<BlockFacts> {
        either!(self, core => core.block_at(ptr, device))
    }

    pub(crate) fn stream_of(&self, tag: Tag, device: DeviceId) -> Stream {
        either!(self, core => core.stream_of(tag, device))
    }

    /// Whether the block is in a segment that is on its way to the driver. Handles go only when nothing is on them.
    pub(crate) fn is_offered(&self, id: BlockId) -> bool {
        match self {
            Self::Classic(core) => core.is_offered(id),
            Self::Paged(_) => false,
        }
    }

    pub(crate) fn largest_free_bytes(&self) -> u64 {
        either!(self, core => core.largest_free_bytes())
    }

    pub(crate) fn largest_free_bytes_of(&self, tag: Option<Tag>) -> u64 {
        either!(self, core => core.largest_free_bytes_of(tag))
    }

    pub(crate) fn releasable_bytes(&self) -> u64 {
        either!(self, core => core.releasable_bytes())
    }

    pub(crate) fn promised_bytes(&self) -> u64 {
        either!(self, core => core.promised_bytes())
    }

    pub(crate) fn sweep_tags(&mut self, is_used: impl Fn(Tag) -> bool) {
        either!(self, core => core.sweep_tags(is_used));
    }

    pub(crate) fn verify(&self) -> Result<(), String> {
        match self {
            Self::Classic(core) => core.verify().map_err(|defect| defect.to_string()),
            Self::Paged(core) => core.verify(),
        }
    }

    pub(crate) fn walked_totals(&self) -> WalkedTotals {
        either!(self, core => core.walked_totals())
    }

    /// Every block.
    pub(crate) fn blocks(&self) -> Vec<&Block> {
        match self {
            Self::Classic(core) => core.walk().flat_map(|(_, _, blocks)| blocks).collect(),
            Self::Paged(core) => core.runs().into_iter().flat_map(|run| run.blocks).collect(),
        }
    }

    /// Notes that the block was overwritten since it was given back.
    pub(crate) fn set_filled(&mut self, id: BlockId) {
        self.blocks_mut()[id].filled = true;
    }

    /// The block waits for one event more.
    pub(crate) fn add_wait(&mut self, id: BlockId) {
        self.blocks_mut()[id].waits += 1;
    }

    /// One of its waits can be answered by no event any more.
    pub(crate) fn lose_wait(&mut self, id: BlockId) {
        let block = &mut self.blocks_mut()[id];
        block.lost_waits += 1;
        debug_assert!(block.lost_waits <= block.waits);
    }

    /// A wait was answered. Says whether it was the last.
    #[must_use]
    pub(crate) fn end_wait(&mut self, id: BlockId) -> bool {
        let block = &mut self.blocks_mut()[id];
        debug_assert!(block.waits > block.lost_waits);
        block.waits -= 1;
        block.waits == 0
    }

    /// A lost wait is over, because the whole device was waited for. Says whether it was the last.
    #[must_use]
    pub(crate) fn end_lost_wait(&mut self, id: BlockId) -> bool {
        let block = &mut self.blocks_mut()[id];
        debug_assert!(block.lost_waits > 0);
        block.lost_waits -= 1;
        block.waits -= 1;
        block.waits == 0
    }
}
