//! One slot a thread and allocator: finding it in a nanosecond, visiting it from outside, and what happens when its thread
//! ends.
//!
//! A thread remembers the slot it used last in thread-local storage that needs no initialisation and no destructor, so
//! finding it again is one comparison; a thread that takes turns between allocators searches a short list. What the thread does
//! in its slot is guarded by the slot's [`Latch`]. Others visit all slots at once ([`ThreadCaches::stop`]): with every latch
//! held, what is counted in slots adds up.
//!
//! When a thread ends, its cache is handed to the [`Tenant`], and the slot waits for another thread. Counts stay in it: sums
//! over all slots are right whatever threads came and went. A thread so far gone that its thread-local storage is no more
//! uses the common slot, behind a mutex.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::barrier;
use super::inbox::Inbox;
use super::latch::Latch;

/// How many messages wait in an inbox before senders take another way.
const INBOX_MESSAGES: usize = 256;

/// What stands behind the caches.
pub(crate) trait Tenant: Send + Sync + 'static {
    /// What a thread keeps.
    type Cache: Send;
    /// What messages are about.
    type Thing: Send + Sync;

    /// The tenant's slots.
    fn thread_caches(&self) -> &ThreadCaches<Self::Cache, Self::Thing>;

    /// An empty cache.
    fn new_cache(&self) -> Self::Cache;

    /// The calling thread, which had `slot`, ends: its cache is to be emptied and its inbox closed.
    fn thread_ends(&self, slot: &Slot<Self::Cache, Self::Thing>);
}

/// A thread's place in one allocator.
#[repr(align(128))]
pub(crate) struct Slot<C, T> {
    latch: Latch,
    /// No thread owns it: everyone goes through the gate.
    is_common: bool,
    /// A number for the thread that has it, never used again.
    thread: AtomicU64,
    cache: UnsafeCell<C>,
    /// Visitors exclude each other here; an owner who was stopped waits here.
    gate: Mutex<()>,
    pub(crate) inbox: Inbox<T>,
}

// SAFETY: `cache` is reached only by the owner inside the latch, or by a visitor (through the gate) while the latch keeps the
// owner out. So it is never reached by two threads at once, and it is `Send`. All else is `Sync`.
unsafe impl<C: Send, T: Send + Sync> Sync for Slot<C, T> {}

impl<C, T> Slot<C, T> {
    fn new(cache: C, is_common: bool) -> Self {
        Self {
            latch: Latch::new(),
            is_common,
            thread: AtomicU64::new(next_number()),
            cache: UnsafeCell::new(cache),
            gate: Mutex::new(()),
            inbox: Inbox::new(INBOX_MESSAGES),
        }
    }

    /// The number of the thread that has it.
    pub(crate) fn thread(&self) -> u64 {
        self.thread.load(Ordering::Relaxed)
    }

    /// The hit path: the cache, unless a visitor is there. For the owner, from outside of any other call on this slot.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Inside<'_, C, T>> {
        self.latch.try_enter().then_some(Inside { slot: self })
    }

    /// `f` with the cache, after any visitor has left. For the owner; for everybody where the slot is the common one.
    pub(crate) fn own<R>(&self, f: impl FnOnce(&mut C) -> R) -> R {
        if self.is_common {
            let _gate = self.gate.lock();
            // SAFETY: nobody owns the common slot, and the gate keeps everybody else out.
            return f(unsafe { &mut *self.cache.get() });
        }
        while !self.latch.try_enter() {
            drop(self.gate.lock());
        }
        f(Inside { slot: self }.cache())
    }
}

/// The owner of a slot, inside its latch.
pub(crate) struct Inside<'a, C, T> {
    slot: &'a Slot<C, T>,
}

impl<C, T> Inside<'_, C, T> {
    #[inline(always)]
    pub(crate) fn cache(&mut self) -> &mut C {
        // SAFETY: the owner is inside the latch, so no visitor is; and it is not inside twice, because nothing that runs
        // inside calls back into a slot.
        unsafe { &mut *self.slot.cache.get() }
    }
}

impl<C, T> Drop for Inside<'_, C, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.latch.leave();
    }
}

impl<C, T> fmt::Debug for Slot<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("thread", &self.thread()).finish_non_exhaustive()
    }
}

/// All slots of one allocator.
pub(crate) struct ThreadCaches<C, T> {
    /// Never used again, and never 0.
    number: u64,
    common: Arc<Slot<C, T>>,
    registry: Mutex<Registry<C, T>>,
}

struct Registry<C, T> {
    slots: Vec<Arc<Slot<C, T>>>,
    /// Slots whose threads have ended.
    vacant: Vec<Arc<Slot<C, T>>>,
}

impl<C: Send + 'static, T: Send + Sync + 'static> ThreadCaches<C, T> {
    /// No threads yet. `common` is the cache of those that have none.
    pub(crate) fn new(common: C) -> Self {
        barrier::prepare();
        let common = Arc::new(Slot::new(common, true));
        let registry = Registry { slots: vec![common.clone()], vacant: Vec::new() };
        Self { number: next_number(), common, registry: Mutex::new(registry) }
    }

    /// The calling thread's slot, where these are the caches that it used last.
    #[inline(always)]
    pub(crate) fn here(&self) -> Option<&Slot<C, T>> {
        let (number, slot) = LAST_USED.get();
        if number != self.number {
            return None;
        }
        // SAFETY: an entry with this number was made by `attach` of these very caches, whose registry keeps the slot for as
        // long as `self` lives; and it is taken out when the thread ends.
        Some(unsafe { &*slot.cast::<Slot<C, T>>() })
    }

    /// The calling thread's slot, made if need be.
    pub(crate) fn attach<O>(&self, tenant: &Arc<O>) -> &Slot<C, T>
    where
        O: Tenant<Cache = C, Thing = T>,
    {
        if let Some(slot) = self.here() {
            return slot;
        }
        let slot = ENDINGS.try_with(|endings| {
            let mut endings = endings.0.borrow_mut();
            if let Some(ending) = endings.iter().find(|ending| ending.number() == self.number) {
                return ending.slot();
            }
            endings.retain(|ending| ending.is_needed());
            let slot = self.register(tenant);
            let place = Arc::as_ptr(&slot).cast::<()>();
            endings.push(Box::new(Ending { number: self.number, slot, tenant: Arc::downgrade(tenant) }));
            place
        });
        match slot {
            Ok(slot) => {
                LAST_USED.set((self.number, slot));
                // SAFETY: as in `here`.
                unsafe { &*slot.cast::<Slot<C, T>>() }
            }
            // The thread is so far gone that its list is destroyed.
            Err(_) => &self.common,
        }
    }

    fn register<O>(&self, tenant: &Arc<O>) -> Arc<Slot<C, T>>
    where
        O: Tenant<Cache = C, Thing = T>,
    {
        let mut registry = self.registry.lock();
        let slot = registry.vacant.pop().unwrap_or_else(|| {
            let slot = Arc::new(Slot::new(tenant.new_cache(), false));
            registry.slots.push(slot.clone());
            slot
        });
        slot.thread.store(next_number(), Ordering::Relaxed);
        slot.inbox.open();
        slot
    }

    /// The slot of threads that have none. Never stopped for long, and nobody's own.
    pub(crate) fn common(&self) -> &Slot<C, T> {
        &self.common
    }

    /// Whether the thread with this number has a slot still.
    pub(crate) fn has_thread(&self, thread: u64) -> bool {
        let registry = self.registry.lock();
        let is_vacant = |slot| registry.vacant.iter().any(|vacant| Arc::ptr_eq(vacant, slot));
        registry.slots.iter().any(|slot| slot.thread() == thread && !is_vacant(slot))
    }

    /// Keeps every thread out of its slot while `f` runs. `f` takes short locks at most, and enters no slot.
    pub(crate) fn stop<R>(&self, f: impl FnOnce(&mut Stopped<'_, C, T>) -> R) -> R {
        let registry = self.registry.lock();
        let gates = registry.slots.iter().map(|slot| slot.gate.lock()).collect();
        registry.slots.iter().for_each(|slot| slot.latch.stop());
        barrier::heavy();
        registry.slots.iter().for_each(|slot| slot.latch.wait_until_idle());
        f(&mut Stopped { slots: &registry.slots, _gates: gates })
    }
}

impl<C, T> fmt::Debug for ThreadCaches<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registry = self.registry.lock();
        let (slots, vacant) = (registry.slots.len() - 1, registry.vacant.len());
        f.debug_struct("ThreadCaches").field("threads", &(slots - vacant)).finish_non_exhaustive()
    }
}

/// Every slot, with its owner kept out.
pub(crate) struct Stopped<'a, C, T> {
    slots: &'a [Arc<Slot<C, T>>],
    _gates: Vec<MutexGuard<'a, ()>>,
}

impl<C, T> Stopped<'_, C, T> {
    /// Visits each slot.
    pub(crate) fn each(&mut self, mut f: impl FnMut(&Slot<C, T>, &mut C)) {
        for slot in self.slots {
            // SAFETY: all owners are kept out by their latches and all visitors by the gates, and `&mut self` is the only way
            // to the caches from here.
            f(slot, unsafe { &mut *slot.cache.get() });
        }
    }
}

impl<C, T> Stopped<'_, C, T> {
    /// Visits the common slot.
    pub(crate) fn first(&mut self, f: impl FnOnce(&Slot<C, T>, &mut C)) {
        if let Some(slot) = self.slots.first() {
            // SAFETY: as in `each`.
            f(slot, unsafe { &mut *slot.cache.get() });
        }
    }
}

impl<C, T> Drop for Stopped<'_, C, T> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| slot.latch.resume());
    }
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    /// The number of the caches that the thread used last, and its slot in them.
    static LAST_USED: Cell<(u64, *const ())> = const { Cell::new((0, std::ptr::null())) };
    /// What is to be done when the thread ends.
    static ENDINGS: Endings = const { Endings(RefCell::new(Vec::new())) };
}

struct Endings(RefCell<Vec<Box<dyn AtTheEnd>>>);

impl Drop for Endings {
    fn drop(&mut self) {
        // First, so that nothing finds a slot any more.
        LAST_USED.set((0, std::ptr::null()));
        self.0.get_mut().drain(..).for_each(|ending| ending.end());
    }
}

/// An [`Ending`] of any allocator.
trait AtTheEnd {
    fn number(&self) -> u64;
    fn slot(&self) -> *const ();
    fn is_needed(&self) -> bool;
    fn end(&self);
}

struct Ending<O: Tenant> {
    number: u64,
    slot: Arc<Slot<O::Cache, O::Thing>>,
    tenant: Weak<O>,
}

impl<O: Tenant> AtTheEnd for Ending<O> {
    fn number(&self) -> u64 {
        self.number
    }

    fn slot(&self) -> *const () {
        Arc::as_ptr(&self.slot).cast()
    }

    fn is_needed(&self) -> bool {
        self.tenant.strong_count() > 0
    }

    fn end(&self) {
        // An allocator that is gone has returned everything, what was cached here included.
        let Some(tenant) = self.tenant.upgrade() else { return };
        tenant.thread_ends(&self.slot);
        tenant.thread_caches().registry.lock().vacant.push(self.slot.clone());
    }
}
