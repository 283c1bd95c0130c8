//! Small allocators around another: each adds one thing and passes the rest on.
//!
//! An adaptor is itself an [`Allocator`](crate::Allocator), so adaptors stack: a log around a callback around a limit.
//! They are composed once, when the program starts; an allocator that nobody wraps pays nothing for them.
//!
//! | adaptor | adds |
//! |---|---|
//! | [`Limited`] | a limit on the bytes that callers hold |
//! | [`WithFailureCallback`] | a last chance to free memory before out of memory is an error |
//! | [`Logged`] | a bounded record of the latest calls |
//!
//! ```
//! use std::sync::Arc;
//! use headwater::adaptors::{Limited, Logged};
//! use headwater::{Allocator, Block, Direct, Request};
//! use headwater_driver::{DeviceId, Stream};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//!
//! # let driver = headwater_sim::SimDriver::new();
//! let direct = Arc::new(Direct::new(driver, DeviceId(0))?);
//! let limited = Arc::new(Limited::new(direct, 1 << 20));
//! let logged = Arc::new(Logged::new(limited.clone(), 100));
//!
//! let request = Request::new(4096, Stream::legacy_default(DeviceId(0)));
//! let block = Block::allocate(logged.clone(), request)?;
//! assert_eq!(limited.held_bytes(), 4096);
//! drop(block);
//! assert_eq!(limited.held_bytes(), 0);
//! assert_eq!(logged.entries().len(), 2);
//! # Ok(())
//! # }
//! ```

mod failure_callback;
mod limit;
mod log;
#[cfg(test)]
mod tests;

pub use failure_callback::WithFailureCallback;
pub use limit::Limited;
pub use log::{LogEntry, LogEvent, Logged};

/// The methods of [`Allocator`](crate::Allocator) that no adaptor changes.
macro_rules! pass_on_to_inner {
    () => {
        fn name(&self) -> &'static str {
            self.inner.name()
        }

        fn driver(&self) -> &std::sync::Arc<dyn headwater_driver::Driver> {
            self.inner.driver()
        }

        fn device(&self) -> headwater_driver::DeviceId {
            self.inner.device()
        }

        fn block_at(&self, ptr: headwater_driver::DevicePtr) -> Option<crate::allocator::BlockFacts> {
            self.inner.block_at(ptr)
        }

        fn stats(&self) -> crate::stats::DeviceStats {
            self.inner.stats()
        }

        fn reset_peaks(&self) {
            self.inner.reset_peaks();
        }

        fn reset_totals(&self) {
            self.inner.reset_totals();
        }

        fn reconcile(&self) -> Result<(), crate::stats::Differences> {
            self.inner.reconcile()
        }
    };
}
use pass_on_to_inner;
