//! How a private pool gives memory back: never while a graph has its addresses, and never while something still runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater_driver::{CaptureStatus, DriverError, ErrorClass, Stream};

use super::figures;
use super::lanes::LaneKey;
use super::private_pool::PrivatePool;
use super::wanted::Half;
use crate::capture_guard;
use crate::error::AllocError;

/// Whether a release may wait for streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Only what has finished goes.
    Ask,
    /// Streams are waited for.
    Wait,
}

impl PrivatePool {
    /// Returns what nobody needs: nothing while there are graphs, captures or other users; otherwise every region in which no
    /// block is. Says how many bytes went to the driver. A pool without memory, blocks and handles ends.
    ///
    /// # Errors
    /// What the driver answered; what it refused stays, and is offered again by a later call.
    pub(super) fn retire(self: &Arc<Self>, patience: Patience) -> Result<u64, AllocError> {
        let mut small = self.small.lock();
        let mut large = self.large.lock();
        let (launched, unseen) = {
            let holders = self.holders.lock();
            if holders.need_memory() {
                return Ok(0);
            }
            (holders.launched.clone(), holders.launched_unseen)
        };
        let (lanes, until) = {
            let mut core = self.core.lock();
            (core.unfinished(), core.now())
        };
        let idle = small.is_empty() && large.is_empty();
        if !idle && !self.is_quiet(&launched, unseen, &lanes, patience)? {
            return Ok(0);
        }
        let mut released_bytes = 0;
        let mut refusal = Ok(());
        self.core.lock().all_finished(until);
        for (half, memory) in [(Half::Small, &mut *small), (Half::Large, &mut *large)] {
            let regions: Vec<(u64, u64)> = memory.regions().collect();
            for (base, bytes) in regions {
                let taken = {
                    let holders = self.holders.lock();
                    // A capture may have begun meanwhile.
                    !holders.need_memory() && self.core.lock().take_out(half, base, bytes)
                };
                if !taken {
                    continue;
                }
                self.common.remove_range(base);
                match memory.release(base) {
                    Ok(physical_bytes) => {
                        self.common.withdraw(physical_bytes);
                        released_bytes += bytes;
                    }
                    Err(error) => {
                        self.register(base, bytes);
                        self.core.lock().put_back(half, base, bytes);
                        refusal = Err(error);
                    }
                }
            }
            refusal = refusal.and(memory.pay_debts());
        }
        let empty = small.is_empty() && large.is_empty();
        drop((small, large));
        self.end_if_unneeded(empty);
        refusal?;
        Ok(released_bytes)
    }

    /// Whether all work of a stream has finished. No where it cannot be asked now.
    pub(super) fn has_finished(&self, stream: Stream) -> Result<bool, DriverError> {
        let driver = &*self.common.driver;
        // A query of a captured stream would destroy the capture, whatever the mode.
        if is_captured(driver.capture_status(stream))? {
            return Ok(false);
        }
        capture_guard::relaxed(driver, || driver.stream_query(stream))
    }

    /// Whether nothing that was launched or freed here still runs.
    fn is_quiet(
        &self,
        launched: &BTreeSet<Stream>,
        unseen: bool,
        lanes: &[LaneKey],
        patience: Patience,
    ) -> Result<bool, DriverError> {
        let driver = &*self.common.driver;
        let mut all = !unseen && lanes.iter().all(|key| key.is_within_reach());
        for stream in launched.iter().copied().chain(lanes.iter().map(|key| key.stream)) {
            if !all {
                break;
            }
            all = match (self.has_finished(stream), patience) {
                (Ok(finished), Patience::Ask) => finished,
                (Ok(true), Patience::Wait) => true,
                (Ok(false), Patience::Wait) => {
                    !is_captured(driver.capture_status(stream))?
                        && capture_guard::relaxed(driver, || driver.stream_synchronize(stream)).is_ok()
                }
                // A stream that is gone: only the whole device can tell.
                (Err(error), _) if error.class() == ErrorClass::InvalidHandle => false,
                (Err(error), _) => return Err(error),
            };
        }
        if !all && patience == Patience::Wait {
            self.common.fence.wait()?;
            return Ok(true);
        }
        Ok(all)
    }

    fn end_if_unneeded(&self, empty: bool) {
        let ended = {
            let mut holders = self.holders.lock();
            if empty && !holders.need_memory() {
                holders.launched.clear();
                holders.launched_unseen = false;
            }
            empty && !holders.need_memory() && holders.handles == 0 && self.core.lock().blocks() == 0
        };
        if ended && self.common.remove_pool(self.id()).is_some() {
            figures::add(&mut self.common.departed.lock(), &self.core.lock().stats);
        }
    }
}

impl Drop for PrivatePool {
    /// The last graph, handle and block are gone, or the allocator is: everything goes back. Where the driver refuses to say
    /// that all work has finished, the memory stays with the process rather than being pulled away.
    fn drop(&mut self) {
        let (small, large) = (self.small.get_mut(), self.large.get_mut());
        if small.is_empty() && large.is_empty() {
            return;
        }
        let quiet = self.plain || self.common.fence.wait().is_ok();
        for memory in [small, large] {
            let regions: Vec<(u64, u64)> = memory.regions().collect();
            for (base, _) in regions.into_iter().filter(|_| quiet) {
                self.common.remove_range(base);
                // Nobody is left to tell, and the next one may still go.
                if let Ok(physical_bytes) = memory.release(base) {
                    self.common.withdraw(physical_bytes);
                }
            }
            let _ = memory.pay_debts();
        }
    }
}

/// Whether work given to a stream would go into a graph, or destroy somebody's capture.
fn is_captured(status: Result<CaptureStatus, DriverError>) -> Result<bool, DriverError> {
    match status {
        Ok(status) => Ok(status != CaptureStatus::None),
        Err(error) => match error.class() {
            // The default stream, while a stream that is ordered with it is captured.
            ErrorClass::IllegalInCapture => Ok(true),
            // A driver without capture.
            ErrorClass::Unavailable | ErrorClass::NotSupported => Ok(false),
            _ => Err(error),
        },
    }
}
