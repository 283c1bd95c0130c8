//! Spaces: one tier at one place.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Space`]: reservations and allocations in them |
//! | `gauge.rs` | how full it is, its marks, and whether data should move down |
//! | `memory.rs` | where its bytes are: an allocator and streams, pinned blocks, or a mount |
//! | `streams.rs` | streams that are lent one user at a time |
//! | `notify.rs` | news: whoever waits for a change is told of it |
//! | `config.rs` | how a space is set up |

mod config;
mod gauge;
mod memory;
mod notify;
mod streams;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::sync::Arc;

use headwater::Request;

pub use config::{DiskConfig, GpuConfig, HostConfig};
pub use gauge::SpaceUse;
pub(crate) use memory::Memory;
pub use notify::{Listener, News, NotificationChannel, Notifier};
pub use streams::{BorrowedStream, STREAMS_DEFAULT, STREAMS_MAX_DEFAULT, StreamPolicy, StreamPool};

use crate::allocation::{OomPolicy, ReservedBlock};
use crate::error::TierError;
use crate::host::HostBuffer;
use crate::reservation::{Claim, Ledger, OverPolicy, Reservation};
use crate::thresholds::Thresholds;
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

/// One tier at one place. Cheap to clone; all clones are the same space.
#[derive(Clone, Debug)]
pub struct Space {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ledger: Arc<Ledger>,
    thresholds: parking_lot::RwLock<Thresholds>,
    memory: Memory,
    numa_node: Option<u32>,
}

impl Space {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        thresholds: Thresholds,
        memory: Memory,
        numa_node: Option<u32>,
    ) -> Self {
        let thresholds = parking_lot::RwLock::new(thresholds);
        Self { inner: Arc::new(Inner { ledger, thresholds, memory, numa_node }) }
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.inner.ledger
    }

    /// Its name.
    pub fn id(&self) -> SpaceId {
        self.inner.ledger.id
    }

    /// Its tier.
    pub fn tier(&self) -> Tier {
        self.id().tier()
    }

    /// The NUMA node it is on or next to, where known.
    pub fn numa_node(&self) -> Option<u32> {
        self.inner.numa_node
    }

    /// Reserves exactly `bytes` (rounded up to whole blocks where the space has blocks), and waits for them if need be.
    ///
    /// # Errors
    /// [`TierError::NeverFits`] at once where no waiting helps; [`TierError::TimedOut`], [`TierError::Cancelled`],
    /// [`TierError::ShutDown`], [`TierError::QueueFull`].
    pub fn make_reservation(&self, bytes: u64, wait: &Wait) -> Result<Reservation, TierError> {
        let granted = self.inner.ledger.reserve(bytes, wait)?;
        Ok(Reservation::of_granted(&self.inner.ledger, granted))
    }

    /// Reserves exactly `bytes` now; `None` where that is not possible now. A space that somebody has waited for long
    /// enough is not available.
    ///
    /// # Errors
    /// [`TierError::NeverFits`], [`TierError::ShutDown`].
    pub fn make_reservation_or_null(&self, bytes: u64) -> Result<Option<Reservation>, TierError> {
        match self.inner.ledger.try_reserve(bytes) {
            Ok(granted) => Ok(Some(Reservation::of_granted(&self.inner.ledger, granted))),
            Err(TierError::NoRoom(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reserves `bytes` now, or as much as there is, perhaps nothing.
    ///
    /// # Errors
    /// [`TierError::ShutDown`].
    pub fn make_reservation_upto(&self, bytes: u64) -> Result<Reservation, TierError> {
        let granted = self.inner.ledger.reserve_up_to(bytes)?;
        Ok(Reservation::of_granted(&self.inner.ledger, granted))
    }

    /// Takes `bytes` without a reservation, up to the capacity: the accounting half of an allocation.
    ///
    /// # Errors
    /// [`TierError::OverCapacity`].
    pub fn claim_unreserved(&self, bytes: u64) -> Result<Claim, TierError> {
        Claim::outside(&self.inner.ledger, bytes)
    }

    /// Allocates device memory within `reservation`.
    ///
    /// # Errors
    /// What [`Reservation::claim`] says; [`TierError::OutOfMemory`] where the allocator ran out after all that `oom`
    /// could do; [`TierError::Alloc`]; [`TierError::NotThisTier`], [`TierError::WrongSpace`].
    pub fn allocate(
        &self,
        reservation: &Reservation,
        request: Request,
        over: OverPolicy,
        oom: &dyn OomPolicy,
    ) -> Result<ReservedBlock, TierError> {
        self.check_same(reservation)?;
        let allocator = self.allocator()?;
        let claim = reservation.claim(request.bytes, over)?;
        ReservedBlock::allocate(allocator, claim, request, oom)
    }

    /// Allocates pinned blocks for `bytes` within `reservation`.
    ///
    /// # Errors
    /// What [`Reservation::claim`] says; [`TierError::Driver`] where the pool could not grow;
    /// [`TierError::NotThisTier`], [`TierError::WrongSpace`].
    pub fn allocate_host(
        &self,
        reservation: &Reservation,
        bytes: u64,
        over: OverPolicy,
    ) -> Result<HostBuffer, TierError> {
        self.check_same(reservation)?;
        let pool = self.pinned_pool()?;
        let claim = reservation.claim(pool.rounded_bytes(bytes), over)?;
        pool.allocate(bytes, claim, over)
    }

    /// The news of the space.
    pub fn channel(&self) -> &Arc<NotificationChannel> {
        &self.inner.ledger.channel
    }

    pub(crate) fn shut_down(&self) {
        self.inner.ledger.channel.shut_down();
        if let Memory::Gpu { streams, .. } = &self.inner.memory {
            streams.shut_down();
        }
    }

    pub(crate) fn expire_waits(&self) {
        self.inner.ledger.channel.look_at_clock();
        if let Memory::Gpu { streams, .. } = &self.inner.memory {
            streams.expire_waits();
        }
    }

    fn check_same(&self, reservation: &Reservation) -> Result<(), TierError> {
        if Arc::ptr_eq(reservation.promise().ledger(), &self.inner.ledger) {
            return Ok(());
        }
        Err(TierError::WrongSpace { expected: self.id(), got: reservation.space() })
    }
}
