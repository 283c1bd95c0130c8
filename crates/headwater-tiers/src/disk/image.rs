//! Images: what is written in one go, chunk by chunk, and read back.
//!
//! The checksum of a chunk is made from the caller's bytes before they are compressed or written, and compared with what comes
//! out at the very end of reading back; so it covers the disk, the transfer and the compression. The table of chunks stays in memory:
//! nobody else is to read the file, so nothing in it needs to explain itself.
//!
//! Chunks are written one behind the other in the order they come, each rounded up to what transfers are aligned to.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::aligned::AlignedBuffer;
use super::compression::{compress, compressed_bytes_max, decompress};
use super::error::DiskError;
use super::flights::Flights;
use super::io::{Direction, Transfer};
use super::store::{DiskStore, Extent};

/// How often a chunk is read when its checksum is wrong: a wire may flip what a disk holds right.
const READS_MAX: u32 = 2;

/// Where a chunk is in memory.
#[derive(Clone, Copy, Debug)]
pub struct ChunkMemory {
    start: NonNull<u8>,
    bytes: usize,
    room_bytes: usize,
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
    unsafe fn as_slice<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

/// An image on disk; its room is given back when it is dropped.
#[derive(Debug)]
pub struct StoredImage {
    extent: Extent,
    chunks: Vec<StoredChunk>,
    raw_bytes: u64,
    chunk_bytes: u64,
    store: DiskStore,
}

#[derive(Clone, Copy, Debug)]
struct StoredChunk {
    offset: u64,
    stored_bytes: u64,
    raw_bytes: usize,
    checksum: u32,
    is_packed: bool,
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
        let checksum = crc32c::crc32c(raw);
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

/// Reads an image back. Nothing it has not checked is said to be through.
pub struct ImageReader<'a> {
    flights: Flights<'a>,
    bounced: BTreeMap<u64, AlignedBuffer>,
    wanted: BTreeMap<u64, (ChunkMemory, u32)>,
    image: &'a StoredImage,
    store: &'a DiskStore,
}

impl<'a> ImageReader<'a> {
    pub(super) fn begin(store: &'a DiskStore, image: &'a StoredImage) -> Result<Self, DiskError> {
        let flights = Flights::new(&*store.inner.io, &store.inner.figures.in_flight)?;
        Ok(Self { flights, bounced: BTreeMap::new(), wanted: BTreeMap::new(), image, store })
    }

    /// Starts to read chunk `chunk`; waits for others where the queue is full, and says which of them are through, as
    /// [`land`](Self::land) does.
    ///
    /// # Safety
    /// The memory stays valid, and nobody touches it, until this chunk was said to be through or the reader is gone.
    ///
    /// # Errors
    /// [`DiskError`]: the memory of chunks that are not through holds nothing of use.
    pub unsafe fn read(&mut self, chunk: usize, memory: ChunkMemory) -> Result<Vec<usize>, DiskError> {
        let mut through = Vec::new();
        while !self.flights.has_room() {
            through.extend(self.land()?);
        }
        let stored = self.image.chunks.get(chunk).filter(|stored| stored.raw_bytes == memory.bytes);
        let Some(stored) = stored.copied().filter(|_| !self.wanted.contains_key(&(chunk as u64))) else {
            return Err(DiskError::NoSuchChunk {
                chunk,
                bytes: memory.bytes as u64,
                chunks: self.image.chunks.len(),
                chunk_bytes: self.image.chunk_bytes,
            });
        };
        // SAFETY: the caller's promise.
        unsafe { self.start(chunk as u64, stored, memory)? };
        self.wanted.insert(chunk as u64, (memory, 1));
        Ok(through)
    }

    /// Waits until a chunk is through, checks it and says which; `None` where none is under way.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`DiskError::Corrupt`].
    pub fn land(&mut self) -> Result<Option<usize>, DiskError> {
        loop {
            let Some((tag, result)) = self.flights.land() else { return Ok(None) };
            let bounce = self.bounced.remove(&tag);
            let Some((memory, reads)) = self.wanted.remove(&tag) else { continue };
            result?;
            let stored = self.image.chunks[tag as usize];
            // SAFETY: whoever asked for the chunk promised that the memory is valid and nobody else's until it is through.
            let raw = unsafe { std::slice::from_raw_parts_mut(memory.start.as_ptr(), memory.bytes) };
            let is_unpacked = match &bounce {
                Some(bounce) => decompress(&bounce.as_slice()[..stored.stored_bytes as usize], raw),
                None => true,
            };
            let found = if is_unpacked { crc32c::crc32c(raw) } else { !stored.checksum };
            if found == stored.checksum {
                return Ok(Some(tag as usize));
            }
            if reads >= READS_MAX {
                return Err(DiskError::Corrupt {
                    chunk: tag as usize,
                    offset: stored.offset,
                    bytes: stored.stored_bytes,
                    expected: stored.checksum,
                    found: if is_unpacked { found } else { 0 },
                });
            }
            self.store.inner.figures.rereads.fetch_add(1, Ordering::Relaxed);
            // SAFETY: as the first time.
            unsafe { self.start(tag, stored, memory)? };
            self.wanted.insert(tag, (memory, reads + 1));
        }
    }

    /// Waits for all chunks that were asked for.
    ///
    /// # Errors
    /// As [`land`](Self::land).
    pub fn finish(mut self) -> Result<(), DiskError> {
        while self.land()?.is_some() {}
        Ok(())
    }

    /// # Safety
    /// As [`read`](Self::read).
    unsafe fn start(&mut self, tag: u64, stored: StoredChunk, memory: ChunkMemory) -> Result<(), DiskError> {
        let alignment = self.store.inner.io.alignment();
        let bytes = (stored.stored_bytes as usize).next_multiple_of(alignment.offset_bytes as usize);
        let start = if stored.is_packed {
            let bounce = AlignedBuffer::new(bytes);
            let start = bounce.start();
            self.bounced.insert(tag, bounce);
            start
        } else {
            memory.start
        };
        if !stored.is_packed && bytes > memory.room_bytes {
            return Err(DiskError::Misaligned {
                address: start.as_ptr() as usize,
                offset: stored.offset,
                bytes: memory.bytes as u64,
                memory_bytes: alignment.memory_bytes,
                offset_bytes: alignment.offset_bytes,
            });
        }
        let transfer =
            Transfer { direction: Direction::Read, memory: start, bytes, offset: stored.offset, tag };
        // SAFETY: the caller's promise for its memory; a bounce buffer is ours until the chunk is through.
        unsafe { self.flights.start(transfer)? };
        Ok(())
    }
}

impl std::fmt::Debug for ImageReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageReader").field("in_flight", &self.flights.in_flight()).finish_non_exhaustive()
    }
}
