//! What is measured.

use std::fmt;
use std::sync::Arc;

use headwater::{AllocError, Allocator};
use headwater_driver::DriverError;

/// A benchmark that could not be run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// An allocator could not be made, or refused the work.
    #[error("{allocator} in `{bench}`: {error}")]
    Allocator {
        /// The allocator.
        allocator: String,
        /// The benchmark.
        bench: &'static str,
        /// What it said.
        error: AllocError,
    },
    /// The device refused a stream.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// There is no such benchmark.
    #[error("there is no benchmark `{name}`; there are {known}")]
    UnknownBench {
        /// What was asked for.
        name: String,
        /// All there are.
        known: String,
    },
    /// A thread of the benchmark ended early.
    #[error("a thread of `{bench}` ended early")]
    ThreadEnded {
        /// The benchmark.
        bench: &'static str,
    },
}

type Make = dyn Fn() -> Result<Arc<dyn Allocator>, AllocError> + Send + Sync;

/// An allocator to be measured. Every benchmark makes a fresh one.
pub struct Contestant {
    name: String,
    make: Box<Make>,
    /// The benchmarks it takes part in; all where empty.
    only_in: Vec<String>,
}

impl Contestant {
    /// An allocator that `make` makes, under a name for the result.
    pub fn new(
        name: impl Into<String>,
        make: impl Fn() -> Result<Arc<dyn Allocator>, AllocError> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), make: Box::new(make), only_in: Vec::new() }
    }

    /// The same, in these benchmarks only: for what the others are shown against, and is too slow for the rest.
    #[must_use]
    pub fn only_in(mut self, benches: &[&str]) -> Self {
        self.only_in = benches.iter().map(|bench| (*bench).to_owned()).collect();
        self
    }

    /// Whether it takes part in a benchmark.
    pub(crate) fn takes_part_in(&self, bench: &str) -> bool {
        self.only_in.is_empty() || self.only_in.iter().any(|only| only == bench)
    }

    /// Its name in the result.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether every request of it is a driver call: such a one is measured with a hundredth of the repetitions.
    pub(crate) fn is_slow(&self) -> bool {
        self.name == "direct"
    }

    /// A fresh one.
    pub(crate) fn make(&self, bench: &'static str) -> Result<Arc<dyn Allocator>, BenchError> {
        (self.make)().map_err(|error| self.failed(bench, error))
    }

    pub(crate) fn failed(&self, bench: &'static str, error: AllocError) -> BenchError {
        BenchError::Allocator { allocator: self.name.clone(), bench, error }
    }
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contestant").field("name", &self.name).finish_non_exhaustive()
    }
}
