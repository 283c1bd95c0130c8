//! A device's primary context, and being in it for the length of one call.
//!
//! The primary context is the one that PyTorch and every other program of the CUDA runtime uses: memory, streams and
//! events of one are good in the other. It is counted by the driver. We hold one count a device, from the first call
//! that needs it.
//!
//! Which context is current is a property of the calling thread, and belongs to the caller. A call finds out, changes
//! it only where it is another one, and puts it back.

use std::sync::Arc;

use crate::abi::{CuContext, CuDevice, CuResult};
use crate::table::Table;

/// A hold on a device's primary context, given back when dropped.
#[derive(Debug)]
pub(crate) struct PrimaryContext {
    table: Arc<Table>,
    cu_device: CuDevice,
    raw: CuContext,
}

impl PrimaryContext {
    /// Retains the primary context, and so makes it where nobody has yet.
    pub(crate) fn retain(table: &Arc<Table>, cu_device: CuDevice) -> Result<Self, CuResult> {
        let mut raw = CuContext::default();
        // SAFETY: `raw` lives through the call; the driver checks the device.
        let code = unsafe { (table.primary_ctx_retain)(&mut raw, cu_device) };
        if code.is_success() { Ok(Self { table: table.clone(), cu_device, raw }) } else { Err(code) }
    }

    pub(crate) fn raw(&self) -> CuContext {
        self.raw
    }

    /// Makes a driver call with this context current. The caller's context is current again afterwards, also where the
    /// call unwinds.
    pub(crate) fn run(&self, call: impl FnOnce(&Table) -> CuResult) -> CuResult {
        match self.enter() {
            Ok(_entered) => call(&self.table),
            Err(code) => code,
        }
    }

    fn enter(&self) -> Result<Entered<'_>, CuResult> {
        let mut current = CuContext::default();
        // SAFETY: `current` lives through the call.
        let code = unsafe { (self.table.ctx_get_current)(&mut current) };
        // The usual case: a thread of a program that uses one device has this context current already.
        if code.is_success() && current == self.raw {
            return Ok(Entered { table: &self.table, pushed: false });
        }
        // SAFETY: we hold a count of the context, so it exists.
        let code = unsafe { (self.table.ctx_push_current)(self.raw) };
        if code.is_success() { Ok(Entered { table: &self.table, pushed: true }) } else { Err(code) }
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // The result is of no use to anyone: it fails where the driver has shut down before us, at the end of the process
        // (CUDA_ERROR_DEINITIALIZED), or where somebody reset the device under us; there is nothing to give back then.
        // SAFETY: gives back the one count that `retain` took.
        let _ = unsafe { (self.table.primary_ctx_release)(self.cu_device) };
    }
}

/// The context is current; puts the caller's back when dropped.
struct Entered<'c> {
    table: &'c Table,
    pushed: bool,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CuContext::default();
            // Taking off what was put on fails only where the driver shuts down between the two; the thread's stack of
            // contexts is gone then.
            // SAFETY: `popped` lives through the call.
            let _ = unsafe { (self.table.ctx_pop_current)(&mut popped) };
        }
    }
}
