//! A block that others may use.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headwater_driver::DevicePtr;

use super::BlockNote;
use crate::CachingAllocator;

/// Whether a block may be exported that does not fill its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbours {
    /// No: other blocks would be readable and writable by the importer.
    Refused,
    /// Yes: the importer is trusted with whatever is beside the block, now and later.
    Exposed,
}

/// A block that other processes may use for as long as this lives. Made by [`CachingAllocator::export`].
///
/// Its memory is not used again meanwhile, even if the block is given back. Drop it when the importers are done.
#[must_use = "dropping it ends the export"]
pub struct ExportedBlock {
    allocator: Arc<CachingAllocator>,
    ptr: DevicePtr,
    note: BlockNote,
    fds: Vec<OwnedFd>,
}

impl ExportedBlock {
    pub(crate) fn new(
        allocator: Arc<CachingAllocator>,
        ptr: DevicePtr,
        note: BlockNote,
        fds: Vec<OwnedFd>,
    ) -> Self {
        Self { allocator, ptr, note, fds }
    }

    /// The block's address in this process.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// What the importer has to know.
    pub fn note(&self) -> &BlockNote {
        &self.note
    }

    /// The descriptors of its handles, in the order of the note.
    pub fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd)
    }
}

impl Drop for ExportedBlock {
    fn drop(&mut self) {
        self.allocator.end_export(self.ptr);
    }
}

impl fmt::Debug for ExportedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedBlock")
            .field("ptr", &self.ptr)
            .field("note", &self.note)
            .finish_non_exhaustive()
    }
}
