//! Spaces: one tier at one place, with its gauge, its memory, its streams and its news.

mod config;
mod notify;
mod streams;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater::{Allocator, Request};

pub use config::{DiskConfig, GpuConfig, HostConfig};
pub use notify::{Listener, News, NotificationChannel, Notifier};
pub use streams::{BorrowedStream, STREAMS_DEFAULT, STREAMS_MAX_DEFAULT, StreamPolicy, StreamPool};

use crate::allocation::{OomPolicy, ReservedBlock};
use crate::disk::DiskOptions;
use crate::error::TierError;
use crate::host::{HostBuffer, PinnedPool};
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

/// Where the bytes of a space are.
#[derive(Debug)]
pub(crate) enum Memory {
    Gpu { allocator: Arc<dyn Allocator>, streams: StreamPool },
    Host { pool: PinnedPool },
    Disk { mount: PathBuf, options: DiskOptions },
}

/// The gauge of a space at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceUse {
    /// The hard cap.
    pub capacity_bytes: u64,
    /// The most that can be promised.
    pub limit_bytes: u64,
    /// What is promised.
    pub reserved_bytes: u64,
    /// What is allocated beyond or outside of reservations.
    pub unreserved_bytes: u64,
    /// The most that was ever taken.
    pub used_bytes_peak: u64,
    /// How many requests wait for this space, among others perhaps.
    pub waiting: usize,
    /// How many bytes they want: room that a spill would be useful for.
    pub waiting_bytes: u64,
}

impl SpaceUse {
    /// What is taken: promised, or allocated without a promise.
    pub fn used_bytes(&self) -> u64 {
        self.reserved_bytes + self.unreserved_bytes
    }
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

    /// The gauge, read in one go.
    pub fn usage(&self) -> SpaceUse {
        let ledger = &self.inner.ledger;
        ledger.gate.read(|book| {
            let account = book.account(ledger.account);
            let (waiting, waiting_bytes) = book.waiting_for(ledger.account);
            SpaceUse {
                capacity_bytes: account.capacity_bytes,
                limit_bytes: account.limit_bytes,
                reserved_bytes: account.given.reserved_bytes,
                unreserved_bytes: account.given.unreserved_bytes,
                used_bytes_peak: account.used_bytes_peak,
                waiting,
                waiting_bytes,
            }
        })
    }

    /// The hard cap.
    pub fn capacity_bytes(&self) -> u64 {
        self.usage().capacity_bytes
    }

    /// What is promised.
    pub fn reserved_bytes(&self) -> u64 {
        self.usage().reserved_bytes
    }

    /// What can still be taken, reserved or not.
    pub fn available_bytes(&self) -> u64 {
        let usage = self.usage();
        usage.capacity_bytes.saturating_sub(usage.used_bytes())
    }

    /// What can still be promised.
    pub fn reservable_bytes(&self) -> u64 {
        let usage = self.usage();
        usage.limit_bytes.saturating_sub(usage.used_bytes())
    }

    /// Whether use is at or above the trigger, and data should move down.
    pub fn should_downgrade(&self) -> bool {
        let usage = self.usage();
        self.thresholds().should_downgrade(usage.used_bytes(), usage.capacity_bytes)
    }

    /// Whether use is down to the stop.
    pub fn should_stop_downgrading(&self) -> bool {
        let usage = self.usage();
        self.thresholds().should_stop_downgrading(usage.used_bytes(), usage.capacity_bytes)
    }

    /// How far use is above the stop.
    pub fn amount_to_downgrade(&self) -> u64 {
        let usage = self.usage();
        self.thresholds().amount_to_downgrade(usage.used_bytes(), usage.capacity_bytes)
    }

    /// The marks in force.
    pub fn thresholds(&self) -> Thresholds {
        *self.inner.thresholds.read()
    }

    /// Changes capacity and marks. Whoever waits is served by what was raised; whoever can never be served any more is
    /// told. What is given out stays, also where that is now too much.
    ///
    /// # Errors
    /// [`TierError::BadSetting`].
    pub fn set_limits(&self, capacity_bytes: u64, thresholds: Thresholds) -> Result<(), TierError> {
        thresholds.check()?;
        // Under the lock, so that two changes at once end as one of them.
        let mut current = self.inner.thresholds.write();
        self.inner.ledger.set_ceilings(capacity_bytes, thresholds.reservation_limit.of(capacity_bytes));
        *current = thresholds;
        Ok(())
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

    /// The allocator of a GPU space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn allocator(&self) -> Result<&Arc<dyn Allocator>, TierError> {
        match &self.inner.memory {
            Memory::Gpu { allocator, .. } => Ok(allocator),
            _ => Err(self.not_here("allocator of device memory")),
        }
    }

    /// The streams of a GPU space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn streams(&self) -> Result<&StreamPool, TierError> {
        match &self.inner.memory {
            Memory::Gpu { streams, .. } => Ok(streams),
            _ => Err(self.not_here("streams")),
        }
    }

    /// Borrows a stream of a GPU space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`], and those of [`StreamPool::acquire`].
    pub fn acquire_stream(&self, policy: &StreamPolicy) -> Result<BorrowedStream, TierError> {
        self.streams()?.acquire(policy)
    }

    /// The pinned blocks of a HOST space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn pinned_pool(&self) -> Result<&PinnedPool, TierError> {
        match &self.inner.memory {
            Memory::Host { pool } => Ok(pool),
            _ => Err(self.not_here("pinned blocks")),
        }
    }

    /// The directory of a DISK space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn mount(&self) -> Result<&Path, TierError> {
        match &self.inner.memory {
            Memory::Disk { mount, .. } => Ok(mount),
            _ => Err(self.not_here("mount")),
        }
    }

    /// How the disk of a DISK space is to be reached.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn disk_options(&self) -> Result<DiskOptions, TierError> {
        match &self.inner.memory {
            Memory::Disk { options, .. } => Ok(*options),
            _ => Err(self.not_here("mount")),
        }
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

    fn not_here(&self, what: &'static str) -> TierError {
        TierError::NotThisTier { space: self.id(), what }
    }
}
