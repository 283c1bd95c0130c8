//! Capture: what is legal meanwhile, what invalidates it, and how it ends.

// Tests may panic; clippy knows that of `#[test]` functions only, not of what they call.
#![allow(clippy::unwrap_used)]

mod common;

use std::ptr::NonNull;

use common::{
    Bench, D, MODES, PAGE, alloc, bench, blocking_stream, class, code, event, mark, stream, writer,
};
use headwater_driver::{
    Capture, CaptureMode, CaptureStatus, Copies, Devices, ErrorClass, EventOptions, Events, HostMemory,
    PlainMemory, Result, Stream, StreamOptions, Streams, VirtualMemory,
};
use headwater_sim::{SimDriver, Work};

/// A call that is potentially unsafe, made while `Prepared` things exist.
type Unsafe = fn(&SimDriver, &Prepared) -> Result<()>;

struct Prepared {
    other: Stream,
    outside: headwater_driver::Event,
    block: headwater_driver::DevicePtr,
    host: NonNull<u8>,
}

/// Measured: docs/cuda-facts.md.
const UNSAFE: [(&str, Unsafe); 7] = [
    ("alloc", |sim, _| sim.mem_alloc(D, 4096).map(drop)),
    ("stream query", |sim, it| sim.stream_query(it.other).map(drop)),
    ("free", |sim, it| sim.mem_free(D, it.block)),
    ("host alloc", |sim, _| sim.host_alloc(4096).map(drop)),
    ("event query", |sim, it| sim.event_query(it.outside).map(drop)),
    ("event synchronise", |sim, it| sim.event_synchronize(it.outside)),
    ("stream synchronise", |sim, it| sim.stream_synchronize(it.other)),
];

fn prepare(sim: &SimDriver) -> Prepared {
    let other = stream(sim);
    Prepared {
        other,
        outside: mark(sim, other),
        block: alloc(sim, 4096),
        host: sim.host_alloc(4096).unwrap(),
    }
}

#[test]
fn unsafe_calls_fail_and_invalidate_as_the_two_modes_say() {
    for (name, call) in UNSAFE {
        for captured_in in MODES {
            for thread_mode in MODES {
                let Bench { sim, a, .. } = bench();
                let it = prepare(&sim);
                sim.capture_begin(a, captured_in).unwrap();
                let former = sim.capture_mode_exchange(thread_mode).unwrap();
                let illegal = captured_in != CaptureMode::Relaxed && thread_mode != CaptureMode::Relaxed;
                let result = call(&sim, &it);
                let case = format!("{name}, captured in {captured_in:?}, thread in {thread_mode:?}");
                if illegal {
                    assert_eq!(result.unwrap_err().code(), 900, "{case}");
                    assert_eq!(sim.capture_status(a).unwrap(), CaptureStatus::Invalidated, "{case}");
                    assert_eq!(code(sim.submit(a, Work::new("k", 1))), 901, "{case}");
                    assert_eq!(class(sim.capture_end(a)), ErrorClass::CaptureInvalidated, "{case}");
                } else {
                    assert!(result.is_ok(), "{case}");
                    assert!(sim.capture_end(a).is_ok(), "{case}");
                }
                assert_eq!(sim.capture_status(a).unwrap(), CaptureStatus::None, "{case}");
                sim.capture_mode_exchange(former).unwrap();
            }
        }
    }
}

#[test]
fn other_threads_are_hindered_by_global_captures_only() {
    for (captured_in, thread_mode, legal) in [
        (CaptureMode::Global, CaptureMode::Global, false),
        (CaptureMode::Global, CaptureMode::ThreadLocal, true),
        (CaptureMode::Global, CaptureMode::Relaxed, true),
        (CaptureMode::ThreadLocal, CaptureMode::Global, true),
        (CaptureMode::Relaxed, CaptureMode::Global, true),
    ] {
        let Bench { sim, a, .. } = bench();
        sim.capture_begin(a, captured_in).unwrap();
        let other = &sim;
        let allocated = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                other.capture_mode_exchange(thread_mode).unwrap();
                other.mem_alloc(D, 4096).is_ok()
            });
            thread.join().unwrap()
        });
        assert_eq!(allocated, legal, "{captured_in:?} {thread_mode:?}");
        assert_eq!(sim.capture_end(a).is_ok(), legal, "{captured_in:?} {thread_mode:?}");
    }
}

#[test]
fn a_failed_unsafe_call_changes_nothing_but_the_capture() {
    let Bench { sim, a, .. } = bench();
    let it = prepare(&sim);
    let before = (sim.memory_now(D), sim.leaks().len());
    sim.capture_begin(a, CaptureMode::Global).unwrap();
    sim.mem_alloc(D, 4096).unwrap_err();
    sim.mem_free(D, it.block).unwrap_err();
    // SAFETY: refused; the block stays allocated.
    unsafe { sim.host_free(it.host).unwrap_err() };
    sim.capture_end(a).unwrap_err();
    assert_eq!((sim.memory_now(D), sim.leaks().len()), before);
    sim.mem_free(D, it.block).unwrap();
}

#[test]
fn virtual_memory_events_and_questions_are_legal_in_every_mode() {
    for mode in MODES {
        let Bench { sim, a, b } = bench();
        sim.capture_begin(a, mode).unwrap();
        let (ptr, handle) = common::mapped_page(&sim);
        sim.handle_unmap(D, ptr, PAGE).unwrap();
        sim.handle_release(handle).unwrap();
        sim.address_free(D, ptr, 8 * PAGE).unwrap();
        sim.memory_info(D).unwrap();
        let marked = mark(&sim, b);
        sim.event_destroy(marked).unwrap();
        let made = sim.stream_create(D, StreamOptions::default()).unwrap();
        assert!(matches!(sim.capture_status(a), Ok(CaptureStatus::Active(_))));
        sim.stream_destroy(made).unwrap();
        assert!(sim.capture_end(a).is_ok(), "{mode:?}");
    }
}

#[test]
fn asking_or_waiting_for_a_captured_stream_is_illegal_even_in_relaxed_mode() {
    let calls: [fn(&SimDriver, Stream) -> Result<()>; 2] =
        [|sim, a| sim.stream_query(a).map(drop), |sim, a| sim.stream_synchronize(a)];
    for call in calls {
        let Bench { sim, a, .. } = bench();
        sim.capture_begin(a, CaptureMode::Relaxed).unwrap();
        assert_eq!(class(call(&sim, a)), ErrorClass::IllegalInCapture);
        assert_eq!(class(sim.capture_end(a)), ErrorClass::CaptureInvalidated);
    }
}

#[test]
fn an_event_recorded_in_a_capture_cannot_be_asked() {
    let Bench { sim, a, b } = bench();
    let inside = event(&sim);
    for mode in MODES {
        sim.capture_begin(a, mode).unwrap();
        sim.event_record(inside, a).unwrap();
        assert_eq!(code(sim.event_query(inside)), 907);
        assert_eq!(class(sim.capture_end(a)), ErrorClass::CaptureInvalidated);
    }
    sim.capture_begin(a, CaptureMode::Relaxed).unwrap();
    sim.event_record(inside, a).unwrap();
    sim.capture_end(a).unwrap();
    assert_eq!(code(sim.event_query(inside)), 1, "it has no point any more");
    assert_eq!(code(sim.event_synchronize(inside)), 1);
    assert_eq!(code(sim.stream_wait_event(b, inside)), 1);
    sim.event_record(inside, a).unwrap();
    assert!(sim.event_query(inside).unwrap(), "recorded outside, it is an event like any other");
}

#[test]
fn the_legacy_default_stream_cannot_be_captured_nor_used_beside_a_captured_blocking_stream() {
    let legacy = Stream::legacy_default(D);
    let Bench { sim, a, .. } = bench();
    assert_eq!(class(sim.capture_begin(legacy, CaptureMode::Relaxed)), ErrorClass::IllegalInCapture);

    sim.capture_begin(a, CaptureMode::Relaxed).unwrap();
    assert!(sim.submit(legacy, Work::new("k", 1)).is_ok(), "a non-blocking stream has nothing to do with it");
    sim.capture_end(a).unwrap();

    let blocking = blocking_stream(&sim);
    let outside = event(&sim);
    let uses: [&dyn Fn() -> Result<()>; 4] = [
        &|| sim.submit(legacy, Work::new("k", 1)),
        &|| sim.event_record(outside, legacy),
        &|| sim.stream_query(legacy).map(drop),
        &|| sim.stream_synchronize(legacy),
    ];
    for used in uses {
        sim.capture_begin(blocking, CaptureMode::Relaxed).unwrap();
        assert_eq!(code(sim.capture_status(legacy)), 906);
        assert!(matches!(sim.capture_status(blocking), Ok(CaptureStatus::Active(_))), "only asked");
        assert_eq!(code(used()), 906);
        assert_eq!(class(sim.capture_end(blocking)), ErrorClass::CaptureInvalidated);
    }
    sim.capture_begin(blocking, CaptureMode::Relaxed).unwrap();
    assert_eq!(code(sim.capture_begin(legacy, CaptureMode::Relaxed)), 906);
    assert_eq!(class(sim.capture_end(blocking)), ErrorClass::CaptureInvalidated);
}

#[test]
fn a_forked_stream_joins_and_must_be_joined_back() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    for join_back in [false, true] {
        sim.capture_begin(a, CaptureMode::Global).unwrap();
        sim.submit(a, Work::new("first", 1)).unwrap();
        sim.stream_wait_event(b, mark(&sim, a)).unwrap();
        let status = sim.capture_status(b).unwrap();
        assert_eq!(status, sim.capture_status(a).unwrap());
        assert!(matches!(status, CaptureStatus::Active(_)));
        sim.submit(b, writer("forked", ptr)).unwrap();
        if join_back {
            sim.stream_wait_event(a, mark(&sim, b)).unwrap();
            assert!(sim.capture_end(a).is_ok());
        } else {
            assert_eq!(code(sim.capture_end(a)), 904);
        }
        assert_eq!(sim.capture_status(a).unwrap(), CaptureStatus::None);
        assert_eq!(sim.capture_status(b).unwrap(), CaptureStatus::None);
    }
}

#[test]
fn waits_do_not_cross_the_border_of_a_capture() {
    let Bench { sim, a, b } = bench();
    let outside = mark(&sim, b);
    sim.capture_begin(a, CaptureMode::Global).unwrap();
    assert_eq!(code(sim.stream_wait_event(a, outside)), 905);
    assert_eq!(class(sim.capture_end(a)), ErrorClass::CaptureInvalidated);

    sim.capture_begin(a, CaptureMode::Global).unwrap();
    sim.capture_begin(b, CaptureMode::Global).unwrap();
    let inside = mark(&sim, a);
    assert_eq!(code(sim.stream_wait_event(b, inside)), 902, "that would merge two captures");
    for stream in [a, b] {
        assert_eq!(class(sim.capture_end(stream)), ErrorClass::CaptureInvalidated);
    }
}

#[test]
fn a_capture_ends_where_it_began() {
    let Bench { sim, a, b } = bench();
    assert_eq!(code(sim.capture_end(a)), 401, "not captured");
    sim.capture_begin(a, CaptureMode::Global).unwrap();
    assert_eq!(code(sim.capture_begin(a, CaptureMode::Global)), 401, "already captured");
    sim.capture_end(a).unwrap();

    sim.capture_begin(a, CaptureMode::Global).unwrap();
    sim.stream_wait_event(b, mark(&sim, a)).unwrap();
    assert_eq!(code(sim.capture_end(b)), 903, "begun on another stream");
    assert_eq!(sim.capture_status(b).unwrap(), CaptureStatus::Invalidated);
    assert_eq!(class(sim.capture_end(a)), ErrorClass::CaptureInvalidated);
    assert_eq!(sim.capture_status(b).unwrap(), CaptureStatus::None);
}

#[test]
fn a_capture_ends_in_its_thread_unless_relaxed() {
    for mode in MODES {
        let Bench { sim, a, .. } = bench();
        sim.capture_begin(a, mode).unwrap();
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| sim.capture_end(a)).join().unwrap());
        if mode == CaptureMode::Relaxed {
            assert!(elsewhere.is_ok());
        } else {
            assert_eq!(code(elsewhere), 908);
            assert_eq!(sim.capture_status(a).unwrap(), CaptureStatus::None, "and it is gone");
        }
    }
}

#[test]
fn destroying_the_captured_stream_ends_the_capture() {
    let Bench { sim, a, b } = bench();
    sim.capture_begin(a, CaptureMode::Global).unwrap();
    sim.stream_wait_event(b, mark(&sim, a)).unwrap();
    sim.stream_destroy(a).unwrap();
    assert_eq!(sim.capture_status(b).unwrap(), CaptureStatus::None);
    assert!(sim.mem_alloc(D, 4096).is_ok(), "no capture forbids it any more");
}

#[test]
fn captured_work_does_not_run() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 4096);
    sim.capture_begin(a, CaptureMode::Global).unwrap();
    // SAFETY: the range is valid.
    unsafe { sim.fill_bytes(ptr, 7, 4096, a).unwrap() };
    sim.capture_end(a).unwrap();
    sim.wait_until_idle();
    assert_eq!(sim.peek(ptr.raw()..ptr.raw() + 1), Some(vec![0xCD]));
}

#[test]
fn timed_events_outside_of_the_capture_still_work() {
    let Bench { sim, a, b } = bench();
    let timed = || sim.event_create(D, EventOptions { timing: true }).unwrap();
    let (start, end) = (timed(), timed());
    sim.capture_begin(a, CaptureMode::ThreadLocal).unwrap();
    sim.event_record(start, b).unwrap();
    sim.submit(b, Work::new("k", 50_000)).unwrap();
    sim.event_record(end, b).unwrap();
    sim.advance_ns(100_000);
    // The launch takes the host 4 us, and the first event does not wait for it.
    assert_eq!(sim.event_elapsed_us(start, end).unwrap(), 54.0);
    assert!(sim.capture_end(a).is_ok());
}
