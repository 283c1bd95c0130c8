//! Addresses: regions, the extents they consist of, and the gaps with nothing mapped in them.
//!
//! Every address of an extent is in exactly one place: in a block (mapped), in a gap, in a mapping that waits to be removed, or
//! in the hands of a driver call that is under way. An extent begins as one gap. Its last gap is its tail, and so large that
//! it does not end; should it, another extent is reserved.

use std::collections::BTreeMap;
use std::ops::Range;

use super::handles::PageTable;
use crate::stats::PoolKind;

/// What lives together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Region {
    /// Small requests.
    Small,
    /// Blocks that stay, and sizes of which nothing is known.
    Long,
    /// Blocks of sizes that are usually given back soon.
    Short,
}

impl Region {
    pub(crate) const ALL: [Self; 3] = [Self::Small, Self::Long, Self::Short];

    pub(crate) fn place(self) -> usize {
        self as usize
    }

    /// The pool it is counted in.
    pub(crate) fn pool(self) -> PoolKind {
        if self == Self::Small { PoolKind::SmallPool } else { PoolKind::LargePool }
    }

    /// Its parts of an arena, in eighths: small requests are few bytes, and blocks that stay most of them.
    pub(crate) fn eighths(self) -> Range<u64> {
        match self {
            Self::Small => 0..1,
            Self::Long => 1..5,
            Self::Short => 5..8,
        }
    }
}

/// A run of addresses of one region.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) region: Region,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) pages: PageTable,
    /// First address to end.
    gaps: BTreeMap<u64, u64>,
}

impl Extent {
    pub(crate) fn new(region: Region, range: Range<u64>) -> Self {
        let gaps = BTreeMap::from([(range.start, range.end)]);
        Self { region, base: range.start, bytes: range.end - range.start, pages: PageTable::default(), gaps }
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Whether anything was ever mapped at an address.
    pub(crate) fn reached(&self, address: u64, granularity_bytes: u64) -> bool {
        (address - self.base) / granularity_bytes < self.pages.len()
    }

    /// The gaps, lowest first.
    pub(crate) fn gaps(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.gaps.iter().map(|(start, end)| *start..*end)
    }

    /// The size of the gap that begins at an address.
    pub(crate) fn gap_bytes(&self, start: u64) -> Option<u64> {
        self.gaps.get(&start).map(|end| end - start)
    }

    /// Takes the first part of a gap, which begins at `range.start`.
    pub(crate) fn take_gap(&mut self, range: &Range<u64>) {
        if let Some(end) = self.gaps.remove(&range.start)
            && range.end < end
        {
            self.gaps.insert(range.end, end);
        }
    }

    /// Nothing is mapped in `range` any more.
    pub(crate) fn add_gap(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start == end {
            return;
        }
        if let Some((before, before_end)) = self.gaps.range(..start).next_back()
            && *before_end == start
        {
            start = *before;
        }
        if let Some(after_end) = self.gaps.remove(&end) {
            end = after_end;
        }
        self.gaps.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_taken_from_the_front_and_grow_together_again() {
        let mut extent = Extent::new(Region::Long, 0..100);
        extent.take_gap(&(0..30));
        extent.add_gap(10..20);
        assert_eq!(extent.gaps().collect::<Vec<_>>(), [10..20, 30..100]);
        extent.add_gap(20..30);
        extent.add_gap(0..10);
        assert!(extent.gaps().eq(std::iter::once(0..100)));
    }
}
