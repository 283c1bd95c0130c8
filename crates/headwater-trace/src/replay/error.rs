//! Why a replay could not be made. Running out of memory is no error but a result.

use headwater::AllocError;
use headwater_driver::DriverError;

use super::Policy;
use crate::check::Fault;

/// A replay that could not be made. Causes are part of the message, so they are not told again as a source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot have happened.
    #[error("the trace cannot be replayed: {0}")]
    Impossible(#[from] Fault),
    /// The trace is about several devices; a replay is about one. [`Trace::on_device`](crate::Trace::on_device) gives
    /// each its own.
    #[error("the trace has {devices} devices: replay each of them by itself")]
    SeveralDevices {
        /// How many.
        devices: usize,
    },
    /// The allocator refused for another reason than memory.
    #[error("policy `{policy}`, event {event}: {error}")]
    Allocator {
        /// The policy.
        policy: Policy,
        /// The event it was about.
        event: u64,
        /// The refusal.
        error: AllocError,
    },
    /// The device refused what the replay itself needs: a stream, a piece of work.
    #[error("event {event}: {error}")]
    Device {
        /// The event it was about.
        event: u64,
        /// The refusal.
        error: DriverError,
    },
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] headwater::OpenError),
    /// With no limit at all the program does not fit the device, so there is no limit to find.
    #[error("policy `{policy}` runs out of memory at event {event} with no limit but the device's")]
    NeverFits {
        /// The policy.
        policy: Policy,
        /// Where.
        event: u64,
    },
}
