//! Looking without changing: addresses, states, sums.

use headwater_driver::{DeviceId, DevicePtr, Stream};

use super::blocks::{Block, State};
use super::segments::{Segment, SegmentId};
use super::{BlockId, Core, Tag};
use crate::AllocError;
use crate::allocator::{BlockFacts, BlockState};

impl Core {
    /// The live block that callers know by `ptr`, or what is wrong with the address.
    pub(crate) fn find_live(&self, ptr: DevicePtr) -> Result<BlockId, AllocError> {
        match self.live.get(&ptr) {
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
            // Free blocks merge, so where an earlier block began is not known: all of their addresses were given back.
            Some(_) => AllocError::AlreadyGivenBack { ptr },
            None if self.segments.was_ours(ptr.raw()) => AllocError::AlreadyGivenBack { ptr },
            None => AllocError::ForeignPointer { ptr },
        }
    }

    /// The block that contains `ptr`, and what is known about it.
    pub(crate) fn block_at(&self, ptr: DevicePtr, device: DeviceId) -> Option<BlockFacts> {
        let block = match self.live.get(&ptr) {
            Some(id) => &self.blocks[*id],
            None => self.block_around(ptr)?,
        };
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
        let (_, segment) = self.segments.around(ptr.raw())?;
        let mut blocks = self.chain(segment.first).map(|id| &self.blocks[id]);
        blocks.find(|block| ptr.raw() - block.ptr < block.bytes)
    }

    /// The blocks from `first` to the end of its segment.
    pub(super) fn chain(&self, first: BlockId) -> impl Iterator<Item = BlockId> + '_ {
        std::iter::successors(Some(first), |id| self.blocks[*id].next)
    }

    /// Whether the block's segment is on its way to the driver.
    pub(crate) fn is_offered(&self, id: BlockId) -> bool {
        let segment = self.blocks.get(id).and_then(|block| self.segments.get(block.segment));
        segment.is_some_and(|segment| segment.offered)
    }

    pub(crate) fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id)
    }

    /// All segments with their blocks, in the order of addresses.
    pub(crate) fn walk(&self) -> impl Iterator<Item = (SegmentId, &Segment, Vec<&Block>)> {
        let segments = self.segments.iter();
        segments.map(|(id, segment)| {
            (id, segment, self.chain(segment.first).map(|id| &self.blocks[id]).collect())
        })
    }

    /// The largest free block of any stream.
    pub(crate) fn largest_free_bytes(&self) -> u64 {
        self.small.largest_bytes().max(self.large.largest_bytes())
    }

    /// The largest free block that a request of stream `tag` could get without asking anybody.
    pub(crate) fn largest_free_bytes_of(&self, tag: Option<Tag>) -> u64 {
        let largest = |tag: Tag| {
            let small = self.small.of(tag).next_back();
            let large = self.large.of(tag).next_back();
            small.into_iter().chain(large).map(|(bytes, _)| bytes).max().unwrap_or(0)
        };
        largest(Tag::ANY).max(tag.map_or(0, largest))
    }

    /// Forgets streams that nothing refers to, except those that `is_used` names.
    pub(crate) fn sweep_tags(&mut self, is_used: impl Fn(Tag) -> bool) {
        let mut used = std::collections::BTreeSet::new();
        for (_, segment) in self.segments.iter() {
            used.insert(segment.tag);
            for id in self.chain(segment.first) {
                let block = &self.blocks[id];
                used.insert(block.tag);
                used.extend(block.uses.iter().copied());
            }
        }
        self.tags.sweep(|tag| used.contains(&tag) || is_used(tag));
    }
}
