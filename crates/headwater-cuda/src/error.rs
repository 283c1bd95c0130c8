//! The driver's codes as classes a caller can act on.

use std::borrow::Cow;

use headwater_driver::{Call, DriverError, ErrorClass, MemoryInfo};

use crate::abi::CuResult;
use crate::table::Table;

/// What a caller can do about `code`. Codes this crate has never heard of are [`ErrorClass::Other`].
///
/// "Device lost" are the codes after which every further call in the process answers the same (CUDA calls them sticky):
/// a fault of a kernel takes the whole context with it.
pub(crate) fn class_of(code: CuResult) -> ErrorClass {
    match code.0 {
        // OUT_OF_MEMORY; whoever knows the request and the device fills the numbers in.
        2 => ErrorClass::OutOfMemory { requested_bytes: 0, memory: None },
        600 => ErrorClass::NotReady,
        901 => ErrorClass::CaptureInvalidated,
        // STREAM_CAPTURE_UNSUPPORTED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD; and
        // ILLEGAL_STATE, which ending a capture that was never begun answers.
        900 | 902..=908 | 401 => ErrorClass::IllegalInCapture,
        // INVALID_CONTEXT, INVALID_HANDLE, CONTEXT_IS_DESTROYED.
        201 | 400 | 709 => ErrorClass::InvalidHandle,
        // INVALID_VALUE, INVALID_DEVICE; INVALID_IMAGE, INVALID_PTX, NOT_FOUND (a kernel's name); LAUNCH_OUT_OF_RESOURCES,
        // COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_CLUSTER_SIZE (a launch's shape); HOST_MEMORY_ALREADY_REGISTERED,
        // HOST_MEMORY_NOT_REGISTERED.
        1 | 101 | 200 | 218 | 500 | 701 | 712 | 713 | 720 | 912 => ErrorClass::InvalidValue,
        // NO_BINARY_FOR_GPU, PEER_ACCESS_UNSUPPORTED, UNSUPPORTED_PTX_VERSION, JIT_COMPILATION_DISABLED,
        // UNSUPPORTED_EXEC_AFFINITY, TOO_MANY_PEERS, NOT_SUPPORTED.
        209 | 217 | 222..=224 | 711 | 801 => ErrorClass::NotSupported,
        // ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED; ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT; HARDWARE_STACK_ERROR,
        // ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC, LAUNCH_FAILED, TENSOR_MEMORY_LEAK;
        // MPS_CLIENT_TERMINATED, EXTERNAL_DEVICE, UNKNOWN.
        214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 | 911 | 999 => ErrorClass::DeviceLost,
        // NOT_INITIALIZED, DEINITIALIZED, STUB_LIBRARY, CALL_REQUIRES_NEWER_DRIVER, DEVICE_UNAVAILABLE, NO_DEVICE,
        // DEVICE_NOT_LICENSED, JIT_COMPILER_NOT_FOUND, SYSTEM_NOT_READY, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED, and
        // MPS without its server.
        3 | 4 | 34 | 36 | 46 | 100 | 102 | 221 | 802..=807 => ErrorClass::Unavailable,
        _ => ErrorClass::Other,
    }
}

/// `call` failed with `code`; `request` are the numbers of an out of memory.
pub(crate) fn driver_error(
    table: &Table,
    call: Call,
    code: CuResult,
    request: (u64, Option<MemoryInfo>),
) -> DriverError {
    DriverError::new(call, with_numbers(class_of(code), request), code.0, name_of(table, code))
}

/// The driver's name for `code`, or its number where the driver has none.
pub(crate) fn name_of(table: &Table, code: CuResult) -> Cow<'static, str> {
    table.error_name(code).map_or_else(|| format!("CUDA error {}", code.0).into(), Cow::Borrowed)
}

/// `call` was refused here, with the code that the driver has for it.
pub(crate) fn refusal(call: Call, code: CuResult, detail: impl Into<String>) -> DriverError {
    let name = code.own_name().unwrap_or("CUDA_ERROR_UNKNOWN");
    DriverError::new(call, class_of(code), code.0, name).with_detail(detail)
}

fn with_numbers(class: ErrorClass, (requested_bytes, memory): (u64, Option<MemoryInfo>)) -> ErrorClass {
    match class {
        ErrorClass::OutOfMemory { .. } => ErrorClass::OutOfMemory { requested_bytes, memory },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_of_codes_has_its_class() {
        let families: &[(&[u32], ErrorClass)] = &[
            (&[2], ErrorClass::OutOfMemory { requested_bytes: 0, memory: None }),
            (&[600], ErrorClass::NotReady),
            (&[901], ErrorClass::CaptureInvalidated),
            (&[900, 902, 903, 904, 905, 906, 907, 908], ErrorClass::IllegalInCapture),
            (&[201, 400, 709], ErrorClass::InvalidHandle),
            (&[1, 101, 218, 701, 712, 713], ErrorClass::InvalidValue),
            (&[209, 217, 801], ErrorClass::NotSupported),
            (&[214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999], ErrorClass::DeviceLost),
            (&[3, 4, 34, 100, 803], ErrorClass::Unavailable),
            (&[909, 12345], ErrorClass::Other),
        ];
        for (codes, class) in families {
            for code in *codes {
                assert_eq!(class_of(CuResult(*code)), *class, "code {code}");
            }
        }
    }

    #[test]
    fn a_refusal_carries_the_drivers_own_code_and_name() {
        let error = refusal(Call::EventRecord, CuResult::INVALID_HANDLE, "no such event");
        assert_eq!(
            error.to_string(),
            "cuEventRecord: invalid handle: no such event (CUDA_ERROR_INVALID_HANDLE, 400)"
        );
    }
}
