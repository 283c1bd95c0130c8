//! The pool: a book behind one lock, memory behind another.
//!
//! The book's lock is short and never held across a driver call. The memory's lock is held by the thread that grows or closes
//! the pool, and no request that the book can serve needs it. Lock order: memory, then book.

use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, DriverError};
use parking_lot::{Mutex, MutexGuard};

use super::book::{Book, GRAIN_BYTES, Wanted};
use super::{BlockId, GraphBlock};
use crate::allocator::{DEFAULT_ALIGNMENT_BYTES, MAX_ALIGNMENT_BYTES, MAX_REQUEST_BYTES};
use crate::error::{AllocError, OutOfMemoryReport};
use crate::graph::device_fence::DeviceFence;
use crate::graph::error::GraphError;
use crate::graph::fixed_memory::{FixedMemory, Source};

/// The blocks it is made of ahead of time.
const PREMADE_BLOCK_BYTES: u64 = 16 << 20;
/// The least that a growth asks for: a page of device memory.
const LEAST_GROWTH_BYTES: u64 = 2 << 20;

/// Blocks with ids and fixed addresses, for graphs that a program builds by hand.
///
/// ```
/// use headwater::graph::GraphPool;
/// use headwater_driver::DeviceId;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// # let driver = headwater_sim::SimDriver::new();
/// let pool = GraphPool::builder(driver, DeviceId(0)).initial_capacity_bytes(64 << 20).build()?;
/// let activations = pool.allocate(3 << 20)?;
/// let weights = pool.allocate_aligned(1 << 20, 4096)?;
/// // ... capture graphs that use both addresses, launch them, and wait ...
/// pool.reset()?;
/// // The next iteration finds the same blocks at the same addresses.
/// assert_eq!(pool.allocate(3 << 20)?.ptr, activations.ptr);
/// assert_eq!(pool.block(weights.id)?.ptr, weights.ptr);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GraphPool {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    max_capacity_bytes: u64,
    initial_fill: InitialFill,
    waits_by_itself: bool,
    fence: DeviceFence,
    memory: Mutex<FixedMemory>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    book: Book,
    closed: bool,
}

/// A pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphPoolStats {
    /// What the driver gave, in use or available.
    pub allocated_bytes: u64,
    /// Blocks there are, in use or available.
    pub block_count: usize,
    /// What blocks in use take up.
    pub in_use_bytes: u64,
    /// Blocks in use.
    pub in_use_blocks: usize,
    /// What was asked for and is in use.
    pub requested_bytes: u64,
}

/// What became of the initial capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InitialFill {
    /// What was asked for.
    pub wanted_bytes: u64,
    /// What the device had: the pool starts with it.
    pub got_bytes: u64,
    /// Why it is less, where it is.
    pub shortage: Option<DriverError>,
}

impl InitialFill {
    /// Whether the pool has all that was asked for.
    pub fn is_complete(&self) -> bool {
        self.shortage.is_none()
    }
}

impl GraphPool {
    /// A pool on `device` with 512 MiB to start with and no maximum.
    ///
    /// # Errors
    /// Those of [`GraphPoolBuilder::build`](super::GraphPoolBuilder::build).
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId) -> Result<Self, GraphError> {
        Self::builder(driver, device).build()
    }

    /// A pool of `source`, filled.
    pub(super) fn filled(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        source: Source,
        total_bytes: u64,
        initial_capacity_bytes: u64,
        max_capacity_bytes: u64,
    ) -> Result<Self, GraphError> {
        // No pool is larger than its device. One arena for all of it keeps all growths contiguous.
        let arena_bytes = max_capacity_bytes.min(total_bytes).max(LEAST_GROWTH_BYTES);
        let initial_fill = InitialFill { wanted_bytes: initial_capacity_bytes, got_bytes: 0, shortage: None };
        let mut pool = Self {
            fence: DeviceFence::new(Arc::clone(&driver), device),
            waits_by_itself: matches!(source, Source::Plain),
            memory: Mutex::new(FixedMemory::new(Arc::clone(&driver), device, source, arena_bytes)),
            driver,
            device,
            max_capacity_bytes,
            initial_fill,
            state: Mutex::default(),
        };
        pool.fill(initial_capacity_bytes)?;
        Ok(pool)
    }

    fn fill(&mut self, bytes: u64) -> Result<(), GraphError> {
        let (memory, state) = (self.memory.get_mut(), self.state.get_mut());
        while self.initial_fill.got_bytes < bytes {
            let next_bytes = PREMADE_BLOCK_BYTES.min(bytes - self.initial_fill.got_bytes);
            let grown = memory.rounded(next_bytes).and_then(|rounded_bytes| memory.grow(rounded_bytes));
            match grown {
                Ok(mut grown) => {
                    // Rounding to whole pages is the device's business and not part of the capacity.
                    grown.bytes = (next_bytes / GRAIN_BYTES) * GRAIN_BYTES;
                    self.initial_fill.got_bytes += next_bytes;
                    if grown.bytes > 0 {
                        state.book.admit(grown);
                    }
                }
                Err(error) if error.is_out_of_memory() => {
                    self.initial_fill.shortage = Some(error);
                    break;
                }
                // The pool is dropped by the caller, and with it what was got.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A block of at least `bytes` with an address that is a multiple of 256. Of zero bytes too: it has an address.
    ///
    /// # Errors
    /// Those of [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate(&self, bytes: u64) -> Result<GraphBlock, GraphError> {
        self.allocate_aligned(bytes, DEFAULT_ALIGNMENT_BYTES)
    }

    /// The same with an address that is a multiple of `alignment_bytes`, a power of two up to 2 MiB.
    ///
    /// # Errors
    /// [`GraphError::Closed`]; [`GraphError::CapacityExceeded`]; bad input and out of memory as [`GraphError::Alloc`].
    pub fn allocate_aligned(&self, bytes: u64, alignment_bytes: u64) -> Result<GraphBlock, GraphError> {
        if !alignment_bytes.is_power_of_two() || alignment_bytes > MAX_ALIGNMENT_BYTES {
            let max_bytes = MAX_ALIGNMENT_BYTES;
            return Err(AllocError::BadAlignment { alignment_bytes, max_bytes }.into());
        }
        let wanted = Wanted::new(bytes, alignment_bytes).filter(|_| bytes <= MAX_REQUEST_BYTES);
        let Some(wanted) = wanted else {
            let max_bytes = MAX_REQUEST_BYTES;
            return Err(AllocError::TooLarge { requested_bytes: bytes, max_bytes }.into());
        };
        if let Some(block) = self.open()?.book.take(&wanted) {
            return Ok(block);
        }
        self.grow_for(&wanted)
    }

    fn grow_for(&self, wanted: &Wanted) -> Result<GraphBlock, GraphError> {
        let mut memory = self.memory.lock();
        loop {
            let growth_bytes = {
                let mut state = self.open()?;
                // Whoever held the memory before may have made room.
                if let Some(block) = state.book.take(wanted) {
                    return Ok(block);
                }
                let end_bytes = memory.end().map_or(0, |end| state.book.available_bytes_before(end));
                let missing_bytes = wanted.worst_bytes().saturating_sub(end_bytes).max(GRAIN_BYTES);
                let allocated_bytes = state.book.figures().allocated_bytes;
                let room_bytes = self.max_capacity_bytes.saturating_sub(allocated_bytes);
                if missing_bytes > room_bytes {
                    return Err(GraphError::CapacityExceeded {
                        requested_bytes: wanted.requested_bytes,
                        needed_bytes: allocated_bytes.saturating_add(missing_bytes),
                        max_capacity_bytes: self.max_capacity_bytes,
                    });
                }
                // Whole grains: the last few bytes of an odd maximum are nobody's.
                missing_bytes.max(LEAST_GROWTH_BYTES.min(room_bytes / GRAIN_BYTES * GRAIN_BYTES))
            };
            let rounded_bytes = memory.rounded(growth_bytes)?;
            let mut grown = memory.grow(rounded_bytes).map_err(|error| self.explained(wanted, error))?;
            let mut state = self.state.lock();
            let room_bytes = self.max_capacity_bytes - state.book.figures().allocated_bytes;
            grown.bytes = grown.bytes.min(room_bytes / GRAIN_BYTES * GRAIN_BYTES);
            state.book.admit(grown);
            if let Some(block) = state.book.take(wanted) {
                return Ok(block);
            }
            // What was free before the new memory has gone to another thread meanwhile.
        }
    }

    /// Out of memory with the pool's figures; anything else as it is.
    fn explained(&self, wanted: &Wanted, error: DriverError) -> GraphError {
        if !error.is_out_of_memory() {
            return error.into();
        }
        let figures = self.stats();
        let mut report = OutOfMemoryReport::new(self.device, wanted.requested_bytes);
        report.live_bytes = figures.requested_bytes;
        report.allocated_bytes = figures.in_use_bytes;
        report.cached_bytes = figures.allocated_bytes - figures.in_use_bytes;
        report.reserved_bytes = figures.allocated_bytes;
        report.limit_bytes = (self.max_capacity_bytes != u64::MAX).then_some(self.max_capacity_bytes);
        // Without an answer the report is still worth having.
        report.memory = self.driver.memory_info(self.device).ok();
        report.remedy = "return blocks to the pool, or free memory of the device";
        AllocError::from(report).into()
    }

    /// The block called `id`, in use or available: the address is the one it always had.
    ///
    /// # Errors
    /// [`GraphError::Closed`]; [`GraphError::UnknownBlock`].
    pub fn block(&self, id: BlockId) -> Result<GraphBlock, GraphError> {
        self.open()?.book.find(id)
    }

    /// The block around an address.
    ///
    /// # Errors
    /// [`GraphError::Closed`].
    pub fn block_at(&self, ptr: DevicePtr) -> Result<Option<GraphBlock>, GraphError> {
        Ok(self.open()?.book.block_at(ptr))
    }

    /// Returns a block: it stays where it is, and can be handed out again. The caller has seen to it that nothing that still
    /// runs uses it, or that whatever uses it next comes after.
    ///
    /// # Errors
    /// [`GraphError::Closed`]; [`GraphError::UnknownBlock`]; [`GraphError::AlreadyReturned`].
    pub fn return_block(&self, id: BlockId) -> Result<(), GraphError> {
        self.open()?.book.give_back(id)
    }

    /// Makes all blocks available, as between two iterations, and says how many were in use.
    ///
    /// # Errors
    /// [`GraphError::Closed`].
    pub fn reset(&self) -> Result<usize, GraphError> {
        Ok(self.open()?.book.reset())
    }

    /// The figures at this moment; all zero once the pool is closed.
    pub fn stats(&self) -> GraphPoolStats {
        self.state.lock().book.figures()
    }

    /// What the driver gave, in use or available.
    pub fn allocated_bytes(&self) -> u64 {
        self.stats().allocated_bytes
    }

    /// Blocks there are, in use or available.
    pub fn block_count(&self) -> usize {
        self.stats().block_count
    }

    /// What blocks in use take up.
    pub fn in_use_bytes(&self) -> u64 {
        self.stats().in_use_bytes
    }

    /// The most the pool may have.
    pub fn max_capacity_bytes(&self) -> u64 {
        self.max_capacity_bytes
    }

    /// What became of the initial capacity.
    pub fn initial_fill(&self) -> &InitialFill {
        &self.initial_fill
    }

    /// Frees everything, after all work on the device has finished. Every later use of the pool is [`GraphError::Closed`];
    /// closing again is no error.
    ///
    /// # Errors
    /// What the driver answered where it refused; the pool is closed all the same, and closing again frees the rest.
    pub fn close(&self) -> Result<(), GraphError> {
        let mut memory = self.memory.lock();
        {
            let mut state = self.state.lock();
            state.closed = true;
            state.book.clear();
        }
        self.free(&mut memory)
    }

    fn free(&self, memory: &mut FixedMemory) -> Result<(), GraphError> {
        if memory.is_empty() {
            return Ok(());
        }
        if !self.waits_by_itself && memory.reserved_bytes() > 0 {
            self.fence.wait()?;
        }
        let regions: Vec<u64> = memory.regions().map(|(base, _)| base).collect();
        let mut refusal = Ok(());
        for base in regions {
            refusal = refusal.and(memory.release(base).map(|_| ()));
        }
        refusal.and(memory.pay_debts())?;
        Ok(())
    }

    /// Walks everything and compares it with what is counted. For tests and those in doubt.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn verify(&self) -> Result<(), String> {
        self.state.lock().book.verify()
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, GraphError> {
        let state = self.state.lock();
        if state.closed { Err(GraphError::Closed) } else { Ok(state) }
    }
}

impl Drop for GraphPool {
    /// Closes the pool. Where the driver refuses to say that all work has finished, the memory is not touched: it stays
    /// with the process rather than being pulled away from under a graph.
    fn drop(&mut self) {
        // Nobody is left to tell; a refusal may have been a single one.
        let _ = self.close().or_else(|_| self.close());
    }
}
