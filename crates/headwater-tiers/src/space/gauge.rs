//! How full a space is, and what that means for data in it.

use super::Space;
use crate::error::TierError;
use crate::thresholds::Thresholds;

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
}
