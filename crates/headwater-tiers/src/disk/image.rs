//! Images: what is written in one go, chunk by chunk, and read back.
//!
//! The checksum of a chunk is made from the caller's bytes, not from what compressing made of them, and compared with what comes
//! out at the very end of reading back; so it covers the disk, the transfer and the compression. The table of chunks stays in memory:
//! nobody else is to read the file, so nothing in it needs to explain itself.
//!
//! The disk does not wait for checksums: that of a chunk is made while it is being written, and compared, when it has come back,
//! after the next one has been asked for.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::aligned::AlignedBuffer;
use super::store::{DiskStore, Extent};

/// Where a chunk is in memory.
#[derive(Clone, Copy, Debug)]
pub struct ChunkMemory {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) room_bytes: usize,
}

impl ChunkMemory {
    /// `bytes` at `start`, in memory of `room_bytes`: direct transfers are rounded up into the room behind a chunk, so it must
    /// be as long as that.
    pub fn new(start: NonNull<u8>, bytes: usize, room_bytes: usize) -> Self {
        debug_assert!(bytes <= room_bytes);
        Self { start, bytes, room_bytes }
    }

    /// The first `bytes` of a buffer.
    pub fn of(buffer: &AlignedBuffer, bytes: usize) -> Self {
        Self::new(buffer.start(), bytes.min(buffer.bytes()), buffer.bytes())
    }

    /// The first `bytes` of it, with the same room.
    #[must_use]
    pub fn shortened(self, bytes: usize) -> Self {
        Self { bytes: bytes.min(self.bytes), ..self }
    }

    /// # Safety
    /// The memory is valid and nobody writes it meanwhile.
    pub(super) unsafe fn as_slice<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

/// An image on disk; its room is given back when it is dropped.
#[derive(Debug)]
pub struct StoredImage {
    pub(super) extent: Extent,
    pub(super) chunks: Vec<StoredChunk>,
    pub(super) raw_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) store: DiskStore,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoredChunk {
    pub(super) offset: u64,
    pub(super) stored_bytes: u64,
    pub(super) raw_bytes: usize,
    pub(super) checksum: u32,
    pub(super) is_packed: bool,
}

impl StoredImage {
    /// How many bytes were written.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// How much room they take.
    pub fn stored_bytes(&self) -> u64 {
        self.extent.bytes
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Where in the file the image begins, for tests that damage it.
    pub fn offset(&self) -> u64 {
        self.extent.offset
    }
}

impl Drop for StoredImage {
    fn drop(&mut self) {
        let figures = &self.store.inner.figures;
        figures.images.fetch_sub(1, Ordering::Relaxed);
        figures.raw_bytes.fetch_sub(self.raw_bytes, Ordering::Relaxed);
        figures.stored_bytes.fetch_sub(self.extent.bytes, Ordering::Relaxed);
    }
}
