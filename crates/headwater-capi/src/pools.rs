//! Private pools of an allocator: made, routed to, looked at, put back into an earlier state.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use headwater::graph::capture::{PoolCheckpoint, PoolSnapshot};
use headwater::graph::{GraphAllocator, PoolHandle};
use headwater_driver::DevicePtr;
use serde_json::{Value, json};

use crate::allocator::hw_allocator;
use crate::arguments::{out, owned_text};
use crate::device::{hw_device_ptr, hw_stream};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::layers::Base;
use crate::memory::hw_block_state;
use crate::oom::User;
use crate::status::{Failure, hw_status};

/// A private pool: memory for captured graphs that never run at the same time. The handle keeps the pool's name and not its
/// memory: that is kept by graphs, by captures under way and by blocks.
#[derive(Debug)]
pub struct hw_pool {
    _opaque: [u8; 0],
}

/// The blocks that a pool had at one moment.
#[derive(Debug)]
pub struct hw_pool_checkpoint {
    _opaque: [u8; 0],
}

handle_kind!(hw_pool, 5, "pool", Pool);
handle_kind!(hw_pool_checkpoint, 6, "pool checkpoint", PoolCheckpoint);

/// What is behind a pool handle.
#[derive(Debug)]
pub struct Pool {
    pub(crate) base: Arc<Base>,
    pub(crate) handle: PoolHandle,
}

impl Pool {
    fn graphs(&self) -> Result<&Arc<GraphAllocator>, Failure> {
        self.base.graphs()
    }
}

/// Says whether requests of a stream go to the pool: 1 for yes. Called for every request of every thread while the route lasts, with no lock
/// held; it makes no calls to the allocator.
pub type hw_stream_filter = Option<unsafe extern "C" fn(user: *mut c_void, stream: hw_stream) -> u32>;

/// Makes a pool of its own. The allocator was made with `graph_pools`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_create(
    allocator: *const hw_allocator,
    pool: *mut *mut hw_pool,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(pool, "pool") }?;
        let base = Arc::clone(&handles::get(allocator)?.base);
        let handle = base.graphs()?.new_pool()?;
        place.write(handles::make(Pool { base, handle }));
        Ok(())
    })
}

/// Ends a pool handle. Graphs of the pool keep its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_destroy(pool: *mut hw_pool) -> hw_status {
    guarded(|| handles::take(pool).map(drop))
}

/// The pool's number in snapshots and statistics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_id(pool: *const hw_pool, id: *mut u64) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(id, "id") }?;
        place.write(handles::get(pool)?.handle.id().raw());
        Ok(())
    })
}

/// Routes requests of streams that `filter` accepts to the pool (null accepts all), until `hw_pool_end_allocate`: for captures that somebody
/// else begins and ends. The newest route that accepts a stream wins. The pool is in use from now on, until `hw_pool_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_begin_allocate(
    pool: *const hw_pool,
    filter: hw_stream_filter,
    user: *mut c_void,
) -> hw_status {
    guarded(|| {
        let pool = handles::get(pool)?;
        let user = User(user);
        let accepts = move |stream: headwater_driver::Stream| {
            // The whole value is captured, not the raw pointer inside, which could not go to another thread.
            let User(user) = { user };
            // SAFETY: whoever set it promised that it can be called from any thread with its pointer.
            filter.is_none_or(|filter| unsafe { filter(user, stream.raw()) } != 0)
        };
        Ok(pool.graphs()?.begin_allocate_to_pool(&pool.handle, accepts)?)
    })
}

/// Ends what `hw_pool_begin_allocate` began. The captures that used it have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_end_allocate(pool: *const hw_pool) -> hw_status {
    guarded(|| {
        let pool = handles::get(pool)?;
        Ok(pool.graphs()?.end_allocate_to_pool(&pool.handle)?)
    })
}

/// Ends one use that `hw_pool_begin_allocate` began: its graph is destroyed. With the last use the memory goes back, after all work on the
/// device has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_release(pool: *const hw_pool) -> hw_status {
    guarded(|| {
        let pool = handles::get(pool)?;
        Ok(pool.graphs()?.release_pool(&pool.handle)?)
    })
}

/// Every private pool of an allocator at this moment, with its blocks, as a JSON array. Give the text back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pools_json(allocator: *const hw_allocator, text: *mut *mut c_char) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(text, "text") }?;
        let object = handles::get(allocator)?;
        place.write(owned_text(&snapshots_json(object.base.graphs()?).to_string())?);
        Ok(())
    })
}

pub(crate) fn snapshots_json(graphs: &GraphAllocator) -> Value {
    graphs.pool_snapshots().iter().map(snapshot_json).collect()
}

fn snapshot_json(pool: &PoolSnapshot) -> Value {
    let blocks: Vec<Value> = pool
        .blocks
        .iter()
        .map(|block| {
            json!({
                "address": block.ptr.raw(),
                "bytes": block.bytes,
                "requested_bytes": block.requested_bytes,
                "state": hw_block_state::of(block.state),
            })
        })
        .collect();
    json!({
        "id": pool.id.raw(),
        "reserved_bytes": pool.reserved_bytes,
        "requested_bytes": pool.requested_bytes,
        "allocated_bytes": pool.allocated_bytes,
        "allocated_bytes_peak": pool.allocated_bytes_peak,
        "pending_bytes": pool.pending_bytes,
        "waste_bytes": pool.waste_bytes,
        "graphs": pool.graphs,
        "routes": pool.routes,
        "foreign_uses": pool.foreign_uses,
        "shares_physical_memory": pool.shares_physical_memory,
        "blocks": blocks,
    })
}

/// Remembers the blocks that the pool has now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_checkpoint_take(
    pool: *const hw_pool,
    checkpoint: *mut *mut hw_pool_checkpoint,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(checkpoint, "checkpoint") }?;
        let pool = handles::get(pool)?;
        place.write(handles::make(pool.graphs()?.checkpoint(&pool.handle)?));
        Ok(())
    })
}

/// Ends a checkpoint's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_checkpoint_destroy(checkpoint: *mut hw_pool_checkpoint) -> hw_status {
    guarded(|| handles::take(checkpoint).map(drop))
}

/// Puts a pool back into the state of a checkpoint. Blocks that are held now and were not then are `freed`: their holders neither use them
/// nor give them back any more. Blocks that were held then and are not now are `allocated`: they are to be given back. Each list is given
/// back with `hw_ptrs_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_restore(
    pool: *const hw_pool,
    checkpoint: *const hw_pool_checkpoint,
    freed: *mut *mut hw_device_ptr,
    freed_count: *mut usize,
    allocated: *mut *mut hw_device_ptr,
    allocated_count: *mut usize,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let freed = unsafe { (out(freed, "freed")?, out(freed_count, "freed_count")?) };
        // SAFETY: as above.
        let allocated = unsafe { (out(allocated, "allocated")?, out(allocated_count, "allocated_count")?) };
        let (pool, checkpoint) = (handles::get(pool)?, handles::get(checkpoint)?);
        // SAFETY: holders of blocks that go do not use them any more: the caller's promise.
        let restored = unsafe { pool.graphs()?.restore(&pool.handle, &checkpoint) }?;
        for ((list, count), ptrs) in [(freed, restored.freed), (allocated, restored.allocated)] {
            let ptrs: Box<[u64]> = ptrs.into_iter().map(DevicePtr::raw).collect();
            count.write(ptrs.len());
            list.write(Box::leak(ptrs).as_mut_ptr());
        }
        Ok(())
    })
}

/// Gives back a list of addresses, with the count that Headwater gave with it. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_ptrs_free(ptrs: *mut hw_device_ptr, count: usize) {
    if !ptrs.is_null() {
        // SAFETY: made by `hw_pool_restore` with this length, and given back once: the caller's promise.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(ptrs, count)) });
    }
}
