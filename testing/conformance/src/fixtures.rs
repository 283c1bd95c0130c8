//! What cases take up and what is given back when they are done with it.
//!
//! Everything is a guard that gives its object back when it is dropped. A drop cannot return an error, so what cannot be
//! given back is noted on the [`Ground`] and fails the case. Objects whose end is part of a case are ended
//! by hand (`into_raw`, `free`, `release`), and the guard then does nothing.
//!
//! Cases take memory first and streams after it. Guards go in the opposite order and a stream waits for its work
//! before it goes, so nothing still uses memory when it is given back, also where a case stops half-way.

mod captures;
mod device_memory;
mod host_memory;
mod streams;
mod work;

pub(crate) use captures::GraphGuard;
pub(crate) use device_memory::{Plain, Span, offset};
pub(crate) use host_memory::PAGE_BYTES;
pub(crate) use streams::StreamGuard;
pub(crate) use work::{KernelsGuard, SPIN_US, pattern, word_of};

use headwater_driver::DriverError;

use crate::case::{Failure, Ground, Stop};
use crate::check::Check;
use headwater_driver::DeviceId;

impl Ground {
    /// Notes a cleanup that failed.
    #[track_caller]
    pub(crate) fn cleaned(&self, what: &str, answer: Result<(), DriverError>) {
        if let Err(error) = answer {
            self.note_leftover(Failure::new(format!("expected that {what} can be given back, got: {error}")));
        }
    }

    /// The second device, or the end of a case that cannot be shown without one.
    pub(crate) fn second_device(&self) -> Check<DeviceId> {
        self.second_device.ok_or(Stop::NotApplicable("there is only one device"))
    }

    /// A device that does not exist.
    pub(crate) fn no_such_device(&self) -> DeviceId {
        DeviceId(self.driver.device_count())
    }
}
