//! Graph memory by hand: blocks with ids and addresses that never change.

use headwater::graph::{BlockId, GraphBlock, GraphPool};
use headwater_driver::DevicePtr;
use std::sync::Arc;

use crate::allocator::flag;
use crate::arguments::{Versioned, check_versioned, fill_versioned, out};
use crate::device::{hw_device, hw_device_ptr};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::memory::optional_out;
use crate::status::{Failure, hw_status};

/// A pool of blocks with fixed addresses, for graphs that a program builds by hand.
#[derive(Debug)]
pub struct hw_graph_pool {
    _opaque: [u8; 0],
}

handle_kind!(hw_graph_pool, 4, "graph pool", GraphPool);

/// A block of a graph pool.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_graph_block {
    /// Set by the caller to `sizeof(hw_graph_block)`.
    pub struct_bytes: u64,
    /// Its name: no two blocks of a process have the same.
    pub id: u64,
    /// Its address, for as long as the block exists.
    pub ptr: hw_device_ptr,
    /// What was asked for when it was last handed out.
    pub bytes: u64,
    /// What it takes up.
    pub extent_bytes: u64,
    /// 1 where it is handed out, 0 where it is available.
    pub in_use: u32,
    /// Zero.
    pub reserved: u32,
}

/// A graph pool at one moment.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_graph_pool_stats {
    /// Set by the caller to `sizeof(hw_graph_pool_stats)`.
    pub struct_bytes: u64,
    /// What the driver gave, in use or available.
    pub allocated_bytes: u64,
    /// Blocks there are, in use or available.
    pub block_count: u64,
    /// What blocks in use take up.
    pub in_use_bytes: u64,
    /// Blocks in use.
    pub in_use_blocks: u64,
    /// What was asked for and is in use.
    pub requested_bytes: u64,
    /// The most the pool may have; `UINT64_MAX` where there is no limit.
    pub max_capacity_bytes: u64,
    /// What of the initial capacity the device had.
    pub initial_bytes: u64,
}

// SAFETY: numbers alone, and the size first.
unsafe impl Versioned for hw_graph_block {}
// SAFETY: as above.
unsafe impl Versioned for hw_graph_pool_stats {}

impl From<GraphBlock> for hw_graph_block {
    fn from(block: GraphBlock) -> Self {
        Self {
            struct_bytes: 0,
            id: block.id.raw(),
            ptr: block.ptr.raw(),
            bytes: block.bytes,
            extent_bytes: block.extent_bytes,
            in_use: u32::from(block.in_use),
            reserved: 0,
        }
    }
}

/// Makes a pool that starts with `initial_bytes` and never has more than `max_bytes` (`UINT64_MAX`: no limit). `plain_memory` is 1 to take
/// plain memory even where the device has virtual memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_create(
    device: *const hw_device,
    initial_bytes: u64,
    max_bytes: u64,
    plain_memory: u32,
    pool: *mut *mut hw_graph_pool,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(pool, "pool") }?;
        let device = handles::get(device)?;
        let made = GraphPool::builder(Arc::clone(device.driver()), device.id())
            .max_capacity_bytes(max_bytes)
            .initial_capacity_bytes(initial_bytes)
            .plain_memory(flag(plain_memory, "plain_memory")?)
            .build()?;
        place.write(handles::make(made));
        Ok(())
    })
}

/// Frees everything, after all work on the device has finished, and ends the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_destroy(pool: *mut hw_graph_pool) -> hw_status {
    guarded(|| {
        // While it is still named: where the driver refuses, it can be asked again.
        handles::get(pool)?.close()?;
        handles::take(pool).map(drop)
    })
}

/// A block of at least `bytes`, with an address that is a multiple of `alignment_bytes` (a power of two up to 2 MiB; 0 is 256).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_allocate(
    pool: *const hw_graph_pool,
    bytes: u64,
    alignment_bytes: u64,
    block: *mut hw_graph_block,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { check_versioned(block, "block") }?;
        let pool = handles::get(pool)?;
        let found = match alignment_bytes {
            0 => pool.allocate(bytes)?,
            alignment_bytes => pool.allocate_aligned(bytes, alignment_bytes)?,
        };
        // SAFETY: as above.
        unsafe { fill_versioned(block, &found.into(), "block") }
    })
}

/// The block called `id`, in use or available: the address is the one it always had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_block(
    pool: *const hw_graph_pool,
    id: u64,
    block: *mut hw_graph_block,
) -> hw_status {
    guarded(|| {
        let found = handles::get(pool)?.block(BlockId::from_raw(id))?;
        // SAFETY: the caller's promise.
        unsafe { fill_versioned(block, &found.into(), "block") }
    })
}

/// The block around an address. `HW_STATUS_INVALID_POINTER` where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_block_at(
    pool: *const hw_graph_pool,
    ptr: hw_device_ptr,
    block: *mut hw_graph_block,
) -> hw_status {
    guarded(|| {
        let ptr = DevicePtr::new(ptr);
        let none = || Failure::new(hw_status::InvalidPointer, format!("{ptr} is in no block of this pool"));
        let found = handles::get(pool)?.block_at(ptr)?.ok_or_else(none)?;
        // SAFETY: the caller's promise.
        unsafe { fill_versioned(block, &found.into(), "block") }
    })
}

/// Returns a block: it stays where it is, and can be handed out again. Nothing that still runs uses it, or whatever uses it next comes
/// after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_return(pool: *const hw_graph_pool, id: u64) -> hw_status {
    guarded(|| Ok(handles::get(pool)?.return_block(BlockId::from_raw(id))?))
}

/// Makes all blocks available, as between two iterations. `were_in_use` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_reset(pool: *const hw_graph_pool, were_in_use: *mut u64) -> hw_status {
    guarded(|| {
        let count = handles::get(pool)?.reset()?;
        // SAFETY: the caller's promise.
        unsafe { optional_out(were_in_use, "were_in_use", count as u64) }
    })
}

/// The figures at this moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_pool_get_stats(
    pool: *const hw_graph_pool,
    stats: *mut hw_graph_pool_stats,
) -> hw_status {
    guarded(|| {
        let pool = handles::get(pool)?;
        let figures = pool.stats();
        let found = hw_graph_pool_stats {
            struct_bytes: 0,
            allocated_bytes: figures.allocated_bytes,
            block_count: figures.block_count as u64,
            in_use_bytes: figures.in_use_bytes,
            in_use_blocks: figures.in_use_blocks as u64,
            requested_bytes: figures.requested_bytes,
            max_capacity_bytes: pool.max_capacity_bytes(),
            initial_bytes: pool.initial_fill().got_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { fill_versioned(stats, &found, "stats") }
    })
}
