//! Stream capture and graphs.

pub(super) mod graphs;
pub(super) mod illegal;
pub(super) mod legal;
pub(super) mod order;
pub(super) mod status;
pub(super) mod threads;

use super::list;
use headwater_driver::CaptureMode;

/// The modes in which a capturing thread's potentially unsafe calls are refused.
const STRICT: [CaptureMode; 2] = [CaptureMode::Global, CaptureMode::ThreadLocal];
/// All modes.
pub(super) const EVERY: [CaptureMode; 3] =
    [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
