//! Measuring nanoseconds on a machine that others use too.
//!
//! A round repeats the operation many times and divides. Rounds of all contestants are interleaved, the yardstick's among
//! them, so that a disturbance hits everybody; the best round of each counts, because a disturbance only ever adds.
//! Percentiles need single operations: those are timed one by one in rounds of their own, and the clock's own cost, taken in
//! the same way, is taken off.

use std::hint::black_box;
use std::time::Instant;

use crate::row::Row;

/// Everything that was seen of one contestant.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Nanoseconds an operation, by round.
    rounds: Vec<f64>,
    /// Nanoseconds of single operations.
    singles: Vec<u32>,
}

impl Seen {
    /// One round: `operations` times `operation`.
    pub(crate) fn round<E>(
        &mut self,
        operations: usize,
        operation: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.round_of(operations, 1, operation)
    }

    /// The same with steps of several operations each.
    pub(crate) fn round_of<E>(
        &mut self,
        operations: usize,
        operations_a_step: usize,
        mut step: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let steps = operations.div_ceil(operations_a_step);
        let start = Instant::now();
        for _ in 0..steps {
            step()?;
        }
        self.rounds.push(start.elapsed().as_nanos() as f64 / (steps * operations_a_step).max(1) as f64);
        Ok(())
    }

    /// A round whose length somebody else measured.
    pub(crate) fn note_round(&mut self, ns: f64) {
        self.rounds.push(ns);
    }

    /// A single operation that somebody else timed, the clock's own cost taken off already.
    pub(crate) fn note_single(&mut self, ns: u128) {
        self.singles.push(u32::try_from(ns).unwrap_or(u32::MAX));
    }

    /// Times single operations.
    pub(crate) fn singles<E>(
        &mut self,
        operations: usize,
        operation: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.singles_of(operations, 1, operation)
    }

    /// The same with steps of several operations each: their mean counts for all of them.
    pub(crate) fn singles_of<E>(
        &mut self,
        operations: usize,
        operations_a_step: u128,
        mut step: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let clock_ns = clock_ns();
        self.singles.reserve(operations);
        for _ in 0..operations {
            let start = Instant::now();
            step()?;
            self.note_single(start.elapsed().as_nanos().saturating_sub(clock_ns) / operations_a_step);
        }
        Ok(())
    }

    /// The result.
    pub(crate) fn row(mut self, bench: &str, allocator: &str, size: u64, threads: usize) -> Row {
        let ns = self.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let ns = if ns.is_finite() { ns } else { 0.0 };
        self.singles.sort_unstable();
        let share = |of_1000: usize| {
            let place = (self.singles.len() * of_1000).div_ceil(1000).saturating_sub(1);
            self.singles.get(place).map_or(0.0, |ns| f64::from(*ns))
        };
        Row {
            bench: bench.to_owned(),
            allocator: allocator.to_owned(),
            size,
            threads,
            ns,
            mean: self.rounds.iter().sum::<f64>() / self.rounds.len().max(1) as f64,
            min: share(0),
            p50: share(500),
            p99: share(990),
            p999: share(999),
            mops: if ns > 0.0 { threads as f64 * 1000.0 / ns } else { 0.0 },
        }
    }
}

/// What two readings of the clock with nothing between them are apart, at least.
pub(crate) fn clock_ns() -> u128 {
    let reading = |_| {
        let start = Instant::now();
        black_box(start.elapsed().as_nanos())
    };
    (0..1000).map(reading).min().unwrap_or(0)
}

/// The yardstick: the C library's pair of malloc and free, 64 bytes.
pub(crate) fn malloc_pair() {
    // SAFETY: what malloc returned, null included, goes to free once. The black boxes keep the compiler from removing both.
    unsafe { libc::free(black_box(libc::malloc(black_box(64)))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_round_counts_and_percentiles_are_of_single_operations() {
        let seen = Seen { rounds: vec![30.0, 10.0, 20.0], singles: (1..=1000).rev().collect() };
        let row = seen.row("pair", "x", 512, 2);
        assert_eq!((row.ns, row.mean, row.mops), (10.0, 20.0, 200.0));
        assert_eq!((row.min, row.p50, row.p99, row.p999), (1.0, 500.0, 990.0, 999.0));
    }

    #[test]
    fn nothing_seen_is_no_number() {
        let row = Seen::default().row("pair", "x", 512, 1);
        assert_eq!((row.ns, row.mean, row.mops, row.p999), (0.0, 0.0, 0.0, 0.0));
    }
}
