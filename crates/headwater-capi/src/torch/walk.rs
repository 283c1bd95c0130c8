//! Segments and blocks, shown one by one to a visitor in C: nothing is handed over that somebody would have to free.

use std::ffi::c_void;

use headwater::allocator::BlockState as State;
use headwater::caching::snapshot::SnapshotState;
use headwater::graph::capture::PoolBlock;
use headwater::stats::PoolKind;

use super::device_memory::DeviceMemory;
use super::pools::PoolKey;

/// What a block is doing.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// A caller holds it.
    Live = 0,
    /// It was given back, and a stream still uses it.
    Pending = 1,
    /// It is free.
    Free = 2,
}

/// One segment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WalkedSegment {
    /// Its first address.
    pub address: u64,
    /// What the driver gave.
    pub total_bytes: u64,
    /// Of blocks that callers hold.
    pub allocated_bytes: u64,
    /// The same, and those that are still used.
    pub active_bytes: u64,
    /// What callers asked for.
    pub requested_bytes: u64,
    /// CUDA's value for the stream it was made for; 0 is the default stream.
    pub stream: u64,
    /// The pool it belongs to; zeros for none.
    pub pool: [u64; 2],
    /// Whether it is of the large pool.
    pub is_large: bool,
    /// Whether it can grow.
    pub is_expandable: bool,
}

/// One block of the segment that was shown last.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WalkedBlock {
    /// Its first address.
    pub address: u64,
    /// What it takes up.
    pub bytes: u64,
    /// What was asked for; 0 where nobody holds it.
    pub requested_bytes: u64,
    /// What it is doing.
    pub state: BlockState,
}

/// Who is shown segments and blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Walker {
    /// Passed back with every call.
    pub context: *mut c_void,
    /// Called with every segment.
    pub segment: unsafe extern "C" fn(*mut c_void, *const WalkedSegment),
    /// Called with every block, after its segment.
    pub block: unsafe extern "C" fn(*mut c_void, *const WalkedBlock),
}

impl DeviceMemory {
    /// Shows everything to `walker`, or only what belongs to the pool `only`.
    ///
    /// # Safety
    /// The walker's functions can be called with its context.
    pub unsafe fn walk(&self, only: Option<PoolKey>, walker: &Walker) {
        if only.is_none() {
            // SAFETY: the caller's promise.
            unsafe { self.walk_caching(walker) };
        }
        for pool in self.graphs().pool_snapshots() {
            let key = self.key_of_pool(pool.id.raw()).unwrap_or((0, 0));
            if only.is_some_and(|only| only != key) {
                continue;
            }
            // A pool's blocks lie without gaps where its memory does: each run is shown as one segment.
            for run in pool.blocks.chunk_by(|one, next| one.ptr.raw() + one.bytes == next.ptr.raw()) {
                // SAFETY: the caller's promise.
                unsafe { show_run(run, key, walker) };
            }
        }
    }

    /// # Safety
    /// As [`walk`](Self::walk).
    unsafe fn walk_caching(&self, walker: &Walker) {
        for segment in self.caching().snapshot().segments {
            let shown = WalkedSegment {
                address: segment.address.raw(),
                total_bytes: segment.total_bytes,
                allocated_bytes: segment.allocated_bytes,
                active_bytes: segment.active_bytes,
                requested_bytes: segment.requested_bytes,
                stream: if segment.stream.is_legacy_default() { 0 } else { segment.stream.raw() },
                pool: [0, 0],
                is_large: segment.pool != PoolKind::SmallPool,
                is_expandable: segment.is_expandable,
            };
            // SAFETY: the caller's promise.
            unsafe { (walker.segment)(walker.context, &shown) };
            for block in &segment.blocks {
                let shown = WalkedBlock {
                    address: block.address.raw(),
                    bytes: block.bytes,
                    requested_bytes: block.requested_bytes,
                    state: match block.state {
                        SnapshotState::ActiveAllocated => BlockState::Live,
                        SnapshotState::ActivePendingFree => BlockState::Pending,
                        SnapshotState::Inactive => BlockState::Free,
                    },
                };
                // SAFETY: the caller's promise.
                unsafe { (walker.block)(walker.context, &shown) };
            }
        }
    }
}

/// # Safety
/// As [`DeviceMemory::walk`].
unsafe fn show_run(run: &[PoolBlock], key: PoolKey, walker: &Walker) {
    let sum =
        |keep: fn(&PoolBlock) -> bool| run.iter().filter(|block| keep(block)).map(|block| block.bytes).sum();
    let segment = WalkedSegment {
        address: run.first().map_or(0, |block| block.ptr.raw()),
        total_bytes: sum(|_| true),
        allocated_bytes: sum(|block| block.state == State::Live),
        active_bytes: sum(|block| block.state != State::Cached),
        requested_bytes: run.iter().map(|block| block.requested_bytes).sum(),
        stream: 0,
        pool: [key.0, key.1],
        is_large: true,
        is_expandable: false,
    };
    // SAFETY: the caller's promise.
    unsafe { (walker.segment)(walker.context, &segment) };
    for block in run {
        let shown = WalkedBlock {
            address: block.ptr.raw(),
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
            state: match block.state {
                State::Live => BlockState::Live,
                State::Pending => BlockState::Pending,
                _ => BlockState::Free,
            },
        };
        // SAFETY: the caller's promise.
        unsafe { (walker.block)(walker.context, &shown) };
    }
}
