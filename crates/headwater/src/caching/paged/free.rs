//! Give-back, the free index, and merging with free neighbours.

use headwater_driver::DevicePtr;
use smallvec::SmallVec;

use super::Core;
use super::extents::Region;
use super::policy::SMALL_MAX_BYTES;
use crate::AllocError;
use crate::caching::classic::blocks::{Block, State};
use crate::caching::classic::segments::SegmentId;
use crate::caching::classic::{BlockId, Tag};

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
        let pool = self.region_of(id).pool();
        let block = &mut self.blocks[id];
        block.state = State::Pending;
        block.filled = false;
        block.given_back_at = self.tags.tick_in(block.tag, self.ticks);
        let (bytes, requested_bytes) = (block.bytes, block.requested_bytes);
        let stats = &mut self.stats;
        stats.allocation.decrease(pool, 1);
        stats.allocated_bytes.decrease(pool, bytes);
        stats.requested_bytes.decrease(pool, requested_bytes);
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

    /// So many requests were served in front of the core: the clock of lifetimes goes on.
    pub(crate) fn count_hits(&mut self, hits: u64) {
        self.allocations += hits;
    }

    /// The live block at `ptr` was last held for so many requests: what its size's next blocks are expected to do.
    pub(crate) fn set_life(&mut self, ptr: DevicePtr, requests: u64) {
        if let Ok(id) = self.find_live(ptr) {
            self.blocks[id].born_at = self.allocations.saturating_sub(requests);
        }
    }

    /// Makes a pending block free: it merges with its free neighbours and can be taken.
    pub(crate) fn free(&mut self, id: BlockId) {
        let allocations = self.allocations;
        let block = &mut self.blocks[id];
        debug_assert!(block.state == State::Pending && block.waits == 0 && block.uses.is_empty());
        block.requested_bytes = 0;
        block.inner_offset = 0;
        if self.tags.is_ownerless(block.tag, block.given_back_at) {
            block.tag = Tag::ANY;
        }
        let (bytes, start, extent) = (block.bytes, block.ptr, block.segment.0 as usize);
        if bytes > SMALL_MAX_BYTES {
            self.lifetimes.note(block.habit, allocations - block.born_at);
        }
        let pool = self.extents[extent].region.pool();
        self.stats.active.decrease(pool, 1);
        self.stats.active_bytes.decrease(pool, bytes);
        self.change_use(extent, start..start + bytes, false);
        self.settle(id);
    }

    /// Moves the finished free ranges of a stream to where every stream finds them. Those beside free ranges of `asking` join
    /// them: that stream has need of large ones.
    pub(crate) fn share_finished(&mut self, tag: Tag, asking: Option<Tag>) {
        for region in Region::ALL {
            // One at a time: each may merge with others.
            while let Some(id) = self.first_finished(region, tag) {
                self.unlist(id);
                let block = &mut self.blocks[id];
                block.tag = Tag::ANY;
                block.given_back_at = 0;
                self.settle_shared(id, asking);
            }
        }
    }

    fn first_finished(&self, region: Region, tag: Tag) -> Option<BlockId> {
        let mut free = self.free[region.place()].of(tag).map(|(_, id)| id);
        free.find(|id| self.tags.is_finished(tag, self.blocks[*id].given_back_at))
    }

    /// Moves the finished free ranges of a stream that is gone to where every stream finds them.
    pub(crate) fn disown(&mut self, tag: Tag) {
        if self.tags.get(tag).is_some_and(|entry| entry.died_at.is_some() || entry.is_lost) {
            self.share_finished(tag, None);
        }
    }

    /// What stream `from` gave back up to `mark` is ordered before the next work of stream `to`: it is `to`'s from now on.
    pub(crate) fn hand_over(&mut self, from: Tag, mark: u64, to: Tag) {
        let now = self.tick();
        for region in Region::ALL {
            let of_from = self.free[region.place()].of(from);
            let ids: Vec<BlockId> =
                of_from.map(|(_, id)| id).filter(|id| self.blocks[*id].given_back_at <= mark).collect();
            for id in ids {
                // An earlier one may have merged with it.
                if !self.blocks.get(id).is_some_and(|block| block.state == State::Free && block.tag == from) {
                    continue;
                }
                self.unlist(id);
                let block = &mut self.blocks[id];
                block.tag = to;
                // Whoever waits for `to` from now on waits for `from` as well.
                block.given_back_at = now;
                self.settle(id);
            }
        }
    }

    /// Puts a block that is not in the index there, merged with its free neighbours.
    pub(super) fn settle(&mut self, id: BlockId) {
        self.blocks[id].state = State::Free;
        let id = self.merge(id);
        self.list(id);
    }

    /// The same for a range that is everybody's: it does not disappear into a neighbour that is one stream's alone, but for
    /// the one that asks.
    fn settle_shared(&mut self, mut id: BlockId, asking: Option<Tag>) {
        self.blocks[id].state = State::Free;
        let joins = |core: &Self, neighbour: BlockId| {
            let block = &core.blocks[neighbour];
            let tag = (block.tag == Tag::ANY || Some(block.tag) == asking).then_some(block.tag);
            tag.filter(|_| block.state == State::Free)
        };
        loop {
            let Block { previous, next, tag: own, .. } = self.blocks[id];
            // Of two different streams one is everybody's.
            let together = |tag: Tag| if own == Tag::ANY { tag } else { own };
            if let Some((previous, tag)) = previous.and_then(|other| Some((other, joins(self, other)?))) {
                self.unlist(previous);
                self.absorb_next(previous);
                self.blocks[previous].tag = together(tag);
                id = previous;
            } else if let Some((next, tag)) = next.and_then(|other| Some((other, joins(self, other)?))) {
                self.unlist(next);
                self.absorb_next(id);
                self.blocks[id].tag = together(tag);
            } else {
                return self.list(id);
            }
        }
    }

    /// Puts a free block into the index.
    pub(super) fn list(&mut self, id: BlockId) {
        let region = self.region_of(id);
        let block = &mut self.blocks[id];
        block.state = State::Free;
        let (tag, bytes, ptr) = (block.tag, block.bytes, block.ptr);
        self.free[region.place()].insert(tag, bytes, ptr, id);
    }

    /// Takes a free block out of the index.
    pub(super) fn unlist(&mut self, id: BlockId) {
        let region = self.region_of(id);
        let block = &self.blocks[id];
        let (tag, bytes, ptr) = (block.tag, block.bytes, block.ptr);
        let listed = self.free[region.place()].remove(tag, bytes, ptr, id);
        debug_assert!(listed, "a free block was not in the index");
    }

    /// Cuts a block after `bytes` and returns what is behind the cut.
    pub(super) fn split(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let rest = self.blocks.split(id, bytes);
        self.by_address.insert(self.blocks[rest].ptr, rest);
        rest
    }

    pub(super) fn absorb_next(&mut self, id: BlockId) {
        if let Some(next) = self.blocks[id].next {
            self.by_address.remove(&self.blocks[next].ptr);
            self.blocks.absorb_next(id);
        }
    }

    /// Merges a free block that is not in the index with its free neighbours, and returns what became of it. A merge can
    /// change whose the memory is, and so make the next one possible: it goes on until nothing more fits.
    fn merge(&mut self, mut id: BlockId) -> BlockId {
        loop {
            if let Some(previous) = self.blocks[id].previous
                && let Some(tag) = self.common_tag(previous, id)
            {
                self.unlist(previous);
                self.absorb_next(previous);
                self.blocks[previous].tag = tag;
                id = previous;
            } else if let Some(next) = self.blocks[id].next
                && let Some(tag) = self.common_tag(next, id)
            {
                self.unlist(next);
                self.absorb_next(id);
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

    /// Makes a block for addresses that were just mapped. It is in no index and not merged yet.
    pub(super) fn insert_block(
        &mut self,
        extent: usize,
        start: u64,
        bytes: u64,
        tag: Tag,
        tick: u64,
    ) -> BlockId {
        let mut block = Block::new(start, bytes, SegmentId(extent as u64), tag);
        block.state = State::Offered;
        block.given_back_at = tick;
        let in_extent = |id: &BlockId| self.blocks[*id].segment.0 as usize == extent;
        let before = self.by_address.range(..start).next_back().map(|(_, id)| *id).filter(in_extent);
        block.previous = before.filter(|id| self.blocks[*id].ptr + self.blocks[*id].bytes == start);
        block.next = self.by_address.get(&(start + bytes)).copied().filter(in_extent);
        let (previous, next) = (block.previous, block.next);
        let id = self.blocks.insert(block);
        if let Some(previous) = previous {
            self.blocks[previous].next = Some(id);
        }
        if let Some(next) = next {
            self.blocks[next].previous = Some(id);
        }
        self.by_address.insert(start, id);
        id
    }

    /// Forgets a block whose addresses are no longer mapped.
    pub(super) fn remove_block(&mut self, id: BlockId) {
        let Some(block) = self.blocks.remove(id) else { return };
        if let Some(previous) = block.previous {
            self.blocks[previous].next = None;
        }
        if let Some(next) = block.next {
            self.blocks[next].previous = None;
        }
        self.by_address.remove(&block.ptr);
    }
}
