//! One count that rises and falls, and three of them: both pools and all.

/// Which blocks a count is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolKind {
    /// All of them.
    All,
    /// Those of the small pool, up to 1 MiB.
    SmallPool,
    /// Those of the large pool.
    LargePool,
}

impl PoolKind {
    /// All kinds, in the order of the names.
    pub const KINDS: [PoolKind; 3] = [PoolKind::All, PoolKind::SmallPool, PoolKind::LargePool];

    /// The name within a flattened statistic.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::SmallPool => "small_pool",
            Self::LargePool => "large_pool",
        }
    }
}

/// A count that rises and falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// What it is now.
    pub current: u64,
    /// The most it was since the peaks were reset.
    pub peak: u64,
    /// All it rose by since the totals were reset.
    pub allocated: u64,
    /// All it fell by since the totals were reset.
    pub freed: u64,
    /// What was taken away beyond what was there. Kept, so that a mistake in the accounting neither turns into a huge
    /// number nor goes unnoticed: see [`Stat::deficit`].
    deficit: u64,
}

impl Stat {
    /// Counts `amount` more.
    pub fn increase(&mut self, amount: u64) {
        self.current = self.current.saturating_add(amount);
        self.peak = self.peak.max(self.current);
        self.allocated = self.allocated.saturating_add(amount);
    }

    /// Counts `amount` less. Never below zero: what is missing is noted as a [`deficit`](Self::deficit).
    pub fn decrease(&mut self, amount: u64) {
        let (rest, missing) = match self.current.checked_sub(amount) {
            Some(rest) => (rest, 0),
            None => (0, amount - self.current),
        };
        self.current = rest;
        self.deficit = self.deficit.saturating_add(missing);
        self.freed = self.freed.saturating_add(amount);
    }

    /// How much more was taken away than was ever there. Anything but 0 is a mistake in the accounting, which
    /// [`DeviceStats::reconcile`](super::DeviceStats::reconcile) reports; no reset clears it.
    pub fn deficit(&self) -> u64 {
        self.deficit
    }

    /// Lets the peak start again from now.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Lets both totals start again from zero.
    pub fn reset_totals(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }

    /// The parts with the names of a flattened statistic.
    pub(super) fn parts(&self) -> [(&'static str, u64); 4] {
        [("current", self.current), ("peak", self.peak), ("allocated", self.allocated), ("freed", self.freed)]
    }
}

/// A [`Stat`] for each pool, and one for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatArray {
    /// Of all blocks.
    pub all: Stat,
    /// Of the small pool.
    pub small_pool: Stat,
    /// Of the large pool.
    pub large_pool: Stat,
}

impl StatArray {
    /// The count of `kind`.
    pub fn of(&self, kind: PoolKind) -> &Stat {
        match kind {
            PoolKind::All => &self.all,
            PoolKind::SmallPool => &self.small_pool,
            PoolKind::LargePool => &self.large_pool,
        }
    }

    /// Counts `amount` more for the pool and for all; [`PoolKind::All`] is for memory that belongs to no pool.
    pub fn increase(&mut self, kind: PoolKind, amount: u64) {
        self.all.increase(amount);
        if let Some(pool) = self.pool(kind) {
            pool.increase(amount);
        }
    }

    /// Counts `amount` less, likewise.
    pub fn decrease(&mut self, kind: PoolKind, amount: u64) {
        self.all.decrease(amount);
        if let Some(pool) = self.pool(kind) {
            pool.decrease(amount);
        }
    }

    fn pool(&mut self, kind: PoolKind) -> Option<&mut Stat> {
        match kind {
            PoolKind::All => None,
            PoolKind::SmallPool => Some(&mut self.small_pool),
            PoolKind::LargePool => Some(&mut self.large_pool),
        }
    }

    pub(super) fn each_mut(&mut self) -> [&mut Stat; 3] {
        [&mut self.all, &mut self.small_pool, &mut self.large_pool]
    }
}
