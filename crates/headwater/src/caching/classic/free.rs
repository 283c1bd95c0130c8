//! Give-back: waits, and merging with free neighbours.

use headwater_driver::DevicePtr;
use smallvec::SmallVec;

use super::blocks::State;
use super::{BlockId, Core, InactiveChange, Tag};
use crate::AllocError;
use crate::stats::PoolKind;

impl Core {
    /// Announces that work in `stream` uses the block too. Says whether that is news.
    pub(crate) fn add_use(&mut self, ptr: DevicePtr, tag: Tag) -> Result<bool, AllocError> {
        let id = self.find_live(ptr)?;
        let block = &mut self.blocks[id];
        let news = block.tag != tag && !block.uses.contains(&tag);
        if news {
            block.uses.push(tag);
        }
        Ok(news)
    }

    /// Takes a live block back. It is pending until [`free`](Self::free) is called for it.
    pub(crate) fn give_back(&mut self, ptr: DevicePtr) -> Result<BlockId, AllocError> {
        let id = self.find_live(ptr)?;
        self.live.remove(&ptr);
        self.tick();
        let pool = self.pool_of(id);
        let block = &mut self.blocks[id];
        block.state = State::Pending;
        block.filled = false;
        block.given_back_at = self.tags.tick_in(block.tag, self.ticks);
        let (bytes, requested_bytes) = (block.bytes, block.requested_bytes);
        let stats = &mut self.stats;
        stats.allocation.decrease(pool, 1);
        stats.allocated_bytes.decrease(pool, bytes);
        stats.requested_bytes.decrease(pool, requested_bytes);
        if self.rules.is_oversize(bytes) {
            stats.oversize_allocations.decrease(1);
        }
        Ok(id)
    }

    /// The other streams that use a block which was just given back; its caller now waits for each.
    pub(crate) fn take_uses(&mut self, id: BlockId) -> SmallVec<[Tag; 2]> {
        std::mem::take(&mut self.blocks[id].uses)
    }

    /// Something was queued in the block's stream after it was given back: it counts as given back now.
    pub(crate) fn renew_give_back(&mut self, id: BlockId) {
        self.tick();
        let block = &mut self.blocks[id];
        block.given_back_at = self.tags.tick_in(block.tag, self.ticks);
    }

    /// Makes a pending block free: it merges with its free neighbours and can be taken.
    pub(crate) fn free(&mut self, id: BlockId) {
        let pool = self.pool_of(id);
        let block = &mut self.blocks[id];
        debug_assert!(block.state == State::Pending && block.waits == 0 && block.uses.is_empty());
        block.state = State::Free;
        block.requested_bytes = 0;
        block.inner_offset = 0;
        if self.tags.is_ownerless(block.tag, block.given_back_at) {
            block.tag = Tag::ANY;
        }
        let bytes = block.bytes;
        self.stats.active.decrease(pool, 1);
        self.stats.active_bytes.decrease(pool, bytes);
        let mut change = InactiveChange::default();
        if self.is_offered(id) {
            // The driver is being asked to take it: nobody may have it meanwhile.
            self.blocks[id].state = State::Offered;
            change.add(self.blocks[id].is_split(), bytes);
        } else {
            let id = self.merge(id, &mut change);
            self.list(id, &mut change);
        }
        change.apply(&mut self.stats, pool);
    }

    /// Moves the finished free blocks of a stream that is gone to where every stream finds them.
    pub(crate) fn disown(&mut self, tag: Tag) {
        for pool in [PoolKind::SmallPool, PoolKind::LargePool] {
            // One at a time: each may merge with others.
            while let Some(id) = self.first_ownerless(pool, tag) {
                let mut change = InactiveChange::default();
                self.unlist(id, &mut change);
                self.blocks[id].tag = Tag::ANY;
                let id = self.merge(id, &mut change);
                self.list(id, &mut change);
                change.apply(&mut self.stats, pool);
            }
        }
    }

    fn first_ownerless(&self, pool: PoolKind, tag: Tag) -> Option<BlockId> {
        let mut free = self.index(pool).of(tag).map(|(_, id)| id);
        free.find(|id| self.tags.is_ownerless(tag, self.blocks[*id].given_back_at))
    }

    /// Puts a free block into the index.
    pub(super) fn list(&mut self, id: BlockId, change: &mut InactiveChange) {
        let pool = self.pool_of(id);
        let searches = self.index(pool).searches;
        let block = &mut self.blocks[id];
        block.state = State::Free;
        block.free_since = searches;
        let (tag, bytes, ptr) = (block.tag, block.bytes, block.ptr);
        change.add(block.is_split(), bytes);
        self.index_mut(pool).insert(tag, bytes, ptr, id);
    }

    /// Takes a free block out of the index.
    pub(super) fn unlist(&mut self, id: BlockId, change: &mut InactiveChange) {
        let pool = self.pool_of(id);
        let block = &self.blocks[id];
        let (tag, bytes, ptr) = (block.tag, block.bytes, block.ptr);
        change.remove(block.is_split(), bytes);
        let listed = self.index_mut(pool).remove(tag, bytes, ptr, id);
        debug_assert!(listed, "a free block was not in the index");
    }

    /// Merges a free block that is not in the index with its free neighbours, and returns what became of it. A merge can
    /// change whose the memory is, and so make the next one possible: it goes on until nothing more fits.
    pub(super) fn merge(&mut self, mut id: BlockId, change: &mut InactiveChange) -> BlockId {
        loop {
            if let Some(previous) = self.blocks[id].previous
                && let Some(tag) = self.common_tag(previous, id)
            {
                self.unlist(previous, change);
                self.blocks.absorb_next(previous);
                self.blocks[previous].tag = tag;
                id = previous;
            } else if let Some(next) = self.blocks[id].next
                && let Some(tag) = self.common_tag(next, id)
            {
                self.unlist(next, change);
                self.blocks.absorb_next(id);
                self.blocks[id].tag = tag;
            } else {
                return id;
            }
        }
    }

    /// The stream of both blocks together, where they may be merged. Blocks of one stream may; blocks of two where one of
    /// them is finished, because finished memory may be anybody's.
    fn common_tag(&self, neighbour: BlockId, freed: BlockId) -> Option<Tag> {
        let (neighbour, freed) = (&self.blocks[neighbour], &self.blocks[freed]);
        if neighbour.state != State::Free {
            return None;
        }
        if neighbour.tag == freed.tag || self.tags.is_finished(neighbour.tag, neighbour.given_back_at) {
            return Some(freed.tag);
        }
        self.tags.is_finished(freed.tag, freed.given_back_at).then_some(neighbour.tag)
    }
}
