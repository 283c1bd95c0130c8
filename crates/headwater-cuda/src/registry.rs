//! What exists: the streams, events, handles, graphs, modules and kernels this driver made or adopted.
//!
//! The contract says that a stale id is answered with `InvalidHandle`. To `libcuda` a destroyed stream or event is a
//! dangling pointer, so it must never see one:
//! - Every id is looked up first. Ids other than streams' are serial numbers that never come again, so a stale one
//!   cannot name somebody new. A stream's id has to be CUDA's own value, and CUDA may use a value again after the
//!   stream was destroyed; then it names a live stream, which is at least no dangling pointer.
//! - A call holds the object (an `Arc`) until it returns. Destroying takes the object out of the registry, so that no
//!   later call finds it; the driver's destroy runs when the last holder lets go. That is nearly always the destroying
//!   call itself, which then returns the driver's answer.
//!
//! The map is split in shards, each with its own lock, held for the look-up only and never across a driver call.

use std::ops::Deref;
use std::sync::Arc;

use headwater_driver::{DeviceId, ErrorClass};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::abi::CuResult;
use crate::error::class_of;

/// Enough that sixteen threads rarely meet, few enough to be small.
const SHARDS: usize = 16;

/// An object's device and number.
pub(crate) type Key = (DeviceId, u64);

type Shard<T> = RwLock<FxHashMap<Key, Arc<T>>>;

/// Objects by their ids.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    shards: [Shard<T>; SHARDS],
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

impl<T> Registry<T> {
    fn shard(&self, key: Key) -> &Shard<T> {
        // Streams' values are addresses with zeros at the end: the multiplication spreads them.
        let mixed = key.1.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.shards[mixed as usize % SHARDS]
    }

    pub(crate) fn insert(&self, key: Key, object: T) {
        self.shard(key).write().insert(key, Arc::new(object));
    }

    /// Adds the object unless the id is known already; says whether it did.
    pub(crate) fn insert_new(&self, key: Key, object: T) -> bool {
        let mut shard = self.shard(key).write();
        if shard.contains_key(&key) {
            return false;
        }
        shard.insert(key, Arc::new(object));
        true
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<T>> {
        self.shard(key).read().get(&key).cloned()
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.shard(key).read().contains_key(&key)
    }

    /// Takes the object out where it is there and `agrees`.
    pub(crate) fn remove_if(&self, key: Key, agrees: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let mut shard = self.shard(key).write();
        if agrees(shard.get(&key)?) { shard.remove(&key) } else { None }
    }
}

impl<N: Native> Registry<Owned<N>> {
    /// Destroys the object, now or when the calls that use it have returned. `None` where it does not exist or does not
    /// agree. An object that the driver refuses to destroy exists on, so that the caller can try again.
    pub(crate) fn destroy_if(&self, key: Key, agrees: impl FnOnce(&N) -> bool) -> Option<CuResult> {
        let object = self.remove_if(key, |object| agrees(object))?;
        Some(self.destroy_removed(key, object))
    }

    /// The second half of [`destroy_if`](Self::destroy_if), for an object that was taken out already.
    pub(crate) fn destroy_removed(&self, key: Key, object: Arc<Owned<N>>) -> CuResult {
        let Some(last) = Arc::into_inner(object) else { return CuResult::SUCCESS };
        let (code, survivor) = last.destroy();
        if let Some(survivor) = survivor {
            self.insert(key, survivor);
        }
        code
    }

    /// [`destroy_if`](Self::destroy_if) whatever it is.
    pub(crate) fn destroy(&self, key: Key) -> Option<CuResult> {
        self.destroy_if(key, |_| true)
    }
}

/// An object of the driver.
pub(crate) trait Native {
    /// Destroys it. Called once, unless it fails.
    fn destroy(&self) -> CuResult;
}

/// An object of the driver that is destroyed when dropped, or before that by hand.
#[derive(Debug)]
pub(crate) struct Owned<N: Native> {
    native: N,
    alive: bool,
}

impl<N: Native> Owned<N> {
    pub(crate) fn new(native: N) -> Self {
        Self { native, alive: true }
    }

    /// Destroys the object; where that failed and it still exists, returns it.
    fn destroy(mut self) -> (CuResult, Option<Self>) {
        self.alive = false;
        let code = self.native.destroy();
        // After a sticky error nobody knows what is left of the object: nobody may touch it again.
        if code.is_success() || matches!(class_of(code), ErrorClass::DeviceLost | ErrorClass::Unavailable) {
            (code, None)
        } else {
            self.alive = true;
            (code, Some(self))
        }
    }
}

impl<N: Native> Deref for Owned<N> {
    type Target = N;

    fn deref(&self) -> &N {
        &self.native
    }
}

impl<N: Native> Drop for Owned<N> {
    fn drop(&mut self) {
        if self.alive {
            // Either the driver object is going away with everything in it, or the destroying call has returned while
            // another call still used the object. There is nobody left to tell; a sticky error shows in the next call.
            let _ = self.native.destroy();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const KEY: Key = (DeviceId(0), 7);

    /// Counts how often it was destroyed, and fails with `code`.
    #[derive(Debug)]
    struct Probe {
        destroyed: Arc<AtomicU32>,
        code: Arc<AtomicU32>,
    }

    impl Native for Probe {
        fn destroy(&self) -> CuResult {
            self.destroyed.fetch_add(1, Ordering::SeqCst);
            CuResult(self.code.load(Ordering::SeqCst))
        }
    }

    fn registry_with_probe(code: u32) -> (Registry<Owned<Probe>>, Arc<AtomicU32>, Arc<AtomicU32>) {
        let (destroyed, code) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(code)));
        let registry = Registry::default();
        registry.insert(KEY, Owned::new(Probe { destroyed: destroyed.clone(), code: code.clone() }));
        (registry, destroyed, code)
    }

    #[test]
    fn a_destroyed_object_is_not_found_and_not_destroyed_twice() {
        let (registry, destroyed, _) = registry_with_probe(0);
        assert_eq!(registry.destroy(KEY), Some(CuResult::SUCCESS));
        assert!(registry.get(KEY).is_none());
        assert_eq!(registry.destroy(KEY), None);
        drop(registry);
        assert_eq!(destroyed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_same_number_on_another_device_is_another_object() {
        let (registry, ..) = registry_with_probe(0);
        assert!(registry.get((DeviceId(1), 7)).is_none());
    }

    #[test]
    fn an_object_in_use_outlives_its_destruction() {
        let (registry, destroyed, _) = registry_with_probe(0);
        let in_use = registry.get(KEY);
        assert_eq!(registry.destroy(KEY), Some(CuResult::SUCCESS));
        assert!(!registry.contains(KEY));
        assert_eq!(destroyed.load(Ordering::SeqCst), 0);
        drop(in_use);
        assert_eq!(destroyed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_the_driver_refuses_to_destroy_exists_on() {
        let (registry, destroyed, code) = registry_with_probe(900);
        assert_eq!(registry.destroy(KEY), Some(CuResult(900)));
        assert!(registry.contains(KEY));
        code.store(0, Ordering::SeqCst);
        assert_eq!(registry.destroy(KEY), Some(CuResult::SUCCESS));
        assert_eq!(destroyed.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn after_a_sticky_error_the_object_is_gone() {
        let (registry, destroyed, _) = registry_with_probe(700);
        assert_eq!(registry.destroy(KEY), Some(CuResult(700)));
        assert!(!registry.contains(KEY));
        drop(registry);
        assert_eq!(destroyed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn threads_that_use_and_destroy_at_once_destroy_exactly_once() {
        for _ in 0..200 {
            let (registry, destroyed, _) = registry_with_probe(0);
            let answered = AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while let Some(in_use) = registry.get(KEY) {
                            assert_eq!(in_use.destroyed.load(Ordering::SeqCst), 0);
                        }
                    });
                    scope.spawn(|| {
                        answered.fetch_add(u32::from(registry.destroy(KEY).is_some()), Ordering::SeqCst)
                    });
                }
            });
            assert_eq!(answered.load(Ordering::SeqCst), 1);
            assert_eq!(destroyed.load(Ordering::SeqCst), 1);
        }
    }
}
