//! Virtual time, determinism, streams of others, and calls that are made to fail.

// Tests may panic; clippy knows that of `#[test]` functions only, not of what they call.
#![allow(clippy::unwrap_used)]

mod common;

use common::{
    Bench, D, PAGE, alloc, bench, blocking_stream, class, event, mapped_page, mark, reader, stream, writer,
};
use headwater_driver::{
    Call, Capture, CaptureMode, Copies, DeviceId, Devices, DriverError, ErrorClass, EventOptions, Events,
    HostMemory, Kernels, PlainMemory, Stream, Streams, VirtualMemory,
};
use headwater_sim::{CostModel, FaultPlan, SimDriver, Work};

#[test]
fn the_same_program_gives_the_same_times_addresses_and_hazards() {
    fn log() -> String {
        let Bench { sim, a, b } = bench();
        let mut log = String::new();
        for round in 0..50_u64 {
            let ptr = alloc(&sim, 4096 + 512 * round);
            let (page, handle) = mapped_page(&sim);
            sim.submit(a, writer("w", ptr)).unwrap();
            sim.submit(b, reader("r", ptr)).unwrap();
            let host = sim.host_alloc(4096).unwrap();
            // SAFETY: all ranges are valid until they are freed, which waits.
            unsafe {
                sim.copy_to_host(host.as_ptr(), ptr, 4096, a).unwrap();
                sim.copy_to_host(host.as_ptr(), ptr, 4096, b).unwrap();
                sim.fill_bytes(page, 1, 64, b).unwrap();
                sim.host_free(host).unwrap();
            }
            sim.handle_unmap(D, page, PAGE).unwrap();
            sim.handle_release(handle).unwrap();
            log += &format!("{ptr:?} {page:?} {handle:?} {} {:?}\n", sim.now_ns(), mark(&sim, a));
        }
        for hazard in sim.hazards() {
            log += &format!("{hazard}\n");
        }
        log + &format!("{:?}", sim.leaks())
    }
    let first = log();
    assert!(first.contains("race on") && first.contains("pinned host block"));
    assert_eq!(first, log());
}

#[test]
fn work_takes_its_time_and_streams_run_side_by_side() {
    let Bench { sim, a, b } = bench();
    let timed = || sim.event_create(D, EventOptions { timing: true }).unwrap();
    let (start, end) = (timed(), timed());
    sim.event_record(start, a).unwrap();
    sim.submit(a, Work::new("a", 300_000)).unwrap();
    sim.submit(b, Work::new("b", 200_000)).unwrap();
    sim.event_record(end, a).unwrap();
    assert_eq!(class(sim.event_elapsed_us(start, end)), ErrorClass::NotReady);
    sim.stream_synchronize(b).unwrap();
    assert!((200_000..250_000).contains(&sim.now_ns()), "{}", sim.now_ns());
    sim.stream_synchronize(a).unwrap();
    let took = sim.event_elapsed_us(start, end).unwrap();
    assert!((300.0..310.0).contains(&took), "{took}");
    assert_eq!(class(sim.event_elapsed_us(start, event(&sim))), ErrorClass::InvalidHandle, "keeps no time");
    assert_eq!(class(sim.event_elapsed_us(start, timed())), ErrorClass::InvalidHandle, "never recorded");
}

#[test]
fn polling_ends_even_where_calls_are_free_of_charge() {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    let a = stream(&sim);
    sim.submit(a, Work::new("k", 1_000_000)).unwrap();
    let marked = mark(&sim, a);
    assert_eq!(sim.now_ns(), 0);
    while !sim.event_query(marked).unwrap() {}
    assert!(sim.stream_query(a).unwrap());
    assert_eq!(sim.modelled_driver_ns(), 0);
}

#[test]
fn waiting_is_no_driver_time() {
    let Bench { sim, a, .. } = bench();
    sim.submit(a, Work::new("long", 1_000_000_000)).unwrap();
    sim.stream_synchronize(a).unwrap();
    assert!(sim.now_ns() > 1_000_000_000 && sim.modelled_driver_ns() < 1_000_000);
}

#[test]
fn the_legacy_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let Bench { sim, a: free, .. } = bench();
    let legacy = Stream::legacy_default(D);
    let blocking = blocking_stream(&sim);
    let start = sim.now_ns();
    sim.submit(blocking, Work::new("first", 100_000)).unwrap();
    sim.submit(legacy, Work::new("second", 100_000)).unwrap();
    sim.submit(blocking, Work::new("third", 100_000)).unwrap();
    sim.submit(free, Work::new("aside", 1)).unwrap();
    sim.advance_ns(10_000);
    assert!(sim.stream_query(free).unwrap());
    sim.stream_synchronize(blocking).unwrap();
    let took = sim.now_ns() - start;
    assert!((300_000..320_000).contains(&took), "{took}");
    // A destroyed stream's work still counts.
    sim.submit(blocking, Work::new("fourth", 100_000)).unwrap();
    sim.stream_destroy(blocking).unwrap();
    assert!(!sim.idle());
    sim.stream_synchronize(legacy).unwrap();
    assert!(sim.now_ns() - start >= 400_000 && sim.idle());
}

#[test]
fn streams_of_others_are_unknown_until_adopted() {
    let ours = SimDriver::new();
    let theirs = ours.second_view();
    let stream = stream(&theirs);
    assert_eq!(class(ours.submit(stream, Work::new("k", 1))), ErrorClass::InvalidHandle);
    assert_eq!(class(ours.stream_forget(stream)), ErrorClass::InvalidHandle);
    // SAFETY: the streams exist, or are refused.
    unsafe {
        assert_eq!(ours.stream_adopt(D, stream.raw()), Ok(stream));
        assert_eq!(ours.stream_adopt(D, stream.raw()), Ok(stream), "twice is no error");
        assert_eq!(ours.stream_adopt(D, 0), Ok(Stream::legacy_default(D)));
        assert_eq!(class(ours.stream_adopt(D, 0xdead_beef)), ErrorClass::InvalidHandle);
    }
    assert!(ours.submit(stream, Work::new("k", 1)).is_ok());
    assert_eq!(class(ours.stream_destroy(stream)), ErrorClass::InvalidHandle, "not ours");
    ours.stream_forget(stream).unwrap();
    assert_eq!(class(ours.stream_query(stream)), ErrorClass::InvalidHandle);
    theirs.stream_destroy(stream).unwrap();
    assert_eq!(theirs.call_counts().of(Call::StreamCreate), 1);
    assert_eq!(ours.call_counts().of(Call::StreamCreate), 0);
}

#[test]
fn stale_and_foreign_ids_are_invalid_handles() {
    let sim = SimDriver::builder().devices(2).build();
    let (gone, lives) = (stream(&sim), stream(&sim));
    sim.stream_destroy(gone).unwrap();
    let again = stream(&sim);
    assert_ne!(gone, again);
    assert_eq!(class(sim.stream_query(gone)), ErrorClass::InvalidHandle);
    assert_eq!(class(sim.stream_destroy(Stream::legacy_default(D))), ErrorClass::InvalidHandle);
    let elsewhere = Stream::from_raw(DeviceId(1), lives.raw());
    assert_eq!(class(sim.stream_query(elsewhere)), ErrorClass::InvalidHandle);
    assert_eq!(class(sim.stream_query(Stream::legacy_default(DeviceId(7)))), ErrorClass::InvalidHandle);
    let far = sim.event_create(DeviceId(1), EventOptions::default()).unwrap();
    assert_eq!(class(sim.event_record(far, lives)), ErrorClass::InvalidHandle, "of another device");
    sim.event_destroy(far).unwrap();
    assert_eq!(class(sim.event_destroy(far)), ErrorClass::InvalidHandle);
    assert_eq!(class(sim.stream_wait_event(lives, far)), ErrorClass::InvalidHandle);
}

/// A program that makes most calls. Gives everything back as far as it got; answers with the first error.
fn program(sim: &SimDriver, a: Stream) -> Result<(), DriverError> {
    let ptr = sim.mem_alloc(D, 4096)?;
    let with_plain = || -> Result<(), DriverError> {
        // SAFETY: the range is valid, and freeing it waits.
        unsafe { sim.fill_bytes(ptr, 1, 4096, a)? };
        let event = sim.event_create(D, EventOptions::default())?;
        let waited = sim.event_record(event, a).and_then(|()| sim.event_synchronize(event));
        retry(|| sim.event_destroy(event));
        waited?;
        sim.stream_synchronize(a)
    };
    let worked = with_plain();
    retry(|| sim.mem_free(D, ptr));
    worked?;

    let range = sim.address_reserve(D, PAGE, 0)?;
    let with_range = || -> Result<(), DriverError> {
        let handle = sim.handle_create(D, PAGE)?;
        let worked = sim.handle_map(range, PAGE, handle).and_then(|()| {
            let worked = sim.access_set(range, PAGE, &[D]);
            retry(|| sim.handle_unmap(D, range, PAGE));
            worked
        });
        retry(|| sim.handle_release(handle));
        worked
    };
    let worked = with_range();
    retry(|| sim.address_free(D, range, PAGE));
    worked?;

    let host = sim.host_alloc(4096)?;
    // SAFETY: nobody uses the block.
    retry(|| unsafe { sim.host_free(host) });
    Ok(())
}

/// Injected failures of calls that give something back: asked again, as a caller would.
fn retry(mut call: impl FnMut() -> Result<(), DriverError>) {
    assert!(call().is_ok() || call().is_ok());
}

#[test]
fn every_call_can_fail_and_changes_nothing_then() {
    let Bench { sim, a, .. } = bench();
    let leaks = sim.leaks();
    let memory = sim.memory_now(D);
    let before = sim.call_counts();
    program(&sim, a).unwrap();
    let calls = sim.call_counts().since(&before).total();
    assert!(calls >= 15);
    let mut failed = 0;
    for n in 1..=calls {
        let class = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };
        sim.set_faults(FaultPlan::none().fail_nth_of_any(n, class));
        if let Err(error) = program(&sim, a) {
            assert!(error.is_out_of_memory() && error.to_string().contains("injected"), "{error}");
            failed += 1;
        }
        sim.set_faults(FaultPlan::none());
        assert_eq!((sim.leaks(), sim.memory_now(D)), (leaks.clone(), memory), "call {n}");
    }
    assert!(failed >= 8);
    assert!(sim.hazards().is_empty());
}

#[test]
fn a_failure_of_one_kind_hits_that_call() {
    let Bench { sim, .. } = bench();
    sim.set_faults(FaultPlan::none().fail_nth(Call::HandleCreate, 2, ErrorClass::NotSupported));
    alloc(&sim, 4096);
    assert!(sim.handle_create(D, PAGE).is_ok());
    assert_eq!(class(sim.handle_create(D, PAGE)), ErrorClass::NotSupported);
    assert!(sim.handle_create(D, PAGE).is_ok());
    assert_eq!(sim.call_counts().of(Call::HandleCreate), 3, "failed calls count");
}

#[test]
fn an_injected_shortage_tells_the_devices_numbers() {
    let sim = SimDriver::builder().memory_bytes(1 << 30).build();
    let class = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };
    sim.set_faults(FaultPlan::none().fail_nth(Call::MemAlloc, 1, class));
    let ErrorClass::OutOfMemory { requested_bytes, memory } = common::class(sim.mem_alloc(D, 4096)) else {
        panic!()
    };
    assert_eq!((requested_bytes, memory), (4096, sim.memory_now(D)));
}

#[test]
fn a_random_share_of_calls_fails_the_same_way_every_time() {
    let run = || {
        let sim = SimDriver::builder().faults(FaultPlan::none().fail_share(0.3, 42)).build();
        (0..200).map(|_| sim.mem_alloc(D, 512).is_ok()).collect::<Vec<_>>()
    };
    let first = run();
    assert_eq!(first, run());
    let failed = first.iter().filter(|worked| !**worked).count();
    assert!((30..90).contains(&failed), "{failed}");
}

#[test]
fn injected_failures_spare_captures_and_modules() {
    let Bench { sim, a, .. } = bench();
    sim.capture_begin(a, CaptureMode::Global).unwrap();
    sim.set_faults(FaultPlan::none().fail_nth(Call::CaptureEnd, 1, ErrorClass::Other));
    assert_eq!(class(sim.capture_end(a)), ErrorClass::Other);
    let graph = sim.capture_end(a).unwrap();
    sim.set_faults(FaultPlan::none().fail_nth(Call::GraphInstantiate, 1, ErrorClass::Other));
    assert_eq!(class(sim.graph_instantiate(D, graph)), ErrorClass::Other);
    let exec = sim.graph_instantiate(D, graph).unwrap();
    sim.graph_destroy(graph).unwrap();
    sim.graph_exec_destroy(exec).unwrap();
    sim.set_faults(FaultPlan::none().fail_nth(Call::ModuleLoad, 1, ErrorClass::Other));
    let ptx = b".version 8.0\n.target sm_90\n.visible .entry hw_spin(.param .u64 us) { ret; }";
    assert_eq!(class(sim.module_load(D, ptx)), ErrorClass::Other);
    assert!(sim.module_load(D, ptx).is_ok());
}

#[test]
fn plain_memory_runs_out_with_numbers_and_comes_back() {
    let sim = SimDriver::builder().memory_bytes(64 << 20).build();
    let ptr = sim.mem_alloc(D, 63 << 20).unwrap();
    assert!(ptr.is_aligned_to(256));
    let error = sim.mem_alloc(D, 1 << 20).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}: 63 MiB take 64");
    assert_eq!(class(sim.mem_alloc(D, 0)), ErrorClass::InvalidValue);
    assert!(sim.mem_alloc(D, u64::MAX).unwrap_err().is_out_of_memory());
    sim.mem_free(D, ptr).unwrap();
    assert_eq!(sim.memory_info(D).unwrap().free_bytes, 64 << 20);
    sim.shrink_memory(D, 32 << 20);
    assert!(sim.mem_alloc(D, 48 << 20).unwrap_err().is_out_of_memory());
    assert!(sim.host_alloc(u64::MAX).unwrap_err().is_out_of_memory());
}
