//! Finds the fake driver that cargo built, and opens a copy of it that nobody else has.

// Each test file uses its own part of this; what fails here fails the test.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headwater_cuda::CudaDriver;
use libloading::Library;

/// Where cargo put the library: beside the test executable, or one folder up.
pub(crate) fn built_library() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let folders = executable.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libfake_cuda.so")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no libfake_cuda.so near {}: cargo builds it", executable.display()))
}

/// The fake driver, loaded from a copy of its file. The dynamic linker takes a copy for another library, so each copy
/// has a machine of its own, and tests can run beside each other in one process.
pub(crate) struct Fake {
    library: Library,
    path: PathBuf,
}

impl Fake {
    /// A machine that nobody has touched.
    pub(crate) fn fresh() -> Self {
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("libfake_cuda-{}-{copy}.so", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::copy(built_library(), &path).unwrap();
        // SAFETY: a Rust library without initialisers of its own.
        let library = unsafe { Library::new(&path) }.unwrap();
        Self { library, path }
    }

    /// A machine on which `cuInit` has succeeded.
    pub(crate) fn initialised() -> Self {
        let fake = Self::fresh();
        assert_eq!(cuda!(fake, cuInit(0 => u32)), 0);
        fake
    }

    /// One whose first device's primary context is retained and current in this thread.
    pub(crate) fn in_context() -> Self {
        let fake = Self::initialised();
        let context = fake.retain(0);
        assert_eq!(cuda!(fake, cuCtxSetCurrent(context => usize)), 0);
        fake
    }

    /// The primary context of `device`, retained once more.
    pub(crate) fn retain(&self, device: i32) -> usize {
        let mut context = 0;
        assert_eq!(cuda!(self, cuDevicePrimaryCtxRetain(&mut context => *mut usize, device => i32)), 0);
        assert_ne!(context, 0);
        context
    }

    /// The file, for whoever opens it and expects to fail.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The CUDA backend on this machine.
    pub(crate) fn open_backend(&self) -> Arc<CudaDriver> {
        // SAFETY: the fake driver exports the driver's calls under their names.
        unsafe { CudaDriver::open_library(&self.path) }.unwrap()
    }

    /// The address of an exported function.
    pub(crate) fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller names the function's own type.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Reads one of the numbers in `control.rs`.
    fn number(&self, name: &str) -> u64 {
        self.symbol::<extern "C" fn() -> u64>(name)()
    }

    pub(crate) fn undefined_uses(&self) -> u64 {
        self.number("fake_cuda_undefined_uses")
    }

    pub(crate) fn context_depth(&self) -> u64 {
        self.number("fake_cuda_context_depth")
    }

    pub(crate) fn hazard_count(&self) -> u64 {
        self.number("fake_cuda_hazard_count")
    }

    pub(crate) fn leak_count(&self) -> u64 {
        self.number("fake_cuda_leak_count")
    }

    /// Makes the `n`-th call of `call` from now fail with `code`.
    pub(crate) fn fail_nth(&self, call: &str, n: u64, code: u32) {
        let call = CString::new(call).unwrap();
        let fail: unsafe extern "C" fn(*const c_char, u64, u32) = self.symbol("fake_cuda_fail_nth");
        // SAFETY: a C string that outlives the call.
        unsafe { fail(call.as_ptr(), n, code) }
    }

    pub(crate) fn reset(&self) {
        self.symbol::<extern "C" fn()>("fake_cuda_reset")();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // What is loaded stays; only the name goes.
        std::fs::remove_file(&self.path).unwrap();
    }
}

/// Calls an exported function with C types: `cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 256 => usize))`.
macro_rules! cuda {
    ($fake:expr, $name:ident($($arg:expr => $type:ty),* $(,)?)) => {{
        let function: unsafe extern "C" fn($($type),*) -> u32 = $fake.symbol(stringify!($name));
        // SAFETY: the types are those of the driver's header, and the arguments live through the call.
        unsafe { function($($arg),*) }
    }};
}
pub(crate) use cuda;
