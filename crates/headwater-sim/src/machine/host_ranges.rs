//! Pinned host memory: blocks of ours and ranges of the caller's.
//!
//! Blocks are real memory of this process. They are taken zeroed from the system allocator, which for large blocks hands
//! out untouched pages, so that they cost memory only where written.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;

/// What CUDA aligns pinned blocks to.
const PAGE_BYTES: usize = 4096;

/// All pinned ranges by address.
#[derive(Debug)]
pub(crate) struct HostRanges {
    ranges: BTreeMap<usize, HostRange>,
    allocated_bytes: u64,
    limit_bytes: u64,
    pinned_so_far: u64,
}

/// One pinned range.
#[derive(Debug)]
pub(crate) struct HostRange {
    pub(crate) bytes: u64,
    /// Its number in the order of pinning.
    pub(crate) block: u64,
    /// Its places in the shadow.
    pub(crate) place: u64,
    pub(crate) made_at_ns: u64,
    owned: Option<Owned>,
}

impl HostRange {
    /// Whether `host_alloc` made it.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.is_some()
    }
}

/// Memory from the system allocator, given back when dropped.
#[derive(Debug)]
struct Owned {
    base: usize,
    layout: Layout,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout, and is given back only here.
        unsafe { dealloc(self.base as *mut u8, self.layout) };
    }
}

impl HostRanges {
    /// No ranges yet; at most `limit_bytes` can be allocated.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { ranges: BTreeMap::new(), allocated_bytes: 0, limit_bytes, pinned_so_far: 0 }
    }

    /// Whether so much more can be allocated.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.limit_bytes - self.allocated_bytes
    }

    /// Allocates a block and returns its address, or nothing where there is not enough memory.
    pub(crate) fn allocate(&mut self, bytes: u64, place: u64, now_ns: u64) -> Option<usize> {
        if bytes == 0 || !self.has_room(bytes) {
            return None;
        }
        // Aligned by hand: asked for a page's alignment, the system allocator would clear, and so touch, every page.
        let size = usize::try_from(bytes).ok()?.checked_add(PAGE_BYTES)?;
        let layout = Layout::from_size_align(size, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) } as usize;
        if base == 0 {
            return None;
        }
        let start = base.next_multiple_of(PAGE_BYTES);
        self.allocated_bytes += bytes;
        self.insert(start, bytes, place, now_ns, Some(Owned { base, layout }));
        Some(start)
    }

    /// Pins a range of the caller's; false where it overlaps one that is pinned already.
    pub(crate) fn register(&mut self, start: usize, bytes: u64, place: u64, now_ns: u64) -> bool {
        let end = start as u128 + u128::from(bytes);
        let before = self.ranges.range(..=start).next_back();
        let overlaps_before =
            before.is_some_and(|(other, range)| *other as u128 + u128::from(range.bytes) > start as u128);
        let overlaps_after =
            self.ranges.range(start..).next().is_some_and(|(other, _)| (*other as u128) < end);
        if overlaps_before || overlaps_after {
            return false;
        }
        self.insert(start, bytes, place, now_ns, None);
        true
    }

    fn insert(&mut self, start: usize, bytes: u64, place: u64, made_at_ns: u64, owned: Option<Owned>) {
        self.pinned_so_far += 1;
        let block = self.pinned_so_far;
        self.ranges.insert(start, HostRange { bytes, block, place, made_at_ns, owned });
    }

    /// The range pinned at exactly `start`.
    pub(crate) fn get(&self, start: usize) -> Option<&HostRange> {
        self.ranges.get(&start)
    }

    /// Unpins the range at exactly `start`; an allocated one is freed when the result is dropped.
    pub(crate) fn remove(&mut self, start: usize) -> Option<HostRange> {
        let range = self.ranges.remove(&start)?;
        if range.is_owned() {
            self.allocated_bytes -= range.bytes;
        }
        Some(range)
    }

    /// The pinned range that holds all of `bytes` bytes at `start`, and where in it they begin.
    pub(crate) fn find(&self, start: u64, bytes: u64) -> Option<(&HostRange, u64)> {
        let (base, range) = self.ranges.range(..=usize::try_from(start).ok()?).next_back()?;
        let offset = start - *base as u64;
        (offset < range.bytes && bytes <= range.bytes - offset).then_some((range, offset))
    }

    /// All ranges by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &HostRange> {
        self.ranges.values()
    }
}

/// Copies host memory out.
///
/// # Safety
/// `range` is readable, and nobody writes it meanwhile: what the callers of copies promise.
pub(crate) unsafe fn read_host(start: usize, out: &mut [u8]) {
    // SAFETY: by this function's contract; `out` is ours alone, so the two cannot overlap.
    unsafe { std::ptr::copy_nonoverlapping(start as *const u8, out.as_mut_ptr(), out.len()) };
}

/// Copies into host memory.
///
/// # Safety
/// The range is writable, and nobody touches it meanwhile: what the callers of copies promise.
pub(crate) unsafe fn write_host(start: usize, data: &[u8]) {
    // SAFETY: by this function's contract; `data` is borrowed from the machine, so the two cannot overlap.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start as *mut u8, data.len()) };
}

/// The places of a pinned range.
pub(crate) fn places_of(range: &HostRange) -> Range<u64> {
    range.place..range.place + range.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_page_aligned_and_found_by_any_range_inside() {
        let mut ranges = HostRanges::new(1 << 20);
        let start = ranges.allocate(10_000, 0, 0).unwrap();
        assert_eq!(start % PAGE_BYTES, 0);
        assert!(ranges.find(start as u64 + 9_999, 1).is_some());
        assert!(ranges.find(start as u64 + 9_999, 2).is_none());
        assert!(ranges.find(start as u64 - 1, 2).is_none());
    }

    #[test]
    fn what_is_freed_can_be_allocated_again_and_no_more() {
        let mut ranges = HostRanges::new(8192);
        let first = ranges.allocate(8192, 0, 0).unwrap();
        assert_eq!(ranges.allocate(1, 0, 0), None);
        assert!(ranges.remove(first).is_some());
        assert!(ranges.remove(first).is_none());
        assert!(ranges.allocate(8192, 0, 0).is_some());
    }

    #[test]
    fn overlapping_registrations_are_refused() {
        let mut ranges = HostRanges::new(0);
        assert!(ranges.register(0x1000, 0x1000, 0, 0));
        for (start, bytes) in [(0x1000, 1), (0x1fff, 1), (0x800, 0x801), (0x800, 0x4000)] {
            assert!(!ranges.register(start, bytes, 0, 0), "{start:#x}");
        }
        assert!(ranges.register(0x2000, 1, 0, 0) && ranges.register(0xfff, 1, 0, 0));
    }
}
