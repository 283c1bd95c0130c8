//! Segments to and from the driver, without the lock.
//!
//! Growing: the bytes are promised under the lock, so that the limit holds for every thread at every moment; then the driver is
//! asked; then the segment is admitted, or the promise withdrawn. Shrinking: segments are offered under the lock, so that
//! nobody takes a block of them; then the driver gets them; then they are struck out, or kept where it refused.

use headwater_driver::{DevicePtr, DriverError, ErrorClass, Stream};

use super::CachingAllocator;
use super::classic::Wanted;
use super::classic::release::Offer;
use crate::AllocError;
use crate::capture_guard;

/// Why there is no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The limit is in the way.
    Limit,
    /// The device has not enough.
    Device,
}

/// A segment's block, or why not.
pub(super) type Grown = Result<DevicePtr, Refusal>;

impl CachingAllocator {
    /// Asks the driver for the usual segment, and serves the request from it.
    ///
    /// # Errors
    /// Where the driver failed for another reason than memory.
    pub(super) fn grow(&self, wanted: &Wanted, stream: Stream) -> Result<Grown, AllocError> {
        self.grow_by(self.rules.segment_bytes(wanted), wanted, stream)
    }

    /// Asks for a segment of just the size where the usual one, 20 MiB for a block of two, cannot be had. PyTorch does not:
    /// it fails with memory left.
    pub(super) fn grow_tightly(
        &self,
        wanted: &Wanted,
        stream: Stream,
    ) -> Result<Option<DevicePtr>, AllocError> {
        match self.rules.tight_segment_bytes(wanted) {
            Some(bytes) => Ok(self.grow_by(bytes, wanted, stream)?.ok()),
            None => Ok(None),
        }
    }

    fn grow_by(&self, bytes: u64, wanted: &Wanted, stream: Stream) -> Result<Grown, AllocError> {
        if !self.state.lock().core.classic_mut().is_some_and(|core| core.promise(bytes)) {
            return Ok(Err(Refusal::Limit));
        }
        let answer = capture_guard::relaxed(&*self.driver, || self.driver.mem_alloc(self.device, bytes));
        let mut state = self.state.lock();
        match answer {
            Ok(base) => Ok(state.admit(base, bytes, wanted, stream).ok_or(Refusal::Device)),
            Err(error) => {
                if let Some(core) = state.core.classic_mut() {
                    core.withdraw(bytes);
                }
                if error.is_out_of_memory() { Ok(Err(Refusal::Device)) } else { Err(error.into()) }
            }
        }
    }

    /// Returns offered segments to the driver. Says how many bytes went, and what the driver said where it refused one.
    pub(super) fn release(&self, offers: Vec<Offer>) -> (u64, Option<DriverError>) {
        let (mut released_bytes, mut refusal) = (0, None);
        for offer in offers {
            let answer = match &refusal {
                // A lost device takes nothing; the other segments are kept without asking.
                Some(lost) if is_lost(lost) => Err(lost.clone()),
                _ => {
                    capture_guard::relaxed(&*self.driver, || self.driver.mem_free(self.device, offer.base()))
                }
            };
            let mut state = self.state.lock();
            match answer {
                Ok(()) => {
                    released_bytes += offer.bytes;
                    state.returned(&offer);
                }
                Err(error) => {
                    if let Some(core) = state.core.classic_mut() {
                        core.kept(&offer);
                    }
                    refusal = Some(error);
                }
            }
        }
        (released_bytes, refusal)
    }

    /// Returns every segment in which nothing is held and nothing is used.
    pub(super) fn release_all(&self) -> (u64, Option<DriverError>) {
        let offers = {
            let mut state = self.state.lock();
            state.give_up_on_other_threads();
            state.core.classic_mut().map(|core| core.offer_all()).unwrap_or_default()
        };
        self.release(offers)
    }
}

fn is_lost(error: &DriverError) -> bool {
    error.class() == ErrorClass::DeviceLost
}
