//! Driver calls that a stream capture would forbid, made legal.
//!
//! `cuMemAlloc`, `cuMemFree`, event queries and host waits are illegal while a capture is under way in global mode,
//! even in a thread that has nothing to do with it, and the capture is lost. In relaxed thread mode they are legal
//! (measured on an H200). Allocators and tiers know that their calls have no place in anybody's graph, so they make them in
//! relaxed mode.

use crate::{CaptureMode, Driver, DriverError, ErrorClass, Result};

/// Runs `call` with the thread in relaxed capture mode, and restores the thread's mode whatever happens.
///
/// # Errors
/// Those of `call`, and those of entering relaxed mode; then `call` has not been made.
pub fn relaxed<T>(driver: &dyn Driver, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let _mode = match driver.capture_mode_exchange(CaptureMode::Relaxed) {
        Ok(former) => Some(Restore { driver, former }),
        // A driver without capture has nothing that could forbid the call.
        Err(error) if cannot_capture(&error) => None,
        Err(error) => return Err(error),
    };
    call()
}

fn cannot_capture(error: &DriverError) -> bool {
    matches!(error.class(), ErrorClass::Unavailable | ErrorClass::NotSupported)
}

struct Restore<'a> {
    driver: &'a dyn Driver,
    former: CaptureMode,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        if self.former == CaptureMode::Relaxed {
            return;
        }
        // The exchange is a store to a thread's variable and does not fail for a mode that was in force a moment ago;
        // should it, one more try is all that can be done. A thread left in relaxed mode is refused less, so nothing
        // that this crate does breaks, and the result of the call must not be lost for it.
        if self.driver.capture_mode_exchange(self.former).is_err() {
            let _ = self.driver.capture_mode_exchange(self.former);
        }
    }
}
