//! One piece of pinned memory.

use std::ptr::NonNull;

use headwater_driver::Driver;

use super::config::Placement;
use super::numa;
use crate::error::TierError;
use headwater_driver::capture_guard::relaxed;

/// Pinned memory, owned by whoever frees it.
#[derive(Debug)]
pub(super) struct Slab {
    start: NonNull<u8>,
    bytes: u64,
    origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// `host_alloc`.
    Driver,
    /// Pages of ours, registered with the driver.
    Mapped { node: u32 },
}

// SAFETY: a slab is plain memory with one owner; nothing about it belongs to a thread.
unsafe impl Send for Slab {}
// SAFETY: through a shared reference only its address can be read.
unsafe impl Sync for Slab {}

impl Slab {
    /// Pins `bytes`, where `placement` says. Slow: called with no lock held.
    pub(super) fn make(
        driver: &dyn Driver,
        bytes: u64,
        placement: Placement,
        node: u32,
    ) -> Result<Self, TierError> {
        match placement {
            Placement::Anywhere => Self::from_driver(driver, bytes),
            Placement::OnlyNode => Self::on_node(driver, bytes, node),
            Placement::PreferNode => {
                Self::on_node(driver, bytes, node).or_else(|_| Self::from_driver(driver, bytes))
            }
        }
    }

    fn from_driver(driver: &dyn Driver, bytes: u64) -> Result<Self, TierError> {
        let start = relaxed(driver, || driver.host_alloc(bytes))?;
        Ok(Self { start, bytes, origin: Origin::Driver })
    }

    fn on_node(driver: &dyn Driver, bytes: u64, node: u32) -> Result<Self, TierError> {
        let start = numa::map_on_node(bytes as usize, node).map_err(|error| {
            TierError::system(format!("mapping {bytes} bytes on NUMA node {node}"), &error)
        })?;
        // SAFETY: the pages were mapped a moment ago, readable and writable, and stay so until they are unregistered.
        let registered = relaxed(driver, || unsafe { driver.host_register(start, bytes) });
        if let Err(error) = registered {
            numa::unmap(start, bytes as usize);
            return Err(error.into());
        }
        Ok(Self { start, bytes, origin: Origin::Mapped { node } })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sampled pages on the node the slab was bound to, and sampled pages; `None` where it was bound to none.
    pub(super) fn placement(&self) -> Option<Result<(usize, usize), TierError>> {
        let Origin::Mapped { node } = self.origin else { return None };
        let asked = numa::pages_on_node(self.start, self.bytes as usize, node);
        Some(asked.map_err(|error| TierError::system("asking where pages are", &error)))
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// Nothing on the host or any device uses it any more.
    ///
    /// # Errors
    /// The driver's, and the slab with it, still pinned.
    pub(super) unsafe fn free(self, driver: &dyn Driver) -> Result<(), (Self, TierError)> {
        let start = self.start;
        let freed = relaxed(driver, || match self.origin {
            // SAFETY: by the function's contract nothing uses it.
            Origin::Driver => unsafe { driver.host_free(start) },
            // SAFETY: by the function's contract no copy uses it.
            Origin::Mapped { .. } => unsafe { driver.host_unregister(start) },
        });
        match freed {
            Ok(()) => {
                if let Origin::Mapped { .. } = self.origin {
                    numa::unmap(start, self.bytes as usize);
                }
                Ok(())
            }
            Err(error) => Err((self, error.into())),
        }
    }
}
