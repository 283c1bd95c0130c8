//! Plain device memory.

use headwater_driver::{Call, DeviceId, DevicePtr, PlainMemory, Result};

use crate::CudaDriver;
use crate::ledger::Range;

impl PlainMemory for CudaDriver {
    fn mem_alloc(&self, device: DeviceId, bytes: u64) -> Result<DevicePtr> {
        let site = self.call(Call::MemAlloc).asking_for(bytes);
        site.device(device)?;
        let size = site.size(bytes)?;
        let context = site.context(device)?;
        let mut ptr = 0;
        // SAFETY: `ptr` lives through the call.
        site.run(context, |cuda| unsafe { (cuda.mem_alloc)(&mut ptr, size) })?;
        self.plain_memory.enter(ptr, Range { bytes, device });
        Ok(DevicePtr::new(ptr))
    }

    fn mem_free(&self, device: DeviceId, ptr: DevicePtr) -> Result<()> {
        let site = self.call(Call::MemFree);
        let context = site.context(device)?;
        let Some(range) = self.plain_memory.take(ptr.raw(), |range| range.device == device) else {
            return Err(
                site.invalid(format!("no memory of {device} was allocated at {ptr}, or it was freed before"))
            );
        };
        // SAFETY: allocated above and not freed since. The driver waits for the work that runs on the device.
        let freed = site.run(context, |cuda| unsafe { (cuda.mem_free)(ptr.raw()) });
        if freed.is_err() {
            self.plain_memory.enter(ptr.raw(), range);
        }
        freed
    }
}
