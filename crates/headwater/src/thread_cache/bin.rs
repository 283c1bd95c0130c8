//! A bin: a stack of free blocks of one stream and class, in as few instructions as there can be.
//!
//! The stack is three pointers into its storage: the top; the low-water mark, the lowest the top has been since somebody last
//! looked; and the end. Taking a block compares the top with the mark: above it there is a block, and the mark stays. At the
//! mark, a rarer path finds out whether the stack is empty or the mark goes down.
//!
//! Blocks are held as addresses beside the things they name. So the address that goes out next does not depend on a look-up of
//! the one that came in last, and the processor works on both at once.

use std::ptr::NonNull;

/// A free block: where it is, and what is known about it.
#[derive(Debug)]
pub(crate) struct Free<T> {
    pub(crate) address: u64,
    pub(crate) thing: NonNull<T>,
}

impl<T> Clone for Free<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Free<T> {}

/// What went through a bin. All only rise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) handed_out: u64,
    pub(crate) given_back: u64,
    pub(crate) requested_bytes_out: u64,
    pub(crate) requested_bytes_back: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        // A correction may have made one count wrap; sums are right.
        self.handed_out = self.handed_out.wrapping_add(other.handed_out);
        self.given_back = self.given_back.wrapping_add(other.given_back);
        self.requested_bytes_out = self.requested_bytes_out.wrapping_add(other.requested_bytes_out);
        self.requested_bytes_back = self.requested_bytes_back.wrapping_add(other.requested_bytes_back);
    }
}

/// The stack, the size of its blocks, and what went through it. What the hit path uses is in one cache line.
///
/// The pointers are into `storage`, and `bottom <= low <= top <= end`.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Bin<T> {
    top: *mut Free<T>,
    low: *mut Free<T>,
    end: *mut Free<T>,
    pub(crate) block_bytes: u64,
    pub(crate) tally: Tally,
    /// Only its memory is used: its length stays 0.
    storage: Vec<Free<T>>,
}

impl<T> Bin<T> {
    /// A bin without room.
    pub(crate) fn new(block_bytes: u64) -> Self {
        let nowhere = NonNull::dangling().as_ptr();
        let tally = Tally::default();
        Self { top: nowhere, low: nowhere, end: nowhere, block_bytes, tally, storage: Vec::new() }
    }

    /// Room for `blocks`, in an empty bin.
    pub(crate) fn furnish(&mut self, blocks: usize) {
        debug_assert_eq!(self.len(), 0);
        self.storage = Vec::with_capacity(blocks);
        self.top = self.storage.as_mut_ptr();
        self.low = self.top;
        self.end = self.top.wrapping_add(self.storage.capacity());
    }

    /// How many blocks there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.storage.capacity()
    }

    /// How many blocks there are.
    pub(crate) fn len(&self) -> usize {
        (self.top as usize - self.bottom() as usize) / size_of::<Free<T>>()
    }

    fn bottom(&self) -> *mut Free<T> {
        self.storage.as_ptr().cast_mut()
    }

    /// Takes the block that was put last.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Free<T>> {
        if self.top == self.low {
            if self.low == self.bottom() {
                return None;
            }
            self.low = self.low.wrapping_sub(1);
        }
        self.top = self.top.wrapping_sub(1);
        // SAFETY: the top was above the bottom, so there was a block below it, which `push` wrote into the storage.
        Some(unsafe { self.top.read() })
    }

    /// Puts a block, where there is room. Says whether.
    #[inline(always)]
    pub(crate) fn push(&mut self, free: Free<T>) -> bool {
        if self.top == self.end {
            return false;
        }
        // SAFETY: the top is in the storage and below its end.
        unsafe { self.top.write(free) };
        self.top = self.top.wrapping_add(1);
        true
    }

    /// Takes out the `count` blocks that were put first, or all there are.
    pub(crate) fn take_oldest(&mut self, count: usize, mut out: impl FnMut(NonNull<T>)) {
        let (len, count) = (self.len(), count.min(self.len()));
        let bottom = self.bottom();
        for place in 0..count {
            // SAFETY: the places below the top hold blocks that `push` wrote.
            out(unsafe { bottom.add(place).read() }.thing);
        }
        // SAFETY: as above, and both ranges are within the storage.
        unsafe { bottom.copy_from(bottom.add(count), len - count) };
        self.top = self.top.wrapping_sub(count);
        self.low = bottom;
    }

    /// Takes out what was not needed since the last look, and says how many that were.
    pub(crate) fn take_surplus(&mut self, out: impl FnMut(NonNull<T>)) -> usize {
        let surplus = (self.low as usize - self.bottom() as usize) / size_of::<Free<T>>();
        self.take_oldest(surplus, out);
        self.low = self.top;
        surplus
    }
}
