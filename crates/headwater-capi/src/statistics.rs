//! What an allocator counts, as a struct and as text.

use std::ffi::c_char;

use headwater::stats::{DeviceStats, Stat, StatArray};
use serde_json::{Map, Value, json};

use crate::allocator::{hw_allocator, limit_of};
use crate::arguments::{Versioned, check_versioned, fill_versioned, out, owned_text};
use crate::guard::guarded;
use crate::handles;
use crate::layers::Base;
use crate::status::{Failure, hw_status};

/// A count that rises and falls.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_stat {
    /// What it is now.
    pub current: u64,
    /// The most it was since the peaks were reset.
    pub peak: u64,
    /// All it rose by since the totals were reset.
    pub allocated: u64,
    /// All it fell by since the totals were reset.
    pub freed: u64,
}

/// The same for all blocks, those of the small pool and those of the large pool.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_stat_array {
    /// Of all blocks.
    pub all: hw_stat,
    /// Of the small pool, up to 1 MiB.
    pub small_pool: hw_stat,
    /// Of the large pool.
    pub large_pool: hw_stat,
}

/// What an allocator counts, by PyTorch's names. At rest the figures add up to the byte.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_stats {
    /// Set by the caller to `sizeof(hw_stats)`.
    pub struct_bytes: u64,
    /// Blocks that callers hold.
    pub allocation: hw_stat_array,
    /// Segments that the driver gave us.
    pub segment: hw_stat_array,
    /// Blocks that callers hold or a stream still uses.
    pub active: hw_stat_array,
    /// Free blocks of segments that are partly in use.
    pub inactive_split: hw_stat_array,
    /// Bytes of `allocation`, rounded.
    pub allocated_bytes: hw_stat_array,
    /// Bytes that the driver gave us.
    pub reserved_bytes: hw_stat_array,
    /// Bytes of `active`.
    pub active_bytes: hw_stat_array,
    /// Bytes of `inactive_split`.
    pub inactive_split_bytes: hw_stat_array,
    /// Bytes that callers asked for and hold.
    pub requested_bytes: hw_stat_array,
    /// Blocks of at least `max_split_size` that callers hold.
    pub oversize_allocations: hw_stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: hw_stat,
    /// Requests that were tried again after the driver had no memory.
    pub num_alloc_retries: u64,
    /// Requests that ended in an out-of-memory error.
    pub num_ooms: u64,
    /// Requests refused at the limit before the driver was asked.
    pub num_oom_rejections: u64,
    /// How often all streams with pending give-backs were waited for.
    pub num_sync_all_streams: u64,
    /// Segments or handles got from the driver.
    pub num_device_alloc: u64,
    /// Segments or handles returned to the driver.
    pub num_device_free: u64,
    /// Requests served from the cache.
    pub num_hits: u64,
    /// Requests that needed the driver.
    pub num_misses: u64,
    /// Give-backs to the driver that could not be made at once.
    pub num_owed_give_backs: u64,
    /// The setting in bytes; `UINT64_MAX` where there is none.
    pub max_split_size: u64,
    /// 1 - peak live / peak reserved.
    pub fragmentation: f64,
    /// The same for this moment.
    pub current_fragmentation: f64,
}

// SAFETY: numbers alone, and the size first.
unsafe impl Versioned for hw_stats {}

impl From<&Stat> for hw_stat {
    fn from(stat: &Stat) -> Self {
        Self { current: stat.current, peak: stat.peak, allocated: stat.allocated, freed: stat.freed }
    }
}

impl From<&StatArray> for hw_stat_array {
    fn from(array: &StatArray) -> Self {
        Self {
            all: (&array.all).into(),
            small_pool: (&array.small_pool).into(),
            large_pool: (&array.large_pool).into(),
        }
    }
}

impl From<&DeviceStats> for hw_stats {
    fn from(stats: &DeviceStats) -> Self {
        Self {
            struct_bytes: size_of::<Self>() as u64,
            allocation: (&stats.allocation).into(),
            segment: (&stats.segment).into(),
            active: (&stats.active).into(),
            inactive_split: (&stats.inactive_split).into(),
            allocated_bytes: (&stats.allocated_bytes).into(),
            reserved_bytes: (&stats.reserved_bytes).into(),
            active_bytes: (&stats.active_bytes).into(),
            inactive_split_bytes: (&stats.inactive_split_bytes).into(),
            requested_bytes: (&stats.requested_bytes).into(),
            oversize_allocations: (&stats.oversize_allocations).into(),
            oversize_segments: (&stats.oversize_segments).into(),
            num_alloc_retries: stats.num_alloc_retries,
            num_ooms: stats.num_ooms,
            num_oom_rejections: stats.num_oom_rejections,
            num_sync_all_streams: stats.num_sync_all_streams,
            num_device_alloc: stats.num_device_alloc,
            num_device_free: stats.num_device_free,
            num_hits: stats.hits,
            num_misses: stats.misses,
            num_owed_give_backs: stats.num_owed_give_backs,
            max_split_size: stats.max_split_size.unwrap_or(u64::MAX),
            fragmentation: stats.fragmentation(),
            current_fragmentation: stats.current_fragmentation(),
        }
    }
}

/// What the allocator counts, as it stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_stats(allocator: *const hw_allocator, stats: *mut hw_stats) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { check_versioned(stats, "stats") }?;
        let found = handles::get(allocator)?.base.allocator.stats();
        // SAFETY: as above.
        unsafe { fill_versioned(stats, &(&found).into(), "stats") }
    })
}

/// Everything that is counted, as one JSON object: `stats` by the flat names of `torch.cuda.memory_stats()`, `policy`, `settings`,
/// `limit_bytes`, `device` with its memory, `driver_calls` by name, `fragmentation` and (where there are any) `pools`. Give the text
/// back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_stats_json(allocator: *const hw_allocator, text: *mut *mut c_char) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(text, "text") }?;
        let object = handles::get(allocator)?;
        place.write(owned_text(&everything(&object.base)?.to_string())?);
        Ok(())
    })
}

fn everything(base: &Base) -> Result<Value, Failure> {
    let (driver, id) = (base.device.driver(), base.device.id());
    let stats = base.allocator.stats();
    let memory = driver.memory_info(id)?;
    let flat: Map<String, Value> =
        stats.flatten().into_iter().map(|(name, value)| (name, value.into())).collect();
    let calls: Map<String, Value> =
        driver.call_counts().iter().map(|(call, count)| (call.name().to_owned(), count.into())).collect();
    let caching = base.caching.as_ref();
    let fragmentation = caching.map(|caching| {
        let found = caching.fragmentation();
        json!({
            "split_bytes": found.split_bytes,
            "releasable_bytes": found.releasable_bytes,
            "rounding_bytes": found.rounding_bytes,
            "largest_free_bytes": found.largest_free_bytes,
        })
    });
    let pools = base.graphs.as_ref().map(|graphs| crate::pools::snapshots_json(graphs));
    Ok(json!({
        "policy": base.allocator.name(),
        "settings": caching.map(|caching| caching.config().to_settings_string()),
        "limit_bytes": limit_of(base).ok().flatten(),
        "device": {
            "ordinal": id.0,
            "backend": driver.backend(),
            "free_bytes": memory.free_bytes,
            "total_bytes": memory.total_bytes,
        },
        "stats": flat,
        "hit_rate": stats.hit_rate(),
        "fragmentation": stats.fragmentation(),
        "current_fragmentation": stats.current_fragmentation(),
        "free_memory": fragmentation,
        "driver_calls": calls,
        "pools": pools,
    }))
}

/// A table for people. Give the text back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_stats_summary(
    allocator: *const hw_allocator,
    text: *mut *mut c_char,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(text, "text") }?;
        place.write(owned_text(&handles::get(allocator)?.base.allocator.stats().summary())?);
        Ok(())
    })
}

/// Lets every peak start again from now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reset_peaks(allocator: *const hw_allocator) -> hw_status {
    guarded(|| {
        handles::get(allocator)?.base.allocator.reset_peaks();
        Ok(())
    })
}

/// Lets every total start again from zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reset_totals(allocator: *const hw_allocator) -> hw_status {
    guarded(|| {
        handles::get(allocator)?.base.allocator.reset_totals();
        Ok(())
    })
}
