//! Reading an image back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use super::aligned::AlignedBuffer;
use super::compression::decompress;
use super::error::DiskError;
use super::flights::Flights;
use super::image::{ChunkMemory, StoredChunk, StoredImage};
use super::io::{Direction, Transfer};
use super::store::DiskStore;

/// How often a chunk is read when its checksum is wrong: a wire may flip what a disk holds right.
const READS_MAX: u32 = 2;

/// Reads an image back. Nothing it has not checked is said to be through.
pub struct ImageReader<'a> {
    flights: Flights<'a>,
    bounced: BTreeMap<u64, AlignedBuffer>,
    wanted: BTreeMap<u64, (ChunkMemory, u32)>,
    /// Transfers that have ended and were not looked at yet.
    unchecked: VecDeque<(u64, Result<(), DiskError>)>,
    image: &'a StoredImage,
    store: &'a DiskStore,
}

impl<'a> ImageReader<'a> {
    pub(super) fn begin(store: &'a DiskStore, image: &'a StoredImage) -> Result<Self, DiskError> {
        let flights = Flights::new(&*store.inner.io, &store.inner.figures.in_flight)?;
        let (bounced, wanted, unchecked) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Ok(Self { flights, bounced, wanted, unchecked, image, store })
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
        self.make_room();
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
        let mut through = Vec::new();
        while let Some((tag, result)) = self.unchecked.pop_front() {
            through.extend(self.check(tag, result)?);
        }
        Ok(through)
    }

    /// Waits until a chunk is through, checks it and says which; `None` where none is under way.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`DiskError::Corrupt`].
    pub fn land(&mut self) -> Result<Option<usize>, DiskError> {
        loop {
            let ended = self.unchecked.pop_front().or_else(|| self.flights.land());
            let Some((tag, result)) = ended else { return Ok(None) };
            if let Some(chunk) = self.check(tag, result)? {
                return Ok(Some(chunk));
            }
        }
    }

    /// Waits until another transfer can be started. What ends meanwhile is looked at later, when the disk has work again.
    fn make_room(&mut self) {
        while !self.flights.has_room() {
            let Some(ended) = self.flights.land() else { return };
            self.unchecked.push_back(ended);
        }
    }

    /// Whether a chunk has come back as it was written; it is asked for again where not, a bounded number of times.
    fn check(&mut self, tag: u64, result: Result<(), DiskError>) -> Result<Option<usize>, DiskError> {
        let bounce = self.bounced.remove(&tag);
        let Some((memory, reads)) = self.wanted.remove(&tag) else { return Ok(None) };
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
        self.make_room();
        // SAFETY: as the first time.
        unsafe { self.start(tag, stored, memory)? };
        self.wanted.insert(tag, (memory, reads + 1));
        Ok(None)
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
