//! Addresses for blocks of a trace that has none, so that a viewer has something to draw.
//!
//! One segment for each stream of each device; best fit by size then address, neighbours merge. The segment is as long
//! as it had to be.

use std::collections::{BTreeMap, BTreeSet};

/// Blocks begin at multiples of this and are rounded up to it, as in PyTorch.
pub(super) const ROUNDING_BYTES: u64 = 512;

/// One segment that grows at its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Placement {
    /// Free holes below `end`, by offset; none ends at `end`.
    holes: BTreeMap<u64, u64>,
    /// The same by size, then offset.
    by_size: BTreeSet<(u64, u64)>,
    end: u64,
    /// The largest `end` there was.
    peak: u64,
}

impl Placement {
    pub(super) fn rounded(bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(ROUNDING_BYTES)
    }

    /// An offset for a block; `None` beyond 2^64 bytes.
    pub(super) fn place(&mut self, rounded_bytes: u64) -> Option<u64> {
        if let Some(&(size, offset)) = self.by_size.range((rounded_bytes, 0)..).next() {
            self.take_hole(offset, size);
            if size > rounded_bytes {
                self.put_hole(offset + rounded_bytes, size - rounded_bytes);
            }
            return Some(offset);
        }
        let offset = self.end;
        self.end = self.end.checked_add(rounded_bytes)?;
        self.peak = self.peak.max(self.end);
        Some(offset)
    }

    /// Gives a placed block back.
    pub(super) fn release(&mut self, offset: u64, rounded_bytes: u64) {
        let (mut offset, mut size) = (offset, rounded_bytes);
        if let Some((&before, &before_size)) = self.holes.range(..offset).next_back()
            && before + before_size == offset
        {
            self.take_hole(before, before_size);
            (offset, size) = (before, size + before_size);
        }
        if let Some(&after_size) = self.holes.get(&(offset + size)) {
            self.take_hole(offset + size, after_size);
            size += after_size;
        }
        if offset + size == self.end {
            self.end = offset;
        } else {
            self.put_hole(offset, size);
        }
    }

    /// How long the segment had to be.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak
    }

    fn take_hole(&mut self, offset: u64, size: u64) {
        self.holes.remove(&offset);
        self.by_size.remove(&(size, offset));
    }

    fn put_hole(&mut self, offset: u64, size: u64) {
        self.holes.insert(offset, size);
        self.by_size.insert((size, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_reused_and_merge() {
        let mut place = Placement::default();
        let offsets: Vec<u64> = (0..4).filter_map(|_| place.place(512)).collect();
        assert_eq!(offsets, [0, 512, 1024, 1536]);
        place.release(0, 512);
        place.release(1024, 512);
        place.release(512, 512);
        assert_eq!(place.holes, BTreeMap::from([(0, 1536)]));
        assert_eq!(place.place(1024), Some(0));
        place.release(1536, 512);
        place.release(0, 1024);
        assert_eq!((place.end, place.holes.len(), place.peak_bytes()), (0, 0, 2048));
    }
}
