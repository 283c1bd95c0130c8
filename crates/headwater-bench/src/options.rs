//! What to measure, and how long.

/// How often everything is repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// Enough to see that it runs: for tests.
    Glance,
    /// Some seconds for each allocator.
    #[default]
    Usual,
}

impl Effort {
    /// Rounds of a measurement; the best counts.
    pub(crate) fn rounds(self) -> usize {
        match self {
            Self::Glance => 2,
            Self::Usual => 25,
        }
    }

    /// Operations a round.
    pub(crate) fn operations(self, is_slow: bool) -> usize {
        let operations = match self {
            Self::Glance => 500,
            Self::Usual => 20_000,
        };
        if is_slow { operations / 100 } else { operations }
    }
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchOptions {
    /// The sizes of `pair`.
    pub sizes: Vec<u64>,
    /// The numbers of threads of `threads`.
    pub threads: Vec<usize>,
    /// The benchmarks to run, by name; all where empty.
    pub only: Vec<String>,
    /// How often everything is repeated.
    pub effort: Effort,
}

impl Default for BenchOptions {
    /// 512 B to 64 MiB (the rows of the peers' table and seed 001's), one and two threads, everything.
    fn default() -> Self {
        Self {
            sizes: vec![512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20],
            threads: vec![1, 2, 4],
            only: Vec::new(),
            effort: Effort::Usual,
        }
    }
}
