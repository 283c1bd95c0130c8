//! Which ranges of the spill file are taken: pure, no I/O.
//!
//! Best fit among the gaps, else behind the last. Offsets are free of charge (a range that nobody holds has no room on the disk),
//! so there is no limit here; the gaps are kept merged and the end is lowered when the last range goes.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Extents {
    /// Gaps below the end, by offset; never two that touch, never one at the end.
    gaps: BTreeMap<u64, u64>,
    end: u64,
}

impl Extents {
    /// Takes `bytes` and says where.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let fitting = self.gaps.iter().filter(|(_, gap)| **gap >= bytes);
        let best = fitting.min_by_key(|(offset, gap)| (**gap, **offset)).map(|(offset, gap)| (*offset, *gap));
        let Some((offset, gap)) = best else {
            let offset = self.end;
            self.end += bytes;
            return offset;
        };
        self.gaps.remove(&offset);
        if gap > bytes {
            self.gaps.insert(offset + bytes, gap - bytes);
        }
        offset
    }

    /// Gives a range back.
    pub(super) fn give_back(&mut self, offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        debug_assert!(offset + bytes <= self.end, "{offset}+{bytes} was not taken, the end is {}", self.end);
        let (mut start, mut stop) = (offset, offset + bytes);
        if let Some((before, gap)) = self.gaps.range(..offset).next_back().map(|(at, gap)| (*at, *gap))
            && before + gap == start
        {
            self.gaps.remove(&before);
            start = before;
        }
        if let Some(gap) = self.gaps.remove(&stop) {
            stop += gap;
        }
        if stop == self.end {
            self.end = start;
        } else {
            self.gaps.insert(start, stop - start);
        }
    }

    /// What is taken.
    #[cfg(test)]
    fn taken_bytes(&self) -> u64 {
        self.end - self.gaps.values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_merge_and_the_end_comes_down() {
        let mut extents = Extents::default();
        let at: Vec<_> = (0..4).map(|_| extents.take(10)).collect();
        assert_eq!(at, [0, 10, 20, 30]);
        extents.give_back(10, 10);
        extents.give_back(20, 10);
        assert_eq!(extents.take(15), 10, "two gaps became one");
        extents.give_back(30, 10);
        extents.give_back(10, 15);
        extents.give_back(0, 10);
        assert_eq!(extents.end, 0);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_comes_back(steps in prop::collection::vec((1u64..100, any::<bool>(), any::<u8>()), 1..200)) {
            let (mut extents, mut held) = (Extents::default(), Vec::<(u64, u64)>::new());
            for (bytes, takes, which) in steps {
                if takes || held.is_empty() {
                    let offset = extents.take(bytes);
                    prop_assert!(held.iter().all(|(at, len)| offset + bytes <= *at || at + len <= offset));
                    held.push((offset, bytes));
                } else {
                    let (offset, bytes) = held.swap_remove(usize::from(which) % held.len());
                    extents.give_back(offset, bytes);
                }
                prop_assert_eq!(extents.taken_bytes(), held.iter().map(|(_, len)| len).sum::<u64>());
            }
            for (offset, bytes) in held {
                extents.give_back(offset, bytes);
            }
            prop_assert_eq!((extents.end, extents.gaps.len()), (0, 0));
        }
    }
}
