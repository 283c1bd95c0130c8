//! Pinned host memory: what the device copies at full speed and asynchronously.

use std::ptr::NonNull;

use crate::Result;

/// Allocation and registration of pinned host memory. It belongs to no device: every device reaches it.
pub trait HostMemory {
    /// Allocates `bytes` of pinned host memory, aligned to a page. Its content is undefined. Slow: 1.6 ms for 1 MiB and
    /// 0.4 s for 1 GiB on the measured machine.
    ///
    /// # Errors
    /// `InvalidValue` for zero bytes; `OutOfMemory`; `IllegalInCapture` (and the capture is lost) while one forbids it.
    fn host_alloc(&self, bytes: u64) -> Result<NonNull<u8>>;

    /// Frees what [`host_alloc`](Self::host_alloc) returned. Waits for running work, as CUDA does.
    ///
    /// # Safety
    /// Nothing on the host uses the memory any more: no reference and no pointer into it is used after this call.
    ///
    /// # Errors
    /// `InvalidValue` for any other address; `IllegalInCapture`. The memory is then still allocated.
    unsafe fn host_free(&self, ptr: NonNull<u8>) -> Result<()>;

    /// Pins `bytes` of ordinary host memory at `ptr`, where they are.
    ///
    /// # Safety
    /// The range is mapped, readable and writable, and stays so until it is unregistered.
    ///
    /// # Errors
    /// `InvalidValue` for zero bytes or a range that overlaps one that is pinned already; `IllegalInCapture`.
    unsafe fn host_register(&self, ptr: NonNull<u8>, bytes: u64) -> Result<()>;

    /// Unpins what was registered at `ptr`.
    ///
    /// # Safety
    /// No asynchronous copy that uses the range is still running.
    ///
    /// # Errors
    /// `InvalidValue` where nothing was registered at exactly this address; `IllegalInCapture`.
    unsafe fn host_unregister(&self, ptr: NonNull<u8>) -> Result<()>;
}
