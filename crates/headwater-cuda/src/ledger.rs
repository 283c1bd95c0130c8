//! Which address ranges are ours: plain memory, reserved addresses, mappings, pinned host memory.
//!
//! The process has one address space and one driver. Given a stray address, `libcuda` frees or unmaps whatever begins
//! there, also when PyTorch allocated it. The contract promises an error instead, so each range is written down when it
//! is made, and looked up before it is given back.

use std::collections::BTreeMap;

use headwater_driver::DeviceId;
use parking_lot::Mutex;

/// A range that begins at the address it is filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) bytes: u64,
    /// The device in whose context it was made.
    pub(crate) device: DeviceId,
}

/// Ranges of one kind, by their first address.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<u64, Range>>);

impl Ledger {
    pub(crate) fn enter(&self, start: u64, range: Range) {
        self.0.lock().insert(start, range);
    }

    /// Takes out the range that begins at `start`, where it `agrees`.
    ///
    /// It is taken out before the driver gives the range back and entered again where that fails: once given back,
    /// the driver may hand the same address to another thread at once, and that one's entry must not be lost.
    pub(crate) fn take(&self, start: u64, agrees: impl FnOnce(Range) -> bool) -> Option<Range> {
        let mut ranges = self.0.lock();
        if agrees(*ranges.get(&start)?) { ranges.remove(&start) } else { None }
    }

    /// Takes out the ranges that make up `start..start + bytes` exactly: whole ones, one after the other, without a gap.
    pub(crate) fn take_run(&self, start: u64, bytes: u64) -> Option<Vec<(u64, Range)>> {
        let end = start.checked_add(bytes)?;
        let mut ranges = self.0.lock();
        let run: Vec<_> = ranges.range(start..end).map(|(first, range)| (*first, *range)).collect();
        let reached =
            run.iter().try_fold(start, |at, (first, range)| (at == *first).then_some(at + range.bytes));
        if run.is_empty() || reached != Some(end) {
            return None;
        }
        for (first, _) in &run {
            ranges.remove(first);
        }
        Some(run)
    }

    /// The range that all of `start..start + bytes` lies in.
    pub(crate) fn covering(&self, start: u64, bytes: u64) -> Option<Range> {
        let end = start.checked_add(bytes)?;
        let ranges = self.0.lock();
        let (first, range) = ranges.range(..=start).next_back()?;
        (end <= first + range.bytes).then_some(*range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let ledger = Ledger::default();
        ledger.enter(100, Range { bytes: 50, device: DeviceId(1) });
        ledger
    }

    #[test]
    fn only_the_exact_start_can_be_taken_and_only_once() {
        let ledger = ledger();
        assert_eq!(ledger.take(101, |_| true), None);
        assert_eq!(ledger.take(100, |range| range.device == DeviceId(0)), None);
        assert_eq!(ledger.take(100, |_| true), Some(Range { bytes: 50, device: DeviceId(1) }));
        assert_eq!(ledger.take(100, |_| true), None);
    }

    #[test]
    fn a_run_has_no_gaps_and_cuts_nothing() {
        let ledger = ledger();
        let next = Range { bytes: 10, device: DeviceId(1) };
        ledger.enter(150, next);
        ledger.enter(170, next);
        assert_eq!(ledger.take_run(100, 80), None, "a gap from 160 to 170");
        assert_eq!(ledger.take_run(100, 55), None, "cuts the second");
        assert_eq!(ledger.take_run(110, 50), None, "begins inside the first");
        assert_eq!(ledger.take_run(160, 10), None, "nothing there");
        assert_eq!(ledger.take_run(100, 60).map(|run| run.len()), Some(2));
        assert_eq!(ledger.take_run(100, 60), None);
        assert_eq!(ledger.take_run(170, 10), Some(vec![(170, next)]));
    }

    #[test]
    fn covering_needs_the_whole_range_inside_one() {
        let ledger = ledger();
        assert!(ledger.covering(100, 50).is_some());
        assert!(ledger.covering(149, 1).is_some());
        assert!(ledger.covering(149, 2).is_none());
        assert!(ledger.covering(99, 2).is_none());
        assert!(ledger.covering(u64::MAX, 2).is_none());
    }
}
