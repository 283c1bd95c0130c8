//! What the machine refuses, with CUDA's own numbers and names.

use headwater_driver::{Call, DriverError, ErrorClass, MemoryInfo};

macro_rules! refusals {
    ($($variant:ident $code:literal $name:literal $class:expr,)*) => {
        /// A `CUresult` other than success.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Refusal {
            $($variant,)*
        }

        impl Refusal {
            /// The error of `call`.
            pub(crate) fn of(self, call: Call) -> DriverError {
                match self {
                    $(Self::$variant => DriverError::new(call, $class, $code, $name),)*
                }
            }
        }
    };
}

refusals! {
    InvalidValue 1 "CUDA_ERROR_INVALID_VALUE" ErrorClass::InvalidValue,
    StubLibrary 34 "CUDA_ERROR_STUB_LIBRARY" ErrorClass::Unavailable,
    InvalidDevice 101 "CUDA_ERROR_INVALID_DEVICE" ErrorClass::InvalidValue,
    InvalidImage 200 "CUDA_ERROR_INVALID_IMAGE" ErrorClass::InvalidValue,
    PeerAccessUnsupported 217 "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" ErrorClass::NotSupported,
    OperatingSystem 304 "CUDA_ERROR_OPERATING_SYSTEM" ErrorClass::Other,
    InvalidHandle 400 "CUDA_ERROR_INVALID_HANDLE" ErrorClass::InvalidHandle,
    IllegalState 401 "CUDA_ERROR_ILLEGAL_STATE" ErrorClass::IllegalInCapture,
    NotFound 500 "CUDA_ERROR_NOT_FOUND" ErrorClass::InvalidValue,
    NotReady 600 "CUDA_ERROR_NOT_READY" ErrorClass::NotReady,
    IllegalAddress 700 "CUDA_ERROR_ILLEGAL_ADDRESS" ErrorClass::DeviceLost,
    HostMemoryAlreadyRegistered 712 "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" ErrorClass::InvalidValue,
    HostMemoryNotRegistered 713 "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" ErrorClass::InvalidValue,
    NotSupported 801 "CUDA_ERROR_NOT_SUPPORTED" ErrorClass::NotSupported,
    CaptureUnsupported 900 "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" ErrorClass::IllegalInCapture,
    CaptureInvalidated 901 "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" ErrorClass::CaptureInvalidated,
    CaptureMerge 902 "CUDA_ERROR_STREAM_CAPTURE_MERGE" ErrorClass::IllegalInCapture,
    CaptureUnmatched 903 "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" ErrorClass::IllegalInCapture,
    CaptureUnjoined 904 "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" ErrorClass::IllegalInCapture,
    CaptureIsolation 905 "CUDA_ERROR_STREAM_CAPTURE_ISOLATION" ErrorClass::IllegalInCapture,
    CaptureImplicit 906 "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" ErrorClass::IllegalInCapture,
    CapturedEvent 907 "CUDA_ERROR_CAPTURED_EVENT" ErrorClass::IllegalInCapture,
    CaptureWrongThread 908 "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" ErrorClass::IllegalInCapture,
    Unknown 999 "CUDA_ERROR_UNKNOWN" ErrorClass::Other,
    // What CUDA answers to a descriptor that stands for no memory (docs/cuda-facts.md).
    ForeignDescriptor 999 "CUDA_ERROR_UNKNOWN" ErrorClass::InvalidValue,
}

/// `call` asked for more than there is.
pub(crate) fn out_of_memory(call: Call, requested_bytes: u64, memory: Option<MemoryInfo>) -> DriverError {
    let class = ErrorClass::OutOfMemory { requested_bytes, memory };
    DriverError::new(call, class, 2, "CUDA_ERROR_OUT_OF_MEMORY")
}

/// The error of an injected fault: as CUDA would have said it, and recognisable by its detail.
pub(crate) fn injected(call: Call, class: ErrorClass, requested_bytes: u64) -> DriverError {
    let error = match class {
        ErrorClass::OutOfMemory { requested_bytes: planned, memory } => {
            out_of_memory(call, if planned == 0 { requested_bytes } else { planned }, memory)
        }
        ErrorClass::NotReady => Refusal::NotReady.of(call),
        ErrorClass::IllegalInCapture => Refusal::CaptureUnsupported.of(call),
        ErrorClass::CaptureInvalidated => Refusal::CaptureInvalidated.of(call),
        ErrorClass::InvalidHandle => Refusal::InvalidHandle.of(call),
        ErrorClass::InvalidValue => Refusal::InvalidValue.of(call),
        ErrorClass::NotSupported => Refusal::NotSupported.of(call),
        ErrorClass::DeviceLost => Refusal::IllegalAddress.of(call),
        ErrorClass::Unavailable => Refusal::StubLibrary.of(call),
        _ => Refusal::Unknown.of(call),
    };
    error.with_detail("an injected fault")
}
