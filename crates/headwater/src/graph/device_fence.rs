//! Waiting for whatever runs on a device, where nobody knows in which stream.
//!
//! Unmapping memory does not wait for the work that uses it. Where the streams are known they are asked; where graphs were launched
//! by somebody else, or a stream is gone, only the whole device can tell. The driver's plain free waits for it (measured: it took as
//! long as the kernel that ran), and is the only call of the contract that does; a block of 256 bytes is made for it.

use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, Result};
use parking_lot::Mutex;

use crate::capture_guard;

#[derive(Debug)]
pub(super) struct DeviceFence {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    /// Blocks that the driver refused to take back. Freeing one is as good a wait as freeing a new one.
    owed: Mutex<Vec<DevicePtr>>,
}

impl DeviceFence {
    pub(super) fn new(driver: Arc<dyn Driver>, device: DeviceId) -> Self {
        Self { driver, device, owed: Mutex::default() }
    }

    /// Waits until all work that runs on the device has finished.
    ///
    /// # Errors
    /// What the driver answered; then nothing is known.
    pub(super) fn wait(&self) -> Result<()> {
        // Its own statement: the lock must be gone when the driver is called.
        let mut owed = self.owed.lock().pop();
        let driver = &*self.driver;
        let waited = capture_guard::relaxed(driver, || {
            let ptr = match owed {
                Some(ptr) => ptr,
                None => *owed.insert(driver.mem_alloc(self.device, 256)?),
            };
            driver.mem_free(self.device, ptr)
        });
        if waited.is_err() {
            self.owed.lock().extend(owed);
        }
        waited
    }
}

impl Drop for DeviceFence {
    fn drop(&mut self) {
        for _ in 0..self.owed.get_mut().len() {
            // Nobody is left to tell.
            let _ = self.wait();
        }
    }
}
