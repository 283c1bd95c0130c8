//! Disk: where the bytes of a DISK space really are.
//!
//! | file | what |
//! |---|---|
//! | `io.rs` | [`DiskIo`] and [`IoQueue`], the small contract with whatever moves bytes to and from one file |
//! | `file.rs` | the file: without a name from birth, owner's eyes only, preallocated, with its alignment |
//! | `sweep.rs` | left-overs of a crash on file systems where a file must have a name for a moment |
//! | `uring.rs`, `threads.rs` | two ways to keep many transfers in flight |
//! | `probe.rs` | which way works here: direct and io_uring, direct and threads, buffered as the last resort |
//! | `memory.rs` | the twin in memory, with faults by seed |
//! | `extents.rs` | which ranges of the file are taken: pure |
//! | `flights.rs` | transfers under way: short ones resumed, interrupted ones repeated |
//! | `compression.rs` | whether compressing pays, by measurement |
//! | `store.rs`, `image.rs` | [`DiskStore`] and what is in it: images |
//! | `writer.rs`, `reader.rs` | images written and read back, each chunk with its checksum |
//! | `error.rs` | [`DiskError`] |
//!
//! A crash leaves nothing: a file without a name goes with the process. Nothing is ever read that was not written by this
//! process, and what is read back is compared with the checksum that was made before it was written.

mod aligned;
mod compression;
mod error;
mod extents;
mod file;
mod flights;
mod image;
mod io;
mod memory;
mod probe;
mod reader;
mod store;
mod sweep;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod threads;
mod uring;
mod writer;

pub use aligned::AlignedBuffer;
pub use compression::Compression;
pub use error::{DiskError, IoCause};
pub use image::{ChunkMemory, StoredImage};
pub use io::{Alignment, Completion, Direction, DiskIo, IoDescription, IoKind, IoQueue, Transfer};
pub use memory::{DiskFaults, MemoryIo};
pub use probe::{Attempt, IoChoice, open_io};
pub use reader::ImageReader;
pub use store::{DiskOptions, DiskStore, DiskUse};
pub use writer::ImageWriter;
