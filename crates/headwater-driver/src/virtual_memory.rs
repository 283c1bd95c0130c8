//! Virtual memory management: addresses and physical memory as two things.
//!
//! Life cycle: reserve addresses; create handles; map each whole handle at an address; set access; use; unmap; release
//! handles; free the addresses. All of it is legal during capture in every mode and does not invalidate it, and none of
//! it waits for running work (both measured on an H200): the caller makes sure that nothing still uses what it unmaps.
//!
//! Handles also go from process to process: one exports a handle as a file descriptor, sends it over a Unix socket, and
//! the other imports it and maps the same memory at an address of its own.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::{DeviceId, DevicePtr, Handle, Result};

/// Address ranges, physical handles, and mappings of one to the other.
pub trait VirtualMemory {
    /// The size of which every reserved range, handle and mapping must be a multiple (2 MiB on today's devices).
    ///
    /// # Errors
    /// `InvalidValue` where there is no such device; `NotSupported` without the capability.
    fn granularity(&self, device: DeviceId) -> Result<u64>;

    /// Reserves `bytes` of addresses with nothing behind them. `alignment_bytes` is zero or a power of two.
    ///
    /// # Errors
    /// `InvalidValue` where `bytes` is zero or no multiple of the granularity, or the alignment no power of two;
    /// `OutOfMemory` where the address space has no such range.
    fn address_reserve(&self, device: DeviceId, bytes: u64, alignment_bytes: u64) -> Result<DevicePtr>;

    /// Gives back a reserved range, exactly as it was reserved, with nothing mapped in it.
    ///
    /// # Errors
    /// `InvalidValue` for any other range, or where something is still mapped in it.
    fn address_free(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Creates `bytes` of physical memory on `device`, for this process only. Costs about the same whatever the size.
    ///
    /// # Errors
    /// `InvalidValue` where `bytes` is zero or no multiple of the granularity; `OutOfMemory`.
    fn handle_create(&self, device: DeviceId, bytes: u64) -> Result<Handle>;

    /// As [`handle_create`](Self::handle_create), for memory that can be [exported](Self::handle_export). Every call on such a
    /// handle takes longer (1.3 to 1.6 times on an H200, docs/sharing.md), so it is for memory that will be.
    ///
    /// # Errors
    /// As [`handle_create`](Self::handle_create); `NotSupported` without the capability `shareable_handles`, or where the
    /// driver makes no such handles for this process (some containers).
    fn handle_create_exportable(&self, device: DeviceId, bytes: u64) -> Result<Handle>;

    /// Drops our hold on a handle. Its memory is free once nothing maps it any more.
    ///
    /// # Errors
    /// `InvalidHandle` where it does not exist (any more).
    fn handle_release(&self, handle: Handle) -> Result<()>;

    /// Maps the whole of `handle` at `ptr`. `bytes` must be the handle's size: neither a part of a handle nor an offset
    /// into one can be mapped. One handle may be mapped at several addresses. Kernels cannot use the range until
    /// [`access_set`](Self::access_set).
    ///
    /// # Errors
    /// `InvalidHandle` where the handle does not exist; `NotSupported` or `InvalidValue` where `bytes` is not the handle's
    /// size; `InvalidValue` where the range is not inside one reserved range, not aligned to the granularity, or overlaps
    /// a mapping.
    fn handle_map(&self, ptr: DevicePtr, bytes: u64, handle: Handle) -> Result<()>;

    /// Removes the mappings in a range. The range must consist of whole mappings, one or more, without gaps. (CUDA accepts
    /// gaps, and the reserved range can then never be freed: measured. So backends refuse them.)
    ///
    /// # Errors
    /// `InvalidValue` where it cuts a mapping, has a gap, or nothing is mapped.
    fn handle_unmap(&self, device: DeviceId, ptr: DevicePtr, bytes: u64) -> Result<()>;

    /// Lets each of `devices` read and write the mapped range. Replaces nothing: access given earlier stays.
    ///
    /// # Errors
    /// `InvalidValue` where part of the range is not mapped, it cuts a mapping, or a device does not exist or is not able
    /// to reach the memory.
    fn access_set(&self, ptr: DevicePtr, bytes: u64, devices: &[DeviceId]) -> Result<()>;

    /// A file descriptor that stands for the handle's memory, for [`handle_import`](Self::handle_import) here or in another
    /// process. Each call makes a new one. It belongs to the caller, and closing it takes nothing from those who have
    /// imported it. Hold the handle until they have: whether the descriptor alone keeps the memory differs by backend.
    ///
    /// # Errors
    /// `InvalidHandle` where the handle does not exist (any more); `NotSupported` without the capability, or where the handle
    /// was not [made for it](Self::handle_create_exportable) here: what was imported is exported by its maker alone.
    fn handle_export(&self, handle: Handle) -> Result<OwnedFd>;

    /// A new handle for memory of `device` that somebody exported. It is held and mapped like any other, and the memory is
    /// free when nobody in any process holds or maps it. `bytes` is the size that the exporter gave the handle: the
    /// driver cannot be asked. The descriptor stays the caller's.
    ///
    /// # Errors
    /// `InvalidValue` where the descriptor stands for no memory that can be imported here, or for memory of another device,
    /// or `bytes` is zero or no multiple of the granularity; `NotSupported` without the capability. A size that is not
    /// the handle's is refused here or when it is mapped. (CUDA answers `CUDA_ERROR_UNKNOWN` to a descriptor of something
    /// else, and the device is as good as before: measured. Here alone that code is `InvalidValue`, not `DeviceLost`.)
    fn handle_import(&self, device: DeviceId, fd: BorrowedFd<'_>, bytes: u64) -> Result<Handle>;
}
