//! The block table: every block of every segment, by number, linked to its neighbours.
//!
//! A slab: numbers are places in a vector and are used again. Blocks of a segment form a list in the order of their
//! addresses, so splitting and merging touch three entries at most. Host memory only; nothing here knows what a rule is.

use std::num::NonZeroU32;

use headwater_driver::DevicePtr;
use smallvec::SmallVec;

use super::segments::SegmentId;
use super::tags::Tag;

/// A block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(NonZeroU32);

impl BlockId {
    /// The smallest number, for the lower end of a range.
    pub(crate) const FIRST: Self = Self(NonZeroU32::MIN);

    fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In the free index.
    Free,
    /// A caller holds it.
    Live,
    /// Given back, but a stream still uses it or it is still to be overwritten.
    Pending,
    /// Its whole segment is on its way to the driver. Not in the free index.
    Offered,
}

/// A piece of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
    /// What the caller asked for; of a block that is not free.
    pub(crate) requested_bytes: u64,
    /// How far from `ptr` the address given out is; not 0 only for unusual alignments.
    pub(crate) inner_offset: u64,
    pub(crate) segment: SegmentId,
    pub(crate) previous: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
    /// The stream it belongs to.
    pub(crate) tag: Tag,
    pub(crate) state: State,
    /// Whether it was overwritten since it was given back.
    pub(crate) filled: bool,
    /// Other streams that callers announced.
    pub(crate) uses: SmallVec<[Tag; 2]>,
    /// How many of them are still waited for, after give-back.
    pub(crate) waits: u32,
    /// Those of `waits` that no event can answer.
    pub(crate) lost_waits: u32,
    /// The tick at which it was given back.
    pub(crate) given_back_at: u64,
    /// The pool's count of searches when it became free.
    pub(crate) free_since: u64,
    /// How many requests had been served when it was given out; kept by the paged backing.
    pub(crate) born_at: u64,
    /// What it was asked for after; kept by the paged backing.
    pub(crate) habit: u64,
}

impl Block {
    pub(crate) fn new(ptr: u64, bytes: u64, segment: SegmentId, tag: Tag) -> Self {
        Self {
            ptr,
            bytes,
            requested_bytes: 0,
            inner_offset: 0,
            segment,
            previous: None,
            next: None,
            tag,
            state: State::Free,
            filled: false,
            uses: SmallVec::new(),
            waits: 0,
            lost_waits: 0,
            given_back_at: 0,
            free_since: 0,
            born_at: 0,
            habit: 0,
        }
    }

    /// Whether it is less than its whole segment.
    pub(crate) fn is_split(&self) -> bool {
        self.previous.is_some() || self.next.is_some()
    }

    /// The address that callers know it by.
    pub(crate) fn outer_ptr(&self) -> DevicePtr {
        DevicePtr::new(self.ptr + self.inner_offset)
    }

    /// Whether nothing but lost waits keeps it.
    pub(crate) fn is_quarantined(&self) -> bool {
        self.state == State::Pending && self.waits > 0 && self.waits == self.lost_waits
    }
}

/// All blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    slots: Vec<Option<Block>>,
    vacant: Vec<BlockId>,
}

impl BlockTable {
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.place()] = Some(block);
            return id;
        }
        self.slots.push(Some(block));
        let number = u32::try_from(self.slots.len()).ok().and_then(NonZeroU32::new);
        // 2^32 blocks of 512 bytes are 2 TiB of the smallest blocks: more than any device has.
        BlockId(number.expect("a device has fewer than 2^32 blocks"))
    }

    pub(crate) fn remove(&mut self, id: BlockId) -> Option<Block> {
        let block = self.slots.get_mut(id.place())?.take()?;
        self.vacant.push(id);
        Some(block)
    }

    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.slots.get(id.place())?.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Cuts `id` after `bytes` and returns the block behind the cut.
    pub(crate) fn split(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let front = &mut self[id];
        let mut rest = Block::new(front.ptr + bytes, front.bytes - bytes, front.segment, front.tag);
        rest.given_back_at = front.given_back_at;
        rest.previous = Some(id);
        rest.next = front.next;
        front.bytes = bytes;
        let after = front.next;
        let rest = self.insert(rest);
        self[id].next = Some(rest);
        if let Some(after) = after {
            self[after].previous = Some(rest);
        }
        rest
    }

    /// Adds the block behind `id` to it; its number is free afterwards.
    pub(crate) fn absorb_next(&mut self, id: BlockId) {
        let Some(next) = self[id].next.and_then(|next| self.remove(next)) else { return };
        let block = &mut self[id];
        block.bytes += next.bytes;
        block.next = next.next;
        block.given_back_at = block.given_back_at.max(next.given_back_at);
        if let Some(after) = next.next {
            self[after].previous = Some(id);
        }
    }
}

/// Ids come from the table and are dropped with the block, so a missing one is a defect of this module, not of a caller.
impl std::ops::Index<BlockId> for BlockTable {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        self.get(id).expect("a block id outlived its block")
    }
}

impl std::ops::IndexMut<BlockId> for BlockTable {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        self.slots.get_mut(id.place()).and_then(Option::as_mut).expect("a block id outlived its block")
    }
}
