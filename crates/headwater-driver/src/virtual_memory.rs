//! Virtual memory management: addresses and physical memory as two things.
//!
//! Life cycle: reserve addresses; create handles; map each whole handle at an address; set access; use; unmap; release
//! handles; free the addresses. All of it is legal during capture in every mode and does not invalidate it, and none of
//! it waits for running work (both measured on an H200): the caller makes sure that nothing still uses what it unmaps.

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

    /// Creates `bytes` of physical memory on `device`. Costs about the same whatever the size.
    ///
    /// # Errors
    /// `InvalidValue` where `bytes` is zero or no multiple of the granularity; `OutOfMemory`.
    fn handle_create(&self, device: DeviceId, bytes: u64) -> Result<Handle>;

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
}
