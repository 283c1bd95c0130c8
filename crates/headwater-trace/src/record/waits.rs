//! Blocks that other streams use: known from `record_stream` to the moment the allocator no longer waits for them.
//!
//! Programs that never record a stream pay two loads an event for this.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater::Allocator;
use headwater::allocator::BlockState;
use headwater_driver::DevicePtr;
use parking_lot::Mutex;

/// How many blocks one request looks at.
const LOOKS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Live blocks that streams were recorded on.
    shared: Mutex<BTreeSet<u64>>,
    shared_count: AtomicUsize,
    /// Blocks given back that the allocator waits for, the next to look at first.
    pending: Mutex<VecDeque<u64>>,
    pending_count: AtomicUsize,
}

impl Waits {
    /// A stream was recorded on a block.
    pub(super) fn share(&self, ptr: DevicePtr) {
        let mut shared = self.shared.lock();
        shared.insert(ptr.raw());
        // Relaxed: who gives the block back knows of it through whatever told it of the block.
        self.shared_count.store(shared.len(), Ordering::Relaxed);
    }

    /// A block is about to be given back: whether streams were recorded on it.
    #[inline]
    pub(super) fn unshare(&self, ptr: DevicePtr) -> bool {
        if self.shared_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut shared = self.shared.lock();
        let was = shared.remove(&ptr.raw());
        self.shared_count.store(shared.len(), Ordering::Relaxed);
        was
    }

    /// A shared block was given back and is waited for.
    pub(super) fn add(&self, ptr: DevicePtr) {
        let mut pending = self.pending.lock();
        pending.push_back(ptr.raw());
        self.pending_count.store(pending.len(), Ordering::Relaxed);
    }

    /// Whether any block is waited for.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.pending_count.load(Ordering::Relaxed) > 0
    }

    /// Looks at blocks that are waited for, and says which no longer are.
    #[inline]
    pub(super) fn over(&self, allocator: &dyn Allocator) -> Vec<u64> {
        if self.any() { self.look(allocator) } else { Vec::new() }
    }

    #[cold]
    fn look(&self, allocator: &dyn Allocator) -> Vec<u64> {
        let some: Vec<u64> = {
            let mut pending = self.pending.lock();
            let looks = pending.len().min(LOOKS);
            pending.drain(..looks).collect()
        };
        // With no lock held: the allocator has one of its own.
        let (still, over): (Vec<u64>, Vec<u64>) =
            some.into_iter().partition(|ptr| is_pending(allocator, DevicePtr::new(*ptr)));
        let mut pending = self.pending.lock();
        pending.extend(still);
        self.pending_count.store(pending.len(), Ordering::Relaxed);
        over
    }
}

/// Whether the allocator still waits for the block that begins at `ptr`.
pub(super) fn is_pending(allocator: &dyn Allocator, ptr: DevicePtr) -> bool {
    let facts = allocator.block_at(ptr);
    facts.is_some_and(|facts| facts.ptr == ptr && facts.state == BlockState::Pending)
}
