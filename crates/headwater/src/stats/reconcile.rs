//! Counted against real: the statistics compared with totals taken by walking every segment and block.
//!
//! A walk knows the present only, so it is the `current` of every statistic that is compared. Beyond that, numbers
//! that contain each other must: live in allocated, allocated in active, active and inactive in reserved, current in
//! peak; and nothing may ever have been taken away that was not there.

use std::fmt;

use super::device::DeviceStats;
use super::stat::PoolKind;

/// A total over all blocks, and over those of each pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Over all.
    pub all: u64,
    /// Over the small pool.
    pub small_pool: u64,
    /// Over the large pool.
    pub large_pool: u64,
}

impl Tally {
    /// Adds `amount` to the pool and to all; [`PoolKind::All`] is for memory that belongs to no pool.
    pub fn add(&mut self, kind: PoolKind, amount: u64) {
        self.all += amount;
        match kind {
            PoolKind::All => {}
            PoolKind::SmallPool => self.small_pool += amount,
            PoolKind::LargePool => self.large_pool += amount,
        }
    }

    /// The total of `kind`.
    pub fn of(&self, kind: PoolKind) -> u64 {
        match kind {
            PoolKind::All => self.all,
            PoolKind::SmallPool => self.small_pool,
            PoolKind::LargePool => self.large_pool,
        }
    }
}

/// What a walk over every segment and block found. Fields are named after the statistics they must equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the fields of `DeviceStats`")]
pub struct WalkedTotals {
    pub allocation: Tally,
    pub segment: Tally,
    pub active: Tally,
    pub inactive_split: Tally,
    pub allocated_bytes: Tally,
    pub reserved_bytes: Tally,
    pub active_bytes: Tally,
    pub inactive_split_bytes: Tally,
    pub requested_bytes: Tally,
    pub oversize_allocations: u64,
    pub oversize_segments: u64,
}

impl WalkedTotals {
    /// In the order of `DeviceStats::arrays`.
    fn tallies(&self) -> [&Tally; 9] {
        [
            &self.allocation,
            &self.segment,
            &self.active,
            &self.inactive_split,
            &self.allocated_bytes,
            &self.reserved_bytes,
            &self.active_bytes,
            &self.inactive_split_bytes,
            &self.requested_bytes,
        ]
    }
}

/// One number that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The statistic and the walk disagree.
    Counted {
        /// The flat name of the statistic.
        name: String,
        /// What the statistic says.
        counted: u64,
        /// What the walk found.
        walked: u64,
    },
    /// A part is larger than what contains it.
    Exceeds {
        /// The part.
        part: String,
        /// Its value.
        part_value: u64,
        /// What must contain it.
        whole: String,
        /// Its value.
        whole_value: u64,
    },
    /// More was taken away from the statistic than was there.
    Deficit {
        /// The name of the statistic.
        name: String,
        /// How much more.
        amount: u64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted { name, counted, walked } => write!(f, "{name}: counted {counted}, found {walked}"),
            Self::Exceeds { part, part_value, whole, whole_value } => {
                write!(f, "{part} is {part_value}, more than {whole}, {whole_value}")
            }
            Self::Deficit { name, amount } => write!(f, "{name}: {amount} more taken away than was there"),
        }
    }
}

/// Everything that does not add up. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences(Vec<Difference>);

impl Differences {
    /// The differences, in the order of the statistics.
    pub fn iter(&self) -> impl Iterator<Item = &Difference> + '_ {
        self.0.iter()
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the statistics do not add up in {} places", self.0.len())?;
        self.0.iter().try_for_each(|difference| write!(f, "; {difference}"))
    }
}

impl std::error::Error for Differences {}

impl DeviceStats {
    /// Compares what was counted with what a walk found.
    ///
    /// # Errors
    /// Every number that is not what it must be.
    pub fn reconcile(&self, walked: &WalkedTotals) -> Result<(), Differences> {
        let mut differences = Vec::new();
        for ((name, array), tally) in self.arrays().into_iter().zip(walked.tallies()) {
            for kind in PoolKind::KINDS {
                compare(
                    &mut differences,
                    format!("{name}.{}.current", kind.name()),
                    array.of(kind).current,
                    tally.of(kind),
                );
            }
        }
        let oversize = [walked.oversize_allocations, walked.oversize_segments];
        for ((name, stat), walked) in self.plain_stats().into_iter().zip(oversize) {
            compare(&mut differences, format!("{name}.current"), stat.current, walked);
        }
        self.check_containment(&mut differences);
        self.check_each_stat(&mut differences);
        if differences.is_empty() { Ok(()) } else { Err(Differences(differences)) }
    }

    fn check_containment(&self, differences: &mut Vec<Difference>) {
        for kind in PoolKind::KINDS {
            let now = |array: &super::StatArray| array.of(kind).current;
            let named = |name: &str| format!("{name}.{}.current", kind.name());
            let (live, allocated) = (now(&self.requested_bytes), now(&self.allocated_bytes));
            let (active, reserved) = (now(&self.active_bytes), now(&self.reserved_bytes));
            let used = active.saturating_add(now(&self.inactive_split_bytes));
            for (part, part_value, whole, whole_value) in [
                ("requested_bytes", live, "allocated_bytes", allocated),
                ("allocated_bytes", allocated, "active_bytes", active),
                ("active_bytes + inactive_split_bytes", used, "reserved_bytes", reserved),
                ("allocation", now(&self.allocation), "active", now(&self.active)),
            ] {
                if part_value > whole_value {
                    let (part, whole) = (named(part), named(whole));
                    differences.push(Difference::Exceeds { part, part_value, whole, whole_value });
                }
            }
        }
    }

    fn check_each_stat(&self, differences: &mut Vec<Difference>) {
        let by_pool = self.arrays().into_iter().flat_map(|(name, array)| {
            PoolKind::KINDS.map(|kind| (format!("{name}.{}", kind.name()), array.of(kind)))
        });
        let plain = self.plain_stats().map(|(name, stat)| (name.to_owned(), stat));
        for (name, stat) in by_pool.chain(plain) {
            if stat.current > stat.peak {
                differences.push(Difference::Exceeds {
                    part: format!("{name}.current"),
                    part_value: stat.current,
                    whole: format!("{name}.peak"),
                    whole_value: stat.peak,
                });
            }
            if stat.deficit() > 0 {
                differences.push(Difference::Deficit { name, amount: stat.deficit() });
            }
        }
    }
}

fn compare(differences: &mut Vec<Difference>, name: String, counted: u64, walked: u64) {
    if counted != walked {
        differences.push(Difference::Counted { name, counted, walked });
    }
}
