//! `cuGetProcAddress`: symbols by their base name. What this library exports is the table, so the dynamic linker is asked.

use std::ffi::{CString, c_char, c_int, c_ulonglong, c_void};

use crate::abi::CUresult;
use crate::entry::{Answer, Out, anytime, text};
use crate::settings;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`; zero is the default, which is the same.
const LEGACY_STREAM: c_ulonglong = 1;
/// `CU_GET_PROC_ADDRESS_SUCCESS` and `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;

/// A handle of this very library for the dynamic linker, under whatever name it was loaded.
fn this_library() -> Answer<*mut c_void> {
    let inside: unsafe extern "C" fn(_, _, _, _, _) -> _ = cuGetProcAddress_v2;
    // SAFETY: plain data that `dladdr` fills.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address inside this library, and a place for the answer.
    if unsafe { libc::dladdr(inside as *const c_void, &mut info) } == 0 {
        return Err(CUresult::UNKNOWN);
    }
    // SAFETY: the name is a C string of the linker's; the library is loaded already, so nothing runs.
    let handle = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() { Err(CUresult::UNKNOWN) } else { Ok(handle) }
}

/// The newest exported version of `symbol` that a program made for `version` can call.
fn look_up(symbol: &str, version: c_int) -> Answer<*mut c_void> {
    let library = this_library()?;
    let mut found = std::ptr::null_mut();
    for suffix in ["_v3", "_v2", ""] {
        // The third version of this one has another argument, and came with 12.3.
        if symbol == "cuStreamGetCaptureInfo" && suffix == "_v3" && version < 12_030 {
            continue;
        }
        let name = CString::new(format!("{symbol}{suffix}")).map_err(|_| CUresult::INVALID_VALUE)?;
        // SAFETY: a live handle and a C string.
        found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if !found.is_null() {
            break;
        }
    }
    // SAFETY: the handle taken above, given back once. The library stays: this is its code.
    unsafe { libc::dlclose(library) };
    Ok(found)
}

/// Works before `cuInit`. A symbol that is not there is no error: the address is null and the status says why.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> CUresult {
    anytime("cuGetProcAddress_v2", || {
        // SAFETY: the caller's C string, which outlives the call.
        let symbol = unsafe { text(symbol) }?;
        // SAFETY: the caller's place for the address.
        let out = unsafe { Out::required(function) }?;
        // There are no variants here whose default stream is the thread's own.
        if flags & !LEGACY_STREAM != 0 || version > settings::driver_version() {
            return Err(CUresult::INVALID_VALUE);
        }
        // Only the driver's names; the dynamic linker would find those of the C library too.
        let found = if symbol.starts_with("cu") { look_up(symbol, version)? } else { std::ptr::null_mut() };
        // SAFETY: the caller's place for the status, which may be left out.
        if let Some(status) = unsafe { Out::optional(status) } {
            status.put(if found.is_null() { NOT_FOUND } else { FOUND });
        }
        out.put(found);
        Ok(())
    })
}
