//! The parts that need a driver, over a scripted one: calls written in Rust and put into the table one by one.
//!
//! What a real driver does is for the conformance suite, which runs on the fake `libcuda` and on hardware. Here are the
//! cases that neither can be brought into: other people's contexts, codes nobody knows, drivers that lack calls.

use std::cell::RefCell;
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use headwater_driver::{
    Call, Capture, CaptureMode, DeviceId, Devices, Driver, ErrorClass, Events, PlainMemory, Stream,
};

use crate::abi::{CuContext, CuDevice, CuDevicePtr, CuEvent, CuResult};
use crate::table::Table;
use crate::{CudaDriver, Unavailable};

const SUCCESS: CuResult = CuResult::SUCCESS;
const DEVICE: DeviceId = DeviceId(0);

thread_local! {
    /// This thread's stack of contexts, as the scripted driver sees it.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static PUSHES: RefCell<u32> = const { RefCell::new(0) };
}

unsafe extern "system" fn init(_: u32) -> CuResult {
    SUCCESS
}

unsafe extern "system" fn one(value: *mut i32) -> CuResult {
    // SAFETY: here and in every call below, the caller's place for the answer.
    unsafe { *value = 1 };
    SUCCESS
}

unsafe extern "system" fn version(value: *mut i32) -> CuResult {
    // SAFETY: as above.
    unsafe { *value = 12_040 };
    SUCCESS
}

unsafe extern "system" fn get_device(device: *mut CuDevice, ordinal: i32) -> CuResult {
    // SAFETY: as above.
    unsafe { *device = ordinal };
    SUCCESS
}

unsafe extern "system" fn total_mem(bytes: *mut usize, _: CuDevice) -> CuResult {
    // SAFETY: as above.
    unsafe { *bytes = 4096 };
    SUCCESS
}

unsafe extern "system" fn text(buffer: *mut c_char, _: i32, _: CuDevice) -> CuResult {
    // SAFETY: as above.
    unsafe { *buffer = b'x' as c_char };
    SUCCESS
}

/// A driver that knows none of the newer attributes.
unsafe extern "system" fn attribute(value: *mut i32, attribute: u32, _: CuDevice) -> CuResult {
    if attribute > 100 {
        return CuResult::INVALID_VALUE;
    }
    // SAFETY: as above.
    unsafe { *value = 7 };
    SUCCESS
}

/// The primary context of device `n` is `1000 + n`.
unsafe extern "system" fn retain(context: *mut CuContext, device: CuDevice) -> CuResult {
    // SAFETY: as above.
    unsafe { *context = CuContext(1000 + device as usize) };
    SUCCESS
}

unsafe extern "system" fn release(_: CuDevice) -> CuResult {
    SUCCESS
}

unsafe extern "system" fn get_current(context: *mut CuContext) -> CuResult {
    let top = STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0));
    // SAFETY: as above.
    unsafe { *context = CuContext(top) };
    SUCCESS
}

unsafe extern "system" fn push(context: CuContext) -> CuResult {
    STACK.with_borrow_mut(|stack| stack.push(context.0));
    PUSHES.with_borrow_mut(|pushes| *pushes += 1);
    SUCCESS
}

unsafe extern "system" fn pop(context: *mut CuContext) -> CuResult {
    let top = STACK.with_borrow_mut(Vec::pop).unwrap_or(0);
    // SAFETY: as above.
    unsafe { *context = CuContext(top) };
    SUCCESS
}

unsafe extern "system" fn memory(free: *mut usize, total: *mut usize) -> CuResult {
    assert_eq!(
        STACK.with_borrow(|stack| stack.last().copied()),
        Some(1000),
        "called outside the primary context"
    );
    // SAFETY: as above.
    unsafe { (*free, *total) = (1024, 4096) };
    SUCCESS
}

/// One device, its context, and its memory info.
fn scripted() -> Table {
    Table {
        init,
        driver_get_version: version,
        device_get_count: one,
        device_get: get_device,
        device_get_name: text,
        device_get_pci_bus_id: text,
        device_total_mem: total_mem,
        device_get_attribute: attribute,
        primary_ctx_retain: retain,
        primary_ctx_release: release,
        ctx_get_current: get_current,
        ctx_push_current: push,
        ctx_pop_current: pop,
        mem_get_info: memory,
        ..Table::incapable()
    }
}

fn contexts_now() -> (Vec<usize>, u32) {
    (STACK.with_borrow(Clone::clone), PUSHES.with_borrow(|pushes| *pushes))
}

#[test]
fn a_thread_without_a_context_has_none_afterwards() {
    let driver = CudaDriver::with_table(scripted()).unwrap();
    assert_eq!(driver.memory_info(DEVICE).unwrap().free_bytes, 1024);
    assert_eq!(contexts_now(), (vec![], 1));
}

#[test]
fn somebody_elses_context_is_current_again_after_success_and_failure() {
    STACK.with_borrow_mut(|stack| stack.extend([5, 6]));
    let driver = CudaDriver::with_table(scripted()).unwrap();
    driver.memory_info(DEVICE).unwrap();
    driver.mem_alloc(DEVICE, 64).unwrap_err();
    assert_eq!(contexts_now(), (vec![5, 6], 2));
}

#[test]
fn the_primary_context_is_not_entered_twice() {
    STACK.with_borrow_mut(|stack| stack.push(1000));
    let driver = CudaDriver::with_table(scripted()).unwrap();
    driver.memory_info(DEVICE).unwrap();
    assert_eq!(contexts_now(), (vec![1000], 0));
}

#[test]
fn threads_that_meet_at_the_first_call_leave_one_hold_and_the_end_leaves_none() {
    static HOLDS: AtomicI32 = AtomicI32::new(0);
    unsafe extern "system" fn counted_retain(context: *mut CuContext, device: CuDevice) -> CuResult {
        HOLDS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: passed on.
        unsafe { retain(context, device) }
    }
    unsafe extern "system" fn counted_release(_: CuDevice) -> CuResult {
        HOLDS.fetch_sub(1, Ordering::SeqCst);
        SUCCESS
    }
    let table =
        Table { primary_ctx_retain: counted_retain, primary_ctx_release: counted_release, ..scripted() };
    let driver = CudaDriver::with_table(table).unwrap();
    assert_eq!(HOLDS.load(Ordering::SeqCst), 0, "opening needs no context");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| driver.memory_info(DEVICE).unwrap());
        }
    });
    assert_eq!(HOLDS.load(Ordering::SeqCst), 1);
    drop(driver);
    assert_eq!(HOLDS.load(Ordering::SeqCst), 0);
}

#[test]
fn out_of_memory_says_what_was_asked_for_and_what_there_was() {
    unsafe extern "system" fn full(_: *mut CuDevicePtr, _: usize) -> CuResult {
        CuResult::OUT_OF_MEMORY
    }
    let driver = CudaDriver::with_table(Table { mem_alloc: full, ..scripted() }).unwrap();
    let error = driver.mem_alloc(DEVICE, 1 << 20).unwrap_err();
    let ErrorClass::OutOfMemory { requested_bytes, memory: Some(memory) } = error.class() else {
        panic!("{error}")
    };
    assert_eq!((requested_bytes, memory.free_bytes, memory.total_bytes), (1 << 20, 1024, 4096));
    assert_eq!(driver.call_counts().of(Call::MemoryInfo), 0, "asked by us, not through the contract");
}

#[test]
fn a_code_that_nobody_knows_stays_what_it_is() {
    unsafe extern "system" fn odd(_: *mut CuDevicePtr, _: usize) -> CuResult {
        CuResult(12_345)
    }
    let driver = CudaDriver::with_table(Table { mem_alloc: odd, ..scripted() }).unwrap();
    let error = driver.mem_alloc(DEVICE, 64).unwrap_err();
    assert_eq!((error.class(), error.code(), error.name()), (ErrorClass::Other, 12_345, "CUDA error 12345"));
}

#[test]
fn drivers_that_do_not_start_say_why() {
    unsafe extern "system" fn stub(_: u32) -> CuResult {
        CuResult(34)
    }
    unsafe extern "system" fn no_device(_: u32) -> CuResult {
        CuResult::NO_DEVICE
    }
    unsafe extern "system" fn none(value: *mut i32) -> CuResult {
        // SAFETY: as above.
        unsafe { *value = 0 };
        SUCCESS
    }
    let start = |table| CudaDriver::with_table(table).unwrap_err();
    assert!(matches!(start(Table { init: stub, ..scripted() }), Unavailable::Init { code: 34, .. }));
    assert_eq!(start(Table { init: no_device, ..scripted() }), Unavailable::NoDevice);
    assert_eq!(start(Table { device_get_count: none, ..scripted() }), Unavailable::NoDevice);
    let silent = start(Table { device_get_name: Table::incapable().device_get_name, ..scripted() });
    assert!(matches!(silent, Unavailable::DeviceSilent { device: DEVICE, .. }), "{silent}");
}

#[test]
fn what_an_older_driver_lacks_shows_as_missing_capabilities() {
    let driver: Arc<dyn Driver> = CudaDriver::with_table(scripted()).unwrap();
    assert_eq!(driver.version(), "CUDA 12.4");
    let capabilities = driver.device_properties(DEVICE).unwrap().capabilities;
    assert!(!capabilities.capture && !capabilities.virtual_memory && !capabilities.shareable_handles);
    let status = driver.capture_status(Stream::legacy_default(DEVICE)).unwrap_err();
    assert_eq!(status.class(), ErrorClass::NotSupported);
    assert_eq!(driver.granularity(DEVICE).unwrap_err().class(), ErrorClass::NotSupported);
}

#[test]
fn stale_and_unknown_ids_never_reach_the_driver() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "system" fn create(event: *mut CuEvent, _: u32) -> CuResult {
        // SAFETY: as above.
        unsafe { *event = CuEvent(77) };
        SUCCESS
    }
    unsafe extern "system" fn touch(_: CuEvent) -> CuResult {
        CALLS.fetch_add(1, Ordering::SeqCst);
        SUCCESS
    }
    let table = Table { event_create: create, event_destroy: touch, event_query: touch, ..scripted() };
    let driver = CudaDriver::with_table(table).unwrap();
    let event = driver.event_create(DEVICE, Default::default()).unwrap();
    assert_eq!(driver.raw_event(event).unwrap(), 77);
    driver.event_destroy(event).unwrap();
    // The driver uses its value again; the old id is stale nevertheless.
    let next = driver.event_create(DEVICE, Default::default()).unwrap();
    assert_ne!(event, next);
    let calls = CALLS.load(Ordering::SeqCst);
    for error in [
        driver.event_query(event).unwrap_err(),
        driver.event_destroy(event).unwrap_err(),
        driver.capture_begin(Stream::from_raw(DEVICE, 0xdead), CaptureMode::Global).unwrap_err(),
        driver.raw_event(event).unwrap_err(),
    ] {
        assert_eq!((error.class(), error.code()), (ErrorClass::InvalidHandle, 400));
    }
    assert_eq!(CALLS.load(Ordering::SeqCst), calls);
    drop(driver);
    assert_eq!(CALLS.load(Ordering::SeqCst), calls + 1, "what is left is destroyed with the driver");
}
