//! Names of result codes. Codes that are not listed are legal results, and have no name.

use std::ffi::{CStr, c_char};

use crate::abi::CUresult;
use crate::entry::{Answer, Out, anytime};

/// Code, name and a few words.
const RESULTS: &[(u32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (34, c"CUDA_ERROR_STUB_LIBRARY", c"stub library loaded in place of the driver"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"device busy or unavailable"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"invalid device image"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (202, c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT", c"context already current"),
    (205, c"CUDA_ERROR_MAP_FAILED", c"mapping failed"),
    (206, c"CUDA_ERROR_UNMAP_FAILED", c"unmapping failed"),
    (208, c"CUDA_ERROR_ALREADY_MAPPED", c"already mapped"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no device code for this GPU"),
    (211, c"CUDA_ERROR_NOT_MAPPED", c"not mapped"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error"),
    (215, c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"limit not supported"),
    (217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access not supported between these devices"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"PTX compilation failed"),
    (222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"PTX of a newer toolchain"),
    (300, c"CUDA_ERROR_INVALID_SOURCE", c"invalid device source"),
    (301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"operating system call failed"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"resource in a state that forbids the call"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"illegal memory access"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources asked for launch"),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"launch timed out"),
    (704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access already enabled"),
    (705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access not enabled"),
    (708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", c"primary context active"),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context destroyed"),
    (710, c"CUDA_ERROR_ASSERT", c"device-side assertion"),
    (711, c"CUDA_ERROR_TOO_MANY_PEERS", c"too many peers"),
    (712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"host memory already registered"),
    (713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"host memory not registered"),
    (714, c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error"),
    (715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"illegal instruction"),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (717, c"CUDA_ERROR_INVALID_ADDRESS_SPACE", c"wrong address space"),
    (718, c"CUDA_ERROR_INVALID_PC", c"invalid program counter"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"launch failed"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not initialized"),
    (803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", c"driver and library versions differ"),
    (
        804,
        c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        c"forward compatibility not supported on this hardware",
    ),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"not permitted while a stream is capturing"),
    (901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"capture invalidated by an earlier error"),
    (902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE", c"would merge two captures"),
    (903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not begun in this stream"),
    (904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
    (905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency on uncaptured work in a captured stream"),
    (906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", c"implicit dependency on a capturing stream"),
    (907, c"CUDA_ERROR_CAPTURED_EVENT", c"event last recorded in a capturing stream"),
    (908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", c"capture was begun in another thread"),
    (909, c"CUDA_ERROR_TIMEOUT", c"wait timed out"),
    (910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", c"graph update not possible"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// Writes what is known of a code, or null and an error for a code that is not listed.
///
/// # Safety
/// `place` is null or valid for writing.
unsafe fn put(place: *mut *const c_char, found: Option<&'static CStr>) -> Answer {
    // SAFETY: the caller's promise.
    let out = unsafe { Out::required(place) }?;
    out.put(found.map_or(std::ptr::null(), CStr::as_ptr));
    found.map(|_| ()).ok_or(CUresult::INVALID_VALUE)
}

fn listed(result: CUresult) -> Option<(&'static CStr, &'static CStr)> {
    RESULTS.iter().find(|(code, _, _)| *code == result.0).map(|(_, name, words)| (*name, *words))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's place for the string.
    anytime("cuGetErrorName", || unsafe { put(name, listed(error).map(|(name, _)| name)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: CUresult, words: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's place for the string.
    anytime("cuGetErrorString", || unsafe { put(words, listed(error).map(|(_, words)| words)) })
}
