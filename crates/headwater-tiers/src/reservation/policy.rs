//! What happens when an allocation does not fit into its reservation.

use crate::error::TierError;
use crate::waiting::Ceiling;

/// Whether, and how, an allocation may go beyond its reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum OverPolicy {
    /// It fails. The default: a reservation is a promise in both directions.
    #[default]
    Fail,
    /// It goes ahead, up to the capacity; the excess is counted as unreserved.
    Ignore,
    /// The reservation is made larger first.
    Increase(Increase),
}

/// How a reservation is made larger by an allocation that does not fit.
///
/// ```
/// use headwater_tiers::Increase;
/// let generous = Increase::padded_by(1.25)?.beyond_limit();
/// assert!(Increase::padded_by(0.5).is_err());
/// # let _ = generous;
/// # Ok::<(), headwater_tiers::TierError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Increase {
    padding_factor: f64,
    allow_beyond_limit: bool,
}

impl Increase {
    /// The largest padding: more is a mistake in units.
    const PADDING_MAX: f64 = 1024.0;

    /// Asks for `factor` times what is missing, so that the next allocations fit too; where that much is not there, for
    /// exactly what is missing.
    ///
    /// # Errors
    /// [`TierError::BadSetting`] for a factor that is not between 1 and 1024.
    pub fn padded_by(factor: f64) -> Result<Self, TierError> {
        if !(1.0..=Self::PADDING_MAX).contains(&factor) {
            let why = format!("{factor} is not between 1 and {}", Self::PADDING_MAX);
            return Err(TierError::bad_setting("padding_factor", why));
        }
        Ok(Self { padding_factor: factor, allow_beyond_limit: false })
    }

    /// The same, up to the capacity rather than the reservation limit, and ahead of those who wait.
    #[must_use]
    pub const fn beyond_limit(mut self) -> Self {
        self.allow_beyond_limit = true;
        self
    }

    pub(crate) fn padded(self, missing_bytes: u64) -> u64 {
        // A float cast saturates; rounding must not take away what is missing.
        ((missing_bytes as f64 * self.padding_factor).ceil() as u64).max(missing_bytes)
    }

    pub(crate) fn ceiling(self) -> Ceiling {
        if self.allow_beyond_limit { Ceiling::Capacity } else { Ceiling::Limit }
    }
}
