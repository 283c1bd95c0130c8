//! One spill file and what is in it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::compression::{Compression, Judge};
use super::error::{DiskError, is_full};
use super::extents::Extents;
use super::image::StoredImage;
use super::io::{DiskIo, IoDescription};
use super::probe::{Attempt, IoChoice, open_io};
use super::reader::ImageReader;
use super::writer::ImageWriter;

/// How a store is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Which ways of reaching the disk may be used.
    pub io: IoChoice,
    /// How many transfers are in flight at once. One direct stream reached 3.9 GiB/s where 32 reached 45 (Mooncake PR 2806).
    pub depth: usize,
    /// What must stay free on the file system, whoever takes the rest.
    pub keep_free_bytes: u64,
    /// How much room is kept when images go, for the next ones: taking it anew is slow. Given up when the disk is full.
    pub idle_bytes_max: u64,
    /// Whether images are compressed.
    pub compression: Compression,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            io: IoChoice::Best,
            depth: 32,
            keep_free_bytes: 1 << 30,
            idle_bytes_max: 4 << 30,
            compression: Compression::default(),
        }
    }
}

/// What a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskUse {
    /// Images in it.
    pub images: u64,
    /// Their bytes before compression.
    pub raw_bytes: u64,
    /// What they take in the file.
    pub stored_bytes: u64,
    /// Room that is kept for the next images.
    pub idle_bytes: u64,
    /// Room that the file system refused to take back; it is reused, or goes with the file.
    pub stuck_bytes: u64,
    /// Chunks that had to be read twice because their checksum was wrong the first time.
    pub rereads: u64,
}

/// A spill file. Cheap to clone; all clones are the same store, and its images keep it open.
///
/// ```
/// use headwater_tiers::disk::{AlignedBuffer, ChunkMemory, DiskOptions, DiskStore};
/// # fn main() -> Result<(), headwater_tiers::disk::DiskError> {
/// let options = DiskOptions { keep_free_bytes: 0, ..DiskOptions::default() };
/// let store = DiskStore::open(std::env::temp_dir().as_path(), options)?;
/// let mut page = AlignedBuffer::new(4096);
/// page.as_mut_slice()[..5].copy_from_slice(b"hello");
///
/// let mut writer = store.writer(5, 4096)?;
/// // SAFETY: the page outlives the writer, and is not written meanwhile.
/// unsafe { writer.write(0, ChunkMemory::of(&page, 5))? };
/// let image = writer.finish()?;
///
/// page.as_mut_slice().fill(0);
/// let mut reader = store.reader(&image)?;
/// // SAFETY: the page outlives the reader, and is not touched meanwhile.
/// unsafe { reader.read(0, ChunkMemory::of(&page, 5))? };
/// reader.finish()?;
/// assert_eq!(&page.as_slice()[..5], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DiskStore {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) io: Arc<dyn DiskIo>,
    pub(super) options: DiskOptions,
    pub(super) judge: Judge,
    attempts: Vec<Attempt>,
    extents: Mutex<Extents>,
    pub(super) figures: Figures,
}

#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) images: AtomicU64,
    pub(super) raw_bytes: AtomicU64,
    pub(super) stored_bytes: AtomicU64,
    stuck_bytes: AtomicU64,
    pub(super) rereads: AtomicU64,
    pub(super) in_flight: AtomicU64,
}

impl DiskStore {
    /// A store in `directory`. Left-overs of a crash are removed there.
    ///
    /// # Errors
    /// [`DiskError::Open`].
    pub fn open(directory: &Path, options: DiskOptions) -> Result<Self, DiskError> {
        let (io, attempts) = open_io(directory, options.io, options.depth)?;
        Ok(Self::assemble(io, attempts, options))
    }

    /// A store on a file of the caller's making.
    pub fn with_io(io: Arc<dyn DiskIo>, options: DiskOptions) -> Self {
        Self::assemble(io, Vec::new(), options)
    }

    fn assemble(io: Arc<dyn DiskIo>, attempts: Vec<Attempt>, options: DiskOptions) -> Self {
        let (extents, figures) = (Mutex::default(), Figures::default());
        Self { inner: Arc::new(Inner { io, options, judge: Judge::default(), attempts, extents, figures }) }
    }

    /// How the disk is reached.
    pub fn describe(&self) -> IoDescription {
        self.inner.io.describe()
    }

    /// Better ways that did not work here, and why.
    pub fn attempts(&self) -> &[Attempt] {
        &self.inner.attempts
    }

    /// What the store holds.
    pub fn usage(&self) -> DiskUse {
        let figures = &self.inner.figures;
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        DiskUse {
            images: read(&figures.images),
            raw_bytes: read(&figures.raw_bytes),
            stored_bytes: read(&figures.stored_bytes),
            idle_bytes: self.inner.extents.lock().backed_bytes(),
            stuck_bytes: read(&figures.stuck_bytes),
            rereads: read(&figures.rereads),
        }
    }

    /// How many transfers are under way.
    pub fn in_flight(&self) -> u64 {
        self.inner.figures.in_flight.load(Ordering::Relaxed)
    }

    /// Begins an image of `raw_bytes` in chunks of `chunk_bytes`, the last perhaps shorter. Room is taken here.
    ///
    /// # Errors
    /// [`DiskError::Full`], [`DiskError::Space`].
    pub fn writer(&self, raw_bytes: u64, chunk_bytes: u64) -> Result<ImageWriter<'_>, DiskError> {
        ImageWriter::begin(self, raw_bytes, chunk_bytes)
    }

    /// Begins to read an image back.
    ///
    /// # Errors
    /// [`DiskError::Space`].
    pub fn reader<'a>(&'a self, image: &'a StoredImage) -> Result<ImageReader<'a>, DiskError> {
        ImageReader::begin(self, image)
    }
}

impl Inner {
    /// Takes a range of the file, with room on the disk behind it. Where there is none, what is kept idle is given up for it.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Result<Extent, DiskError> {
        match self.take_once(bytes) {
            Err(DiskError::Full { .. }) if self.give_up_idle() > 0 => self.take_once(bytes),
            answer => answer,
        }
    }

    fn take_once(self: &Arc<Self>, bytes: u64) -> Result<Extent, DiskError> {
        let (offset, is_backed) = self.extents.lock().take(bytes);
        let allocated = if is_backed || bytes == 0 { Ok(()) } else { self.allocate(offset, bytes) };
        match allocated {
            Ok(()) => Ok(Extent { store: self.clone(), offset, bytes }),
            Err(error) => {
                self.extents.lock().give_back(offset, bytes, false);
                Err(error)
            }
        }
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), DiskError> {
        let keep_free_bytes = self.options.keep_free_bytes;
        let full = |free_bytes| DiskError::Full { requested_bytes: bytes, free_bytes, keep_free_bytes };
        let refuse =
            |what, error: &std::io::Error| DiskError::Space { what, offset, bytes, cause: error.into() };
        let free_bytes = self.io.free_bytes().map_err(|error| refuse("asking for free space", &error))?;
        if bytes.saturating_add(keep_free_bytes) > free_bytes {
            return Err(full(free_bytes));
        }
        self.io
            .allocate(offset, bytes)
            .map_err(|error| if is_full(&error) { full(free_bytes) } else { refuse("preallocation", &error) })
    }

    fn give_back(&self, offset: u64, bytes: u64) {
        let is_kept = {
            let mut extents = self.extents.lock();
            let is_kept = extents.backed_bytes().saturating_add(bytes) <= self.options.idle_bytes_max;
            if is_kept {
                extents.give_back(offset, bytes, true);
            }
            is_kept
        };
        if !is_kept {
            self.release(offset, bytes);
        }
    }

    /// Gives room back to the disk, and then the range: once that is back, somebody else may write there.
    fn release(&self, offset: u64, bytes: u64) {
        if bytes > 0 && self.io.release(offset, bytes).is_err() {
            self.figures.stuck_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.extents.lock().give_back(offset, bytes, false);
    }

    /// Gives back to the disk what is kept for the next images, and says how much that was.
    fn give_up_idle(&self) -> u64 {
        let idle = self.extents.lock().take_backed();
        for (offset, bytes) in &idle {
            self.release(*offset, *bytes);
        }
        idle.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.give_up_idle();
    }
}

/// A range of the file, given back when dropped.
#[derive(Debug)]
pub(super) struct Extent {
    store: Arc<Inner>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Extent {
    /// Gives back all but the first `bytes`.
    pub(super) fn keep(&mut self, bytes: u64) {
        let spare = self.bytes.saturating_sub(bytes);
        self.bytes -= spare;
        self.store.give_back(self.offset + self.bytes, spare);
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.store.give_back(self.offset, self.bytes);
    }
}
