//! Where the memory for a gap comes from before the driver is asked for more: handles that are mapped nowhere, and handles
//! that are free as a whole elsewhere.
//!
//! Handles are taken whole. Cutting one in two costs as much as three new ones; in a prototype it lowered the waste of two of eleven
//! programs by 0.2 to 0.3 points, and raised driver time by up to 0.2 points.

use smallvec::SmallVec;

use super::handles::HandleId;
use super::plan::{Filling, Source, Taken};
use super::policy::VIEWS_MAX;
use super::{Core, Loose};
use crate::caching::classic::blocks::State;
use crate::caching::classic::{BlockId, Tag, Wanted};

impl Core {
    pub(super) fn fill_from_loose(&mut self, filling: &mut Filling) {
        while let Some(place) = self.loose.iter().position(|loose| loose.bytes <= filling.missing_bytes) {
            let Loose { handle, bytes } = self.loose.swap_remove(place);
            filling.add(bytes, Source::Loose(handle));
        }
    }

    /// Takes handles from elsewhere for what may not be created at once.
    pub(super) fn fill_from_elsewhere(
        &mut self,
        filling: &mut Filling,
        wanted: &Wanted,
        tag: Tag,
        growable_bytes: u64,
    ) {
        let live_bytes = self.stats.requested_bytes.all.current + wanted.requested_bytes;
        let peak_bytes = self.peak_reserved_bytes.max(self.peak_live_bytes).max(live_bytes);
        let held_bytes = self.reserved_bytes() + self.promised_bytes;
        let regrow_bytes =
            peak_bytes.saturating_sub(held_bytes) / self.granularity_bytes * self.granularity_bytes;
        let mut due_bytes = filling.missing_bytes.saturating_sub(regrow_bytes.min(growable_bytes));
        while due_bytes > 0 {
            let most_bytes = due_bytes.min(filling.room_bytes);
            let found = self.handles.whole_free_up_to(most_bytes).find(|id| self.can_be_taken(*id, tag));
            // Where only larger ones are left, the smallest of them: what is not needed of it stays free there.
            let found = found.or_else(|| {
                let larger = self.handles.whole_free_above(due_bytes);
                let fits = |id: &HandleId| {
                    self.handles.get(*id).is_some_and(|mapped| mapped.bytes <= filling.room_bytes)
                };
                larger.take_while(fits).find(|id| self.can_be_taken(*id, tag))
            });
            let Some(id) = found else { return };
            let Some(mut taken) = self.speak_for(id, tag) else { return };
            taken.keeps_view = taken.tick.is_some() || self.views.len() < VIEWS_MAX;
            due_bytes = due_bytes.saturating_sub(taken.bytes());
            filling.add(taken.bytes(), Source::Take(taken));
        }
    }

    /// Whether a whole-free handle can be mapped elsewhere for stream `tag`.
    pub(super) fn can_be_taken(&self, id: HandleId, tag: Tag) -> bool {
        let free = self.blocks_on(id);
        let usable = !free.is_empty() && free.iter().all(|id| self.may_use(*id, tag));
        // One whose old mapping has to stay adds to those.
        usable && (self.views.len() < VIEWS_MAX || self.is_finished(&free))
    }

    /// Whether a whole-free handle can be released: nothing uses it any more, at this or any former address.
    pub(super) fn can_be_released(&self, id: HandleId) -> bool {
        let handle = self.handles.get(id).and_then(|mapped| mapped.handle);
        let is_viewed = handle.is_none_or(|handle| self.views.has(handle));
        !is_viewed && self.handles.is_whole_free(id) && self.is_finished(&self.blocks_on(id))
    }

    fn is_finished(&self, free: &[BlockId]) -> bool {
        free.iter().all(|id| {
            let block = &self.blocks[*id];
            self.tags.is_finished(block.tag, block.given_back_at)
        })
    }

    /// The blocks that have a part of a handle.
    pub(super) fn blocks_on(&self, id: HandleId) -> SmallVec<[BlockId; 2]> {
        let Some(mapped) = self.handles.get(id) else { return SmallVec::new() };
        let first = self.by_address.range(..=mapped.address).next_back().map(|(_, id)| *id);
        let chain = std::iter::successors(first, |id| self.blocks[*id].next);
        chain.take_while(|id| self.blocks[*id].ptr < mapped.end()).collect()
    }

    /// Takes a whole-free handle out of every index, with the free ranges on it.
    pub(super) fn speak_for(&mut self, id: HandleId, tag: Tag) -> Option<Taken> {
        let mapped = *self.handles.get(id)?;
        let (range, handle) = (mapped.range(), mapped.handle?);
        let mut tick = None;
        let mut blocks = SmallVec::new();
        for mut block in self.blocks_on(id) {
            self.unlist(block);
            if self.blocks[block].ptr < range.start {
                let rest = self.split(block, range.start - self.blocks[block].ptr);
                self.list(block);
                block = rest;
            }
            let end = self.blocks[block].ptr + self.blocks[block].bytes;
            if end > range.end {
                let rest = self.split(block, range.end - self.blocks[block].ptr);
                self.list(rest);
            }
            let part = &mut self.blocks[block];
            part.state = State::Offered;
            if part.tag == tag && !self.tags.is_finished(tag, part.given_back_at) {
                tick = tick.max(Some(part.given_back_at));
            }
            blocks.push(block);
        }
        self.change_use(mapped.extent, range.clone(), true);
        Some(Taken { handle, range, id, extent: mapped.extent, blocks, tick, keeps_view: false })
    }

    /// Holds a free range back that is out of the index.
    pub(super) fn hold(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.state = State::Offered;
        let (extent, range) = (block.segment.0 as usize, block.ptr..block.ptr + block.bytes);
        self.change_use(extent, range, true);
    }

    /// A range that was held back is free again.
    pub(super) fn let_go(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let (extent, range) = (block.segment.0 as usize, block.ptr..block.ptr + block.bytes);
        self.change_use(extent, range, false);
        self.settle(id);
    }

    /// A handle that was spoken for stays where it is.
    pub(super) fn untake(&mut self, taken: Taken) {
        taken.blocks.into_iter().for_each(|id| self.let_go(id));
    }
}
