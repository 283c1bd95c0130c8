//! Plain device memory: what every device has.

use crate::{DeviceId, DevicePtr, Result};

/// `cuMemAlloc` and `cuMemFree`.
pub trait PlainMemory {
    /// Allocates `bytes` of device memory, aligned to at least 256 bytes. Its content is undefined.
    ///
    /// Does not wait for running work. Costs tens of microseconds.
    ///
    /// # Errors
    /// `InvalidValue` for zero bytes or an unknown device; `OutOfMemory`; `IllegalInCapture` (and the capture is lost)
    /// while a capture forbids it, see [`Capture`](crate::Capture).
    fn mem_alloc(&self, device: DeviceId, bytes: u64) -> Result<DevicePtr>;

    /// Frees what [`mem_alloc`](Self::mem_alloc) returned, exactly: not an address inside it.
    ///
    /// Waits for all work that runs on the device (measured: a 100 ms kernel makes it take 100 ms), so nothing still
    /// uses the memory afterwards.
    ///
    /// # Errors
    /// `InvalidValue` for any other address, a second free included; `IllegalInCapture` as above. The memory is then
    /// still allocated.
    fn mem_free(&self, device: DeviceId, ptr: DevicePtr) -> Result<()>;
}
