//! Statistics of several sources as one.

use crate::stats::{DeviceStats, Stat, StatArray};

/// Adds the figures of one source to those of others. What is there now adds up exactly; the peaks were not all at one moment, so
/// the sum of peaks is the most that can have been.
pub(super) fn add(to: &mut DeviceStats, from: &DeviceStats) {
    for (to, from) in [
        (&mut to.allocation, &from.allocation),
        (&mut to.segment, &from.segment),
        (&mut to.active, &from.active),
        (&mut to.inactive_split, &from.inactive_split),
        (&mut to.allocated_bytes, &from.allocated_bytes),
        (&mut to.reserved_bytes, &from.reserved_bytes),
        (&mut to.active_bytes, &from.active_bytes),
        (&mut to.inactive_split_bytes, &from.inactive_split_bytes),
        (&mut to.requested_bytes, &from.requested_bytes),
    ] {
        add_array(to, from);
    }
    add_stat(&mut to.oversize_allocations, &from.oversize_allocations);
    add_stat(&mut to.oversize_segments, &from.oversize_segments);
    for (to, from) in [
        (&mut to.num_alloc_retries, from.num_alloc_retries),
        (&mut to.num_ooms, from.num_ooms),
        (&mut to.num_oom_rejections, from.num_oom_rejections),
        (&mut to.num_sync_all_streams, from.num_sync_all_streams),
        (&mut to.num_device_alloc, from.num_device_alloc),
        (&mut to.num_device_free, from.num_device_free),
        (&mut to.hits, from.hits),
        (&mut to.misses, from.misses),
        (&mut to.num_owed_give_backs, from.num_owed_give_backs),
    ] {
        *to = to.saturating_add(from);
    }
}

fn add_array(to: &mut StatArray, from: &StatArray) {
    add_stat(&mut to.all, &from.all);
    add_stat(&mut to.small_pool, &from.small_pool);
    add_stat(&mut to.large_pool, &from.large_pool);
}

fn add_stat(to: &mut Stat, from: &Stat) {
    to.current = to.current.saturating_add(from.current);
    to.peak = to.peak.saturating_add(from.peak);
    to.allocated = to.allocated.saturating_add(from.allocated);
    to.freed = to.freed.saturating_add(from.freed);
}
