//! Transfers under way, seen through to their end.
//!
//! The system may move fewer bytes than asked, or be interrupted: the rest is asked for again, a bounded number of times and
//! only as long as something moves. Everything else is an error.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{DiskError, is_full};
use super::io::{Alignment, DiskIo, IoQueue, Transfer};

/// How often one transfer is asked for in all. Each time something moved or the system was interrupted.
const ATTEMPTS_MAX: u32 = 64;

pub(super) struct Flights<'a> {
    io: &'a dyn DiskIo,
    queue: Box<dyn IoQueue + 'a>,
    alignment: Alignment,
    under_way: BTreeMap<u64, Flight>,
    /// How many transfers of the whole store are under way.
    gauge: &'a AtomicU64,
}

#[derive(Clone, Copy)]
struct Flight {
    whole: Transfer,
    rest: Transfer,
    attempts: u32,
}

impl<'a> Flights<'a> {
    pub(super) fn new(io: &'a dyn DiskIo, gauge: &'a AtomicU64) -> Result<Self, DiskError> {
        let queue = io.queue().map_err(|error| DiskError::Space {
            what: "making a queue",
            offset: 0,
            bytes: 0,
            cause: (&error).into(),
        })?;
        Ok(Self { io, queue, alignment: io.alignment(), under_way: BTreeMap::new(), gauge })
    }

    pub(super) fn has_room(&self) -> bool {
        self.queue.in_flight() < self.queue.depth()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.under_way.len()
    }

    /// Starts a transfer; its tag names it and no other that is under way.
    ///
    /// # Safety
    /// As [`IoQueue::push`], until it has landed or this is dropped.
    pub(super) unsafe fn start(&mut self, transfer: Transfer) -> Result<(), DiskError> {
        if !self.alignment.allows(&transfer) {
            return Err(DiskError::Misaligned {
                address: transfer.memory.as_ptr() as usize,
                offset: transfer.offset,
                bytes: transfer.bytes as u64,
                memory_bytes: self.alignment.memory_bytes,
                offset_bytes: self.alignment.offset_bytes,
            });
        }
        // SAFETY: the caller's promise.
        unsafe { self.queue.push(transfer) }.map_err(|error| failed(self.io, &transfer, &error))?;
        self.gauge.fetch_add(1, Ordering::Relaxed);
        self.under_way.insert(transfer.tag, Flight { whole: transfer, rest: transfer, attempts: 1 });
        Ok(())
    }

    /// Waits until one transfer is through or has failed, and says which; `None` where none is under way.
    pub(super) fn land(&mut self) -> Option<(u64, Result<(), DiskError>)> {
        let landed = self.land_uncounted()?;
        self.gauge.fetch_sub(1, Ordering::Relaxed);
        Some(landed)
    }

    fn land_uncounted(&mut self) -> Option<(u64, Result<(), DiskError>)> {
        loop {
            let completion = self.queue.pop()?;
            let tag = completion.tag;
            let Some(mut flight) = self.under_way.remove(&tag) else {
                debug_assert!(false, "{tag} was not under way");
                continue;
            };
            match flight.after(completion.result, self.alignment) {
                Ok(true) => return Some((tag, Ok(()))),
                Ok(false) => {
                    // SAFETY: the memory of a part is as valid as that of the whole, for as long.
                    if let Err(error) = unsafe { self.queue.push(flight.rest) } {
                        return Some((tag, Err(failed(self.io, &flight.whole, &error))));
                    }
                    self.under_way.insert(tag, flight);
                }
                Err(error) => return Some((tag, Err(failed(self.io, &flight.whole, &error)))),
            }
        }
    }
}

impl Drop for Flights<'_> {
    /// Waits here, before any memory goes.
    fn drop(&mut self) {
        while self.land().is_some() {}
    }
}

impl Flight {
    /// Whether it is through; where not, `rest` is what is left to ask for.
    fn after(&mut self, result: io::Result<usize>, alignment: Alignment) -> io::Result<bool> {
        let moved = match result {
            Ok(bytes) if bytes >= self.rest.bytes => return Ok(true),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // A direct transfer goes on at an aligned place; a part of a granule is moved again.
            Ok(bytes) => bytes - bytes % alignment.offset_bytes as usize,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => 0,
            Err(error) => return Err(error),
        };
        if self.attempts >= ATTEMPTS_MAX {
            return Err(io::Error::other(format!(
                "{} of {} bytes are left after {ATTEMPTS_MAX} attempts",
                self.rest.bytes - moved,
                self.whole.bytes
            )));
        }
        self.attempts += 1;
        self.rest.bytes -= moved;
        self.rest.offset += moved as u64;
        // SAFETY: fewer bytes were moved than the transfer has, so the address is inside its memory.
        self.rest.memory = unsafe { self.rest.memory.add(moved) };
        Ok(false)
    }
}

fn failed(io: &dyn DiskIo, transfer: &Transfer, error: &io::Error) -> DiskError {
    let bytes = transfer.bytes as u64;
    if is_full(error) {
        // A file system that does not preallocate finds out late.
        return DiskError::Full {
            requested_bytes: bytes,
            free_bytes: io.free_bytes().unwrap_or(0),
            keep_free_bytes: 0,
        };
    }
    DiskError::Transfer {
        direction: transfer.direction.verb(),
        offset: transfer.offset,
        bytes,
        cause: error.into(),
    }
}
