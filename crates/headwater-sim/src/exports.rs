//! Exported memory: a file descriptor that stands for a piece of physical memory.
//!
//! The descriptor is an anonymous file with a ticket in it: which machine, and which piece. The bytes themselves stay in the
//! machine, so a ticket is of use to every view of that machine and to nobody else; each process has machines of its own,
//! and is told whose ticket it holds. A view of the same machine stands for the other process in tests.
//!
//! Stricter than CUDA in one point: a ticket does not keep the memory. Imported after the last handle and mapping are gone, it
//! is refused, where a real descriptor would still be good.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

const MAGIC: [u8; 16] = *b"headwater-sim/1\n";
const TICKET_BYTES: usize = 16 + 4 + 8 + 8;

/// A name that no other machine has, in this process or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineName(u64);

impl MachineName {
    pub(crate) fn new() -> Self {
        // The standard library seeds its hash maps from the system's random numbers.
        Self(RandomState::new().build_hasher().finish())
    }
}

/// What an exported descriptor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) process: u32,
    pub(crate) machine: MachineName,
    /// The piece's first place, which no other piece ever has.
    pub(crate) place: u64,
}

impl Ticket {
    pub(crate) fn new(machine: MachineName, place: u64) -> Self {
        Self { process: std::process::id(), machine, place }
    }

    /// A new anonymous file with the ticket in it.
    pub(crate) fn write(self) -> io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("headwater-sim", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = File::from(fd);
        let mut bytes = Vec::with_capacity(TICKET_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(self.process.to_le_bytes());
        bytes.extend(self.machine.0.to_le_bytes());
        bytes.extend(self.place.to_le_bytes());
        file.write_all(&bytes)?;
        Ok(file.into())
    }

    /// The ticket in a descriptor; none where it is something else.
    pub(crate) fn read(fd: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        // Only an ordinary file may be read from: a pipe would lose its bytes, or wait for some.
        let stat = rustix::fs::fstat(fd)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile
            || stat.st_size != TICKET_BYTES as i64
        {
            return Ok(None);
        }
        let file = File::from(fd.try_clone_to_owned()?);
        let mut bytes = [0; TICKET_BYTES];
        // Copies of a descriptor share their position: it is left alone.
        file.read_exact_at(&mut bytes, 0)?;
        let (magic, rest) = bytes.split_at(MAGIC.len());
        if magic != MAGIC {
            return Ok(None);
        }
        let number = |from: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&rest[from..from + 8]);
            u64::from_le_bytes(eight)
        };
        let process = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        Ok(Some(Self { process, machine: MachineName(number(4)), place: number(12) }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_ticket_is_read_as_often_as_one_likes() {
        let ticket = Ticket::new(MachineName::new(), 77);
        let fd = ticket.write().unwrap();
        for _ in 0..2 {
            assert_eq!(Ticket::read(fd.as_fd()).unwrap(), Some(ticket));
        }
    }

    #[test]
    fn other_files_and_pipes_hold_none() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(Ticket::read(reader.as_fd()).unwrap(), None);
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(Ticket::read(file.as_fd()).unwrap(), None);
        let fd = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut other = File::from(fd);
        other.write_all(&[0; TICKET_BYTES]).unwrap();
        assert_eq!(Ticket::read(other.as_fd()).unwrap(), None);
    }

    #[test]
    fn machines_have_different_names() {
        assert_ne!(MachineName::new(), MachineName::new());
    }
}
