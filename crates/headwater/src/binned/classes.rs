//! Size classes: which there are, which one a request belongs to, and how classes are cut out of segments.
//!
//! Sizes are rounded up to 512 bytes and then to the next of 1, 4 or 8 evenly spaced sizes in each doubling from 512 bytes to
//! 2 GiB. What a request can lose by it, as a share of the block it gets:
//!
//! | [`ClassDivisions`] | classes | worst case (one byte more than a class) | mean over all sizes above 4 KiB |
//! |---|---|---|---|
//! | `One` | 23 | 1/2 | 1/4 |
//! | `Four` | 84 | 1/5 | 1/13 |
//! | `Eight` | 160 | 1/9 | 1/24 |
//!
//! Finer classes waste less inside blocks and find a free block of the right class less often: a block serves its class only.
//!
//! Blocks are cut out of segments of 2 MiB, or of more where a block is larger or too much of 2 MiB would be left over. A power
//! of two above 1 MiB has a segment for each block.

/// How many size classes there are in each doubling of the size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClassDivisions {
    /// Powers of two: a block is less than twice the request.
    #[default]
    One,
    /// Four in each doubling: a block is at most a quarter larger than the request.
    Four,
    /// Eight in each doubling: a block is at most an eighth larger than the request.
    Eight,
}

impl ClassDivisions {
    /// The number as a power of two.
    const fn shift(self) -> u32 {
        match self {
            Self::One => 0,
            Self::Four => 2,
            Self::Eight => 3,
        }
    }
}

/// The smallest class.
pub const CLASS_BYTES_MIN: u64 = 512;

/// The largest class. Larger requests go straight to the driver and back.
pub const CLASS_BYTES_MAX: u64 = 2 << 30;

/// Memory comes from the driver in multiples of this.
pub(super) const SEGMENT_UNIT_BYTES: u64 = 2 << 20;

/// The arithmetic of classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classes {
    shift: u32,
}

impl Classes {
    pub(super) fn new(divisions: ClassDivisions) -> Self {
        Self { shift: divisions.shift() }
    }

    /// How many numbers there are. With finer classes some of the first are for sizes that are no multiple of 512 and are
    /// never used.
    pub(super) fn count(self) -> usize {
        self.of(CLASS_BYTES_MAX).map_or(0, |class| class + 1)
    }

    /// The class for a request of `bytes`; none for zero, and for more than [`CLASS_BYTES_MAX`].
    #[inline(always)]
    pub(super) fn of(self, bytes: u64) -> Option<usize> {
        if bytes.wrapping_sub(1) >= CLASS_BYTES_MAX {
            return None;
        }
        // The last byte of the rounded size: its leading bit names the doubling, the bits after that the part of it.
        let last = (bytes - 1) | (CLASS_BYTES_MIN - 1);
        let doubling = last.ilog2();
        if self.shift == 0 {
            return Some((doubling - 8) as usize);
        }
        let part = (last >> (doubling - self.shift)) as usize;
        Some((((doubling - 8) as usize) << self.shift) + part - ((2 << self.shift) - 1))
    }

    /// The sizes of all classes.
    pub(super) fn all_bytes(self) -> Box<[u64]> {
        (0..self.count()).map(|class| self.bytes(class)).collect()
    }

    /// The size of a class.
    pub(super) fn bytes(self, class: usize) -> u64 {
        let Some(step) = class.checked_sub(1) else { return CLASS_BYTES_MIN };
        let parts = (1 << self.shift) + (step & ((1 << self.shift) - 1)) as u64 + 1;
        (parts << (9 + (step >> self.shift))) >> self.shift
    }

    /// The numbers that requests have.
    pub(super) fn in_use(self) -> impl Iterator<Item = usize> {
        (0..self.count()).filter(move |class| self.bytes(*class).is_multiple_of(CLASS_BYTES_MIN))
    }

    /// How many blocks a segment of `class` has, and the segment's size: the fewest units of which at most a sixteenth is left
    /// over.
    pub(super) fn segment(self, class: usize) -> (u64, u64) {
        let block_bytes = self.bytes(class);
        let mut bytes = block_bytes.next_multiple_of(SEGMENT_UNIT_BYTES);
        // It ends: sizes are at most 16 times a power of two, so that many blocks fill whole units.
        while bytes % block_bytes > bytes / 16 {
            bytes += SEGMENT_UNIT_BYTES;
        }
        (bytes / block_bytes, bytes)
    }

    /// The class of blocks of at least `bytes` that lie at multiples of `alignment_bytes` wherever the segment does.
    pub(super) fn aligned(self, bytes: u64, alignment_bytes: u64) -> Option<usize> {
        let mut class = self.of(bytes.max(alignment_bytes))?;
        while !self.bytes(class).is_multiple_of(alignment_bytes) {
            class = self.of(self.bytes(class) + 1)?;
        }
        Some(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ClassDivisions; 3] = [ClassDivisions::One, ClassDivisions::Four, ClassDivisions::Eight];

    #[test]
    fn a_request_gets_the_smallest_class_that_holds_it() {
        for divisions in ALL {
            let classes = Classes::new(divisions);
            let sizes: Vec<u64> = classes.in_use().map(|class| classes.bytes(class)).collect();
            assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "{sizes:?}");
            assert_eq!((sizes[0], sizes[sizes.len() - 1]), (CLASS_BYTES_MIN, CLASS_BYTES_MAX));
            for pair in sizes.windows(2) {
                for bytes in [pair[0] + 1, (pair[0] + pair[1]) / 2, pair[1] - 1, pair[1]] {
                    let class = classes.of(bytes).unwrap();
                    assert_eq!(classes.bytes(class), pair[1], "{bytes} in {divisions:?}");
                }
            }
            assert_eq!(classes.of(1), Some(0));
            assert_eq!(classes.of(512), Some(0));
            for bytes in [0, CLASS_BYTES_MAX + 1, u64::MAX] {
                assert_eq!(classes.of(bytes), None);
            }
        }
    }

    #[test]
    fn the_documented_counts_and_waste_hold() {
        for (divisions, count, most) in [
            (ClassDivisions::One, 23, 0.5),
            (ClassDivisions::Four, 84, 0.2),
            (ClassDivisions::Eight, 160, 1.0 / 9.0),
        ] {
            let classes = Classes::new(divisions);
            assert_eq!(classes.in_use().count(), count);
            let sizes: Vec<u64> = classes.in_use().map(|class| classes.bytes(class)).collect();
            for pair in sizes.windows(2).filter(|pair| pair[0] >= 4096) {
                let waste = 1.0 - (pair[0] + 1) as f64 / pair[1] as f64;
                assert!(waste <= most, "{waste} after {}", pair[0]);
            }
        }
    }

    #[test]
    fn the_documented_mean_waste_holds() {
        for (divisions, mean) in [
            (ClassDivisions::One, 1.0 / 4.0),
            (ClassDivisions::Four, 1.0 / 13.0),
            (ClassDivisions::Eight, 1.0 / 24.0),
        ] {
            let classes = Classes::new(divisions);
            let wasted = |bytes: u64| {
                let block_bytes = classes.bytes(classes.of(bytes).unwrap());
                (block_bytes - bytes) as f64 / block_bytes as f64
            };
            // Every doubling is like the next: one of them, in steps of a byte.
            let sizes = (1 << 20) + 1..=2 << 20;
            let measured = sizes.map(wasted).sum::<f64>() / f64::from(1 << 20);
            assert!((measured / mean - 1.0).abs() < 0.04, "{measured} in {divisions:?}");
        }
    }

    #[test]
    fn segments_hold_whole_blocks_in_whole_units() {
        for divisions in ALL {
            let classes = Classes::new(divisions);
            for class in classes.in_use() {
                let (blocks, bytes) = classes.segment(class);
                assert!(blocks >= 1 && blocks * classes.bytes(class) <= bytes);
                assert!(bytes.is_multiple_of(SEGMENT_UNIT_BYTES) && bytes <= CLASS_BYTES_MAX);
                assert!(bytes - blocks * classes.bytes(class) <= bytes / 16, "class {class}");
            }
        }
        assert_eq!(Classes::new(ClassDivisions::One).segment(0), (4096, 2 << 20));
        let four = Classes::new(ClassDivisions::Four);
        assert_eq!(four.segment(four.of((5 << 20) / 2).unwrap()), (3, 8 << 20));
    }

    #[test]
    fn an_alignment_finds_a_class_that_keeps_it() {
        for divisions in ALL {
            let classes = Classes::new(divisions);
            for alignment_bytes in [1, 512, 4096, 2 << 20] {
                for bytes in [1, 3000, (1 << 20) + 1, 5 << 20] {
                    let class = classes.aligned(bytes, alignment_bytes).unwrap();
                    assert!(
                        classes.bytes(class) >= bytes && classes.bytes(class).is_multiple_of(alignment_bytes)
                    );
                }
            }
        }
    }
}
