//! Memory that several processes use: a block is exported as file descriptors, sent over a Unix socket, and mapped by whoever
//! receives it. What classic CUDA IPC cannot do with memory of a virtual arena.
//!
//! | file | what |
//! |---|---|
//! | `exported.rs` | [`ExportedBlock`]: a block that others may use for as long as this value lives |
//! | `imported.rs` | [`ImportedBlock`]: somebody else's block, mapped here |
//! | `note.rs` | [`BlockNote`]: what the other side has to know, and its form as bytes |
//! | `socket.rs` | [`send`] and [`receive`]: the note and the descriptors over a Unix socket |
//! | `pins.rs` | which blocks are exported |
//!
//! **Who owns what.** The exporter owns the memory. While an [`ExportedBlock`] lives, the block's memory is neither used again
//! nor moved nor put to sleep, even if the block itself is given back meanwhile: the give-back takes effect when the last
//! export of the block ends. End it when the importers have said that they are done, in whatever way the two processes talk.
//! An importer that dies needs no care: the driver unmaps what it had. An exporter that dies leaves the importer's mapping
//! good, because the physical memory lives until its last mapping and handle are gone.
//!
//! **What can be seen.** The driver shares whole handles. Other blocks on the same handles would be readable and writable by
//! the importer, and so would whatever is allocated there later. So a block that does not fill its handles is refused, unless
//! [`Neighbours::Exposed`] says that this is meant;
//! [`allocate_shareable`](crate::CachingAllocator::allocate_shareable) gives blocks that do.
//!
//! **What it costs.** The driver exports only handles that were made for it, and every call on those takes longer
//! (docs/sharing.md). So memory is private by default: `allocate_shareable` makes what can be exported, and the setting
//! `shareable:True` makes all memory so.
//!
//! **Order.** Streams and events do not reach across processes here. Let the work that writes a block finish (wait for its
//! stream) before the other side is told to read it.
//!
//! ```
//! use headwater::sharing::{self, ImportedBlock, Neighbours};
//! use headwater::{Allocator, CachingAllocator, Request, config::Config};
//! use headwater_driver::{DeviceId, Stream};
//! use std::os::unix::net::UnixStream;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = headwater_sim::SimDriver::new();
//! let allocator = CachingAllocator::new(sim.clone(), DeviceId(0), Config::default())?;
//! let stream = Stream::legacy_default(DeviceId(0));
//! let (here, there) = UnixStream::pair()?;
//!
//! // One process...
//! let ptr = allocator.allocate_shareable(Request::new(10 << 20, stream))?;
//! let exported = allocator.export(ptr, Neighbours::Refused)?;
//! sharing::send(&here, &exported)?;
//!
//! // ...and another (on the simulated device: another view of the same machine).
//! let received = sharing::receive(&there)?;
//! let imported = ImportedBlock::map(sim.second_view(), DeviceId(0), &received, stream)?;
//! assert_eq!(imported.bytes(), 10 << 20);
//! drop(imported);
//!
//! drop(exported);
//! // SAFETY: nothing uses the block.
//! unsafe { allocator.give_back(ptr)? };
//! # Ok(())
//! # }
//! ```

mod exported;
mod imported;
mod note;
mod pins;
mod socket;

use headwater_driver::{DevicePtr, DriverError};

use crate::AllocError;

pub use exported::{ExportedBlock, Neighbours};
pub use imported::ImportedBlock;
pub use note::{BlockNote, HANDLES_MAX, MalformedNote};
pub(crate) use pins::Pins;
pub use socket::{ReceivedBlock, receive, send};

/// Memory could not be exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The allocator refused, and nothing has changed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A driver call failed, and what was done before it is undone.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Blocks of the classic backing are plain memory, which has no handles.
    #[error("blocks of the classic backing cannot be exported: use backing:paged")]
    NotPaged,
    /// The block's memory was not made for export, which costs more (docs/sharing.md).
    #[error(
        "the memory of the block at {ptr} is private to this process: allocate it with allocate_shareable, \
         or set shareable:True, which makes all memory exportable"
    )]
    Private {
        /// The block's address.
        ptr: DevicePtr,
    },
    /// Somebody else's memory would be exported with the block.
    #[error(
        "the block at {ptr} fills {block_bytes} of the {exported_bytes} bytes that would be exported with it: \
         allocate it with allocate_shareable, or say that its neighbours may be exposed"
    )]
    Exposes {
        /// The block's address.
        ptr: DevicePtr,
        /// What the block takes of its handles.
        block_bytes: u64,
        /// What its handles have.
        exported_bytes: u64,
    },
    /// There are more handles behind the block than one export can name.
    #[error("the block at {ptr} is on {handles} handles; {HANDLES_MAX} can be exported at once")]
    TooManyHandles {
        /// The block's address.
        ptr: DevicePtr,
        /// How many handles there are.
        handles: usize,
    },
    /// The memory is on a device that is not the one to import it to.
    #[error("the memory is on the device at {exported}, and is to be imported to the one at {here}")]
    OtherDevice {
        /// The exporter's device, by its place on the PCI bus.
        exported: String,
        /// The importer's.
        here: String,
    },
    /// There are not as many descriptors as handles.
    #[error("{descriptors} file descriptors for {handles} handles")]
    WrongDescriptors {
        /// What the note names.
        handles: usize,
        /// What came with it.
        descriptors: usize,
    },
    /// What was received is no note.
    #[error(transparent)]
    Malformed(#[from] MalformedNote),
    /// The socket failed or was closed in the middle.
    #[error("the socket: {0}")]
    Socket(#[from] std::io::Error),
}

#[cfg(test)]
mod tests;
