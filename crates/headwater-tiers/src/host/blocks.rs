//! The books of a pool: which slabs there are, which of their blocks are free, and which wait for a device.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;

use headwater_driver::DriverError;

use super::slab::Slab;
use super::uses::Uses;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) slabs: BTreeMap<u32, SlabState>,
    pub(super) next_slab: u32,
    /// Blocks of all slabs, and of those being made.
    pub(super) blocks: u64,
    pub(super) free_blocks: u64,
    /// Given back, and perhaps still used by a device; oldest first.
    pub(super) pending: VecDeque<Pending>,
    pub(super) pending_blocks: u64,
    /// Threads that have slabs or pending blocks in hand, outside of the lock.
    pub(super) busy: u32,
}

#[derive(Debug)]
pub(super) struct SlabState {
    pub(super) slab: Slab,
    pub(super) blocks: u32,
    /// Highest first, so that blocks leave from the front of the slab: what is taken together lies together as far as it can,
    /// and is copied in fewer and larger pieces.
    pub(super) free: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) uses: Uses,
    pub(super) blocks: Vec<BlockRef>,
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRef {
    slab: u32,
    index: u32,
    start: NonNull<u8>,
}

// SAFETY: a block is plain memory with one owner at a time; nothing about it belongs to a thread.
unsafe impl Send for BlockRef {}
// SAFETY: through a shared reference only its address can be read.
unsafe impl Sync for BlockRef {}

impl BlockRef {
    pub(super) fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Whether `next` begins where this block ends, in the same slab.
    pub(super) fn is_before(self, next: Self) -> bool {
        self.slab == next.slab && self.index + 1 == next.index
    }
}

impl Pending {
    pub(super) fn drop_finished_uses(&mut self) -> Result<(), DriverError> {
        while let Some(used) = self.uses.last() {
            if !used.has_finished()? {
                break;
            }
            self.uses.pop();
        }
        Ok(())
    }
}

impl State {
    pub(super) fn take_free(&mut self, count: u64, block_bytes: u64) -> Vec<BlockRef> {
        let mut blocks = Vec::with_capacity(count as usize);
        for (id, slab) in &mut self.slabs {
            let start = slab.slab.start();
            while (blocks.len() as u64) < count
                && let Some(index) = slab.free.pop()
            {
                // SAFETY: the slab has more than `index` blocks, so the offset is inside it.
                let start = unsafe { start.add(index as usize * block_bytes as usize) };
                blocks.push(BlockRef { slab: *id, index, start });
            }
        }
        self.free_blocks -= blocks.len() as u64;
        blocks
    }

    pub(super) fn put_free(&mut self, blocks: &[BlockRef]) {
        for together in blocks.chunk_by(|one, next| one.slab == next.slab) {
            let Some(slab) = together.first().and_then(|block| self.slabs.get_mut(&block.slab)) else {
                debug_assert!(false, "a slab with blocks given out is not freed: {together:?}");
                continue;
            };
            slab.free.extend(together.iter().map(|block| block.index));
            slab.free.sort_unstable_by_key(|index| std::cmp::Reverse(*index));
        }
        self.free_blocks += blocks.len() as u64;
    }
}
