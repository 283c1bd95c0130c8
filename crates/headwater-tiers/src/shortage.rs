//! A request for room that did not fit, in numbers.

use std::fmt;

use headwater::HumanBytes;

use crate::tier::SpaceId;

/// A request that did not fit, and how its space stood at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The space; where there were several candidates, the one that came nearest.
    pub space: SpaceId,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What was taken: reserved, and allocated outside of reservations.
    pub used_bytes: u64,
    /// What was promised to reservations.
    pub reserved_bytes: u64,
    /// The most that reservations can take.
    pub limit_bytes: u64,
    /// The most that anything can take.
    pub capacity_bytes: u64,
    /// How many requests waited for this space.
    pub waiting: usize,
    /// The setting or action that would help.
    pub remedy: &'static str,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({} bytes) asked for in {}; {} used, {} of that reserved, limit {} of a capacity of {}, {} waiting; {}",
            HumanBytes(self.requested_bytes),
            self.requested_bytes,
            self.space,
            HumanBytes(self.used_bytes),
            HumanBytes(self.reserved_bytes),
            HumanBytes(self.limit_bytes),
            HumanBytes(self.capacity_bytes),
            self.waiting,
            self.remedy,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TierError;

    #[test]
    fn a_shortage_names_tier_numbers_and_remedy_in_one_line() {
        let shortage = Shortage {
            space: SpaceId::host(1),
            requested_bytes: 3 << 20,
            used_bytes: 90 << 20,
            reserved_bytes: 80 << 20,
            limit_bytes: 85 << 20,
            capacity_bytes: 100 << 20,
            waiting: 2,
            remedy: "raise reservation_limit",
        };
        let text = TierError::NeverFits(Box::new(shortage)).to_string();
        for part in [
            "HOST node 1",
            "3145728 bytes",
            "90.0 MiB used",
            "limit 85.0 MiB",
            "2 waiting",
            "reservation_limit",
        ] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        assert!(!text.contains('\n'));
    }
}
