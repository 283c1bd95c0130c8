//! What can go wrong in a driver call, as classes a caller can act on.

use std::borrow::Cow;
use std::fmt;

use crate::{Call, MemoryInfo};

/// The result of a driver call.
pub type Result<T> = std::result::Result<T, DriverError>;

/// A driver call that failed: which one, what a caller can do about it, and the driver's own words.
///
/// ```
/// use headwater_driver::{Call, DriverError, ErrorClass};
/// let error = DriverError::new(Call::MemAlloc, ErrorClass::InvalidValue, 1, "CUDA_ERROR_INVALID_VALUE")
///     .with_detail("a size of 0 bytes");
/// assert_eq!(error.to_string(), "cuMemAlloc: invalid value: a size of 0 bytes (CUDA_ERROR_INVALID_VALUE, 1)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    call: Call,
    class: ErrorClass,
    code: u32,
    name: Cow<'static, str>,
    detail: Option<Box<str>>,
}

/// What a caller can do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Not enough memory now. Freeing some and asking again may help.
    OutOfMemory {
        /// What the call asked for.
        requested_bytes: u64,
        /// What the device had at that moment, where it could still be asked.
        memory: Option<MemoryInfo>,
    },
    /// Work that must have finished has not. Asking later helps.
    NotReady,
    /// The call is not allowed while a stream is being captured, and the capture is now invalid.
    IllegalInCapture,
    /// The capture had already been made invalid by an earlier illegal call.
    CaptureInvalidated,
    /// A stream, event, handle, graph, module or kernel that does not exist (any more).
    InvalidHandle,
    /// An argument out of its range: a size, an address, an alignment, a device.
    InvalidValue,
    /// The device or driver cannot do this at all.
    NotSupported,
    /// The device or its context is lost to this process (a sticky error); nothing helps but a new process.
    DeviceLost,
    /// No such driver, device or call on this machine.
    Unavailable,
    /// Anything else; the code and name say what.
    Other,
}

impl ErrorClass {
    /// The class in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::OutOfMemory { .. } => "out of memory",
            Self::NotReady => "not ready",
            Self::IllegalInCapture => "illegal during stream capture",
            Self::CaptureInvalidated => "the capture is invalid",
            Self::InvalidHandle => "invalid handle",
            Self::InvalidValue => "invalid value",
            Self::NotSupported => "not supported",
            Self::DeviceLost => "device lost",
            Self::Unavailable => "unavailable",
            Self::Other => "failed",
        }
    }
}

impl DriverError {
    /// `call` failed with the driver's `code` and `name`.
    pub fn new(call: Call, class: ErrorClass, code: u32, name: impl Into<Cow<'static, str>>) -> Self {
        Self { call, class, code, name: name.into(), detail: None }
    }

    /// The same error, with the facts of this very call.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into().into_boxed_str());
        self
    }

    /// The call that failed.
    pub fn call(&self) -> Call {
        self.call
    }

    /// What a caller can do about it.
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// The driver's number for the error (`CUresult`).
    pub fn code(&self) -> u32 {
        self.code
    }

    /// The driver's name for the error (`CUDA_ERROR_...`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The facts of this very call, where the backend knows some.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Whether freeing memory may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.class, ErrorClass::OutOfMemory { .. })
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call.name(), self.class.describe())?;
        if let ErrorClass::OutOfMemory { requested_bytes, memory } = self.class {
            write!(f, ": {requested_bytes} bytes asked for")?;
            if let Some(memory) = memory {
                write!(f, ", {} of {} bytes free", memory.free_bytes, memory.total_bytes)?;
            }
        }
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        write!(f, " ({}, {})", self.name, self.code)
    }
}

impl std::error::Error for DriverError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_names_what_was_asked_and_what_there_was() {
        let class = ErrorClass::OutOfMemory {
            requested_bytes: 4096,
            memory: Some(MemoryInfo { free_bytes: 1024, total_bytes: 2048 }),
        };
        let error = DriverError::new(Call::HandleCreate, class, 2, "CUDA_ERROR_OUT_OF_MEMORY");
        assert!(error.is_out_of_memory());
        assert_eq!(
            error.to_string(),
            "cuMemCreate: out of memory: 4096 bytes asked for, 1024 of 2048 bytes free (CUDA_ERROR_OUT_OF_MEMORY, 2)"
        );
    }

    #[test]
    fn errors_stay_small_enough_to_return_by_value() {
        assert!(size_of::<DriverError>() <= 96);
    }
}
