//! The CUDA backend on the fake driver: what only a driver that watches its caller can show.

#![cfg(target_os = "linux")]

mod common;

use common::{Fake, cuda};
use headwater_cuda::CudaDriver;
use headwater_driver::{
    Call, Capture, CaptureMode, Copies, DeviceId, Devices, Driver, DriverError, ErrorClass, EventOptions,
    Events, HostMemory, Kernels, LaunchShape, PlainMemory, Stream, StreamOptions, Streams, VirtualMemory,
};

const DEVICE: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;
const NON_BLOCKING: StreamOptions = StreamOptions { non_blocking: true, priority: 0 };
const PTX: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry hw_spin(\n.param .u64 hw_spin_param_0\n)\n{\nret;\n}\n";

/// One of everything: memory of both kinds, pinned memory, a stream, an event, a copy, a graph, a kernel.
fn use_everything(driver: &dyn Driver, device: DeviceId) -> Result<(), DriverError> {
    driver.memory_info(device)?;
    let stream = driver.stream_create(device, NON_BLOCKING)?;
    let event = driver.event_create(device, EventOptions::default())?;
    let plain = driver.mem_alloc(device, 4096)?;
    let host = driver.host_alloc(4096)?;
    // SAFETY: both ranges live until the stream has been waited for.
    unsafe {
        driver.fill_bytes(plain, 7, 4096, stream)?;
        driver.copy_to_host(host.as_ptr(), plain, 4096, stream)?;
    }
    driver.event_record(event, stream)?;
    driver.event_synchronize(event)?;
    // SAFETY: 4096 bytes that nothing writes any more.
    let seen = unsafe { std::slice::from_raw_parts(host.as_ptr(), 4096) };
    assert!(seen.iter().all(|byte| *byte == 7));

    let bytes = driver.granularity(device)?;
    let range = driver.address_reserve(device, bytes, 0)?;
    let handle = driver.handle_create(device, bytes)?;
    driver.handle_map(range, bytes, handle)?;
    driver.access_set(range, bytes, &[device])?;

    driver.capture_begin(stream, CaptureMode::ThreadLocal)?;
    // SAFETY: mapped until after the graph has run.
    unsafe { driver.fill_bytes(range, 9, bytes, stream)? };
    let graph = driver.capture_end(stream)?;
    let exec = driver.graph_instantiate(device, graph)?;
    // SAFETY: as above.
    unsafe { driver.graph_launch(exec, stream)? };
    let module = driver.module_load(device, PTX.as_bytes())?;
    let kernel = driver.kernel_get(module, "hw_spin")?;
    let args = [headwater_driver::KernelArg::U64(10)];
    // SAFETY: the argument the kernel takes; it touches no memory.
    unsafe { driver.kernel_launch(kernel, LaunchShape::SINGLE, &args, stream)? };
    driver.stream_synchronize(stream)?;

    driver.module_unload(module)?;
    driver.graph_exec_destroy(exec)?;
    driver.graph_destroy(graph)?;
    driver.handle_unmap(device, range, bytes)?;
    driver.handle_release(handle)?;
    driver.address_free(device, range, bytes)?;
    // SAFETY: nothing uses it any more.
    unsafe { driver.host_free(host)? };
    driver.mem_free(device, plain)?;
    driver.event_destroy(event)?;
    driver.stream_destroy(stream)
}

#[track_caller]
fn assert_nothing_wrong(fake: &Fake) {
    assert_eq!(fake.undefined_uses(), 0, "undefined uses");
    assert_eq!(fake.hazard_count(), 0, "hazards");
    assert_eq!(fake.leak_count(), 0, "leaks");
}

#[test]
fn the_callers_context_is_left_as_it_was() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    use_everything(&*driver, DEVICE).unwrap();
    assert_eq!(fake.context_depth(), 0, "a thread without a context has none afterwards");

    let (first, second) = (fake.retain(0), fake.retain(1));
    for (mine, depth) in [(first, 1), (second, 2)] {
        assert_eq!(cuda!(fake, cuCtxPushCurrent_v2(mine => usize)), 0);
        use_everything(&*driver, DEVICE).unwrap();
        use_everything(&*driver, DeviceId(1)).unwrap();
        // Refused, out of memory, failed by the driver: no way out may forget the context.
        assert!(driver.mem_alloc(DEVICE, 0).is_err());
        assert!(driver.mem_alloc(DEVICE, 1 << 40).is_err());
        fake.fail_nth("cuStreamCreateWithPriority", 1, 999);
        assert!(driver.stream_create(DEVICE, NON_BLOCKING).is_err());
        let mut current = 0;
        assert_eq!(cuda!(fake, cuCtxGetCurrent(&mut current => *mut usize)), 0);
        assert_eq!((current, fake.context_depth()), (mine, depth));
    }
    assert_nothing_wrong(&fake);
}

#[test]
fn many_threads_use_one_driver() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (driver, fake) = (&driver, &fake);
            scope.spawn(move || {
                for _ in 0..10 {
                    // Global captures of other threads would forbid; `use_everything` captures thread-locally.
                    use_everything(&**driver, DeviceId(thread % 2)).unwrap();
                }
                assert_eq!(fake.context_depth(), 0);
            });
        }
    });
    assert_nothing_wrong(&fake);
}

#[test]
fn threads_take_turns_on_one_graph() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let stream = driver.stream_create(DEVICE, NON_BLOCKING).unwrap();
    driver.capture_begin(stream, CaptureMode::Relaxed).unwrap();
    let graph = driver.capture_end(stream).unwrap();
    let exec = driver.graph_instantiate(DEVICE, graph).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    // SAFETY: the graph is empty.
                    unsafe { driver.graph_launch(exec, stream) }.unwrap();
                    let another = driver.graph_instantiate(DEVICE, graph).unwrap();
                    driver.graph_exec_destroy(another).unwrap();
                }
            });
        }
    });
    assert_eq!(fake.undefined_uses(), 0);
}

#[test]
fn stale_ids_never_reach_the_driver() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let stream = driver.stream_create(DEVICE, NON_BLOCKING).unwrap();
    let event = driver.event_create(DEVICE, EventOptions::default()).unwrap();
    let bytes = driver.granularity(DEVICE).unwrap();
    let handle = driver.handle_create(DEVICE, bytes).unwrap();
    let range = driver.address_reserve(DEVICE, bytes, 0).unwrap();
    let module = driver.module_load(DEVICE, PTX.as_bytes()).unwrap();
    let kernel = driver.kernel_get(module, "hw_spin").unwrap();
    driver.capture_begin(stream, CaptureMode::Relaxed).unwrap();
    let graph = driver.capture_end(stream).unwrap();
    let exec = driver.graph_instantiate(DEVICE, graph).unwrap();
    let live = driver.stream_create(DEVICE, NON_BLOCKING).unwrap();
    let live_event = driver.event_create(DEVICE, EventOptions::default()).unwrap();

    driver.graph_exec_destroy(exec).unwrap();
    driver.graph_destroy(graph).unwrap();
    driver.module_unload(module).unwrap();
    driver.handle_release(handle).unwrap();
    driver.event_destroy(event).unwrap();
    driver.stream_destroy(stream).unwrap();

    let args = [headwater_driver::KernelArg::U64(1)];
    let answers = [
        driver.stream_query(stream).map(drop),
        driver.stream_synchronize(stream),
        driver.stream_wait_event(stream, live_event),
        driver.stream_wait_event(live, event),
        driver.stream_destroy(stream),
        driver.event_record(event, live),
        driver.event_record(live_event, stream),
        driver.event_query(event).map(drop),
        driver.event_synchronize(event),
        driver.event_elapsed_us(event, live_event).map(drop),
        driver.event_destroy(event),
        driver.capture_begin(stream, CaptureMode::Relaxed),
        driver.capture_status(stream).map(drop),
        driver.handle_map(range, bytes, handle),
        driver.handle_release(handle),
        driver.graph_instantiate(DEVICE, graph).map(drop),
        driver.graph_destroy(graph),
        // SAFETY: no such graph, stream or kernel: nothing runs.
        unsafe { driver.graph_launch(exec, live) },
        driver.graph_exec_destroy(exec),
        driver.kernel_get(module, "hw_spin").map(drop),
        driver.module_unload(module),
        // SAFETY: as above.
        unsafe { driver.kernel_launch(kernel, LaunchShape::SINGLE, &args, live) },
        // SAFETY: as above.
        unsafe { driver.fill_bytes(range, 0, 1, stream) },
    ];
    for (place, answer) in answers.into_iter().enumerate() {
        let error = answer.expect_err(&format!("answer {place}"));
        assert_eq!(error.class(), ErrorClass::InvalidHandle, "answer {place}: {error}");
    }
    assert_eq!(fake.undefined_uses(), 0);
}

#[test]
fn a_forgotten_stream_is_never_used_again() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let context = fake.retain(0);
    assert_eq!(cuda!(fake, cuCtxSetCurrent(context => usize)), 0);
    let mut raw = 0_usize;
    assert_eq!(cuda!(fake, cuStreamCreate(&mut raw => *mut usize, 1 => u32)), 0);
    let not_adopted = Stream::from_raw(DEVICE, raw as u64);
    assert_eq!(driver.stream_synchronize(not_adopted).unwrap_err().class(), ErrorClass::InvalidHandle);
    // SAFETY: a live stream of the device, forgotten before it is destroyed.
    let stream = unsafe { driver.stream_adopt(DEVICE, raw as u64) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(driver.stream_destroy(stream).unwrap_err().class(), ErrorClass::InvalidHandle);
    driver.stream_forget(stream).unwrap();
    assert_eq!(cuda!(fake, cuStreamDestroy_v2(raw => usize)), 0);
    assert_eq!(driver.stream_synchronize(stream).unwrap_err().class(), ErrorClass::InvalidHandle);
    assert_nothing_wrong(&fake);
}

#[test]
fn a_code_that_nobody_has_heard_of_stays_what_it_is() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    fake.fail_nth("cuMemAlloc_v2", 1, 12_345);
    let error = driver.mem_alloc(DEVICE, 4096).unwrap_err();
    assert_eq!((error.call(), error.class(), error.code()), (Call::MemAlloc, ErrorClass::Other, 12_345));
    assert!(error.to_string().contains("12345"), "{error}");
    let ptr = driver.mem_alloc(DEVICE, 4096).unwrap();
    driver.mem_free(DEVICE, ptr).unwrap();
    assert_nothing_wrong(&fake);
}

#[test]
fn out_of_memory_says_how_much_was_asked_for_and_what_there_was() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let memory = driver.memory_info(DEVICE).unwrap();
    let too_much = (memory.total_bytes + 2 * MIB).next_multiple_of(2 * MIB);
    for error in
        [driver.mem_alloc(DEVICE, too_much).unwrap_err(), driver.handle_create(DEVICE, too_much).unwrap_err()]
    {
        let ErrorClass::OutOfMemory { requested_bytes, memory: Some(seen) } = error.class() else {
            panic!("{error}");
        };
        assert_eq!((requested_bytes, seen), (too_much, memory), "{error}");
    }
}

/// One call of the contract.
type OneCall = Box<dyn Fn() -> Result<(), DriverError>>;

#[test]
fn a_failing_driver_call_is_reported_by_its_name_and_code() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let with = |call: fn(&CudaDriver, Stream) -> Result<(), DriverError>| -> OneCall {
        let driver = driver.clone();
        let stream = driver.stream_create(DEVICE, NON_BLOCKING).unwrap();
        Box::new(move || call(&driver, stream))
    };
    driver.granularity(DEVICE).unwrap(); // asked for once and kept, so not below
    let calls: Vec<(&str, Call, OneCall)> = vec![
        ("cuMemGetInfo_v2", Call::MemoryInfo, with(|d, _| d.memory_info(DEVICE).map(drop))),
        ("cuMemAlloc_v2", Call::MemAlloc, with(|d, _| d.mem_alloc(DEVICE, 512).map(drop))),
        (
            "cuMemAddressReserve",
            Call::AddressReserve,
            with(|d, _| d.address_reserve(DEVICE, 2 * MIB, 0).map(drop)),
        ),
        ("cuMemCreate", Call::HandleCreate, with(|d, _| d.handle_create(DEVICE, 2 * MIB).map(drop))),
        ("cuMemHostAlloc", Call::HostAlloc, with(|d, _| d.host_alloc(4096).map(drop))),
        (
            "cuStreamCreateWithPriority",
            Call::StreamCreate,
            with(|d, _| d.stream_create(DEVICE, NON_BLOCKING).map(drop)),
        ),
        ("cuStreamQuery", Call::StreamQuery, with(|d, s| d.stream_query(s).map(drop))),
        ("cuStreamSynchronize", Call::StreamSynchronize, with(|d, s| d.stream_synchronize(s))),
        (
            "cuEventCreate",
            Call::EventCreate,
            with(|d, _| d.event_create(DEVICE, EventOptions::default()).map(drop)),
        ),
        (
            "cuStreamBeginCapture_v2",
            Call::CaptureBegin,
            with(|d, s| d.capture_begin(s, CaptureMode::Relaxed)),
        ),
        ("cuStreamGetCaptureInfo_v3", Call::CaptureStatus, with(|d, s| d.capture_status(s).map(drop))),
        ("cuStreamEndCapture", Call::CaptureEnd, with(|d, s| d.capture_end(s).map(drop))),
        ("cuModuleLoadData", Call::ModuleLoad, with(|d, _| d.module_load(DEVICE, PTX.as_bytes()).map(drop))),
    ];
    for (symbol, call, once) in calls {
        fake.fail_nth(symbol, 1, 719);
        let error = once().expect_err(symbol);
        assert_eq!(
            (error.call(), error.class(), error.code()),
            (call, ErrorClass::DeviceLost, 719),
            "{symbol}"
        );
        assert_eq!(error.name(), "CUDA_ERROR_LAUNCH_FAILED");
    }
    assert_eq!((fake.undefined_uses(), fake.context_depth()), (0, 0));
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    let fake = Fake::fresh();
    fake.fail_nth("cuInit", 1, 999);
    // SAFETY: the fake driver exports the driver's calls under their names.
    let why = unsafe { CudaDriver::open_library(fake.path()) }.unwrap_err().to_string();
    assert!(why.contains("999"), "{why}");
    fake.fail_nth("cuDeviceGetName", 1, 46);
    // SAFETY: as above.
    let why = unsafe { CudaDriver::open_library(fake.path()) }.unwrap_err().to_string();
    assert!(why.contains("46"), "{why}");
    fake.open_backend();
}

#[test]
fn a_dropped_driver_leaves_nothing_behind() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    let stream = driver.stream_create(DEVICE, NON_BLOCKING).unwrap();
    driver.event_create(DEVICE, EventOptions::default()).unwrap();
    driver.handle_create(DEVICE, 2 * MIB).unwrap();
    driver.module_load(DEVICE, PTX.as_bytes()).unwrap();
    driver.capture_begin(stream, CaptureMode::Relaxed).unwrap();
    let graph = driver.capture_end(stream).unwrap();
    driver.graph_instantiate(DEVICE, graph).unwrap();
    assert_eq!(fake.leak_count(), 6);
    drop(driver);
    let (mut flags, mut active) = (7, 7);
    let state =
        cuda!(fake, cuDevicePrimaryCtxGetState(0 => i32, &mut flags => *mut u32, &mut active => *mut i32));
    assert_eq!((state, active), (0, 0), "the context was given back");
    assert_nothing_wrong(&fake);
}

#[test]
fn enabling_peer_access_twice_is_no_error() {
    let fake = Fake::fresh();
    let driver = fake.open_backend();
    assert!(driver.peer_access_possible(DEVICE, DeviceId(1)).unwrap());
    driver.peer_access_enable(DEVICE, DeviceId(1)).unwrap();
    driver.peer_access_enable(DEVICE, DeviceId(1)).unwrap();
    assert_eq!(driver.peer_access_enable(DEVICE, DEVICE).unwrap_err().class(), ErrorClass::InvalidValue);
    assert_nothing_wrong(&fake);
}
