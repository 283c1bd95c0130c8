//! What can go wrong on disk.

use std::fmt;
use std::io;
use std::path::PathBuf;

use headwater::HumanBytes;

/// A disk operation that failed. What was to be stored is still where it was; what was to be read back has not been handed
/// out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The directory cannot be used.
    #[error("{}: {what}: {cause}", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        cause: IoCause,
    },
    /// The file system has not enough room, or would have less left than it must.
    #[error("the disk is full: {requested_bytes} bytes ({}) wanted, {free_bytes} free, of which {keep_free_bytes} \
        must stay (keep_free_bytes)", HumanBytes(*requested_bytes))]
    Full {
        /// What was to be stored.
        requested_bytes: u64,
        /// What the file system has left.
        free_bytes: u64,
        /// What it must keep.
        keep_free_bytes: u64,
    },
    /// A transfer failed, also when repeated where that could help.
    #[error("{direction} {bytes} bytes at {offset} of the spill file: {cause}")]
    Transfer {
        /// `reading` or `writing`.
        direction: &'static str,
        /// Where in the file.
        offset: u64,
        /// How much was asked for.
        bytes: u64,
        /// The system's answer.
        cause: IoCause,
    },
    /// The file could not be changed: preallocated, or a part of it given back.
    #[error("{what} of {bytes} bytes at {offset} of the spill file: {cause}")]
    Space {
        /// What was tried.
        what: &'static str,
        /// Where in the file.
        offset: u64,
        /// How much.
        bytes: u64,
        /// The system's answer.
        cause: IoCause,
    },
    /// What was read is not what was written, twice in a row.
    #[error(
        "chunk {chunk} ({bytes} bytes at {offset} of the spill file) is corrupt: its checksum is {found:#010x}, \
        not {expected:#010x}"
    )]
    Corrupt {
        /// The chunk's number in its image.
        chunk: usize,
        /// Where in the file.
        offset: u64,
        /// How much was stored.
        bytes: u64,
        /// The checksum made before it was written.
        expected: u32,
        /// The checksum of what was read; zero where it could not even be decompressed.
        found: u32,
    },
    /// Memory, length or place of a direct transfer is not aligned. The kernel does not always say so, so this is ours.
    #[error(
        "a direct transfer of {bytes} bytes at {offset}, memory {address:#x}, is not aligned to {memory_bytes} in \
        memory and {offset_bytes} in the file"
    )]
    Misaligned {
        /// Where in memory.
        address: usize,
        /// Where in the file.
        offset: u64,
        /// How much.
        bytes: u64,
        /// What memory must be aligned to.
        memory_bytes: u64,
        /// What offsets and lengths must be aligned to.
        offset_bytes: u64,
    },
    /// A chunk that the image does not have, or that does not fit it.
    #[error(
        "chunk {chunk} of {bytes} bytes is none of this image ({chunks} chunks of up to {chunk_bytes} bytes)"
    )]
    NoSuchChunk {
        /// Its number.
        chunk: usize,
        /// Its length.
        bytes: u64,
        /// How many chunks there are.
        chunks: usize,
        /// How long a chunk is.
        chunk_bytes: u64,
    },
    /// An image was finished before all its chunks were written.
    #[error("{written} of {chunks} chunks were written before the image was finished")]
    Unfinished {
        /// How many were.
        written: usize,
        /// How many there are.
        chunks: usize,
    },
}

/// The operating system's answer, kept so that it can be compared and told again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoCause {
    /// The class.
    pub kind: io::ErrorKind,
    /// The number, where the system gave one.
    pub os_code: Option<i32>,
    text: Box<str>,
}

impl From<&io::Error> for IoCause {
    fn from(error: &io::Error) -> Self {
        Self { kind: error.kind(), os_code: error.raw_os_error(), text: error.to_string().into() }
    }
}

impl fmt::Display for IoCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether the system says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
