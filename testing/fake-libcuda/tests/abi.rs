//! The C ABI by itself, called as a C program would: what libcuda promises, what it refuses, what is counted here.

#![cfg(target_os = "linux")]

mod common;

use std::ffi::{CStr, c_char, c_void};

use common::{Fake, cuda};

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const NOT_INITIALIZED: u32 = 3;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const CONTEXT_IS_DESTROYED: u32 = 709;

#[test]
fn before_init_only_versions_and_names_of_errors_are_answered() {
    let fake = Fake::fresh();
    let mut number = 0;
    assert_eq!(cuda!(fake, cuDeviceGetCount(&mut number => *mut i32)), NOT_INITIALIZED);
    assert_eq!(cuda!(fake, cuCtxSetCurrent(0 => usize)), NOT_INITIALIZED);
    assert_eq!(cuda!(fake, cuStreamSynchronize(0 => usize)), NOT_INITIALIZED);
    assert_eq!(cuda!(fake, cuDriverGetVersion(&mut number => *mut i32)), SUCCESS);
    assert_eq!(number, 13_000);
    assert_eq!(cuda!(fake, cuInit(1 => u32)), INVALID_VALUE);
    assert_eq!(cuda!(fake, cuInit(0 => u32)), SUCCESS);
    assert_eq!(cuda!(fake, cuInit(0 => u32)), SUCCESS, "once more is no error");
    assert_eq!(cuda!(fake, cuDeviceGetCount(&mut number => *mut i32)), SUCCESS);
    assert_eq!(number, 2);
}

#[test]
fn codes_have_names_and_unknown_ones_have_none() {
    let fake = Fake::fresh();
    let mut name: *const c_char = std::ptr::null();
    assert_eq!(cuda!(fake, cuGetErrorName(2 => u32, &mut name => *mut *const c_char)), SUCCESS);
    // SAFETY: a string constant of the library.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(cuda!(fake, cuGetErrorName(12_345 => u32, &mut name => *mut *const c_char)), INVALID_VALUE);
    assert!(name.is_null());
}

#[test]
fn calls_that_need_a_context_fail_without_one() {
    let fake = Fake::initialised();
    let (mut free, mut total, mut value) = (0, 0, 0);
    assert_eq!(
        cuda!(fake, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize)),
        INVALID_CONTEXT
    );
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut value => *mut u64, 512 => usize)), INVALID_CONTEXT);
    assert_eq!(cuda!(fake, cuEventCreate(&mut value => *mut u64, 0 => u32)), INVALID_CONTEXT);
    assert_eq!(cuda!(fake, cuStreamSynchronize(0 => usize)), INVALID_CONTEXT);
    assert_eq!(cuda!(fake, cuCtxPopCurrent_v2(std::ptr::null_mut() => *mut usize)), INVALID_CONTEXT);
    assert_eq!(fake.undefined_uses(), 0, "all of these are defined");
}

#[test]
fn each_thread_has_its_own_stack_of_contexts() {
    let fake = Fake::initialised();
    let (first, second) = (fake.retain(0), fake.retain(1));
    assert_ne!(first, second);
    assert_eq!(cuda!(fake, cuCtxPushCurrent_v2(first => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuCtxPushCurrent_v2(second => usize)), SUCCESS);
    assert_eq!(fake.context_depth(), 2);
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| fake.context_depth()).join().unwrap());
    assert_eq!(elsewhere, 0);

    let (mut device, mut context) = (-1, 0);
    assert_eq!(cuda!(fake, cuCtxGetDevice(&mut device => *mut i32)), SUCCESS);
    assert_eq!(device, 1);
    assert_eq!(cuda!(fake, cuCtxPopCurrent_v2(&mut context => *mut usize)), SUCCESS);
    assert_eq!(context, second);
    assert_eq!(cuda!(fake, cuCtxSetCurrent(second => usize)), SUCCESS);
    assert_eq!(fake.context_depth(), 1, "the top was replaced");
    assert_eq!(cuda!(fake, cuCtxSetCurrent(0 => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuCtxGetCurrent(&mut context => *mut usize)), SUCCESS);
    assert_eq!((context, fake.context_depth()), (0, 0));
    assert_eq!(cuda!(fake, cuCtxPushCurrent_v2(0xdead_0000 => usize)), INVALID_CONTEXT);
    assert_eq!(fake.undefined_uses(), 1, "libcuda would have followed that pointer");
}

#[test]
fn bytes_come_back_from_device_memory() {
    let fake = Fake::in_context();
    let mut ptr = 0;
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 4096 => usize)), SUCCESS);
    let sent: Vec<u8> = (0..=255).collect();
    let mut seen = vec![0_u8; 256];
    let (source, target) = (sent.as_ptr().cast::<c_void>(), seen.as_mut_ptr().cast::<c_void>());
    assert_eq!(cuda!(fake, cuMemcpyHtoD_v2(ptr + 8 => u64, source => *const c_void, 256 => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuMemcpyDtoH_v2(target => *mut c_void, ptr + 8 => u64, 256 => usize)), SUCCESS);
    assert_eq!(seen, sent);

    let (mut base, mut bytes, mut ordinal) = (0, 0, -1);
    let range = cuda!(
        fake,
        cuMemGetAddressRange_v2(&mut base => *mut u64, &mut bytes => *mut usize, ptr + 9 => u64)
    );
    assert_eq!((range, base, bytes), (SUCCESS, ptr, 4096));
    assert_eq!(cuda!(fake, cuPointerGetAttribute(&mut ordinal => *mut i32, 9 => u32, ptr => u64)), SUCCESS);
    assert_eq!(ordinal, 0);

    assert_eq!(cuda!(fake, cuMemFree_v2(ptr + 8 => u64)), INVALID_VALUE);
    assert_eq!(fake.leak_count(), 1);
    assert_eq!(cuda!(fake, cuMemFree_v2(ptr => u64)), SUCCESS);
    assert_eq!(cuda!(fake, cuMemFree_v2(ptr => u64)), INVALID_VALUE);
    assert_eq!((fake.leak_count(), fake.undefined_uses(), fake.hazard_count()), (0, 0, 0));
}

#[test]
fn the_use_of_a_destroyed_object_is_counted() {
    let fake = Fake::in_context();
    let (mut stream, mut event) = (0, 0);
    assert_eq!(cuda!(fake, cuStreamCreate(&mut stream => *mut usize, 1 => u32)), SUCCESS);
    assert_eq!(cuda!(fake, cuEventCreate(&mut event => *mut usize, 2 => u32)), SUCCESS);
    assert_eq!(cuda!(fake, cuEventRecord(event => usize, stream => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamDestroy_v2(stream => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuEventQuery(0 => usize)), INVALID_HANDLE);
    assert_eq!(fake.undefined_uses(), 0, "null is refused, not followed");

    assert_eq!(cuda!(fake, cuStreamSynchronize(stream => usize)), INVALID_HANDLE);
    assert_eq!(cuda!(fake, cuEventRecord(event => usize, stream => usize)), INVALID_HANDLE);
    assert_eq!(fake.undefined_uses(), 2);
    assert_eq!(cuda!(fake, cuEventDestroy_v2(event => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuEventDestroy_v2(event => usize)), INVALID_HANDLE);
    assert_eq!(cuda!(fake, cuGraphDestroy(event => usize)), INVALID_VALUE, "an event is no graph");
    assert_eq!(fake.undefined_uses(), 4);
}

#[test]
fn a_released_context_takes_its_objects_with_it() {
    let fake = Fake::in_context();
    let (mut ptr, mut stream) = (0, 0);
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 512 => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamCreate(&mut stream => *mut usize, 0 => u32)), SUCCESS);
    fake.retain(0);
    assert_eq!(cuda!(fake, cuDevicePrimaryCtxRelease_v2(0 => i32)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamSynchronize(stream => usize)), SUCCESS, "somebody still holds it");

    assert_eq!(cuda!(fake, cuDevicePrimaryCtxRelease_v2(0 => i32)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamSynchronize(0 => usize)), CONTEXT_IS_DESTROYED);
    assert_eq!(cuda!(fake, cuDevicePrimaryCtxRelease_v2(0 => i32)), INVALID_CONTEXT);
    let (mut flags, mut active) = (7, 7);
    let state =
        cuda!(fake, cuDevicePrimaryCtxGetState(0 => i32, &mut flags => *mut u32, &mut active => *mut i32));
    assert_eq!((state, active), (SUCCESS, 0));
    assert_eq!(fake.leak_count(), 2, "the owner never gave them back");

    fake.retain(0);
    assert_eq!(cuda!(fake, cuStreamSynchronize(0 => usize)), SUCCESS);
    assert_eq!(cuda!(fake, cuStreamSynchronize(stream => usize)), INVALID_HANDLE);
    assert_eq!(cuda!(fake, cuMemFree_v2(ptr => u64)), INVALID_VALUE);
}

#[test]
fn a_call_fails_when_told_to_and_only_then() {
    let fake = Fake::in_context();
    fake.fail_nth("cuMemAlloc_v2", 2, 12_345);
    let mut ptr = 0;
    let answers: Vec<u32> =
        (0..3).map(|_| cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 512 => usize))).collect();
    assert_eq!(answers, [SUCCESS, 12_345, SUCCESS]);
    assert_eq!(fake.leak_count(), 2, "the failed call allocated nothing");
    fake.fail_nth("cuMemAlloc_v2", 1, 2);
    fake.fail_nth("cuMemAlloc_v2", 0, 0);
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 512 => usize)), SUCCESS, "taken back");
}

#[test]
fn a_reset_machine_is_as_before_init() {
    let fake = Fake::in_context();
    let mut ptr = 0;
    assert_eq!(cuda!(fake, cuMemAlloc_v2(&mut ptr => *mut u64, 512 => usize)), SUCCESS);
    fake.reset();
    assert_eq!(cuda!(fake, cuMemFree_v2(ptr => u64)), NOT_INITIALIZED);
    assert_eq!(cuda!(fake, cuInit(0 => u32)), SUCCESS);
    assert_eq!((fake.context_depth(), fake.leak_count()), (0, 0));
}

#[test]
fn peer_access_is_enabled_once() {
    const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    let fake = Fake::in_context();
    let (own, peer) = (fake.retain(0), fake.retain(1));
    let mut can = 0;
    assert_eq!(cuda!(fake, cuDeviceCanAccessPeer(&mut can => *mut i32, 0 => i32, 1 => i32)), SUCCESS);
    assert_eq!(can, 1);
    assert_eq!(cuda!(fake, cuCtxEnablePeerAccess(own => usize, 0 => u32)), INVALID_CONTEXT);
    assert_eq!(cuda!(fake, cuCtxEnablePeerAccess(peer => usize, 0 => u32)), SUCCESS);
    assert_eq!(cuda!(fake, cuCtxEnablePeerAccess(peer => usize, 0 => u32)), PEER_ACCESS_ALREADY_ENABLED);
}

#[test]
fn functions_are_found_by_their_base_name() {
    let fake = Fake::fresh();
    let look_up = |name: &CStr, version: i32| {
        let (mut function, mut status) = (0_usize, -1);
        let code = cuda!(
            fake,
            cuGetProcAddress_v2(
                name.as_ptr() => *const c_char,
                &mut function => *mut usize,
                version => i32,
                0 => u64,
                &mut status => *mut i32,
            )
        );
        (code, function, status)
    };
    let address = |name: &str| fake.symbol::<unsafe extern "C" fn()>(name) as usize;
    assert_eq!(look_up(c"cuMemAlloc", 12_000), (SUCCESS, address("cuMemAlloc_v2"), 0));
    assert_eq!(look_up(c"cuInit", 13_000), (SUCCESS, address("cuInit"), 0));
    assert_eq!(
        look_up(c"cuStreamGetCaptureInfo", 12_000),
        (SUCCESS, address("cuStreamGetCaptureInfo_v2"), 0)
    );
    assert_eq!(
        look_up(c"cuStreamGetCaptureInfo", 12_030),
        (SUCCESS, address("cuStreamGetCaptureInfo_v3"), 0)
    );
    assert_eq!(look_up(c"cuNoSuchCall", 13_000), (SUCCESS, 0, 1));
    assert_eq!(look_up(c"malloc", 13_000), (SUCCESS, 0, 1));
    assert_eq!(look_up(c"cuInit", 99_000).0, INVALID_VALUE, "newer than the driver");
}
