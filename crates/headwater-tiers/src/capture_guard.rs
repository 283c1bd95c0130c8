//! Driver calls that a stream capture would forbid, made legal.
//!
//! Pinning memory and asking an event are illegal in every thread while somebody captures a stream in global mode, and the
//! capture is lost; in relaxed thread mode they are legal (measured on an H200). The tiers know that these calls have no
//! place in anybody's graph, so they make them in relaxed mode.

use headwater_driver::{CaptureMode, Driver, ErrorClass, Result};

/// Runs `call` with the thread in relaxed capture mode, and restores the thread's mode.
///
/// # Errors
/// Those of `call`, and those of entering relaxed mode; then `call` has not been made.
pub(crate) fn relaxed<T>(driver: &dyn Driver, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let former = match driver.capture_mode_exchange(CaptureMode::Relaxed) {
        Ok(former) => former,
        // A driver without capture has nothing that could forbid the call.
        Err(error) if matches!(error.class(), ErrorClass::Unavailable | ErrorClass::NotSupported) => {
            return call();
        }
        Err(error) => return Err(error),
    };
    let answer = call();
    if former != CaptureMode::Relaxed && driver.capture_mode_exchange(former).is_err() {
        // One more try is all that can be done; a thread left in relaxed mode is refused less, and the answer must not
        // be lost for it.
        let _ = driver.capture_mode_exchange(former);
    }
    answer
}
