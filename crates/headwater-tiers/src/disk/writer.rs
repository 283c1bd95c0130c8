//! Writing an image.
//!
//! Chunks are written one behind the other in the order they come, each rounded up to what transfers are aligned to.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::aligned::AlignedBuffer;
use super::compression::{compress, compressed_bytes_max};
use super::error::DiskError;
use super::flights::Flights;
use super::image::{ChunkMemory, StoredChunk, StoredImage};
use super::io::{Direction, Transfer};
use super::store::{DiskStore, Extent};

/// Writes an image. Dropped before it is finished, it waits for what is under way and leaves nothing.
pub struct ImageWriter<'a> {
    // First: what is under way ends before its room and its memory go.
    flights: Flights<'a>,
    extent: Extent,
    bounced: BTreeMap<u64, AlignedBuffer>,
    idle_bounce: Option<AlignedBuffer>,
    chunks: Vec<Option<StoredChunk>>,
    next_offset: u64,
    raw_bytes: u64,
    chunk_bytes: u64,
    packs: bool,
    store: &'a DiskStore,
    begun: Instant,
}

/// The length of chunk `chunk`.
fn chunk_len(raw_bytes: u64, chunk_bytes: u64, chunk: u64) -> u64 {
    raw_bytes.saturating_sub(chunk.saturating_mul(chunk_bytes)).min(chunk_bytes)
}

impl<'a> ImageWriter<'a> {
    pub(super) fn begin(store: &'a DiskStore, raw_bytes: u64, chunk_bytes: u64) -> Result<Self, DiskError> {
        let inner = &store.inner;
        let chunk_bytes = chunk_bytes.max(1);
        let count = raw_bytes.div_ceil(chunk_bytes);
        let granule = inner.io.alignment().offset_bytes;
        let rounded = |chunk| chunk_len(raw_bytes, chunk_bytes, chunk).next_multiple_of(granule);
        let room_bytes = match count {
            0 => 0,
            _ => rounded(0).saturating_mul(count - 1).saturating_add(rounded(count - 1)),
        };
        let flights = Flights::new(&*inner.io, &inner.figures.in_flight)?;
        let extent = inner.take(room_bytes)?;
        let packs = inner.judge.compresses(inner.options.compression, raw_bytes);
        let next_offset = extent.offset;
        Ok(Self {
            flights,
            extent,
            bounced: BTreeMap::new(),
            idle_bounce: None,
            chunks: vec![None; count as usize],
            next_offset,
            raw_bytes,
            chunk_bytes,
            packs,
            store,
            begun: Instant::now(),
        })
    }

    /// Starts to write chunk `chunk`; waits for others where the queue is full, and says which of them are through: their
    /// memory is the caller's again, as theirs are whose number [`land`](Self::land) returns.
    ///
    /// # Safety
    /// The memory stays valid, and is not written, until this chunk was said to be through or the writer is gone.
    ///
    /// # Errors
    /// [`DiskError`]: the image is then of no use, and dropping the writer is all that is left to do.
    pub unsafe fn write(&mut self, chunk: usize, memory: ChunkMemory) -> Result<Vec<usize>, DiskError> {
        let mut through = Vec::new();
        while !self.flights.has_room() {
            through.extend(self.land()?);
        }
        self.check(chunk, memory.bytes as u64)?;
        // SAFETY: the caller's promise.
        let raw = unsafe { memory.as_slice() };
        let granule = self.store.inner.io.alignment().offset_bytes as usize;
        let tag = chunk as u64;
        let packed = if self.packs { self.pack(tag, raw) } else { None };
        let (start, stored_bytes) = match packed {
            Some((start, bytes)) => (start, bytes),
            None => (memory.start, memory.bytes),
        };
        let bytes = stored_bytes.next_multiple_of(granule);
        if packed.is_none() && bytes > memory.room_bytes {
            return Err(DiskError::Misaligned {
                address: start.as_ptr() as usize,
                offset: self.next_offset,
                bytes: memory.bytes as u64,
                memory_bytes: self.store.inner.io.alignment().memory_bytes,
                offset_bytes: granule as u64,
            });
        }
        let offset = self.next_offset;
        let transfer = Transfer { direction: Direction::Write, memory: start, bytes, offset, tag };
        // SAFETY: the caller's promise for its memory; a bounce buffer is ours until the chunk is through, and so is the room
        // behind a chunk, of which nobody cares what is written.
        unsafe { self.flights.start(transfer)? };
        self.next_offset += bytes as u64;
        // While the disk is busy with it: nobody changes the bytes before the chunk is through.
        let checksum = crc32c::crc32c(raw);
        self.chunks[chunk] = Some(StoredChunk {
            offset,
            stored_bytes: stored_bytes as u64,
            raw_bytes: memory.bytes,
            checksum,
            is_packed: packed.is_some(),
        });
        Ok(through)
    }

    /// Waits until a chunk is through and says which; `None` where none is under way.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn land(&mut self) -> Result<Option<usize>, DiskError> {
        let Some((tag, result)) = self.flights.land() else { return Ok(None) };
        if let Some(bounce) = self.bounced.remove(&tag) {
            self.idle_bounce = Some(bounce);
        }
        result.map(|()| Some(tag as usize))
    }

    /// Waits for all chunks and closes the image.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`DiskError::Unfinished`] where chunks are missing.
    pub fn finish(mut self) -> Result<StoredImage, DiskError> {
        while self.land()?.is_some() {}
        let chunks: Vec<_> = self.chunks.iter().flatten().copied().collect();
        if chunks.len() < self.chunks.len() {
            return Err(DiskError::Unfinished { written: chunks.len(), chunks: self.chunks.len() });
        }
        self.extent.keep(self.next_offset - self.extent.offset);
        let inner = &self.store.inner;
        inner.judge.note(self.packs, self.raw_bytes, self.begun.elapsed());
        inner.figures.images.fetch_add(1, Ordering::Relaxed);
        inner.figures.raw_bytes.fetch_add(self.raw_bytes, Ordering::Relaxed);
        inner.figures.stored_bytes.fetch_add(self.extent.bytes, Ordering::Relaxed);
        let Self { extent, raw_bytes, chunk_bytes, store, .. } = self;
        Ok(StoredImage { extent, chunks, raw_bytes, chunk_bytes, store: store.clone() })
    }

    fn check(&self, chunk: usize, bytes: u64) -> Result<(), DiskError> {
        let is_new = self.chunks.get(chunk).is_some_and(Option::is_none);
        if is_new && bytes == chunk_len(self.raw_bytes, self.chunk_bytes, chunk as u64) {
            return Ok(());
        }
        let (chunks, chunk_bytes) = (self.chunks.len(), self.chunk_bytes);
        Err(DiskError::NoSuchChunk { chunk, bytes, chunks, chunk_bytes })
    }

    /// Compresses a chunk into a buffer that stays until the chunk is through.
    fn pack(&mut self, tag: u64, raw: &[u8]) -> Option<(NonNull<u8>, usize)> {
        let wanted = compressed_bytes_max(self.chunk_bytes.min(self.raw_bytes) as usize);
        let mut bounce = self.idle_bounce.take().unwrap_or_else(|| AlignedBuffer::new(wanted));
        match compress(raw, bounce.as_mut_slice()) {
            Some(bytes) => {
                let start = bounce.start();
                self.bounced.insert(tag, bounce);
                Some((start, bytes))
            }
            None => {
                self.idle_bounce = Some(bounce);
                None
            }
        }
    }
}

impl std::fmt::Debug for ImageWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageWriter")
            .field("raw_bytes", &self.raw_bytes)
            .field("in_flight", &self.flights.in_flight())
            .finish_non_exhaustive()
    }
}
