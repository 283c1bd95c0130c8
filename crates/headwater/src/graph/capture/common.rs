//! What all private pools of one allocator have in common: the device, the limit, and which pool an address belongs to.
//!
//! **One limit for two kinds of memory.** Private pools and the allocator for everything else draw on one device. Where
//! there is a limit, a pool that grows first lowers what the other allocator may have, and asks it to empty its cache where it
//! has more than that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use headwater_driver::{DeviceId, DevicePtr, Driver};
use parking_lot::{Mutex, RwLock};

use super::PoolId;
use super::private_pool::PrivatePool;
use crate::allocator::Allocator;
use crate::graph::device_fence::DeviceFence;
use crate::stats::DeviceStats;

/// Told how many bytes are left for memory outside of private pools.
pub(super) type LimitFollower = dyn Fn(u64) + Send + Sync;

pub(super) struct Common {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) device: DeviceId,
    /// For everything that no pool serves.
    pub(super) default: Arc<dyn Allocator>,
    pub(super) total_bytes: u64,
    pub(super) fence: DeviceFence,
    limit_bytes: Option<u64>,
    follower: Option<Box<LimitFollower>>,
    /// What private pools have. Held across driver calls while a pool grows; no hit needs it.
    private_bytes: Mutex<u64>,
    directory: RwLock<Directory>,
    /// How many ranges the directory has: where there are none, no address needs looking up.
    ranges: AtomicUsize,
    next_id: AtomicU64,
    /// The counts of pools that are no more.
    pub(super) departed: Mutex<DeviceStats>,
}

#[derive(Default)]
struct Directory {
    /// First address → end and owner.
    ranges: BTreeMap<u64, (u64, Weak<PrivatePool>)>,
    pools: BTreeMap<PoolId, Arc<PrivatePool>>,
}

impl Common {
    pub(super) fn new(
        default: Arc<dyn Allocator>,
        total_bytes: u64,
        limit_bytes: Option<u64>,
        follower: Option<Box<LimitFollower>>,
    ) -> Self {
        Self {
            fence: DeviceFence::new(Arc::clone(default.driver()), default.device()),
            driver: Arc::clone(default.driver()),
            device: default.device(),
            default,
            total_bytes,
            limit_bytes,
            follower,
            private_bytes: Mutex::new(0),
            directory: RwLock::default(),
            ranges: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            departed: Mutex::default(),
        }
    }

    pub(super) fn next_id(&self) -> u64 {
        // Relaxed: only that no two are the same matters.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    pub(super) fn private_bytes(&self) -> u64 {
        *self.private_bytes.lock()
    }

    /// Sets bytes aside for a pool, unless the limit forbids it. What the other allocator has cached makes way.
    pub(super) fn promise(&self, bytes: u64) -> bool {
        let mut private_bytes = self.private_bytes.lock();
        let wanted_bytes = private_bytes.saturating_add(bytes);
        if let Some(limit_bytes) = self.limit_bytes {
            let Some(left_bytes) = limit_bytes.checked_sub(wanted_bytes) else { return false };
            self.follow(left_bytes);
            let others = || self.default.stats().reserved_bytes.all.current;
            if others() > left_bytes {
                // What the driver refuses stays, and is counted below.
                let _ = self.default.empty_cache();
                if others() > left_bytes {
                    self.follow(limit_bytes - *private_bytes);
                    return false;
                }
            }
        }
        *private_bytes = wanted_bytes;
        true
    }

    /// A pool has less than was promised.
    pub(super) fn withdraw(&self, bytes: u64) {
        let mut private_bytes = self.private_bytes.lock();
        *private_bytes = private_bytes.saturating_sub(bytes);
        if let Some(limit_bytes) = self.limit_bytes {
            self.follow(limit_bytes.saturating_sub(*private_bytes));
        }
    }

    fn follow(&self, left_bytes: u64) {
        if let Some(follower) = &self.follower {
            follower(left_bytes);
        }
    }

    pub(super) fn add_pool(&self, pool: &Arc<PrivatePool>) {
        self.directory.write().pools.insert(pool.id(), Arc::clone(pool));
    }

    pub(super) fn remove_pool(&self, id: PoolId) -> Option<Arc<PrivatePool>> {
        self.directory.write().pools.remove(&id)
    }

    pub(super) fn pools(&self) -> Vec<Arc<PrivatePool>> {
        self.directory.read().pools.values().cloned().collect()
    }

    pub(super) fn has_pool(&self, id: PoolId) -> bool {
        self.directory.read().pools.contains_key(&id)
    }

    /// Takes all pools out: the allocator is going away, and what is left belongs to graphs and handles.
    pub(super) fn take_pools(&self) -> Vec<Arc<PrivatePool>> {
        std::mem::take(&mut self.directory.write().pools).into_values().collect()
    }

    pub(super) fn add_range(&self, base: u64, bytes: u64, owner: Weak<PrivatePool>) {
        self.directory.write().ranges.insert(base, (base + bytes, owner));
        self.ranges.fetch_add(1, Ordering::Release);
    }

    pub(super) fn remove_range(&self, base: u64) {
        if self.directory.write().ranges.remove(&base).is_some() {
            self.ranges.fetch_sub(1, Ordering::Release);
        }
    }

    /// The pool that an address belongs to.
    pub(super) fn owner(&self, ptr: DevicePtr) -> Option<Arc<PrivatePool>> {
        // Acquire: an address that was handed out was entered before.
        if self.ranges.load(Ordering::Acquire) == 0 {
            return None;
        }
        let directory = self.directory.read();
        let (_, (end, owner)) = directory.ranges.range(..=ptr.raw()).next_back()?;
        if ptr.raw() < *end { owner.upgrade() } else { None }
    }
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common")
            .field("device", &self.device)
            .field("default", &self.default.name())
            .field("limit_bytes", &self.limit_bytes)
            .finish_non_exhaustive()
    }
}
