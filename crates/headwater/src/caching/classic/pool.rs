//! The free index of one pool: best fit by stream, then size, then address.
//!
//! One ordered set a stream, so that the streams need no common order: a search never crosses from one to the next. All
//! operations are O(log n) in the free blocks of one stream.

use std::collections::BTreeSet;

use super::blocks::BlockId;
use super::tags::Tag;

/// Free blocks of one stream: by size, then address. The address makes the order total; the number comes along.
type BySize = BTreeSet<(u64, u64, BlockId)>;

/// The free blocks of one pool.
#[derive(Debug, Default)]
pub(crate) struct FreeIndex {
    by_tag: Vec<BySize>,
    /// How often it was searched: the clock by which free blocks age.
    pub(crate) searches: u64,
}

impl FreeIndex {
    pub(crate) fn insert(&mut self, tag: Tag, bytes: u64, ptr: u64, id: BlockId) {
        if self.by_tag.len() <= tag.place() {
            self.by_tag.resize_with(tag.place() + 1, BySize::new);
        }
        self.by_tag[tag.place()].insert((bytes, ptr, id));
    }

    pub(crate) fn remove(&mut self, tag: Tag, bytes: u64, ptr: u64, id: BlockId) -> bool {
        self.by_tag.get_mut(tag.place()).is_some_and(|free| free.remove(&(bytes, ptr, id)))
    }

    /// The blocks of `tag` with at least `bytes`, smallest and lowest first.
    pub(crate) fn at_least(
        &self,
        tag: Tag,
        bytes: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, BlockId)> + '_ {
        let first = BlockId::FIRST;
        let free = self.by_tag.get(tag.place()).into_iter();
        free.flat_map(move |free| free.range((bytes, 0, first)..)).map(|(bytes, _, id)| (*bytes, *id))
    }

    /// The blocks of `tag`, smallest first.
    pub(crate) fn of(&self, tag: Tag) -> impl DoubleEndedIterator<Item = (u64, BlockId)> + '_ {
        self.at_least(tag, 0)
    }

    /// All blocks: by stream, then size, then address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Tag, u64, BlockId)> + '_ {
        let tags = self.by_tag.iter().enumerate();
        tags.flat_map(|(place, free)| free.iter().map(move |(bytes, _, id)| (Tag::at(place), *bytes, *id)))
    }

    /// Streams that have a free block of at least `bytes`.
    pub(crate) fn tags_with(&self, bytes: u64) -> impl Iterator<Item = Tag> + '_ {
        let large_enough = move |free: &BySize| free.last().is_some_and(|(largest, ..)| *largest >= bytes);
        self.by_tag
            .iter()
            .enumerate()
            .filter(move |(_, free)| large_enough(free))
            .map(|(place, _)| Tag::at(place))
    }

    /// The largest free block of all streams.
    pub(crate) fn largest_bytes(&self) -> u64 {
        self.by_tag.iter().filter_map(|free| free.last()).map(|(bytes, ..)| *bytes).max().unwrap_or(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_tag.iter().map(BySize::len).sum()
    }
}
