//! `std::function<bool(cudaStream_t)>` as libstdc++ lays it out.
//!
//! PyTorch passes one by value to the hook that routes requests to a pool. The C++ ABI for x86-64 and AArch64 passes such an
//! object by the address of a temporary, which is gone when the call returns; so it is copied by its own manager, as its copy
//! constructor would. The layout is no promise of libstdc++, but has not changed since 2005, and PyTorch's wheels are built with
//! it. Checked against PyTorch 2.11 and 2.15.

use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Where the callable is, or a pointer to it.
type AnyData = [*mut c_void; 2];

/// Copies, destroys or describes the callable. The last argument says which.
type Manager = unsafe extern "C-unwind" fn(*mut AnyData, *const AnyData, i32) -> bool;

/// Calls it. Arguments are passed by address.
type Invoker = unsafe extern "C-unwind" fn(*const AnyData, *const *mut c_void) -> bool;

/// The manager's "copy the callable of the second argument into the first".
const CLONE: i32 = 2;
/// The manager's "destroy the callable of the first argument".
const DESTROY: i32 = 3;

/// A `std::function<bool(cudaStream_t)>`, owned here.
#[repr(C)]
#[derive(Debug)]
pub struct StdFunction {
    any: AnyData,
    /// Null where the function is empty.
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

// SAFETY: PyTorch itself keeps these functions in its allocator and calls them from every thread that allocates; what they
// capture is made for that.
unsafe impl Send for StdFunction {}
// SAFETY: as above; calling one does not change it.
unsafe impl Sync for StdFunction {}

impl StdFunction {
    /// A copy of the function at `source`.
    ///
    /// # Safety
    /// `source` is null or points to a live `std::function<bool(cudaStream_t)>` of libstdc++.
    pub unsafe fn copy_of(source: *const StdFunction) -> Option<StdFunction> {
        // SAFETY: the caller's promise.
        let source = unsafe { source.as_ref()? };
        let (Some(manager), Some(invoker)) = (source.manager, source.invoker) else { return None };
        let mut any = MaybeUninit::<AnyData>::zeroed();
        // SAFETY: the manager belongs to the callable in `source`, which is alive; it makes a copy in `any`.
        unsafe { manager(any.as_mut_ptr(), &source.any, CLONE) };
        // SAFETY: zeroed, and then written by the manager: two pointers, whatever they are.
        let any = unsafe { any.assume_init() };
        Some(StdFunction { any, manager: Some(manager), invoker: Some(invoker) })
    }

    /// Whether the function says yes to a stream. What it throws passes through.
    pub fn accepts(&self, stream: *mut c_void) -> bool {
        // SAFETY: the invoker belongs to the callable that `any` holds.
        self.invoker.is_some_and(|invoker| unsafe { invoker(&self.any, &stream) })
    }
}

impl Drop for StdFunction {
    fn drop(&mut self) {
        if let Some(manager) = self.manager.take() {
            let source = self.any;
            // SAFETY: the callable was copied by this manager, and goes once.
            unsafe { manager(&mut self.any, &source, DESTROY) };
        }
    }
}
