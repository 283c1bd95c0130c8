//! Opening on machines where something is missing: always an error that says what, never a panic.

use headwater_cuda::{CudaDriver, Unavailable};

#[test]
fn a_library_that_is_not_there_is_named() {
    // SAFETY: there is no such library.
    let error = unsafe { CudaDriver::open_library("/nonexistent/libcuda.so.1") }.unwrap_err();
    assert!(
        matches!(&error, Unavailable::LibraryMissing { tried, .. } if tried == &["/nonexistent/libcuda.so.1"])
    );
    assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_that_is_no_cuda_driver_is_named_by_the_call_it_lacks() {
    // SAFETY: the C mathematics library, which exports nothing of the driver's.
    let error = unsafe { CudaDriver::open_library("libm.so.6") }.unwrap_err();
    assert!(matches!(&error, Unavailable::SymbolMissing { name: "cuInit", .. }), "{error}");
}

#[test]
fn a_file_that_is_no_library_is_an_error() {
    // SAFETY: the loader refuses a text file.
    let error =
        unsafe { CudaDriver::open_library(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")) }.unwrap_err();
    let Unavailable::LibraryMissing { reason, .. } = &error else { panic!("{error}") };
    assert!(!reason.is_empty());
}

#[test]
fn opening_the_machines_driver_answers_in_any_case() {
    match CudaDriver::open() {
        Ok(driver) => {
            use headwater_driver::Devices;
            assert!(driver.device_count() > 0);
            assert_eq!(driver.backend(), "cuda");
        }
        Err(why) => assert!(!why.to_string().contains('\n'), "{why}"),
    }
}
