//! Which ranges of the spill file are taken, and which free ones still have room on the disk: pure, no I/O.
//!
//! Free ranges are *backed* where the disk still holds room for them. Giving room back and taking it again is slow (a quarter of a
//! second for a GiB on ext4), so some is kept, and taken first. Best fit among backed gaps, else among the others, else behind the
//! last. Offsets are free of charge, so there is no limit here; neighbours of the same kind are merged.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Extents {
    /// Gaps below the end, by offset; never two of one kind that touch, never an unbacked one at the end.
    gaps: BTreeMap<u64, Gap>,
    end: u64,
    backed_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    bytes: u64,
    is_backed: bool,
}

impl Extents {
    /// Takes `bytes`, and says where and whether the disk has room for them already.
    pub(super) fn take(&mut self, bytes: u64) -> (u64, bool) {
        let fitting = self.gaps.iter().filter(|(_, gap)| gap.bytes >= bytes);
        let best = fitting.min_by_key(|(offset, gap)| (!gap.is_backed, gap.bytes, **offset));
        let Some((offset, gap)) = best.map(|(offset, gap)| (*offset, *gap)) else {
            let offset = self.end;
            self.end += bytes;
            return (offset, false);
        };
        self.gaps.remove(&offset);
        if gap.bytes > bytes {
            self.gaps.insert(offset + bytes, Gap { bytes: gap.bytes - bytes, ..gap });
        }
        if gap.is_backed {
            self.backed_bytes -= bytes;
        }
        (offset, gap.is_backed)
    }

    /// Gives a range back.
    pub(super) fn give_back(&mut self, offset: u64, bytes: u64, is_backed: bool) {
        if bytes == 0 {
            return;
        }
        debug_assert!(offset + bytes <= self.end, "{offset}+{bytes} was not taken, the end is {}", self.end);
        self.backed_bytes += if is_backed { bytes } else { 0 };
        let (mut start, mut stop) = (offset, offset + bytes);
        let before = self.gaps.range(..offset).next_back().map(|(at, gap)| (*at, *gap));
        if let Some((at, _)) =
            before.filter(|(at, gap)| at + gap.bytes == start && gap.is_backed == is_backed)
        {
            self.gaps.remove(&at);
            start = at;
        }
        if let Some(gap) = self.gaps.get(&stop).copied().filter(|gap| gap.is_backed == is_backed) {
            self.gaps.remove(&stop);
            stop += gap.bytes;
        }
        if stop == self.end && !is_backed {
            self.end = start;
        } else {
            self.gaps.insert(start, Gap { bytes: stop - start, is_backed });
        }
    }

    /// How much free room the disk still holds.
    pub(super) fn backed_bytes(&self) -> u64 {
        self.backed_bytes
    }

    /// Takes out all free ranges that have room on the disk.
    pub(super) fn take_backed(&mut self) -> Vec<(u64, u64)> {
        let backed: Vec<_> =
            self.gaps.iter().filter(|(_, gap)| gap.is_backed).map(|(at, gap)| (*at, gap.bytes)).collect();
        for (offset, _) in &backed {
            self.gaps.remove(offset);
        }
        self.backed_bytes = 0;
        backed
    }

    /// What is taken.
    #[cfg(test)]
    fn taken_bytes(&self) -> u64 {
        self.end - self.gaps.values().map(|gap| gap.bytes).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_merge_and_the_end_comes_down() {
        let mut extents = Extents::default();
        let at: Vec<_> = (0..4).map(|_| extents.take(10).0).collect();
        assert_eq!(at, [0, 10, 20, 30]);
        extents.give_back(10, 10, false);
        extents.give_back(20, 10, false);
        assert_eq!(extents.take(15), (10, false), "two gaps became one");
        extents.give_back(30, 10, false);
        extents.give_back(10, 15, false);
        extents.give_back(0, 10, false);
        assert_eq!(extents.end, 0);
    }

    #[test]
    fn room_that_the_disk_still_holds_is_taken_first() {
        let mut extents = Extents::default();
        for _ in 0..4 {
            extents.take(10);
        }
        extents.give_back(0, 10, false);
        extents.give_back(20, 10, true);
        assert_eq!((extents.backed_bytes(), extents.take(5)), (10, (20, true)));
        assert_eq!((extents.backed_bytes(), extents.take_backed()), (5, vec![(25, 5)]));
        extents.give_back(25, 5, false);
        assert_eq!(extents.take(6), (0, false));
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_comes_back(steps in prop::collection::vec((1u64..100, 0u8..5, any::<u8>()), 1..200)) {
            let (mut extents, mut held) = (Extents::default(), Vec::<(u64, u64)>::new());
            for (bytes, kind, which) in steps {
                if kind < 2 || held.is_empty() {
                    let (offset, _) = extents.take(bytes);
                    prop_assert!(held.iter().all(|(at, len)| offset + bytes <= *at || at + len <= offset));
                    held.push((offset, bytes));
                } else if kind < 4 {
                    let (offset, bytes) = held.swap_remove(usize::from(which) % held.len());
                    extents.give_back(offset, bytes, kind == 3);
                } else {
                    for (offset, bytes) in extents.take_backed() {
                        extents.give_back(offset, bytes, false);
                    }
                }
                prop_assert_eq!(extents.taken_bytes(), held.iter().map(|(_, len)| len).sum::<u64>());
                let backed = extents.gaps.values().filter(|gap| gap.is_backed).map(|gap| gap.bytes).sum::<u64>();
                prop_assert_eq!(extents.backed_bytes(), backed);
            }
            for (offset, bytes) in held.into_iter().chain(extents.take_backed()) {
                extents.give_back(offset, bytes, false);
            }
            prop_assert_eq!((extents.end, extents.gaps.len()), (0, 0));
        }
    }
}
