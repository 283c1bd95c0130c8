//! Which way of reaching the disk works here.
//!
//! A ladder: direct I/O by io_uring; direct I/O by threads, where the kernel has no io_uring or a container forbids it; through
//! the page cache by threads, where the file system does no direct I/O. Each rung is tried with a real transfer there and back
//! before it is believed, and what did not work is kept to be shown.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::aligned::AlignedBuffer;
use super::error::{DiskError, IoCause};
use super::file::SpillFile;
use super::io::{Direction, DiskIo, IoQueue, Transfer};
use super::sweep::sweep;
use super::threads::ThreadsIo;
use super::uring::UringIo;

/// Threads of the rungs without io_uring. Direct transfers mostly sleep.
const THREADS: usize = 16;

/// Which rungs may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoChoice {
    /// The best that works.
    #[default]
    Best,
    /// Direct I/O by io_uring, or an error.
    DirectUring,
    /// Direct I/O by threads, or an error.
    DirectThreads,
    /// Through the page cache, by threads.
    Buffered,
}

/// A rung that was tried and did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The rung.
    pub choice: IoChoice,
    /// Why not.
    pub why: IoCause,
}

/// Opens a spill file in `directory`, by the best rung that `choice` allows and that works. Left-overs of a crash are removed
/// on the way. Returns the rungs that were tried in vain, too.
///
/// # Errors
/// [`DiskError::Open`] with what the last rung said.
pub fn open_io(
    directory: &Path,
    choice: IoChoice,
    depth: usize,
) -> Result<(Arc<dyn DiskIo>, Vec<Attempt>), DiskError> {
    let refuse = |what, why: &io::Error| DiskError::Open { path: directory.into(), what, cause: why.into() };
    let facts = std::fs::metadata(directory).map_err(|error| refuse("looking at the directory", &error))?;
    if !facts.is_dir() {
        let error = io::Error::from(io::ErrorKind::NotADirectory);
        return Err(refuse("looking at the directory", &error));
    }
    sweep(directory);
    let rungs: &[IoChoice] = match choice {
        IoChoice::Best => &[IoChoice::DirectUring, IoChoice::DirectThreads, IoChoice::Buffered],
        IoChoice::DirectUring => &[IoChoice::DirectUring],
        IoChoice::DirectThreads => &[IoChoice::DirectThreads],
        IoChoice::Buffered => &[IoChoice::Buffered],
    };
    let mut attempts = Vec::new();
    for rung in rungs {
        match climb(directory, *rung, depth) {
            Ok(io) => return Ok((io, attempts)),
            Err(error) if attempts.len() + 1 == rungs.len() => {
                return Err(refuse("making and trying a spill file", &error));
            }
            Err(error) => attempts.push(Attempt { choice: *rung, why: (&error).into() }),
        }
    }
    Err(refuse("choosing a way", &io::Error::other("there is none")))
}

fn climb(directory: &Path, rung: IoChoice, depth: usize) -> io::Result<Arc<dyn DiskIo>> {
    let file = SpillFile::create(directory, rung != IoChoice::Buffered)?;
    let io: Arc<dyn DiskIo> = match rung {
        IoChoice::DirectUring | IoChoice::Best => Arc::new(UringIo::new(file, depth)?),
        IoChoice::DirectThreads | IoChoice::Buffered => {
            Arc::new(ThreadsIo::new(file, THREADS.min(depth.max(1)))?)
        }
    };
    try_out(&*io)?;
    Ok(io)
}

/// Writes and reads back a few bytes, as the store will.
fn try_out(io: &dyn DiskIo) -> io::Result<()> {
    let (mut out, mut back) = (AlignedBuffer::new(4096), AlignedBuffer::new(4096));
    let bytes = out.bytes();
    for (place, byte) in out.as_mut_slice().iter_mut().enumerate() {
        *byte = (place % 251) as u8;
    }
    io.allocate(0, bytes as u64)?;
    {
        let mut queue = io.queue()?;
        let write = Transfer { direction: Direction::Write, memory: out.start(), bytes, offset: 0, tag: 1 };
        // SAFETY: both buffers outlive the queue, and nobody touches them before it is done with them.
        unsafe { once(&mut *queue, write)? };
        let memory = back.start();
        let read = Transfer { direction: Direction::Read, memory, bytes, offset: 0, tag: 2 };
        // SAFETY: as above.
        unsafe { once(&mut *queue, read)? };
    }
    io.release(0, bytes as u64)?;
    if out.as_slice() == back.as_mut_slice() {
        Ok(())
    } else {
        Err(io::Error::other("what was read is not what was written"))
    }
}

/// One transfer, whole.
///
/// # Safety
/// As [`IoQueue::push`].
unsafe fn once(queue: &mut dyn IoQueue, transfer: Transfer) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { queue.push(transfer)? };
    match queue.pop().map(|completion| completion.result) {
        Some(Ok(bytes)) if bytes == transfer.bytes => Ok(()),
        Some(Ok(bytes)) => Err(io::Error::other(format!("{bytes} of {} bytes were moved", transfer.bytes))),
        Some(Err(error)) => Err(error),
        None => Err(io::Error::other("the transfer vanished")),
    }
}
