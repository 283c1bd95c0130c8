//! Transfers by io_uring: a ring a queue, so that no two movers share one.
//!
//! Rings cost tens of microseconds to make, so idle ones are kept.

use std::io;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;

use super::file::SpillFile;
use super::io::{Alignment, Completion, Direction, DiskIo, IoDescription, IoKind, IoQueue, Transfer};

/// Idle rings kept: as many as movers usually work at once.
const IDLE_RINGS_MAX: usize = 8;

/// A file and idle rings to reach it.
pub(super) struct UringIo {
    file: SpillFile,
    depth: u32,
    idle: Mutex<Vec<IoUring>>,
}

impl UringIo {
    /// Fails where the kernel has no io_uring, or forbids it, as containers do.
    pub(super) fn new(file: SpillFile, depth: usize) -> io::Result<Self> {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX).clamp(1, 4096);
        let first = IoUring::new(depth)?;
        let mut probe = io_uring::Probe::new();
        first.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring cannot read and write",
            ));
        }
        Ok(Self { file, depth, idle: Mutex::new(vec![first]) })
    }
}

impl std::fmt::Debug for UringIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringIo")
            .field("file", &self.file)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

impl DiskIo for UringIo {
    fn describe(&self) -> IoDescription {
        let mut facts = IoDescription::new(IoKind::IoUring, self.depth as usize, self.file.alignment);
        (facts.is_direct, facts.is_anonymous) = (self.file.is_direct, self.file.is_anonymous);
        facts.is_preallocated = self.file.is_preallocated();
        facts
    }

    fn alignment(&self) -> Alignment {
        self.file.alignment
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.file.free_bytes()
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.allocate(offset, bytes)
    }

    fn release(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.release(offset, bytes)
    }

    fn queue(&self) -> io::Result<Box<dyn IoQueue + '_>> {
        let kept = self.idle.lock().pop();
        let ring = match kept {
            Some(ring) => ring,
            None => IoUring::new(self.depth)?,
        };
        Ok(Box::new(UringQueue { io: self, ring: Some(ring), in_flight: 0, unsubmitted: 0 }))
    }
}

struct UringQueue<'a> {
    io: &'a UringIo,
    /// There until the queue is dropped.
    ring: Option<IoUring>,
    in_flight: usize,
    /// Pushed, and not yet seen by the kernel: told together with the next wait.
    unsubmitted: usize,
}

impl IoQueue for UringQueue<'_> {
    fn depth(&self) -> usize {
        self.io.depth as usize
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    unsafe fn push(&mut self, transfer: Transfer) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return Err(io::Error::other("the queue is closed")) };
        let Transfer { direction, memory, bytes, offset, tag } = transfer;
        let bytes = u32::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let fd = types::Fd(self.io.file.raw_fd());
        let entry = match direction {
            Direction::Read => opcode::Read::new(fd, memory.as_ptr(), bytes).offset(offset).build(),
            Direction::Write => opcode::Write::new(fd, memory.as_ptr(), bytes).offset(offset).build(),
        };
        // SAFETY: the caller promised that the memory stays valid until the transfer was popped or the queue's drop has
        // returned, and both wait for it; the file is open as long as `io` is borrowed.
        unsafe { ring.submission().push(&entry.user_data(tag)) }.map_err(io::Error::other)?;
        (self.in_flight, self.unsubmitted) = (self.in_flight + 1, self.unsubmitted + 1);
        // Started now: the mover may be busy with checksums for a while before it waits. A kernel that is short of something
        // sees the entry at the next call.
        if let Ok(seen) = ring.submit() {
            self.unsubmitted -= seen.min(self.unsubmitted);
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Completion> {
        let ring = self.ring.as_mut()?;
        if self.in_flight == 0 {
            return None;
        }
        loop {
            if let Some(entry) = ring.completion().next() {
                self.in_flight -= 1;
                let result = usize::try_from(entry.result())
                    .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
                return Some(Completion { tag: entry.user_data(), result });
            }
            match ring.submit_and_wait(1) {
                Ok(seen) => self.unsubmitted -= seen.min(self.unsubmitted),
                // Interrupted, or short of something: what is under way ends all the same, and must be waited for.
                Err(_) => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
}

impl Drop for UringQueue<'_> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
        if let Some(ring) = self.ring.take() {
            let mut idle = self.io.idle.lock();
            if idle.len() < IDLE_RINGS_MAX {
                idle.push(ring);
            }
        }
    }
}
