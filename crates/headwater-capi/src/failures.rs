//! Every error of the crates below, as a code. The message is the error's own.

use headwater::config::ConfigError;
use headwater::graph::GraphError;
use headwater::open::UnknownDevice;
use headwater::{AllocError, OpenError, OutOfMemoryReport};
use headwater_driver::{DeviceId, DriverError, ErrorClass};
use headwater_tiers::TierError;
use headwater_trace::TraceError;
use headwater_trace::report::ReportError;

use crate::status::{Failure, hw_status};

/// A driver's error does not say which device it was.
const UNKNOWN_DEVICE: DeviceId = DeviceId(u32::MAX);

impl From<DriverError> for Failure {
    #[cold]
    fn from(error: DriverError) -> Self {
        let status = match error.class() {
            ErrorClass::OutOfMemory { requested_bytes, memory } => {
                // Addresses, handles, pinned memory: not an allocator's own report, but its numbers are told as well.
                let mut report = OutOfMemoryReport::new(UNKNOWN_DEVICE, requested_bytes);
                report.memory = memory;
                return Self::out_of_memory(&report, error.to_string());
            }
            ErrorClass::NotReady => hw_status::NotReady,
            ErrorClass::IllegalInCapture | ErrorClass::CaptureInvalidated => hw_status::IllegalInCapture,
            // Of what the caller names, only streams and events are the driver's own.
            ErrorClass::InvalidHandle => hw_status::InvalidStream,
            ErrorClass::InvalidValue => hw_status::InvalidArgument,
            ErrorClass::NotSupported => hw_status::NotSupported,
            ErrorClass::DeviceLost => hw_status::DeviceLost,
            ErrorClass::Unavailable => hw_status::Unavailable,
            _ => hw_status::Driver,
        };
        Self::new(status, error.to_string())
    }
}

impl From<AllocError> for Failure {
    #[cold]
    fn from(error: AllocError) -> Self {
        let status = match &error {
            AllocError::OutOfMemory(report) => return Self::out_of_memory(report, error.to_string()),
            AllocError::ForeignPointer { .. }
            | AllocError::InsideBlock { .. }
            | AllocError::AlreadyGivenBack { .. }
            | AllocError::Asleep { .. } => hw_status::InvalidPointer,
            AllocError::WrongDevice { .. } => hw_status::InvalidStream,
            AllocError::StreamCapturing { .. } => hw_status::IllegalInCapture,
            AllocError::Driver(error) => return (**error).clone().into(),
            _ => hw_status::InvalidArgument,
        };
        Self::new(status, error.to_string())
    }
}

impl From<GraphError> for Failure {
    #[cold]
    fn from(error: GraphError) -> Self {
        let status = match &error {
            GraphError::Alloc(error) => return error.clone().into(),
            GraphError::CapacityExceeded { .. } => hw_status::NoRoom,
            GraphError::BadCapacity { .. } => hw_status::InvalidArgument,
            GraphError::UnknownBlock { .. } | GraphError::AlreadyReturned { .. } => hw_status::InvalidPointer,
            GraphError::AlreadyRouted { .. } | GraphError::RunningTogether { .. } => hw_status::StillInUse,
            _ => hw_status::WrongState,
        };
        Self::new(status, error.to_string())
    }
}

impl From<TierError> for Failure {
    #[cold]
    fn from(error: TierError) -> Self {
        let status = match &error {
            TierError::Alloc(error) => return error.clone().into(),
            TierError::Driver(error) => return (**error).clone().into(),
            TierError::OutOfMemory { source: AllocError::OutOfMemory(report), .. } => {
                return Self::out_of_memory(report, error.to_string());
            }
            TierError::OutOfMemory { .. } => hw_status::OutOfMemory,
            TierError::NeverFits(_)
            | TierError::NoRoom(_)
            | TierError::OverReservation { .. }
            | TierError::OverCapacity(_)
            | TierError::NotUnused { .. }
            | TierError::QueueFull { .. } => hw_status::NoRoom,
            TierError::TimedOut { .. } => hw_status::TimedOut,
            TierError::Cancelled | TierError::ShutDown => hw_status::Cancelled,
            TierError::InUse { .. } => hw_status::StillInUse,
            TierError::UnknownSpace(_) | TierError::NoCandidate { .. } | TierError::NotThisTier { .. } => {
                hw_status::NotSupported
            }
            TierError::OutOfRange { .. } => hw_status::InvalidArgument,
            TierError::BadSetting { .. } => hw_status::BadConfig,
            TierError::System { .. } | TierError::Disk(_) => hw_status::Io,
            _ => hw_status::WrongState,
        };
        Self::new(status, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::new(hw_status::Unavailable, error.to_string())
    }
}

impl From<UnknownDevice> for Failure {
    fn from(error: UnknownDevice) -> Self {
        Self::argument(error.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(hw_status::BadConfig, error.to_string())
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        Self::new(hw_status::Io, error.to_string())
    }
}

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Self {
        Self::new(hw_status::Io, error.to_string())
    }
}
