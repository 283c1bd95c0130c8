//! What the tests share: a simulated device, allocators on it, and words for what is expected.
// Each test file uses its own part of this; what fails here fails the test.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use headwater_capi::allocator::*;
use headwater_capi::arguments::hw_string_free;
use headwater_capi::device::*;
use headwater_capi::memory::*;
use headwater_capi::status::*;

/// The message of the latest failure in this thread.
pub fn message() -> String {
    // SAFETY: good until the next failure of this thread.
    unsafe { CStr::from_ptr(hw_last_error_message()) }.to_str().unwrap().to_owned()
}

/// Fails the test with the library's message.
#[track_caller]
pub fn ok(status: hw_status) {
    assert_eq!(status, hw_status::Ok, "{}", message());
}

/// Expects a failure with this status and these words in its message.
#[track_caller]
pub fn refused(status: hw_status, expected: hw_status, words: &str) {
    assert_eq!(status, expected, "{}", message());
    assert_eq!(hw_last_status(), expected);
    assert!(message().contains(words), "{words:?} is not in {:?}", message());
}

/// A text for C.
pub fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// A text of the library's, given back.
pub fn taken(text: *mut c_char) -> String {
    assert!(!text.is_null());
    // SAFETY: a text that the library gave out, given back once.
    unsafe {
        let copy = CStr::from_ptr(text).to_str().unwrap().to_owned();
        hw_string_free(text);
        copy
    }
}

pub fn sim() -> *mut hw_device {
    let mut device = null_mut();
    // SAFETY: a text and a place.
    ok(unsafe { hw_device_open(c"sim".as_ptr(), &raw mut device) });
    device
}

pub fn options(policy: hw_policy) -> hw_allocator_options {
    hw_allocator_options { policy: policy as u32, ..Default::default() }
}

pub fn create(device: *const hw_device, options: &hw_allocator_options) -> *mut hw_allocator {
    let mut allocator = null_mut();
    // SAFETY: a struct and a place.
    ok(unsafe { hw_allocator_create(device, options, &raw mut allocator) });
    allocator
}

/// Settings live as long as the struct that points to them.
pub fn with_settings(policy: hw_policy, settings: &CStr) -> hw_allocator_options {
    hw_allocator_options { settings: settings.as_ptr(), ..options(policy) }
}

pub fn allocate(allocator: *const hw_allocator, bytes: u64, stream: hw_stream) -> hw_device_ptr {
    let mut ptr = 0;
    // SAFETY: a place.
    ok(unsafe { hw_allocate(allocator, bytes, stream, &raw mut ptr) });
    ptr
}

pub fn give_back(allocator: *const hw_allocator, ptr: hw_device_ptr) {
    // SAFETY: the tests own their blocks.
    ok(unsafe { hw_give_back(allocator, ptr) });
}

pub fn stats(allocator: *const hw_allocator) -> headwater_capi::statistics::hw_stats {
    use headwater_capi::statistics::{hw_get_stats, hw_stats};
    let mut found = hw_stats { struct_bytes: size_of::<hw_stats>() as u64, ..Default::default() };
    // SAFETY: a struct with its size.
    ok(unsafe { hw_get_stats(allocator, &raw mut found) });
    found
}

/// Destroys both; nothing is live.
pub fn done(allocator: *mut hw_allocator, device: *mut hw_device) {
    // SAFETY: no other thread uses them.
    unsafe {
        ok(hw_reconcile(allocator));
        ok(hw_allocator_destroy(allocator, 0));
        let mut hazards = 0;
        ok(hw_sim_hazards(device, &raw mut hazards, null_mut()));
        assert_eq!(hazards, 0);
        ok(hw_device_close(device));
    }
}

/// No handle.
pub fn nothing<T>() -> *const T {
    null()
}
