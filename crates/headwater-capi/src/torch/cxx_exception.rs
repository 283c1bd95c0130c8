//! A C++ exception, thrown without C++.
//!
//! PyTorch's plain hook cannot say that memory ran out: the address it returns goes unchecked into a tensor, and a null one
//! makes the first kernel fail somewhere else. An exception that leaves the hook is caught by PyTorch and becomes a Python
//! `RuntimeError` with its message. So one is thrown: a `std::runtime_error`, made and thrown through the entry points of the
//! C++ runtime that PyTorch has loaded. Their names and signatures are part of the Itanium C++ ABI and of libstdc++'s stable one.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// What is needed of `libstdc++.so.6`.
struct Runtime {
    allocate: unsafe extern "C-unwind" fn(usize) -> *mut c_void,
    /// `std::runtime_error::runtime_error(const char*)`; copies the text.
    construct: unsafe extern "C-unwind" fn(*mut c_void, *const c_char),
    /// `std::runtime_error::~runtime_error()`, as an address for the thrower.
    destruct: unsafe extern "C-unwind" fn(*mut c_void),
    /// `typeid(std::runtime_error)`.
    type_info: *const c_void,
    throw: unsafe extern "C-unwind" fn(
        *mut c_void,
        *const c_void,
        unsafe extern "C-unwind" fn(*mut c_void),
    ) -> !,
}

// SAFETY: addresses of code and of constant data of a library that is never unloaded.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

/// The size of a `std::runtime_error`: a table pointer and a reference-counted string.
const RUNTIME_ERROR_BYTES: usize = 16;

static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();

impl Runtime {
    fn load() -> Option<Self> {
        // SAFETY: the system's C++ runtime. Where PyTorch has loaded it, this only counts one more use.
        let library = unsafe { Library::open(Some("libstdc++.so.6"), RTLD_LAZY | RTLD_LOCAL) }.ok()?;
        // SAFETY: the names are those of the C++ ABI, and have these types there. The symbols are copied out and the
        // library is kept for ever below, so none outlives it.
        let runtime = unsafe {
            Self {
                allocate: *library.get(b"__cxa_allocate_exception\0").ok()?,
                construct: *library.get(b"_ZNSt13runtime_errorC1EPKc\0").ok()?,
                destruct: *library.get(b"_ZNSt13runtime_errorD1Ev\0").ok()?,
                type_info: *library.get(b"_ZTISt13runtime_error\0").ok()?,
                throw: *library.get(b"__cxa_throw\0").ok()?,
            }
        };
        std::mem::forget(library);
        Some(runtime)
    }
}

/// Throws `std::runtime_error(message)`. Returns only where there is no C++ runtime.
///
/// The message is dropped before the throw: nothing of this frame is left to clean up.
pub(super) fn throw_runtime_error(message: String) {
    let Some(runtime) = RUNTIME.get_or_init(Runtime::load) else { return };
    let exception = prepare(runtime, message);
    // SAFETY: `exception` holds a constructed `std::runtime_error`, which the runtime destroys with `destruct`.
    unsafe { (runtime.throw)(exception, runtime.type_info, runtime.destruct) };
}

fn prepare(runtime: &Runtime, message: String) -> *mut c_void {
    // A message with a zero inside would end there anyway.
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let text: &CStr = &message;
    // SAFETY: memory for one exception object of this size, then constructed in place from a text that lives meanwhile.
    unsafe {
        let exception = (runtime.allocate)(RUNTIME_ERROR_BYTES);
        (runtime.construct)(exception, text.as_ptr());
        exception
    }
}
