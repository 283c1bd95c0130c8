//! All statistics of one device.

use std::collections::BTreeMap;

use super::stat::{PoolKind, Stat, StatArray};

/// The statistics of one device. What each counts: [the module](super).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Blocks that callers hold.
    pub allocation: StatArray,
    /// Segments (or arenas' mapped handles) that the driver gave us.
    pub segment: StatArray,
    /// Blocks that callers hold or a stream still uses.
    pub active: StatArray,
    /// Free blocks of segments that are partly in use.
    pub inactive_split: StatArray,
    /// Bytes of [`allocation`](Self::allocation), rounded.
    pub allocated_bytes: StatArray,
    /// Bytes that the driver gave us.
    pub reserved_bytes: StatArray,
    /// Bytes of [`active`](Self::active).
    pub active_bytes: StatArray,
    /// Bytes of [`inactive_split`](Self::inactive_split).
    pub inactive_split_bytes: StatArray,
    /// Bytes that callers asked for and hold: live bytes.
    pub requested_bytes: StatArray,
    /// Blocks of at least `max_split_size` that callers hold.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Requests that were tried again after the driver had no memory.
    pub num_alloc_retries: u64,
    /// Requests that ended in an out-of-memory error.
    pub num_ooms: u64,
    /// Requests refused at the limit before the driver was asked (`throw_on_cudamalloc_oom`).
    pub num_oom_rejections: u64,
    /// How often all streams with pending give-backs were waited for.
    pub num_sync_all_streams: u64,
    /// Segments or handles got from the driver.
    pub num_device_alloc: u64,
    /// Segments or handles returned to the driver.
    pub num_device_free: u64,
    /// The setting `max_split_size_mb` in bytes; `None`: unlimited.
    pub max_split_size: Option<u64>,
    /// Requests served from the cache.
    pub hits: u64,
    /// Requests that needed the driver.
    pub misses: u64,
    /// Give-backs to the driver that could not be made or failed, and are still owed or were retried later.
    pub num_owed_give_backs: u64,
}

impl DeviceStats {
    /// The share of what the driver gave us at the peak that no caller asked for: 1 - peak live / peak reserved. The
    /// peaks need not be of one moment. 0 where nothing was ever reserved.
    pub fn fragmentation(&self) -> f64 {
        unused_share(self.requested_bytes.all.peak, self.reserved_bytes.all.peak)
    }

    /// The same for this moment.
    pub fn current_fragmentation(&self) -> f64 {
        unused_share(self.requested_bytes.all.current, self.reserved_bytes.all.current)
    }

    /// The share of requests that were served from the cache; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let requests = self.hits.saturating_add(self.misses);
        (requests > 0).then(|| self.hits as f64 / requests as f64)
    }

    /// Bytes that the driver gave us and nobody uses.
    pub fn cached_bytes(&self) -> u64 {
        self.reserved_bytes.all.current.saturating_sub(self.active_bytes.all.current)
    }

    /// Bytes that were given back but wait for a stream.
    pub fn pending_bytes(&self) -> u64 {
        self.active_bytes.all.current.saturating_sub(self.allocated_bytes.all.current)
    }

    /// Lets every peak start again from now.
    pub fn reset_peaks(&mut self) {
        self.each_stat_mut(Stat::reset_peak);
    }

    /// Lets every total start again from zero: the `allocated` and `freed` of each statistic, and the plain counters.
    /// What is there now, and the peaks, stay.
    pub fn reset_totals(&mut self) {
        self.each_stat_mut(Stat::reset_totals);
        for counter in [
            &mut self.num_alloc_retries,
            &mut self.num_ooms,
            &mut self.num_oom_rejections,
            &mut self.num_sync_all_streams,
            &mut self.num_device_alloc,
            &mut self.num_device_free,
            &mut self.hits,
            &mut self.misses,
            &mut self.num_owed_give_backs,
        ] {
            *counter = 0;
        }
    }

    /// Every number by its flat name. `max_split_size` is -1 where unlimited, as in PyTorch.
    pub fn flatten(&self) -> BTreeMap<String, i64> {
        let mut flat = BTreeMap::new();
        let mut insert =
            |name: String, value: u64| flat.insert(name, i64::try_from(value).unwrap_or(i64::MAX));
        for (name, array) in self.arrays() {
            for kind in PoolKind::KINDS {
                for (part, value) in array.of(kind).parts() {
                    insert(format!("{name}.{}.{part}", kind.name()), value);
                }
            }
        }
        for (name, stat) in self.plain_stats() {
            for (part, value) in stat.parts() {
                insert(format!("{name}.{part}"), value);
            }
        }
        for (name, value) in self.counters() {
            insert(name.to_owned(), value);
        }
        let max_split_size = self.max_split_size.map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        flat.insert("max_split_size".to_owned(), max_split_size);
        flat
    }

    /// The statistics kept by pool, by name.
    pub(super) fn arrays(&self) -> [(&'static str, &StatArray); 9] {
        [
            ("allocation", &self.allocation),
            ("segment", &self.segment),
            ("active", &self.active),
            ("inactive_split", &self.inactive_split),
            ("allocated_bytes", &self.allocated_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("active_bytes", &self.active_bytes),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
        ]
    }

    /// The statistics not kept by pool, by name.
    pub(super) fn plain_stats(&self) -> [(&'static str, &Stat); 2] {
        [("oversize_allocations", &self.oversize_allocations), ("oversize_segments", &self.oversize_segments)]
    }

    /// The counters that only rise, by name.
    pub(super) fn counters(&self) -> [(&'static str, u64); 9] {
        [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_oom_rejections", self.num_oom_rejections),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("num_hits", self.hits),
            ("num_misses", self.misses),
            ("num_owed_give_backs", self.num_owed_give_backs),
        ]
    }

    fn each_stat_mut(&mut self, change: fn(&mut Stat)) {
        for array in [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ] {
            array.each_mut().into_iter().for_each(change);
        }
        change(&mut self.oversize_allocations);
        change(&mut self.oversize_segments);
    }
}

fn unused_share(live: u64, reserved: u64) -> f64 {
    if reserved == 0 { 0.0 } else { 1.0 - live as f64 / reserved as f64 }
}
