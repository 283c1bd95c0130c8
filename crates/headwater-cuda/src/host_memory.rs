//! Pinned host memory.
//!
//! It belongs to no device, but the driver makes it in a context. All of it is made portable, so it does not matter
//! to anyone in which.

use std::ffi::c_void;
use std::ptr::NonNull;

use headwater_driver::{Call, DeviceId, HostMemory, Result};

use crate::CudaDriver;
use crate::abi::HOST_PORTABLE;
use crate::ledger::Range;

impl HostMemory for CudaDriver {
    fn host_alloc(&self, bytes: u64) -> Result<NonNull<u8>> {
        let site = self.call(Call::HostAlloc).asking_for(bytes);
        let size = site.size(bytes)?;
        let device = self.device_in_use();
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` lives through the call.
        site.run(site.context(device)?, |cuda| unsafe {
            (cuda.mem_host_alloc)(&mut raw, size, HOST_PORTABLE)
        })?;
        let ptr = NonNull::new(raw.cast::<u8>())
            .ok_or_else(|| site.invalid("the driver answered a null address"))?;
        self.host_allocated.enter(raw as u64, Range { bytes, device });
        Ok(ptr)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>) -> Result<()> {
        let site = self.call(Call::HostFree);
        let start = ptr.as_ptr() as u64;
        let Some(range) = self.host_allocated.take(start, |_| true) else {
            return Err(
                site.invalid(format!("no pinned memory was allocated at {start:#x}, or it was freed before"))
            );
        };
        let freed = site.context(range.device).and_then(|context| {
            // SAFETY: allocated by `host_alloc` and not freed since; the caller vouches that the host has done with it.
            site.run(context, |cuda| unsafe { (cuda.mem_free_host)(ptr.as_ptr().cast()) })
        });
        if freed.is_err() {
            self.host_allocated.enter(start, range);
        }
        freed
    }

    unsafe fn host_register(&self, ptr: NonNull<u8>, bytes: u64) -> Result<()> {
        let site = self.call(Call::HostRegister).asking_for(bytes);
        let size = site.size(bytes)?;
        let raw = ptr.as_ptr().cast::<c_void>();
        let device = self.device_in_use();
        // SAFETY: the caller vouches for the range; the driver refuses one that overlaps a pinned one.
        site.run(site.context(device)?, |cuda| unsafe {
            (cuda.mem_host_register)(raw, size, HOST_PORTABLE)
        })?;
        self.host_registered.enter(raw as u64, Range { bytes, device });
        Ok(())
    }

    unsafe fn host_unregister(&self, ptr: NonNull<u8>) -> Result<()> {
        let site = self.call(Call::HostUnregister);
        let raw = ptr.as_ptr().cast::<c_void>();
        let Some(range) = self.host_registered.take(raw as u64, |_| true) else {
            return Err(site.invalid(format!("nothing was registered at {:#x}", raw as u64)));
        };
        let unregistered = site.context(range.device).and_then(|context| {
            // SAFETY: registered above and not unregistered since; the caller vouches that no copy uses it.
            site.run(context, |cuda| unsafe { (cuda.mem_host_unregister)(raw) })
        });
        if unregistered.is_err() {
            self.host_registered.enter(raw as u64, range);
        }
        unregistered
    }
}

impl CudaDriver {
    /// A device whose context is there anyway: one we use, else one the process uses, else the first. A context costs
    /// hundreds of megabytes of the device's memory, and a program that keeps to device 3 should not pay for one on
    /// device 0.
    fn device_in_use(&self) -> DeviceId {
        let ours = self.devices.iter().find(|device| device.context.get().is_some());
        let found = ours.or_else(|| self.devices.iter().find(|device| self.has_active_context(device.cu)));
        found.map_or(DeviceId(0), |device| device.id)
    }

    fn has_active_context(&self, device: i32) -> bool {
        let Some(primary_ctx_get_state) = self.table.primary_ctx_get_state else { return false };
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both live through the call.
        unsafe { primary_ctx_get_state(device, &mut flags, &mut active) }.is_success() && active != 0
    }
}
