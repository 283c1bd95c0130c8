//! Looking without changing: addresses, states, sums.

use std::collections::BTreeSet;

use headwater_driver::{DeviceId, DevicePtr, Handle, Stream};

use super::Core;
use super::extents::Region;
use crate::AllocError;
use crate::allocator::{BlockFacts, BlockState};
use crate::caching::classic::blocks::{Block, State};
use crate::caching::classic::{BlockId, Tag};
use crate::caching::threads::ThreadMark;

/// Everything that is mapped, in runs without gaps within one region.
pub(crate) struct Run<'a> {
    pub(crate) region: Region,
    pub(crate) blocks: Vec<&'a Block>,
}

impl Core {
    /// The live block that callers know by `ptr`, or what is wrong with the address.
    pub(crate) fn find_live(&self, ptr: DevicePtr) -> Result<BlockId, AllocError> {
        match self.live.get(&ptr) {
            Some(id) if !self.asleep.is_empty() && self.asleep.contains(id) => {
                Err(AllocError::Asleep { ptr })
            }
            Some(id) => Ok(*id),
            None => Err(self.what_is_wrong_with(ptr)),
        }
    }

    #[cold]
    fn what_is_wrong_with(&self, ptr: DevicePtr) -> AllocError {
        match self.block_around(ptr) {
            Some(block) if block.state == State::Live => {
                AllocError::InsideBlock { ptr, block: block.outer_ptr() }
            }
            Some(_) => AllocError::AlreadyGivenBack { ptr },
            // Nothing is behind it now. It was, where the page table reaches so far.
            None => match self.extent_of(ptr.raw()).map(|extent| &self.extents[extent]) {
                Some(extent) if extent.reached(ptr.raw(), self.granularity_bytes) => {
                    AllocError::AlreadyGivenBack { ptr }
                }
                _ => AllocError::ForeignPointer { ptr },
            },
        }
    }

    /// The block that contains `ptr`, and what is known about it.
    pub(crate) fn block_at(&self, ptr: DevicePtr, device: DeviceId) -> Option<BlockFacts> {
        let block = self.block_around(ptr)?;
        let state = match block.state {
            State::Live => BlockState::Live,
            State::Pending => BlockState::Pending,
            State::Free | State::Offered => BlockState::Cached,
        };
        let stream = self.stream_of(block.tag, device);
        Some(BlockFacts::new(block.outer_ptr(), block.requested_bytes, block.bytes, stream, state))
    }

    /// The stream behind a tag; memory of no stream is shown with the default one.
    pub(crate) fn stream_of(&self, tag: Tag, device: DeviceId) -> Stream {
        self.tags.get(tag).map_or(Stream::legacy_default(device), |entry| entry.stream)
    }

    fn block_around(&self, ptr: DevicePtr) -> Option<&Block> {
        let (_, id) = self.by_address.range(..=ptr.raw()).next_back()?;
        let block = &self.blocks[*id];
        (ptr.raw() - block.ptr < block.bytes).then_some(block)
    }

    pub(crate) fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// All blocks in runs, in the order of addresses.
    pub(crate) fn runs(&self) -> Vec<Run<'_>> {
        let mut runs: Vec<Run<'_>> = Vec::new();
        for id in self.by_address.values() {
            let block = &self.blocks[*id];
            match runs.last_mut() {
                Some(run) if block.previous.is_some() => run.blocks.push(block),
                _ => runs.push(Run { region: self.region_of(*id), blocks: vec![block] }),
            }
        }
        runs
    }

    /// The largest free range of any stream.
    pub(crate) fn largest_free_bytes(&self) -> u64 {
        self.free.iter().map(|index| index.largest_bytes()).max().unwrap_or(0)
    }

    /// The largest free range that a request of stream `tag` could get without asking anybody.
    pub(crate) fn largest_free_bytes_of(&self, tag: Option<Tag>) -> u64 {
        let largest = |tag: Tag| {
            let last = self.free.iter().filter_map(|index| index.of(tag).next_back());
            last.map(|(bytes, _)| bytes).max().unwrap_or(0)
        };
        largest(Tag::ANY).max(tag.map_or(0, largest))
    }

    /// Streams other than `tag` that have free memory which may not be finished, those with the largest range first, and the
    /// mark to reach for all of it.
    pub(crate) fn unfinished_elsewhere(&self, tag: Tag) -> Vec<(Tag, u64)> {
        let mut found = Vec::new();
        for (other, _) in self.tags.iter().filter(|(other, _)| *other != tag) {
            let free = self
                .free
                .iter()
                .flat_map(|index| index.of(other))
                .map(|(bytes, id)| (bytes, self.blocks[id].given_back_at));
            let (mut largest_bytes, mut mark) = (0, 0);
            for (bytes, given_back_at) in free {
                largest_bytes = bytes.max(largest_bytes);
                mark = given_back_at.max(mark);
            }
            if largest_bytes > 0 && !self.tags.is_finished(other, mark) {
                found.push((largest_bytes, other, mark));
            }
        }
        found.sort_unstable_by(|one, two| two.cmp(one));
        found.into_iter().map(|(_, other, mark)| (other, mark)).collect()
    }

    /// Streams other than `tag` that have free memory.
    pub(crate) fn others_with_free(&self, tag: Tag) -> Vec<Tag> {
        let has_free = |other: Tag| self.free.iter().any(|index| index.of(other).next().is_some());
        self.tags.iter().map(|(other, _)| other).filter(|other| *other != tag && has_free(*other)).collect()
    }

    /// Whether free memory was last used by a stream that is gone, or that is another thread's.
    pub(crate) fn has_orphans(&self) -> bool {
        let here = ThreadMark::current().number;
        let gone = self.tags.iter().filter(|(_, entry)| !entry.is_within_reach(here) || entry.is_lost);
        let is_left = |tag: Tag| {
            let mut free = self.free.iter().flat_map(|index| index.of(tag));
            let free = free.any(|(_, id)| !self.tags.is_finished(tag, self.blocks[id].given_back_at));
            free || self
                .views
                .iter()
                .any(|(_, view)| view.tag == tag && !self.tags.is_finished(tag, view.tick))
        };
        gone.map(|(tag, _)| tag).any(is_left)
    }

    /// Whether exactly this is mapped.
    pub(crate) fn is_mapped(&self, ptr: DevicePtr, bytes: u64) -> bool {
        let handle = self.extent_of(ptr.raw()).and_then(|extent| self.handle_at(extent, ptr.raw()));
        let mapped = handle.and_then(|id| self.handles.get(id));
        mapped.is_some_and(|mapped| mapped.address == ptr.raw() && mapped.bytes == bytes)
    }

    /// Forgets streams that nothing refers to, except those that `is_used` names.
    pub(crate) fn sweep_tags(&mut self, is_used: impl Fn(Tag) -> bool) {
        let mut used = BTreeSet::new();
        for id in self.by_address.values() {
            let block = &self.blocks[*id];
            used.insert(block.tag);
            used.extend(block.uses.iter().copied());
        }
        used.extend(self.views.iter().map(|(_, view)| view.tag));
        self.tags.sweep(|tag| used.contains(&tag) || is_used(tag));
    }

    /// Everything the driver holds for us, to be given back when nobody is left: mappings, and handles.
    pub(crate) fn all_mappings(&self) -> (Vec<(DevicePtr, u64)>, Vec<Handle>) {
        let present = self.handles.iter().filter(|(_, mapped)| mapped.handle.is_some());
        let mut mappings: Vec<_> =
            present.map(|(_, mapped)| (DevicePtr::new(mapped.address), mapped.bytes)).collect();
        mappings.extend(self.views.iter().map(|(address, view)| (DevicePtr::new(address), view.bytes)));
        let mapped = self.handles.iter().filter_map(|(_, mapped)| mapped.handle);
        let handles = mapped.chain(self.loose.iter().map(|loose| loose.handle)).collect();
        (mappings, handles)
    }
}
