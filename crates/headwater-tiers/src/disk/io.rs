//! The contract with whatever moves bytes to and from one file.
//!
//! A queue belongs to one mover at a time: transfers are pushed, run in any order, and are popped as they end. So deep queues
//! need no callbacks and no lock that two movers share, and the twin in memory is as easy to write as the real thing.

use std::fmt;
use std::io;
use std::ptr::NonNull;

/// One file that bytes move to and from.
pub trait DiskIo: fmt::Debug + Send + Sync {
    /// What it is, for people.
    fn describe(&self) -> IoDescription;

    /// What transfers must be aligned to.
    fn alignment(&self) -> Alignment;

    /// What the file system has left for this process.
    ///
    /// # Errors
    /// The system's.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Makes sure that a range of the file has room on the disk, and that the file is long enough for it.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::StorageFull`] where there is none.
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Gives the room of a range back to the disk. What was in it is gone.
    ///
    /// # Errors
    /// The system's.
    fn release(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// A queue with nothing in it.
    ///
    /// # Errors
    /// The system's.
    fn queue(&self) -> io::Result<Box<dyn IoQueue + '_>>;
}

/// Transfers under way. Dropping a queue waits for all of them.
pub trait IoQueue: Send {
    /// How many transfers can be under way at once.
    fn depth(&self) -> usize;

    /// How many are under way.
    fn in_flight(&self) -> usize;

    /// Starts a transfer. The caller has checked that there is room for another.
    ///
    /// # Safety
    /// The memory is valid for the transfer's direction, and nobody else touches it in a way that clashes, until the transfer
    /// was popped or the queue's drop has returned.
    ///
    /// # Errors
    /// The system's; the transfer has then not been started.
    unsafe fn push(&mut self, transfer: Transfer) -> io::Result<()>;

    /// Waits for a transfer to end; `None` where none is under way.
    fn pop(&mut self) -> Option<Completion>;
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

impl Direction {
    pub(super) const fn verb(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Write => "writing",
        }
    }
}

/// One transfer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// Where in memory.
    pub memory: NonNull<u8>,
    /// How much.
    pub bytes: usize,
    /// Where in the file.
    pub offset: u64,
    /// The caller's name for it.
    pub tag: u64,
}

// SAFETY: a transfer is a description; whoever pushes it promises what there is to promise about the memory.
unsafe impl Send for Transfer {}

/// How a transfer ended.
#[derive(Debug)]
pub struct Completion {
    /// The caller's name for it.
    pub tag: u64,
    /// How many bytes were moved, from the front.
    pub result: io::Result<usize>,
}

/// What transfers must be aligned to. Both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Addresses.
    pub memory_bytes: u64,
    /// Offsets and lengths.
    pub offset_bytes: u64,
}

impl Alignment {
    /// No alignment at all.
    pub const NONE: Self = Self { memory_bytes: 1, offset_bytes: 1 };

    /// Whether a transfer keeps to it.
    pub fn allows(self, transfer: &Transfer) -> bool {
        (transfer.memory.as_ptr() as usize as u64).is_multiple_of(self.memory_bytes)
            && transfer.offset.is_multiple_of(self.offset_bytes)
            && (transfer.bytes as u64).is_multiple_of(self.offset_bytes)
    }
}

/// The way transfers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoKind {
    /// A ring shared with the kernel.
    IoUring,
    /// Threads that read and write at offsets.
    Threads,
    /// No disk at all: the twin for tests.
    Memory,
}

impl fmt::Display for IoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IoUring => "io_uring",
            Self::Threads => "threads",
            Self::Memory => "memory",
        })
    }
}

/// What a [`DiskIo`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoDescription {
    /// The way transfers are made.
    pub kind: IoKind,
    /// Whether they go around the page cache.
    pub is_direct: bool,
    /// Whether the file had no name from birth; it has had one for a moment otherwise.
    pub is_anonymous: bool,
    /// Whether room is taken on the disk before anything is written.
    pub is_preallocated: bool,
    /// What transfers are aligned to.
    pub alignment: Alignment,
    /// How many transfers a queue holds.
    pub depth: usize,
}

impl IoDescription {
    pub(super) fn new(kind: IoKind, depth: usize, alignment: Alignment) -> Self {
        let (is_direct, is_anonymous, is_preallocated) = (false, true, true);
        Self { kind, is_direct, is_anonymous, is_preallocated, alignment, depth }
    }
}

impl fmt::Display for IoDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} with {} transfers in flight, {}, {}{}, aligned to {} in memory and {} in the file",
            self.kind,
            self.depth,
            if self.is_direct { "direct" } else { "buffered" },
            if self.is_anonymous { "file without a name" } else { "file unlinked at once" },
            if self.is_preallocated { ", preallocated" } else { "" },
            self.alignment.memory_bytes,
            self.alignment.offset_bytes,
        )
    }
}
