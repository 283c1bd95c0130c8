//! Copies and fills, in stream order.

use crate::{DeviceId, DevicePtr, Result, Stream};

/// Copies and fills. All are asynchronous and run in the order of their stream, with two exceptions that CUDA makes:
/// from pageable host memory the source has been read when the call returns, and to pageable host memory the call
/// returns when the copy has finished. Zero bytes are no error and nothing happens.
///
/// All are `unsafe` for one reason: host and device share one address space, so a wrong device address can be somebody's
/// host memory.
///
/// # Safety
/// For every method: the device ranges are allocated or mapped with access for the stream's device, and the host ranges
/// valid, until the copy has finished in stream order; nobody writes what it reads or touches what it writes meanwhile.
///
/// # Errors
/// For every method: `InvalidHandle` for the stream; `InvalidValue` for a null address or a range the driver knows to
/// be outside of any allocation; `DeviceLost` where an earlier asynchronous failure surfaces.
pub trait Copies {
    /// Copies `bytes` from the host to the device.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn copy_to_device(&self, dst: DevicePtr, src: *const u8, bytes: u64, stream: Stream)
    -> Result<()>;

    /// Copies `bytes` from the device to the host.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn copy_to_host(&self, dst: *mut u8, src: DevicePtr, bytes: u64, stream: Stream) -> Result<()>;

    /// Copies `bytes` within the memory of the stream's device. The ranges do not overlap.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn copy_on_device(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: Stream)
    -> Result<()>;

    /// Copies `bytes` from one device to another; peer access makes it quicker but is not needed.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn copy_peer(
        &self,
        dst: (DeviceId, DevicePtr),
        src: (DeviceId, DevicePtr),
        bytes: u64,
        stream: Stream,
    ) -> Result<()>;

    /// Sets `bytes` bytes to `value`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn fill_bytes(&self, dst: DevicePtr, value: u8, bytes: u64, stream: Stream) -> Result<()>;

    /// Sets `words` 32-bit words to `value`. `dst` is aligned to four bytes.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn fill_words(&self, dst: DevicePtr, value: u32, words: u64, stream: Stream) -> Result<()>;
}
