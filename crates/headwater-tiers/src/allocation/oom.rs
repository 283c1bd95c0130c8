//! What to do when the memory below runs out although the accounts had room: fragmentation, another process, a
//! capacity that was set too high.

use std::fmt;

use headwater::{AllocError, Allocator, OutOfMemoryReport};

use crate::error::TierError;
use crate::reservation::Ledger;

/// No policy makes an allocator be asked more often than this.
const ATTEMPTS_MAX: u32 = 16;

/// Whether to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomAction {
    /// Ask again: something was done about it.
    Retry,
    /// It is an error.
    GiveUp,
}

/// Decides, with no lock held and in the thread that asked. It may free memory, spill, or wait with a deadline.
pub trait OomPolicy: Send + Sync {
    /// The allocator has refused for the `attempt`-th time, counted from one.
    fn out_of_memory(&self, allocator: &dyn Allocator, report: &OutOfMemoryReport, attempt: u32)
    -> OomAction;
}

/// Out of memory is an error at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailAtOnce;

impl OomPolicy for FailAtOnce {
    fn out_of_memory(&self, _: &dyn Allocator, _: &OutOfMemoryReport, _: u32) -> OomAction {
        OomAction::GiveUp
    }
}

/// Returns to the driver what the allocator holds for reuse, and asks once more if that was anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmptyCacheAndRetry;

impl OomPolicy for EmptyCacheAndRetry {
    fn out_of_memory(&self, allocator: &dyn Allocator, _: &OutOfMemoryReport, attempt: u32) -> OomAction {
        // Where part of it could not be returned, the rest was: asking again may help all the same.
        let freed_any = allocator.empty_cache().map_or(true, |bytes| bytes > 0);
        if attempt == 1 && freed_any { OomAction::Retry } else { OomAction::GiveUp }
    }
}

/// Calls a function that says whether it made room, such as one that spills; asked at most `retries_max` times.
pub struct RetryWith<F> {
    make_room: F,
    retries_max: u32,
}

impl<F: Fn(&OutOfMemoryReport) -> bool + Send + Sync> RetryWith<F> {
    /// Calls `make_room` before each of at most `retries_max` more attempts.
    pub fn new(retries_max: u32, make_room: F) -> Self {
        Self { make_room, retries_max }
    }
}

impl<F: Fn(&OutOfMemoryReport) -> bool + Send + Sync> OomPolicy for RetryWith<F> {
    fn out_of_memory(&self, _: &dyn Allocator, report: &OutOfMemoryReport, attempt: u32) -> OomAction {
        if attempt <= self.retries_max && (self.make_room)(report) {
            OomAction::Retry
        } else {
            OomAction::GiveUp
        }
    }
}

impl<F> fmt::Debug for RetryWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryWith").field("retries_max", &self.retries_max).finish_non_exhaustive()
    }
}

/// Asks `allocator`, by `ask`, until it gives, the policy gives up, or enough is enough.
pub(super) fn ask_with<T>(
    allocator: &dyn Allocator,
    requested_bytes: u64,
    policy: &dyn OomPolicy,
    ledger: &Ledger,
    ask: impl Fn() -> Result<T, AllocError>,
) -> Result<T, TierError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let report = match ask() {
            Ok(given) => return Ok(given),
            Err(AllocError::OutOfMemory(report)) => report,
            Err(error) => return Err(error.into()),
        };
        let action = policy.out_of_memory(allocator, &report, attempts);
        if action == OomAction::GiveUp || attempts >= ATTEMPTS_MAX {
            let remedy = "lower the space's capacity_bytes to what the device really has, or spill";
            let shortage = Box::new(ledger.shortage(requested_bytes, remedy));
            return Err(TierError::OutOfMemory {
                shortage,
                attempts,
                source: AllocError::OutOfMemory(report),
            });
        }
    }
}
