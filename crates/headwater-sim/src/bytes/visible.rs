//! Content that the host can see at the device's own addresses.
//!
//! The bytes are an anonymous file. The simulator reads and writes them through a mapping of its own; wherever the memory is
//! mapped on the device, the same pages are mapped at the same address of the host, as on machines where host and device share
//! one memory. Pages take room when they are first written. What the host writes there is not seen by the detector, and every byte
//! counts as written.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Addresses and lengths of mappings are multiples of this.
const PAGE_BYTES: u64 = 4096;

/// The pages of one piece of physical memory.
#[derive(Debug)]
pub(crate) struct HostPages {
    file: OwnedFd,
    own: NonNull<u8>,
    mapped_bytes: usize,
    /// Where the host sees them.
    shown: BTreeSet<u64>,
}

// SAFETY: the mapping belongs to this value alone; what the host does through the others is the host's to order.
unsafe impl Send for HostPages {}

impl HostPages {
    /// Pages for `bytes` bytes, all zero.
    pub(crate) fn new(bytes: u64) -> Result<Self, Errno> {
        let rounded = bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let mapped_bytes = usize::try_from(rounded).map_err(|_| Errno::NOMEM)?;
        let file = memfd_create("headwater-sim", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, rounded)?;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let own = unsafe { mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, &file, 0)? };
        let own = NonNull::new(own.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { file, own, mapped_bytes, shown: BTreeSet::new() })
    }

    /// Lets the host see the pages at `address` too. Says whether it can: somebody else may have the address, or it is between
    /// pages.
    pub(crate) fn show_at(&mut self, address: u64) -> bool {
        if !address.is_multiple_of(PAGE_BYTES) {
            return false;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let wanted = address as *mut std::ffi::c_void;
        // SAFETY: the kernel refuses where anything is mapped there already, so nothing is replaced.
        let Ok(got) = (unsafe { mmap(wanted, self.mapped_bytes, protection, flags, &self.file, 0) }) else {
            return false;
        };
        if got != wanted {
            // A kernel older than the flag took the address for a hint.
            // SAFETY: this very mapping, which nobody has seen.
            let _ = unsafe { munmap(got, self.mapped_bytes) };
            return false;
        }
        self.shown.insert(address)
    }

    /// The end of that.
    pub(crate) fn hide_at(&mut self, address: u64) {
        if self.shown.remove(&address) {
            // SAFETY: a mapping of ours. Whoever still looks at it looks at freed device memory.
            let _ = unsafe { munmap(address as *mut std::ffi::c_void, self.mapped_bytes) };
        }
    }

    pub(crate) fn is_shown_at(&self, address: u64) -> bool {
        self.shown.contains(&address)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives. The host may write the same pages through what it is shown: then what is
        // read is undefined, as on a device, and the simulator does not rely on it.
        unsafe { std::slice::from_raw_parts(self.own.as_ptr(), self.mapped_bytes) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.own.as_ptr(), self.mapped_bytes) }
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        while let Some(address) = self.shown.first().copied() {
            self.hide_at(address);
        }
        // SAFETY: the own mapping, last.
        let _ = unsafe { munmap(self.own.as_ptr().cast(), self.mapped_bytes) };
    }
}
