//! A last chance before out of memory is an error.

use std::fmt;
use std::sync::Arc;

use headwater_driver::{DevicePtr, Stream};

use super::pass_on_to_inner;
use crate::allocator::{Allocator, Request};
use crate::error::{AllocError, OutOfMemoryReport};

type Callback = dyn Fn(&OutOfMemoryReport) -> bool + Send + Sync;

/// Calls back when memory ran out, and asks once more where the callback says that it freed some.
///
/// The callback runs in the thread that asked, with no lock held: it may give blocks back, spill them, or empty the
/// cache. It may be called from several threads at once. Where the second try fails too, its error is the answer.
pub struct WithFailureCallback {
    inner: Arc<dyn Allocator>,
    callback: Box<Callback>,
}

impl WithFailureCallback {
    /// Calls `callback` when `inner` has run out of memory; `true` means that asking again may help.
    pub fn new(
        inner: Arc<dyn Allocator>,
        callback: impl Fn(&OutOfMemoryReport) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { inner, callback: Box::new(callback) }
    }
}

impl Allocator for WithFailureCallback {
    pass_on_to_inner!();

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        match self.inner.allocate(request) {
            Err(AllocError::OutOfMemory(report)) if (self.callback)(&report) => self.inner.allocate(request),
            answer => answer,
        }
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.give_back(ptr) }
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.give_back_or_owe(ptr) }
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        self.inner.record_stream(ptr, stream)
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.inner.empty_cache()
    }
}

impl fmt::Debug for WithFailureCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithFailureCallback").field("inner", &self.inner).finish_non_exhaustive()
    }
}
