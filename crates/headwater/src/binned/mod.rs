//! The size-class pool: memory in blocks of fixed sizes, from a cache that each thread has to itself.
//!
//! A request is rounded up to its class and served by a block of that class, never by a part of a larger one: nothing is
//! split or merged, so there is no fragmentation between blocks, only within (`classes.rs` says how much). A block belongs to
//! the stream it was asked for; given back, it serves that stream again at once, and any other as soon as its stream has
//! passed the point of the give-back.
//!
//! | where a free block is | who takes it | what that costs |
//! |---|---|---|
//! | in the thread's own bin (`thread_cache`) | the thread | some nanoseconds, no lock |
//! | on its way from another thread | the thread, when its bin is empty | a batch at a time, no lock |
//! | in the depot of its class (`depot.rs`) | every thread | a batch at a time, a lock that no other class takes |
//! | waiting for other streams' events (`deferred.rs`) | nobody yet | an event a stream and batch |
//! | with the driver (`miss.rs`, `release.rs`) | every thread | a driver call |
//!
//! | file | what |
//! |---|---|
//! | `pool.rs` | the hit path, and give-backs that are not that simple |
//! | `miss.rs`, `looks.rs` | the ladder from a thread's mail to out of memory; what its dearer steps may cost |
//! | `release.rs` | back to the driver; requests that go straight through |
//! | `deferred.rs`, `marks.rs` | waiting for streams |
//! | `classes.rs`, `segment.rs` | sizes; segments and the records of their blocks |
//! | `cache.rs`, `figures.rs` | what is counted, and the walk that checks it |

mod cache;
mod classes;
mod deferred;
mod depot;
mod figures;
mod looks;
mod marks;
mod miss;
mod options;
mod pool;
mod release;
mod segment;
#[cfg(test)]
#[cfg(not(loom))] // under the model checker, atomics are good for models only
mod tests;

use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};

use crate::allocator::{Allocator, BlockFacts, BlockState, Request, check_stream};
use crate::error::AllocError;
use crate::stats::{DeviceStats, Differences};
use crate::thread_cache::{State, StreamKey};
pub use classes::{CLASS_BYTES_MAX, CLASS_BYTES_MIN, ClassDivisions};
pub use figures::ClassStats;
pub use options::BinnedOptions;
use pool::Pool;

type Slot = crate::thread_cache::Slot<cache::Cache, segment::Record>;
type AllStopped<'a> = crate::thread_cache::slots::Stopped<'a, cache::Cache, segment::Record>;

/// The size-class pool.
///
/// ```
/// use headwater::{Allocator, Binned, Request};
/// use headwater_driver::{DeviceId, Stream};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// # let driver = headwater_sim::SimDriver::new();
/// let pool = Binned::new(driver, DeviceId(0))?;
/// let stream = Stream::legacy_default(DeviceId(0));
/// let first = pool.allocate(Request::new(1_000_000, stream))?;
/// // SAFETY: nothing owns the block but this example, and nothing uses it any more.
/// unsafe { pool.give_back(first)? };
/// // The same block again, and the driver is not asked.
/// assert_eq!(pool.allocate(Request::new(1 << 20, stream))?, first);
///
/// let class = pool.class_stats().into_iter().find(|class| class.block_bytes == 1 << 20).unwrap();
/// assert_eq!((class.hits, class.misses, class.in_use_blocks), (1, 1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Binned {
    pool: Arc<Pool>,
}

impl Binned {
    /// A pool for `device` with the default options.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where there is no such device.
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId) -> Result<Self, AllocError> {
        Self::with_options(driver, device, BinnedOptions::default())
    }

    /// A pool that never holds more than `limit_bytes` of the device's memory, not even for a moment.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where there is no such device.
    pub fn with_limit(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        limit_bytes: u64,
    ) -> Result<Self, AllocError> {
        Self::with_options(
            driver,
            device,
            BinnedOptions { limit_bytes: Some(limit_bytes), ..BinnedOptions::default() },
        )
    }

    /// A pool with these options.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where there is no such device.
    pub fn with_options(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        options: BinnedOptions,
    ) -> Result<Self, AllocError> {
        let total_bytes = driver.device_properties(device)?.total_bytes;
        Ok(Self { pool: Arc::new(Pool::new(driver, device, options.on_device(total_bytes))) })
    }

    /// The options in force, with the bytes of a thread's cache as they are on this device and within the limit.
    pub fn options(&self) -> BinnedOptions {
        self.pool.options
    }

    /// Memory for use in `stream`, ordered like a call in it: it may be memory that earlier work of the same stream still
    /// uses.
    ///
    /// ```
    /// # use headwater::Binned;
    /// # use headwater_driver::{DeviceId, StreamOptions, Streams};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let driver = headwater_sim::SimDriver::new();
    /// # let [compute, copies] = [(); 2].map(|()| driver.stream_create(DeviceId(0), StreamOptions::default()));
    /// # let (compute, copies) = (compute?, copies?);
    /// let pool = Binned::new(driver, DeviceId(0))?;
    /// let ptr = pool.allocate_async(1 << 20, compute)?;
    /// // ... work in both streams that uses the memory, and then, without waiting for it:
    /// // SAFETY: nothing but what is queued in the two streams uses the block.
    /// unsafe { pool.deallocate_async(ptr, copies)? };
    /// assert_eq!(pool.process_deferred()?, 1, "the copies have finished");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`].
    pub fn allocate_async(&self, bytes: u64, stream: Stream) -> Result<DevicePtr, AllocError> {
        self.allocate(Request::new(bytes, stream))
    }

    /// Gives back a block in the order of `stream`: it is free again when everything that is in `stream` by now has finished.
    /// In the block's own stream that is at once, for the same stream; in another the block waits, without a driver call
    /// here, and [`process_deferred`](Self::process_deferred) or a later call takes it up.
    ///
    /// # Safety
    /// That of [`Allocator::give_back`], where work in `stream` counts as announced.
    ///
    /// # Errors
    /// Those of [`Allocator::record_stream`] and [`Allocator::give_back`]; the caller still holds the block then.
    pub unsafe fn deallocate_async(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        self.record_stream(ptr, stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.give_back(ptr) }
    }

    /// Takes up give-backs that waited for streams, as far as those have finished, and says how many blocks became free.
    /// Later calls do this by themselves when they need memory; a program that wants it done at a moment of its own calls
    /// this.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where an event could not be recorded or asked; the blocks concerned go on waiting.
    pub fn process_deferred(&self) -> Result<usize, AllocError> {
        let slot = self.pool.caches.attach(&self.pool);
        self.pool.take_mail(slot);
        let (mut freed, mut failure) = (0, None);
        for class in 0..self.pool.depots.len() {
            match self.pool.settle(slot, class) {
                Ok(count) => freed += count,
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(freed), |error| Err(error.into()))
    }

    /// The statistics of every size class, from the smallest.
    pub fn class_stats(&self) -> Vec<ClassStats> {
        self.pool.class_stats()
    }
}

impl Allocator for Binned {
    fn name(&self) -> &'static str {
        "binned"
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        &self.pool.driver
    }

    fn device(&self) -> DeviceId {
        self.pool.device
    }

    #[inline]
    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        match self.pool.hit(&request) {
            Some(ptr) => Ok(ptr),
            None => self.allocate_slowly(&request),
        }
    }

    #[inline]
    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.pool.hit_back(ptr) {
            Some(()) => Ok(()),
            None if ptr.is_null() => Ok(()),
            None => self.pool.give_back_slowly(ptr, false),
        }
    }

    #[inline]
    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.pool.hit_back(ptr) {
            Some(()) => Ok(()),
            None if ptr.is_null() => Ok(()),
            None => self.pool.give_back_slowly(ptr, true),
        }
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        check_stream(stream, self.pool.device)?;
        if ptr.is_null() {
            return Ok(());
        }
        self.pool.record_stream(ptr, stream)
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.pool.collect_from_threads(None, true);
        let settled = self.process_deferred();
        let (returned_bytes, refusal) = self.pool.trim();
        settled?;
        refusal.map_or(Ok(returned_bytes), |error| Err(error.into()))
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        let record = self.pool.block_around(ptr)?;
        let state = match record.word.read().1 {
            State::Live => BlockState::Live,
            State::Pending | State::Offered => BlockState::Pending,
            State::Cached | State::Sent => BlockState::Cached,
            State::Gone => return None,
        };
        let stream = StreamKey(record.stream()).stream(self.pool.device);
        let block_bytes = record.segment().block_bytes();
        Some(BlockFacts::new(record.ptr(), record.requested_bytes(), block_bytes, stream, state))
    }

    fn stats(&self) -> DeviceStats {
        self.pool.stats()
    }

    fn reset_peaks(&self) {
        self.pool.reset_peaks();
    }

    fn reset_totals(&self) {
        self.pool.reset_totals();
    }

    fn reconcile(&self) -> Result<(), Differences> {
        self.pool.reconcile()
    }
}

impl Binned {
    #[inline(never)]
    fn allocate_slowly(&self, request: &Request) -> Result<DevicePtr, AllocError> {
        request.check(self.pool.device)?;
        if request.bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        self.pool.miss(request)
    }
}
