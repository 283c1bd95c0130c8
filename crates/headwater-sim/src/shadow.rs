//! Shadow memory: who used which bytes last, and whether the next use is ordered after them.
//!
//! CUDA lets a program reuse memory while another stream still uses it; nothing is reported and the data is wrong
//! sometimes. Here every range of addresses remembers its last uses, and a new use that is not ordered after them is a
//! conflict. Ordered means happens-before, not earlier on the clock: what is found does not depend on durations.
//!
//! The algorithm is FastTrack's (Flanagan and Freund, "FastTrack: Efficient and Precise Dynamic Race Detection", PLDI
//! 2009), on intervals instead of variables. A use is an *epoch*: an actor and the number of its action. The clock of a
//! new use says which epochs are ordered before it.
//! - Of the writes only the last is kept. Once no conflict was found, all earlier ones are ordered before it, and whoever
//!   is ordered after it is ordered after them.
//! - Of the reads since that write, those are kept that no other kept read is ordered after: one for each actor at most.
//! - An atomic update (not in the paper) conflicts with reads and writes but not with other atomics. Atomics are kept
//!   beside the reads, thinned out among themselves only: a read does not stand in for an atomic, because a later read
//!   conflicts with one and not with the other.
//!
//! After a conflict the new use is recorded all the same, so that one mistake is reported once and not by every later use.
//!
//! Addresses that were never used take no room; neighbours with the same uses are merged.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use crate::vector_clock::{Actor, VectorClock};

/// One piece of work, by the number the machine gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OpId(pub(crate) u64);

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AccessKind {
    Read,
    Write,
    /// An atomic read-modify-write.
    Atomic,
}

impl AccessKind {
    /// Whether two uses of these kinds need an order.
    fn conflicts_with(self, other: AccessKind) -> bool {
        self != other || self == AccessKind::Write
    }
}

/// One use: what `op` did as action number `time` of `actor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) kind: AccessKind,
    pub(crate) actor: Actor,
    pub(crate) time: u64,
    pub(crate) op: OpId,
}

/// An earlier use of a range that a new use is not ordered after. Also how [`Shadow::last_uses`] answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) range: Range<u64>,
    pub(crate) earlier: Use,
}

/// The last uses of one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Uses {
    write: Option<Use>,
    /// Reads and atomics since the write, sorted by actor and kind, so that equal sets are equal values.
    since: SmallVec<[Use; 2]>,
}

impl Uses {
    fn iter(&self) -> impl Iterator<Item = &Use> {
        self.write.iter().chain(&self.since)
    }

    /// Notes `new`, made at `clock`, after conflicts were looked for.
    fn record(&mut self, new: Use, clock: &VectorClock) {
        if new.kind == AccessKind::Write {
            self.write = Some(new);
            self.since.clear();
            return;
        }
        self.since.retain(|old| old.kind != new.kind || !clock.covers(old.actor, old.time));
        let place = self.since.partition_point(|old| (old.actor, old.kind) < (new.actor, new.kind));
        self.since.insert(place, new);
    }
}

#[derive(Clone, Debug)]
struct Interval {
    end: u64,
    uses: Uses,
}

/// Last uses by address.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// Keyed by start; disjoint, none empty, and no two that touch are equal.
    intervals: BTreeMap<u64, Interval>,
}

impl Shadow {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Notes that `op`, action `time` of `actor`, uses `range`, and returns the uses it is not ordered after. `clock` is
    /// the actor's clock with `time` already counted.
    pub(crate) fn access(
        &mut self,
        range: Range<u64>,
        kind: AccessKind,
        actor: Actor,
        time: u64,
        clock: &VectorClock,
        op: OpId,
    ) -> Vec<Conflict> {
        debug_assert!(clock.covers(actor, time), "an action's own clock has counted it");
        if range.is_empty() {
            return Vec::new();
        }
        let new = Use { kind, actor, time, op };
        let mut conflicts = Vec::new();
        // The common case, a block used as a whole once more, moves no border.
        let whole = self.intervals.get(&range.start).is_some_and(|interval| interval.end == range.end);
        if !whole {
            self.split_at(range.start);
            self.split_at(range.end);
            self.fill_gaps(&range);
        }
        for (&start, interval) in self.intervals.range_mut(range.clone()) {
            for old in interval.uses.iter() {
                if kind.conflicts_with(old.kind) && !clock.covers(old.actor, old.time) {
                    push_joined(&mut conflicts, start..interval.end, *old);
                }
            }
            interval.uses.record(new, clock);
        }
        if !whole || self.has_equal_neighbour(&range) {
            self.merge(&range);
        }
        conflicts
    }

    /// Forgets all uses of `range`: it was freed, and what comes next is another memory.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.split_at(range.start);
        self.split_at(range.end);
        while let Some((&start, _)) = self.intervals.range(range.clone()).next() {
            self.intervals.remove(&start);
        }
    }

    /// The uses of `range` that are remembered, by address.
    pub(crate) fn last_uses(&self, range: Range<u64>) -> Vec<Conflict> {
        let mut uses = Vec::new();
        if range.is_empty() {
            return uses;
        }
        let first = self.intervals.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        for (&start, interval) in self.intervals.range(first..range.end) {
            let inside = start.max(range.start)..interval.end.min(range.end);
            if !inside.is_empty() {
                interval.uses.iter().for_each(|used| push_joined(&mut uses, inside.clone(), *used));
            }
        }
        uses
    }

    /// How many intervals there are.
    #[cfg(test)]
    fn intervals(&self) -> usize {
        self.intervals.len()
    }

    /// Makes `at` a border where it is inside an interval.
    fn split_at(&mut self, at: u64) {
        let Some((_, before)) = self.intervals.range_mut(..at).next_back() else { return };
        if before.end > at {
            let after = Interval { end: before.end, uses: before.uses.clone() };
            before.end = at;
            self.intervals.insert(at, after);
        }
    }

    /// Gives the unused parts of `range`, whose ends are borders, intervals without uses.
    fn fill_gaps(&mut self, range: &Range<u64>) {
        let mut gaps: SmallVec<[Range<u64>; 4]> = SmallVec::new();
        let mut reached = range.start;
        for (&start, interval) in self.intervals.range(range.clone()) {
            if reached < start {
                gaps.push(reached..start);
            }
            reached = interval.end;
        }
        if reached < range.end {
            gaps.push(reached..range.end);
        }
        for gap in gaps {
            self.intervals.insert(gap.start, Interval { end: gap.end, uses: Uses::default() });
        }
    }

    /// Whether the one interval that `range` is has a neighbour to merge with.
    fn has_equal_neighbour(&self, range: &Range<u64>) -> bool {
        // From behind: the interval after it if they touch, itself, the one before.
        let around: SmallVec<[_; 3]> = self.intervals.range(..=range.end).rev().take(3).collect();
        around.windows(2).any(|pair| {
            let ((after, following), (_, interval)) = (pair[0], pair[1]);
            interval.end == *after && interval.uses == following.uses && *after >= range.start
        })
    }

    /// Merges equal neighbours in `range` and at its two ends.
    fn merge(&mut self, range: &Range<u64>) {
        let Some((&first, _)) = self.intervals.range(..=range.start).next_back() else { return };
        // The interval that ends where the range starts may be equal to the first one in it.
        let first = self.intervals.range(..first).next_back().map_or(first, |(&before, _)| before);
        let mut at = first;
        while let Some(current) = self.intervals.get(&at) {
            let Some((&next, following)) = self.intervals.range(at + 1..).next() else { return };
            if next > range.end {
                return;
            }
            if current.end == next && current.uses == following.uses {
                let end = following.end;
                self.intervals.remove(&next);
                if let Some(current) = self.intervals.get_mut(&at) {
                    current.end = end;
                }
            } else {
                at = next;
            }
        }
    }
}

/// Adds a finding, as part of an earlier one where that is about the same use and ends where this begins.
fn push_joined(found: &mut Vec<Conflict>, range: Range<u64>, earlier: Use) {
    // Only the findings of the interval before can touch; looking at a few suffices and stays cheap.
    let same =
        found.iter_mut().rev().take(8).find(|one| one.earlier == earlier && one.range.end == range.start);
    match same {
        Some(one) => one.range.end = range.end,
        None => found.push(Conflict { range, earlier }),
    }
}

#[cfg(test)]
mod tests;
