//! The allocator without a cache: every request is one `cuMemAlloc`, every give-back one `cuMemFree`.
//!
//! It is the yardstick for the others, the way out where caching is not wanted (`caching_allocator:False`), and slow:
//! 61 us a pair on an H200, and each `cuMemFree` waits until the device has finished all its work. That wait is also
//! what makes it simple: memory that the driver has taken back is used by nobody, so there is nothing to remember
//! about streams.
//!
//! Both calls are illegal during a stream capture unless the thread is in relaxed mode, so they are made in it
//! (`capture_guard.rs`). Memory whose address went into a graph is the caller's to keep for as long as the graph is
//! launched.
//!
//! The accounts are in `books.rs`, behind one lock that is never held across a driver call.

mod books;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, DriverError, Stream};
use parking_lot::Mutex;

use crate::allocator::{Allocator, BlockFacts, DEFAULT_ALIGNMENT_BYTES, Request, check_stream};
use crate::capture_guard;
use crate::error::{AllocError, OutOfMemoryReport};
use crate::stats::{DeviceStats, Differences};
use books::{Books, Entry};

/// How many owed blocks one ordinary call tries to return: a debt is paid off without making one caller pay for all.
const RETRIES_A_CALL: usize = 4;

/// Gives out what the driver gives, and nothing else.
///
/// ```
/// use std::sync::Arc;
/// use headwater::{AllocError, Allocator, Direct, Request};
/// use headwater_driver::{DeviceId, Stream};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// # let driver = headwater_sim::SimDriver::new();
/// let direct = Direct::with_limit(driver, DeviceId(0), 1 << 20)?;
/// let stream = Stream::legacy_default(DeviceId(0));
/// let ptr = direct.allocate(Request::new(1 << 20, stream))?;
/// assert!(matches!(direct.allocate(Request::new(1, stream)), Err(AllocError::OutOfMemory(_))));
/// // SAFETY: nothing owns the block but this example, and nothing uses it any more.
/// unsafe { direct.give_back(ptr)? };
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Direct {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    books: Mutex<Books>,
}

impl Direct {
    /// An allocator for `device`, with no limit but the device's own.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where there is no such device.
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId) -> Result<Self, AllocError> {
        Self::open(driver, device, None)
    }

    /// An allocator that never holds more than `limit_bytes` of the device's memory, not even for a moment.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where there is no such device.
    pub fn with_limit(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        limit_bytes: u64,
    ) -> Result<Self, AllocError> {
        Self::open(driver, device, Some(limit_bytes))
    }

    fn open(driver: Arc<dyn Driver>, device: DeviceId, limit_bytes: Option<u64>) -> Result<Self, AllocError> {
        driver.device_properties(device)?;
        Ok(Self { driver, device, books: Mutex::new(Books::new(limit_bytes)) })
    }

    fn free(&self, entry: &Entry) -> Result<(), DriverError> {
        capture_guard::relaxed(&*self.driver, || self.driver.mem_free(self.device, entry.base))
    }

    /// Tries to return owed blocks, at most `tries` of them and none twice. Says how many bytes that was, and the
    /// last refusal.
    fn pay_debts(&self, tries: usize) -> (u64, Option<DriverError>) {
        let (mut returned_bytes, mut refusal) = (0, None);
        let owed = self.books.lock().owed_blocks();
        for _ in 0..owed.min(tries) {
            let Some(entry) = self.books.lock().offer_owed() else { break };
            match self.free(&entry) {
                Ok(()) => {
                    self.books.lock().taken(entry);
                    returned_bytes += entry.reserved_bytes;
                }
                Err(error) => {
                    self.books.lock().owe(entry);
                    refusal = Some(error);
                }
            }
        }
        (returned_bytes, refusal)
    }

    /// Sets bytes aside under the limit; where it is in the way, debts are paid first.
    fn promise(&self, bytes: u64) -> bool {
        self.books.lock().promise(bytes)
            || (self.pay_debts(usize::MAX).0 > 0 && self.books.lock().promise(bytes))
    }

    /// Asks the driver; where it has not enough, debts are paid and it is asked again.
    fn ask_driver(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        let ask = || capture_guard::relaxed(&*self.driver, || self.driver.mem_alloc(self.device, bytes));
        ask().or_else(|error| {
            if !error.is_out_of_memory() || self.pay_debts(usize::MAX).0 == 0 {
                return Err(error);
            }
            self.books.lock().stats.num_alloc_retries += 1;
            ask()
        })
    }

    fn out_of_memory(&self, requested_bytes: u64, over_limit: bool) -> AllocError {
        let mut report = OutOfMemoryReport::new(self.device, requested_bytes);
        {
            let mut books = self.books.lock();
            report.limit_bytes = books.limit_bytes();
            let stats = &mut books.stats;
            stats.num_ooms += 1;
            stats.num_oom_rejections += u64::from(over_limit);
            report.fill_from(stats);
        }
        // Without an answer the report is still worth having.
        report.memory = self.driver.memory_info(self.device).ok();
        report.over_limit = over_limit;
        report.remedy = match over_limit {
            true => "raise the allocator's limit, or give memory back",
            false => "give memory back, here or in the other programs on this device",
        };
        report.into()
    }
}

impl Allocator for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        request.check(self.device)?;
        if request.bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        // What cannot be paid now stays owed, and is no reason to refuse the request.
        self.pay_debts(RETRIES_A_CALL);
        // The driver's own alignment is the default one, so an aligned address is at most this far from what it gives.
        let padding_bytes = request.alignment_bytes.saturating_sub(DEFAULT_ALIGNMENT_BYTES);
        let reserved_bytes = request.bytes + padding_bytes;
        if !self.promise(reserved_bytes) {
            return Err(self.out_of_memory(request.bytes, true));
        }
        let base = match self.ask_driver(reserved_bytes) {
            Ok(base) => base,
            Err(error) => {
                self.books.lock().withdraw(reserved_bytes);
                let no_memory = error.is_out_of_memory();
                return Err(if no_memory { self.out_of_memory(request.bytes, false) } else { error.into() });
            }
        };
        let ptr = DevicePtr::new(base.raw().next_multiple_of(request.alignment_bytes));
        let (requested_bytes, stream) = (request.bytes, request.stream);
        self.books.lock().admit(Entry { ptr, base, requested_bytes, reserved_bytes, stream });
        Ok(ptr)
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        if ptr.is_null() {
            return Ok(());
        }
        let entry = self.books.lock().offer(ptr)?;
        if let Err(error) = self.free(&entry) {
            self.books.lock().keep(entry);
            return Err(error.into());
        }
        self.books.lock().taken(entry);
        Ok(())
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        if ptr.is_null() {
            return Ok(());
        }
        let entry = self.books.lock().offer(ptr)?;
        match self.free(&entry) {
            Ok(()) => self.books.lock().taken(entry),
            Err(_) => self.books.lock().owe(entry),
        }
        Ok(())
    }

    /// There is nothing to remember: `cuMemFree` waits for all work of all streams before the memory is anybody's
    /// again.
    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        check_stream(stream, self.device)?;
        if ptr.is_null() {
            return Ok(());
        }
        self.books.lock().find(ptr).map(|_| ())
    }

    /// There is no cache; what earlier give-backs could not return is tried again.
    fn empty_cache(&self) -> Result<u64, AllocError> {
        match self.pay_debts(usize::MAX) {
            (returned_bytes, None) => Ok(returned_bytes),
            (_, Some(refusal)) => Err(refusal.into()),
        }
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        self.books.lock().block_at(ptr)
    }

    fn stats(&self) -> DeviceStats {
        self.books.lock().stats.clone()
    }

    fn reset_peaks(&self) {
        self.books.lock().stats.reset_peaks();
    }

    fn reset_totals(&self) {
        self.books.lock().stats.reset_totals();
    }

    fn reconcile(&self) -> Result<(), Differences> {
        self.books.lock().reconcile()
    }
}

impl Drop for Direct {
    /// Returns what bare addresses and debts still hold: with the allocator gone, nobody could.
    fn drop(&mut self) {
        for entry in self.books.get_mut().take_everything() {
            // There is nobody left to tell, and the next block may still go.
            let _ = self.free(&entry);
        }
    }
}
