//! What all private pools of one allocator have in common: the device, the limit, and which pool an address belongs to.
//!
//! **One limit for two kinds of memory.** Private pools and the allocator for everything else draw on one device. Where
//! there is a limit, a pool that grows first lowers what the other allocator may have, and asks it to empty its cache where it
//! has more than that.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use headwater_driver::{DeviceId, DevicePtr, Driver};
use parking_lot::{Mutex, RwLock};

use super::PoolId;
use super::private_pool::PrivatePool;
use crate::CachingAllocator;
use crate::allocator::Allocator;
use crate::graph::device_fence::DeviceFence;
use crate::stats::DeviceStats;

/// Told how many bytes are left for memory outside of private pools; `None` where there is no limit (any more).
pub(super) type LimitFollower = dyn Fn(Option<u64>) + Send + Sync;

/// What may be had, and what private pools have of it.
#[derive(Debug, Default)]
struct Budget {
    limit_bytes: Option<u64>,
    private_bytes: u64,
}

pub(super) struct Common {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) device: DeviceId,
    /// For everything that no pool serves.
    pub(super) default: Arc<dyn Allocator>,
    /// The same, where it is a caching one.
    pub(super) caching: Option<Arc<CachingAllocator>>,
    pub(super) total_bytes: u64,
    /// Whether captures are asked in which order their streams are.
    pub(super) reads_captured_order: bool,
    pub(super) fence: DeviceFence,
    follower: Option<Box<LimitFollower>>,
    /// Held across driver calls while a pool grows; no hit needs it.
    budget: Mutex<Budget>,
    directory: RwLock<Directory>,
    /// How many ranges the directory has: where there are none, no address needs looking up.
    ranges: AtomicUsize,
    next_id: AtomicU64,
    /// The counts of pools that are no more.
    pub(super) departed: Mutex<DeviceStats>,
}

/// Addresses of a pool, which is in the list for as long as it has any.
struct Range {
    base: u64,
    end: u64,
    owner: PoolId,
}

#[derive(Default)]
struct Directory {
    /// In the order of addresses. A range comes and goes with a driver call, and is looked up by every give-back: a vector.
    ranges: Vec<Range>,
    pools: BTreeMap<PoolId, Arc<PrivatePool>>,
}

impl Common {
    pub(super) fn new(
        default: Arc<dyn Allocator>,
        caching: Option<Arc<CachingAllocator>>,
        total_bytes: u64,
        reads_captured_order: bool,
        limit_bytes: Option<u64>,
        follower: Option<Box<LimitFollower>>,
    ) -> Self {
        Self {
            fence: DeviceFence::new(Arc::clone(default.driver()), default.device()),
            driver: Arc::clone(default.driver()),
            device: default.device(),
            default,
            caching,
            total_bytes,
            reads_captured_order,
            follower,
            budget: Mutex::new(Budget { limit_bytes, private_bytes: 0 }),
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
        self.budget.lock().limit_bytes
    }

    /// Another limit, or none. What is had beyond it stays until it is given back.
    pub(super) fn set_limit_bytes(&self, limit_bytes: Option<u64>) {
        let mut budget = self.budget.lock();
        budget.limit_bytes = limit_bytes;
        self.follow(limit_bytes.map(|limit_bytes| limit_bytes.saturating_sub(budget.private_bytes)));
    }

    pub(super) fn private_bytes(&self) -> u64 {
        self.budget.lock().private_bytes
    }

    /// Sets bytes aside for a pool, unless the limit forbids it. What the other allocator has cached makes way.
    pub(super) fn promise(&self, bytes: u64) -> bool {
        let mut budget = self.budget.lock();
        let wanted_bytes = budget.private_bytes.saturating_add(bytes);
        if let Some(limit_bytes) = budget.limit_bytes {
            let Some(left_bytes) = limit_bytes.checked_sub(wanted_bytes) else { return false };
            self.follow(Some(left_bytes));
            let others = || match &self.caching {
                // With what it is asking the driver for right now, under the limit that it had before.
                Some(caching) => caching.held_bytes(),
                None => self.default.stats().reserved_bytes.all.current,
            };
            if others() > left_bytes {
                // What the driver refuses stays, and is counted below.
                let _ = self.default.empty_cache();
                if others() > left_bytes {
                    self.follow(Some(limit_bytes - budget.private_bytes));
                    return false;
                }
            }
        }
        budget.private_bytes = wanted_bytes;
        true
    }

    /// A pool has less than was promised.
    pub(super) fn withdraw(&self, bytes: u64) {
        let mut budget = self.budget.lock();
        budget.private_bytes = budget.private_bytes.saturating_sub(bytes);
        if let Some(limit_bytes) = budget.limit_bytes {
            self.follow(Some(limit_bytes.saturating_sub(budget.private_bytes)));
        }
    }

    fn follow(&self, left_bytes: Option<u64>) {
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

    pub(super) fn add_range(&self, base: u64, bytes: u64, owner: PoolId) {
        let mut directory = self.directory.write();
        let range = Range { base, end: base + bytes, owner };
        match directory.ranges.binary_search_by_key(&base, |range| range.base) {
            Ok(place) => directory.ranges[place] = range,
            Err(place) => directory.ranges.insert(place, range),
        }
        self.ranges.store(directory.ranges.len(), Ordering::Release);
    }

    pub(super) fn remove_range(&self, base: u64) {
        let mut directory = self.directory.write();
        if let Ok(place) = directory.ranges.binary_search_by_key(&base, |range| range.base) {
            directory.ranges.remove(place);
            self.ranges.store(directory.ranges.len(), Ordering::Release);
        }
    }

    /// The pool that an address belongs to.
    pub(super) fn owner(&self, ptr: DevicePtr) -> Option<Arc<PrivatePool>> {
        self.with_owner(ptr, Arc::clone)
    }

    /// Calls `visit` with the pool that an address belongs to, under the lock of the directory: a hit needs no reference of its
    /// own. The state of a pool may be locked inside, nothing else.
    #[inline]
    pub(super) fn with_owner<T>(
        &self,
        ptr: DevicePtr,
        visit: impl FnOnce(&Arc<PrivatePool>) -> T,
    ) -> Option<T> {
        // Acquire: an address that was handed out was entered before.
        if self.ranges.load(Ordering::Acquire) == 0 {
            return None;
        }
        let directory = self.directory.read();
        let place = directory.ranges.partition_point(|range| range.base <= ptr.raw()).checked_sub(1)?;
        let range = directory.ranges.get(place).filter(|range| ptr.raw() < range.end)?;
        directory.pools.get(&range.owner).map(visit)
    }
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common")
            .field("device", &self.device)
            .field("default", &self.default.name())
            .finish_non_exhaustive()
    }
}
