//! The caching allocator: keeps what was given back, and hands it out again as soon as that is safe.
//!
//! A request is served from what its own thread gave back last, without a lock; else by a search in a table that all threads
//! share; the driver is asked only where that has nothing that fits. A block belongs to
//! the stream it was asked for and is used again on it at once, because work in one stream runs in order. Other streams that
//! use it are announced with [`record_stream`](Allocator::record_stream), and then it waits, after give-back, until they have
//! finished; `uses/` says how.
//!
//! One engine, two backings: `classic`, segments of the driver's plain memory cut up by PyTorch's rules; and `paged`, an arena of
//! addresses with physical memory mapped into it on demand, the default where the device can do that.
//!
//! | file | what |
//! |---|---|
//! | `classic/` | the pure core: segments, blocks, best fit, splitting, merging, what to release |
//! | `paged/` | the other one: addresses, handles, plans for a miss; and its part of the engine |
//! | `core.rs` | either of them |
//! | `front/` | per-thread caches in front of it all |
//! | `uses/` | pending give-backs: queues of events by stream |
//! | `state.rs` | both together, behind one lock |
//! | `chores.rs` | the driver calls that pending blocks need |
//! | `beside_graphs.rs` | what private pools of graphs ask |
//! | `growth.rs` | segments to and from the driver |
//! | `ladder.rs` | what is tried before a request fails |
//! | [`history`], [`label`], [`snapshot`] | being seen |
//! | `threads.rs` | telling threads apart |
//!
//! The lock is short: it is never held across a driver call, nor while a callback runs.
//!
//! **Streams that end.** Call [`CachingAllocator::forget_stream`] before destroying a stream: what belonged to it becomes
//! available to all streams once its work has finished. A stream that was destroyed without a word is noticed when an event is to be
//! recorded on it; its memory comes back with the next segment that goes to the driver, which is the next moment at
//! which it is certain that its work has finished. The same holds for the default stream of a thread that has ended.

mod beside_graphs;
pub(crate) mod chores;
pub(crate) mod classic;
pub(crate) mod core;
mod front;
pub(crate) mod growth;
pub mod history;
pub mod label;
pub(crate) mod ladder;
pub(crate) mod paged;
pub mod snapshot;
mod state;
pub(crate) mod threads;
pub(crate) mod uses;

use std::fmt;
use std::sync::{Arc, Weak};

use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};
use parking_lot::Mutex;

use crate::allocator::{Allocator, BlockFacts, Request, check_stream};
use crate::capture_guard;
use crate::config::{Backing, Config, Key, Origin};
use crate::error::{AllocError, OutOfMemoryReport};
use crate::stats::{DeviceStats, Differences};
use chores::{FILLS_A_CALL, QUESTIONS_A_CALL};
use classic::Rules;
use core::Core;
use front::Front;
use ladder::Climb;
use state::State;

pub use paged::{Contents, SleepId};

/// Called when memory ran out; says whether asking again may help.
pub type FailureCallback = dyn Fn(&OutOfMemoryReport) -> bool + Send + Sync;

/// An allocator that caches, with either backing.
///
/// ```
/// use headwater::caching::CachingAllocator;
/// use headwater::config::Config;
/// use headwater::{Allocator, Block, Request};
/// use headwater_driver::{DeviceId, Stream};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// let driver = headwater_sim::SimDriver::new();
/// let allocator = CachingAllocator::new(driver, DeviceId(0), Config::default())?;
/// let stream = Stream::legacy_default(DeviceId(0));
///
/// drop(Block::allocate(&*allocator, Request::new(1 << 20, stream))?);
/// drop(Block::allocate(&*allocator, Request::new(1 << 20, stream))?);
/// let stats = allocator.stats();
/// assert_eq!((stats.misses, stats.hits), (1, 1));
/// assert_eq!(allocator.empty_cache()?, 2 << 20);
/// # Ok(())
/// # }
/// ```
pub struct CachingAllocator {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    config: Config,
    rules: Rules,
    is_paged: bool,
    /// What given back memory is overwritten with.
    fill: Option<u8>,
    /// What threads keep. No lock is needed here.
    front: Front,
    state: Mutex<State>,
    /// What a thread's slot remembers the allocator by.
    me: Weak<Self>,
    /// Who gets access to memory of the paged backing: the device itself, and peers that asked.
    access: Mutex<Vec<DeviceId>>,
    /// Blocks whose memory is put away.
    naps: Mutex<Vec<paged::Nap>>,
    /// Blocks that other processes use.
    pins: crate::sharing::Pins,
    /// The addresses that were reserved for it.
    arenas: Mutex<Vec<(DevicePtr, u64)>>,
    /// Held by the thread that makes room. Never needed on the hit path.
    pressure: Mutex<()>,
    failure_callback: Mutex<Option<Arc<FailureCallback>>>,
}

impl CachingAllocator {
    /// An allocator for `device`.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where there is no such device, or the paged backing was asked for and cannot be had.
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId, config: Config) -> Result<Arc<Self>, AllocError> {
        let properties = driver.device_properties(device)?;
        let total_bytes = properties.total_bytes;
        // Without a cache every block is an allocation of its own, as memory checkers want it: there is nothing to map.
        let backing = config.backing().resolve(properties.capabilities.virtual_memory);
        let is_paged = backing == Backing::Paged && config.caching();
        let (core, arena) = if is_paged {
            let (core, arena) = paged::open(&*driver, device, &config, total_bytes)?;
            (Core::Paged(Box::new(core)), Some(arena))
        } else {
            (Core::Classic(Box::new(classic::Core::new(&config, total_bytes))), None)
        };
        let (front, office) = Front::new(cache_bytes(&config, is_paged), config.roundup_divisions());
        Ok(Arc::new_cyclic(|me| Self {
            driver,
            device,
            rules: Rules::new(&config),
            is_paged,
            fill: config.fill_on_free().byte(),
            front,
            state: Mutex::new(State::new(&config, device, core, office)),
            me: me.clone(),
            config,
            access: Mutex::new(vec![device]),
            naps: Mutex::new(Vec::new()),
            pins: crate::sharing::Pins::default(),
            arenas: Mutex::new(arena.into_iter().collect()),
            pressure: Mutex::new(()),
            failure_callback: Mutex::new(None),
        }))
    }

    /// Whether this is the paged backing.
    pub(crate) fn is_paged(&self) -> bool {
        self.is_paged
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Calls `callback` when memory ran out, after the cache was given up and before streams are waited for. It runs in the
    /// thread that asked, with no lock held: it may give blocks back, spill them, or empty the cache; `true` means that
    /// the request is tried once more. It replaces an earlier one; `None` is none.
    pub fn set_failure_callback(&self, callback: Option<Arc<FailureCallback>>) {
        *self.failure_callback.lock() = callback;
    }

    /// At most `limit_bytes` are reserved from now on; `None` is no limit but the device's. What is reserved beyond a
    /// smaller limit stays until it is released.
    pub fn set_limit_bytes(&self, limit_bytes: Option<u64>) {
        self.state.lock().core.set_limit_bytes(limit_bytes);
    }

    /// The limit in force.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.state.lock().core.limit_bytes()
    }

    /// Takes leave of a stream that its owner is about to destroy: its memory becomes available to all streams when its work
    /// has finished. No work may be queued in it after this call, and no request may name it.
    ///
    /// # Errors
    /// [`AllocError::WrongDevice`]; [`AllocError::StreamCapturing`]; [`AllocError::Driver`], and then nothing has changed.
    pub fn forget_stream(&self, stream: Stream) -> Result<(), AllocError> {
        check_stream(stream, self.device)?;
        self.leave_caches(stream);
        self.record_farewell(stream)
    }

    /// Looks after blocks that wait for streams, which requests do as well, and takes what idle threads keep: for programs that
    /// give memory back and then do not ask for any for long. Says how many waits ended.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where the device is lost.
    pub fn poll(&self) -> Result<usize, AllocError> {
        self.visit();
        self.do_chores(usize::MAX, usize::MAX)
    }

    /// Walks everything: every byte of every segment is in exactly one block, neighbours are linked, the index holds the
    /// free blocks and no others, and every statistic equals what is there. For tests and those in doubt.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn verify(&self) -> Result<(), String> {
        self.bins_add_up()?;
        self.at_rest(|state| {
            state.core.verify()?;
            state.tickets_add_up()?;
            let counted = state.stats().reconcile(&state.walked_totals());
            counted.map_err(|differences| differences.to_string())?;
            if state.waits_add_up() {
                Ok(())
            } else {
                Err("blocks wait for what is not in any queue".to_owned())
            }
        })
    }

    fn take_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        if ptr.is_null() {
            return Ok(());
        }
        if let Some(answer) = self.pins.put_off(ptr) {
            return answer;
        }
        let (due, to_mark) = self.state.lock().give_back_held(ptr)?;
        if let Some(tag) = to_mark {
            // Without a mark its memory is found to be finished later.
            let _ = self.mark_stream(tag);
        }
        for tag in due {
            // Where it cannot be recorded now it is due at the next request; the block is taken back all the same.
            let _ = self.record_event_for(tag);
        }
        if self.fill.is_some() {
            // Likewise.
            let _ = self.fill_blocks(FILLS_A_CALL);
        }
        if !self.config.caching() {
            // What the driver refuses is cached after all, and offered again by every later call.
            self.release_all();
        }
        Ok(())
    }
}

impl Allocator for CachingAllocator {
    fn name(&self) -> &'static str {
        if self.is_paged { "paged" } else { "classic" }
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    #[inline]
    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        match self.front.hit(&request, self.device) {
            Some(ptr) => Ok(ptr),
            None => self.allocate_slowly(&request),
        }
    }

    /// Never fails for a block of ours: where an event cannot be recorded, the block waits until it can.
    #[inline]
    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.front.hit_back(ptr) {
            Some(()) => Ok(()),
            None => self.give_back_slowly(ptr),
        }
    }

    #[inline]
    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.front.hit_back(ptr) {
            Some(()) => Ok(()),
            None => self.give_back_slowly(ptr),
        }
    }

    /// A note at the block: no driver call, and no lock for the first other stream.
    #[inline]
    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        check_stream(stream, self.device)?;
        if ptr.is_null() || self.note_user(ptr, stream) {
            return Ok(());
        }
        self.record_user(ptr, stream)
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.collect();
        self.do_chores(usize::MAX, usize::MAX)?;
        let released = {
            let _turn = self.pressure.lock();
            if self.is_paged { self.release_pages(0)? } else { self.release_all() }
        };
        let spare = self.state.lock().uses.take_spare();
        let refused_events = spare.into_iter().map(|event| self.destroy_event(event)).filter_map(Result::err);
        match (released, refused_events.last()) {
            ((released_bytes, None), None) => Ok(released_bytes),
            ((_, Some(refusal)), _) | (_, Some(refusal)) => Err(refusal.into()),
        }
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        let state = self.state.lock();
        Some(state.office.facts(state.core.block_at(ptr, self.device)?))
    }

    fn stats(&self) -> DeviceStats {
        self.at_rest(|state| state.stats())
    }

    fn reset_peaks(&self) {
        self.at_rest(State::reset_peaks);
    }

    fn reset_totals(&self) {
        // What threads keep was given back before: the engine must not count it afterwards.
        self.collect();
        self.at_rest(State::reset_totals);
    }

    fn reconcile(&self) -> Result<(), Differences> {
        self.at_rest(|state| state.stats().reconcile(&state.walked_totals()))
    }
}

impl CachingAllocator {
    #[inline(never)]
    fn allocate_slowly(&self, request: &Request) -> Result<DevicePtr, AllocError> {
        request.check(self.device)?;
        if request.bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let climb = Climb { wanted: self.rules.wanted(request), stream: request.stream };
        if self.front.is_on() {
            return self.allocate_beside_cache(request, &climb);
        }
        let mut state = self.state.lock();
        if state.has_chores() {
            drop(state);
            self.do_chores(QUESTIONS_A_CALL, FILLS_A_CALL)?;
            state = self.state.lock();
        }
        if !self.config.caching() {
            drop(state);
            self.release_all();
        } else if let Some(ptr) = state.take(&climb.wanted, climb.stream) {
            return Ok(ptr);
        } else {
            drop(state);
        }
        self.climb(&climb)
    }

    #[inline(never)]
    fn give_back_slowly(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        if ptr.is_null() { Ok(()) } else { self.give_back_beside_cache(ptr) }
    }
}

/// What a thread may keep. Nothing where every call has to be seen; and in front of the classic backing only where somebody asks
/// for it, because that one stands for PyTorch's allocator.
fn cache_bytes(config: &Config, is_paged: bool) -> u64 {
    let is_wanted = is_paged || config.origin(Key::ThreadCacheMb) != Origin::Default;
    let sees_all = !config.caching() || config.fill_on_free().byte().is_some() || config.history_events() > 0;
    if is_wanted && !sees_all { config.thread_cache_bytes() } else { 0 }
}

impl Drop for CachingAllocator {
    /// Returns everything, also what bare addresses still hold: with the allocator gone, nobody could. The driver's free waits
    /// for whatever still uses it.
    fn drop(&mut self) {
        if self.is_paged {
            return self.close_pages();
        }
        let state = self.state.get_mut();
        let core = state.core.classic_mut();
        let segments = core.map(|core| core.walk().map(|(id, ..)| DevicePtr::new(id.0)).collect::<Vec<_>>());
        let events = state.uses.take_all_events();
        // There is nobody left to tell, and the next one may still go.
        for base in segments.unwrap_or_default() {
            let _ = capture_guard::relaxed(&*self.driver, || self.driver.mem_free(self.device, base));
        }
        for event in events {
            let _ = self.driver.event_destroy(event);
        }
    }
}

impl fmt::Debug for CachingAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("CachingAllocator");
        fields.field("device", &self.device).field("config", &self.config);
        if let Some(state) = self.state.try_lock() {
            fields.field("reserved_bytes", &state.core.stats().reserved_bytes.all.current);
        }
        fields.finish_non_exhaustive()
    }
}
