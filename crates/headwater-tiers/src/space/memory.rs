//! Where the bytes of a space are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater::Allocator;

use super::Space;
use super::streams::{BorrowedStream, StreamPolicy, StreamPool};
use crate::disk::DiskOptions;
use crate::error::TierError;
use crate::host::PinnedPool;

/// Where the bytes of a space are.
#[derive(Debug)]
pub(crate) enum Memory {
    Gpu { allocator: Arc<dyn Allocator>, streams: StreamPool },
    Host { pool: PinnedPool },
    Disk { mount: PathBuf, options: DiskOptions },
}

impl Space {
    /// The allocator of a GPU space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn allocator(&self) -> Result<&Arc<dyn Allocator>, TierError> {
        match &self.inner.memory {
            Memory::Gpu { allocator, .. } => Ok(allocator),
            _ => Err(self.not_here("allocator of device memory")),
        }
    }

    /// The streams of a GPU space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn streams(&self) -> Result<&StreamPool, TierError> {
        match &self.inner.memory {
            Memory::Gpu { streams, .. } => Ok(streams),
            _ => Err(self.not_here("streams")),
        }
    }

    /// Borrows a stream of a GPU space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`], and those of [`StreamPool::acquire`].
    pub fn acquire_stream(&self, policy: &StreamPolicy) -> Result<BorrowedStream, TierError> {
        self.streams()?.acquire(policy)
    }

    /// The pinned blocks of a HOST space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn pinned_pool(&self) -> Result<&PinnedPool, TierError> {
        match &self.inner.memory {
            Memory::Host { pool } => Ok(pool),
            _ => Err(self.not_here("pinned blocks")),
        }
    }

    /// The directory of a DISK space.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn mount(&self) -> Result<&Path, TierError> {
        match &self.inner.memory {
            Memory::Disk { mount, .. } => Ok(mount),
            _ => Err(self.not_here("mount")),
        }
    }

    /// How the disk of a DISK space is to be reached.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn disk_options(&self) -> Result<DiskOptions, TierError> {
        match &self.inner.memory {
            Memory::Disk { options, .. } => Ok(*options),
            _ => Err(self.not_here("mount")),
        }
    }

    fn not_here(&self, what: &'static str) -> TierError {
        TierError::NotThisTier { space: self.id(), what }
    }
}
