//! Memory for direct transfers that is not in a pinned block.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Bytes whose address and length are multiples of a page, zero at first.
#[derive(Debug)]
pub struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Option<Layout>,
}

/// No file system asks for more than a page.
const ALIGNMENT: usize = 4096;

// SAFETY: the buffer owns its memory; nothing about it belongs to a thread.
unsafe impl Send for AlignedBuffer {}
// SAFETY: through a shared reference it can only be read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// At least `bytes`, rounded up to whole pages.
    pub fn new(bytes: usize) -> Self {
        let layout = bytes.checked_next_multiple_of(ALIGNMENT).filter(|bytes| *bytes > 0);
        let layout = layout.and_then(|bytes| Layout::from_size_align(bytes, ALIGNMENT).ok());
        let Some(layout) = layout else { return Self { start: NonNull::dangling(), layout: None } };
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        let Some(start) = start else { std::alloc::handle_alloc_error(layout) };
        Self { start, layout: Some(layout) }
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.layout.map_or(0, |layout| layout.size())
    }

    /// The first address.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is ours, as large, and was initialised to zero.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes()) }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: it was allocated with this layout and is used no more.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
