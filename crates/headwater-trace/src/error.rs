//! What can go wrong with a trace file. Every error of a reader names the byte at which it happened.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The result of reading or writing a trace.
pub type Result<T> = std::result::Result<T, TraceError>;

/// The kinds of file this crate knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// Recorded by Headwater itself, or made by hand: no file yet.
    #[default]
    Memory,
    /// `alloctrace 1`: lines of text, most often gzipped.
    Alloctrace,
    /// The pickle that `torch.cuda.memory._dump_snapshot` writes.
    TorchSnapshot,
    /// The CSV that RMM's logging adaptor writes.
    RmmCsv,
    /// Headwater's own binary format.
    Hwt,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "trace",
            Self::Alloctrace => "alloctrace",
            Self::TorchSnapshot => "PyTorch snapshot",
            Self::RmmCsv => "RMM log",
            Self::Hwt => "hwt",
        })
    }
}

/// A trace that could not be read or written.
///
/// `offset` counts bytes of the content: for a gzipped file, of what it unpacks to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// An error of [`open`](crate::open), with the file it is about.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: Box<TraceError>,
    },
    /// The operating system, or the gzip layer, could not deliver the byte at `offset`.
    #[error("{format}: cannot read byte {offset}: {error}")]
    Read {
        /// What the file was read as.
        format: Format,
        /// The first byte that could not be read.
        offset: u64,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The bytes end in the middle of something.
    #[error("{format}: cut short at byte {offset}: {what} needs {needed_bytes} bytes, {left_bytes} are left")]
    Truncated {
        /// What the file was read as.
        format: Format,
        /// Where the unfinished thing begins.
        offset: u64,
        /// What it is.
        what: &'static str,
        /// How many bytes it says it has.
        needed_bytes: u64,
        /// How many there are.
        left_bytes: u64,
    },
    /// The bytes at `offset` mean nothing in this format.
    #[error("{format}: byte {offset}: {problem}")]
    Malformed {
        /// What the file was read as.
        format: Format,
        /// Where.
        offset: u64,
        /// What is wrong, in words.
        problem: String,
    },
    /// A pickle wants to do more than hold plain data. No such opcode is ever executed.
    #[error("pickle: byte {offset}: opcode {opcode} refused: {why}")]
    Refused {
        /// Where the opcode is.
        offset: u64,
        /// Its name as Python's `pickletools` has it.
        opcode: &'static str,
        /// What it would do.
        why: &'static str,
    },
    /// The file goes beyond a limit of [`Limits`](crate::Limits).
    #[error("{format}: byte {offset}: {what} beyond the limit of {limit}")]
    Limit {
        /// What the file was read as.
        format: Format,
        /// Where the limit was passed.
        offset: u64,
        /// What there is too much of.
        what: &'static str,
        /// The limit in force.
        limit: u64,
    },
    /// The first bytes belong to no format this crate knows.
    #[error("not a trace in a known format: begins with {}", beginning.escape_ascii())]
    UnknownFormat {
        /// The first bytes, 16 at most.
        beginning: Vec<u8>,
    },
    /// More different streams, strings, frames or labels than a trace can name.
    #[error("more than {limit} different {what} in one trace")]
    TooManyNames {
        /// `streams`, `strings`, `frames` or `labels`.
        what: &'static str,
        /// How many fit.
        limit: u64,
    },
    /// An event names a stream or label that the trace's table does not have.
    #[error("an event names {what} {id}, and the table has {known}")]
    UnknownName {
        /// `stream`, `frame` or `label`.
        what: &'static str,
        /// The id it names.
        id: u64,
        /// How many the table has.
        known: u64,
    },
    /// The sink did not take the bytes.
    #[error("cannot write: {0}")]
    Write(#[source] io::Error),
    /// A value given to a writer that its format has no place for.
    #[error("cannot write {format}: {problem}")]
    Unwritable {
        /// The format being written.
        format: Format,
        /// What does not fit.
        problem: String,
    },
}

impl TraceError {
    pub(crate) fn malformed(format: Format, offset: u64, problem: impl Into<String>) -> Self {
        Self::Malformed { format, offset, problem: problem.into() }
    }

    /// Where in the content the error is, if it is about a place.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Self::InFile { error, .. } => error.offset(),
            Self::Read { offset, .. }
            | Self::Truncated { offset, .. }
            | Self::Malformed { offset, .. }
            | Self::Refused { offset, .. }
            | Self::Limit { offset, .. } => Some(*offset),
            Self::UnknownFormat { .. } => Some(0),
            Self::TooManyNames { .. }
            | Self::UnknownName { .. }
            | Self::Write(_)
            | Self::Unwritable { .. } => None,
        }
    }
}
