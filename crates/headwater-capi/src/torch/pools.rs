//! PyTorch's pools by their ids.
//!
//! PyTorch names a pool by two numbers (one for a graph's own pool, the other for a shared handle or a `MemPool`) and counts its
//! users: a capture, a `use_mem_pool` block and a `MemPool` object are one each. A pool comes into being with its first user and
//! ends with its last, blocks that are still held excepted.

use std::collections::BTreeMap;

use headwater::graph::PoolHandle;

use super::device_memory::{DeviceMemory, MemoryError};

/// PyTorch's `MempoolId_t`.
pub type PoolKey = (u64, u64);

/// The pools of one device.
#[derive(Debug, Default)]
pub(super) struct Pools {
    by_key: BTreeMap<PoolKey, PoolHandle>,
}

impl DeviceMemory {
    /// The pool of this id, if it has users.
    pub fn pool(&self, key: PoolKey) -> Option<PoolHandle> {
        self.pools.lock().by_key.get(&key).cloned()
    }

    /// The id of the pool that Headwater numbers `raw`.
    pub fn key_of_pool(&self, raw: u64) -> Option<PoolKey> {
        let pools = self.pools.lock();
        pools.by_key.iter().find(|(_, handle)| handle.id().raw() == raw).map(|(key, _)| *key)
    }

    fn pool_or_new(&self, key: PoolKey) -> Result<PoolHandle, MemoryError> {
        let mut pools = self.pools.lock();
        if let Some(handle) = pools.by_key.get(&key) {
            return Ok(handle.clone());
        }
        let handle = self.graphs().new_pool()?;
        pools.by_key.insert(key, handle.clone());
        Ok(handle)
    }

    fn known_pool(&self, key: PoolKey) -> Result<PoolHandle, MemoryError> {
        self.pool(key).ok_or(MemoryError::NoSuchPool(key))
    }

    /// One more user of the pool.
    ///
    /// # Errors
    /// None today.
    pub fn retain_pool(&self, key: PoolKey) -> Result<(), MemoryError> {
        let handle = self.pool_or_new(key)?;
        Ok(self.graphs().retain_pool(&handle)?)
    }

    /// Routes requests of streams that `accepts` says yes to into the pool, which has one more user from now on. The null stream
    /// is asked about by PyTorch's name for it.
    ///
    /// # Errors
    /// Where requests are routed to the pool already.
    pub fn begin_allocate_to_pool(
        &self,
        key: PoolKey,
        accepts: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Result<(), MemoryError> {
        let handle = self.pool_or_new(key)?;
        let filter = move |stream: headwater_driver::Stream| {
            accepts(if stream.is_legacy_default() { 0 } else { stream.raw() })
        };
        Ok(self.graphs().begin_allocate_to_pool(&handle, filter)?)
    }

    /// Ends the routing.
    ///
    /// # Errors
    /// Where there was none.
    pub fn end_allocate_to_pool(&self, key: PoolKey) -> Result<(), MemoryError> {
        Ok(self.graphs().end_allocate_to_pool(&self.known_pool(key)?)?)
    }

    /// One user less. With the last one the pool's memory goes back.
    ///
    /// # Errors
    /// Where the pool has no user; what the driver answered, and then the memory goes back later.
    pub fn release_pool(&self, key: PoolKey) -> Result<(), MemoryError> {
        let handle = self.known_pool(key)?;
        let released = self.graphs().release_pool(&handle);
        if handle.foreign_uses() == 0 {
            self.pools.lock().by_key.remove(&key);
        }
        Ok(released?)
    }

    /// How many users the pool has.
    pub fn pool_uses(&self, key: PoolKey) -> usize {
        self.pool(key).map_or(0, |handle| handle.foreign_uses())
    }
}
