//! The marks on a space's gauge: how much can be reserved, when to move data down, when to stop.
//!
//! All three are fractions of the same base, the capacity. A gauge that measures use against the limit and compares it
//! with fractions of the capacity fires late by what lies between the two; this one has a single base on purpose.
//!
//! Fractions are kept in millionths, so that a mark in bytes is exact integer arithmetic: `0.29` of 100 bytes is 29,
//! where floating point says 28.

use std::fmt;

use crate::error::TierError;

/// A share between nothing and everything, in millionths.
///
/// ```
/// use headwater_tiers::Fraction;
/// let most = Fraction::new(0.29)?;
/// assert_eq!(most.of(100), 29);
/// assert!(Fraction::new(1.01).is_err());
/// # Ok::<(), headwater_tiers::TierError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction {
    millionths: u32,
}

impl Fraction {
    const ONE: u32 = 1_000_000;

    /// All of it.
    pub const WHOLE: Self = Self { millionths: Self::ONE };

    /// `share`, rounded to the nearest millionth.
    ///
    /// # Errors
    /// [`TierError::BadSetting`] for what is no number or not between 0 and 1.
    pub fn new(share: f64) -> Result<Self, TierError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(TierError::bad_setting("fraction", format!("{share} is not between 0 and 1")));
        }
        Ok(Self { millionths: (share * f64::from(Self::ONE)).round() as u32 })
    }

    /// `percent` hundredths; more than 100 are 100.
    pub const fn percent(percent: u32) -> Self {
        let percent = if percent > 100 { 100 } else { percent };
        Self { millionths: percent * (Self::ONE / 100) }
    }

    /// This share of `bytes`, rounded down.
    pub const fn of(self, bytes: u64) -> u64 {
        // At most `bytes`, so the cast loses nothing.
        (bytes as u128 * self.millionths as u128 / Self::ONE as u128) as u64
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.millionths) / f64::from(Self::ONE))
    }
}

/// The fractions of a space's capacity that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// How much of the capacity reservations can take; the rest is for what nobody reserved.
    pub reservation_limit: Fraction,
    /// Use at or above this calls for data to be moved down.
    pub downgrade_trigger: Fraction,
    /// Use at or below this is low enough to stop. The gap to the trigger keeps data from going back and forth.
    pub downgrade_stop: Fraction,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            reservation_limit: Fraction::percent(85),
            downgrade_trigger: Fraction::percent(85),
            downgrade_stop: Fraction::percent(65),
        }
    }
}

impl Thresholds {
    /// Whether the fractions make sense together.
    ///
    /// # Errors
    /// [`TierError::BadSetting`] where the stop is above the trigger.
    pub fn check(&self) -> Result<(), TierError> {
        if self.downgrade_stop > self.downgrade_trigger {
            let why =
                format!("{} is above downgrade_trigger ({})", self.downgrade_stop, self.downgrade_trigger);
            return Err(TierError::bad_setting("downgrade_stop", why));
        }
        Ok(())
    }

    /// Whether `used_bytes` of `capacity_bytes` call for data to be moved down: the trigger is reached, and there is
    /// something above the stop to move.
    pub const fn should_downgrade(&self, used_bytes: u64, capacity_bytes: u64) -> bool {
        used_bytes >= self.downgrade_trigger.of(capacity_bytes)
            && !self.should_stop_downgrading(used_bytes, capacity_bytes)
    }

    /// Whether use is down to the stop.
    pub const fn should_stop_downgrading(&self, used_bytes: u64, capacity_bytes: u64) -> bool {
        used_bytes <= self.downgrade_stop.of(capacity_bytes)
    }

    /// How far use is above the stop.
    pub const fn amount_to_downgrade(&self, used_bytes: u64, capacity_bytes: u64) -> u64 {
        used_bytes.saturating_sub(self.downgrade_stop.of(capacity_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact_and_refuse_nonsense() {
        assert_eq!(Fraction::new(0.29).unwrap().of(100), 29);
        assert_eq!(Fraction::WHOLE.of(u64::MAX), u64::MAX);
        assert_eq!(Fraction::percent(0).of(u64::MAX), 0);
        assert_eq!(Fraction::new(0.000_001).unwrap().of(1_999_999), 1);
        for bad in [-0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert!(Fraction::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn marks_hold_at_their_exact_edges() {
        let marks = Thresholds::default();
        let capacity = 1000;
        for (used, downgrade, stop, amount) in [
            (0, false, true, 0),
            (649, false, true, 0),
            (650, false, true, 0),
            (651, false, false, 1),
            (849, false, false, 199),
            (850, true, false, 200),
            (1000, true, false, 350),
        ] {
            assert_eq!(marks.should_downgrade(used, capacity), downgrade, "{used}");
            assert_eq!(marks.should_stop_downgrading(used, capacity), stop, "{used}");
            assert_eq!(marks.amount_to_downgrade(used, capacity), amount, "{used}");
        }
    }

    #[test]
    fn the_marks_do_not_depend_on_the_reservation_limit() {
        let mut marks = Thresholds::default();
        for limit in [0, 50, 85, 100] {
            marks.reservation_limit = Fraction::percent(limit);
            assert!(marks.should_downgrade(850, 1000) && !marks.should_downgrade(849, 1000));
        }
    }

    #[test]
    fn an_empty_space_never_calls_for_a_move() {
        let zero = Fraction::percent(0);
        let marks = Thresholds { reservation_limit: zero, downgrade_trigger: zero, downgrade_stop: zero };
        assert!(!marks.should_downgrade(0, 1000));
        assert!(marks.should_downgrade(1, 1000));
    }

    #[test]
    fn a_stop_above_the_trigger_is_refused() {
        let marks = Thresholds { downgrade_stop: Fraction::percent(86), ..Thresholds::default() };
        assert!(marks.check().unwrap_err().to_string().contains("downgrade_stop"));
    }
}
