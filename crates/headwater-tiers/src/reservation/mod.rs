//! Reservations: promises of bytes in a space.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Reservation`], what callers own |
//! | `claim.rs` | [`Claim`], what an allocation owns |
//! | `promise.rs` | what the two share, and all arithmetic |
//! | `policy.rs` | going beyond a reservation |
//! | `ledger.rs` | one space's line in the book |

mod claim;
mod ledger;
mod policy;
mod promise;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use claim::Claim;
pub(crate) use ledger::Ledger;
pub use policy::{Increase, OverPolicy};
pub(crate) use promise::Promise;

use crate::error::TierError;
use crate::space::Notifier;
use crate::tier::SpaceId;
use crate::waiting::Wait;

/// A promise of bytes in one space, owned: given back when dropped.
///
/// It can be shared between threads and changes size through a shared reference, because allocations on several
/// streams may draw from it at once. Dropping it gives back what is not in use; what is in use goes back to the space
/// when its allocation does.
///
/// ```
/// # use std::sync::Arc;
/// use std::time::Duration;
/// use headwater_tiers::{DiskConfig, SpaceId, Tiers, TiersConfig, Wait};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tiers = Tiers::new(TiersConfig::default().disk(DiskConfig::new("/var/tmp", 1 << 30)))?;
/// let space = tiers.space(SpaceId::disk(0))?;
///
/// let whole = space.make_reservation(1 << 20, &Wait::at_most(Duration::from_secs(1)))?;
/// let part = whole.split(1 << 18)?;
/// assert_eq!((whole.bytes(), part.bytes()), (3 << 18, 1 << 18));
/// drop(part);
/// assert_eq!(space.reserved_bytes(), 3 << 18);
/// # Ok(())
/// # }
/// ```
#[must_use = "a reservation that is dropped at once promises nothing"]
pub struct Reservation {
    promise: Arc<Promise>,
    /// After the promise has been given back, so that whoever hears of it finds the room.
    _notifier: Notifier,
}

impl Reservation {
    /// The reservation of what the book has granted.
    pub(crate) fn of_granted(ledger: &Arc<Ledger>, bytes: u64) -> Self {
        Self::of_promise(Promise::of_granted(ledger.clone(), bytes))
    }

    fn of_promise(promise: Arc<Promise>) -> Self {
        let notifier = promise.ledger().channel.notifier();
        Self { promise, _notifier: notifier }
    }

    /// The space.
    pub fn space(&self) -> SpaceId {
        self.promise.ledger().id
    }

    /// What is promised.
    pub fn bytes(&self) -> u64 {
        self.promise.figures().promised_bytes
    }

    /// What is allocated from it; more than [`bytes`](Self::bytes) where a policy allowed that.
    pub fn in_use_bytes(&self) -> u64 {
        self.promise.figures().in_use_bytes
    }

    /// What is promised and not allocated.
    pub fn unused_bytes(&self) -> u64 {
        let figures = self.promise.figures();
        figures.promised_bytes.saturating_sub(figures.in_use_bytes)
    }

    /// Promises `bytes` more if that is possible now. Those who wait come first once they have been passed often enough.
    ///
    /// # Errors
    /// [`TierError::NoRoom`], [`TierError::ShutDown`].
    pub fn grow(&self, bytes: u64) -> Result<(), TierError> {
        self.promise.grow(bytes)
    }

    /// Promises `bytes` more as soon as they are there; the reservation keeps what it has meanwhile.
    ///
    /// # Errors
    /// [`TierError::NeverFits`], [`TierError::TimedOut`], [`TierError::Cancelled`], [`TierError::ShutDown`],
    /// [`TierError::QueueFull`].
    pub fn grow_within(&self, bytes: u64, wait: &Wait) -> Result<(), TierError> {
        let granted = self.promise.ledger().reserve(bytes, wait)?;
        self.promise.add_granted(granted);
        Ok(())
    }

    /// Gives back `bytes` of what is not in use.
    ///
    /// # Errors
    /// [`TierError::NotUnused`].
    pub fn shrink(&self, bytes: u64) -> Result<(), TierError> {
        self.promise.shrink(bytes)
    }

    /// Gives back all that is not in use (whole blocks, where the space has blocks) and says how much that was.
    pub fn shrink_to_fit(&self) -> u64 {
        self.promise.shrink_to_fit()
    }

    /// Splits `bytes` of what is not in use off into a reservation of their own.
    ///
    /// # Errors
    /// [`TierError::NotUnused`].
    pub fn split(&self, bytes: u64) -> Result<Self, TierError> {
        self.promise.split(bytes).map(Self::of_promise)
    }

    /// Takes over another reservation of the same space, with what is in use of it.
    ///
    /// # Errors
    /// [`TierError::WrongSpace`], and the other reservation with it, still whole. So is one of other tiers with the same
    /// name.
    pub fn merge(&self, other: Self) -> Result<(), (Self, TierError)> {
        let (mine, theirs) = (self.promise.ledger(), other.promise.ledger());
        if !Arc::ptr_eq(mine, theirs) {
            let error = TierError::WrongSpace { expected: mine.id, got: theirs.id };
            return Err((other, error));
        }
        self.promise.merge(&other.promise);
        Ok(())
    }

    /// Puts `bytes` of it to use: the accounting half of an allocation, for whoever brings the memory.
    ///
    /// # Errors
    /// [`TierError::OverReservation`], [`TierError::OverCapacity`], or [`TierError::NoRoom`], as `policy` has it.
    pub fn claim(&self, bytes: u64, policy: OverPolicy) -> Result<Claim, TierError> {
        Claim::within(&self.promise, bytes, policy)
    }

    pub(crate) fn promise(&self) -> &Arc<Promise> {
        &self.promise
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.promise.give_back();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.promise.figures();
        f.debug_struct("Reservation")
            .field("space", &self.space())
            .field("bytes", &figures.promised_bytes)
            .field("in_use_bytes", &figures.in_use_bytes)
            .finish()
    }
}
