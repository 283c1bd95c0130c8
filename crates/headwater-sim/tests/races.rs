//! Races: found where nothing orders two uses, and only there.
//!
//! Each test has the two orders of the same program, with and without what orders it.

// Tests may panic; clippy knows that of `#[test]` functions only, not of what they call.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, D, alloc, bench, blocking_stream, event, mapped_page, mark, reader, stream, writer};
use headwater_driver::{
    Copies, DevicePtr, Events, HostMemory, PlainMemory, Stream, StreamOptions, Streams, VirtualMemory,
};
use headwater_sim::{Hazard, Place, SimDriver, UseKind};

fn races(sim: &SimDriver) -> usize {
    sim.take_hazards().iter().filter(|hazard| matches!(hazard, Hazard::Race { .. })).count()
}

#[test]
fn a_race_names_both_parties_and_the_bytes() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 8192);
    sim.submit(a, writer("producer", ptr)).unwrap();
    sim.submit(b, reader("consumer", DevicePtr::new(ptr.raw() + 2048))).unwrap();
    let hazards = sim.hazards();
    let Hazard::Race { first, second, place } = &hazards[0] else { panic!("{hazards:?}") };
    assert_eq!((first.label.as_str(), first.stream, first.kind), ("producer", Some(a), UseKind::Write));
    assert_eq!((second.label.as_str(), second.stream, second.kind), ("consumer", Some(b), UseKind::Read));
    assert_eq!(*place, Place::Device(ptr.raw() + 2048..ptr.raw() + 4096));
    assert!(first.time_ns.end - first.time_ns.start == 100_000);
    let text = hazards[0].to_string();
    assert!(text.contains("producer") && text.contains("consumer"), "{text}");
}

#[test]
fn two_readers_do_not_race() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    sim.submit(a, writer("w", ptr)).unwrap();
    sim.stream_synchronize(a).unwrap();
    sim.submit(a, reader("r1", ptr)).unwrap();
    sim.submit(b, reader("r2", ptr)).unwrap();
    assert_eq!(races(&sim), 0);
    sim.submit(stream(&sim), writer("w2", ptr)).unwrap();
    assert_eq!(races(&sim), 2, "the writer races with both readers");
}

#[test]
fn work_in_one_stream_is_ordered() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 4096);
    for label in ["one", "two"] {
        sim.submit(a, writer(label, ptr)).unwrap();
    }
    assert_eq!(races(&sim), 0);
}

#[test]
fn an_event_orders_what_was_before_it_and_nothing_after() {
    let Bench { sim, a, b } = bench();
    let (before, after) = (alloc(&sim, 4096), alloc(&sim, 4096));
    sim.submit(a, writer("before", before)).unwrap();
    let marked = mark(&sim, a);
    sim.submit(a, writer("after", after)).unwrap();
    sim.stream_wait_event(b, marked).unwrap();
    sim.submit(b, writer("b", before)).unwrap();
    assert_eq!(races(&sim), 0);
    sim.submit(b, writer("b", after)).unwrap();
    assert_eq!(races(&sim), 1);
}

#[test]
fn a_wait_keeps_the_point_that_was_recorded_when_it_was_queued() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    let marked = mark(&sim, a);
    sim.stream_wait_event(b, marked).unwrap();
    sim.submit(a, writer("late", ptr)).unwrap();
    sim.event_record(marked, a).unwrap();
    sim.submit(b, writer("b", ptr)).unwrap();
    assert_eq!(races(&sim), 1, "the wait was for the earlier point");
}

#[test]
fn a_wait_for_an_event_that_was_never_recorded_orders_nothing() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    sim.submit(a, writer("a", ptr)).unwrap();
    sim.stream_wait_event(b, event(&sim)).unwrap();
    sim.submit(b, writer("b", ptr)).unwrap();
    assert_eq!(races(&sim), 1);
}

#[test]
fn order_passes_through_a_third_stream() {
    let Bench { sim, a, b } = bench();
    let c = stream(&sim);
    let ptr = alloc(&sim, 4096);
    sim.submit(a, writer("a", ptr)).unwrap();
    sim.stream_wait_event(b, mark(&sim, a)).unwrap();
    sim.stream_wait_event(c, mark(&sim, b)).unwrap();
    sim.submit(c, writer("c", ptr)).unwrap();
    assert_eq!(races(&sim), 0);
}

#[test]
fn host_waits_order_later_work() {
    let waits: [fn(&SimDriver, Stream); 4] = [
        |sim, a| sim.stream_synchronize(a).unwrap(),
        |sim, a| sim.event_synchronize(mark(sim, a)).unwrap(),
        |sim, a| while !sim.stream_query(a).unwrap() {},
        |sim, a| {
            let marked = mark(sim, a);
            while !sim.event_query(marked).unwrap() {}
        },
    ];
    for wait in waits {
        let Bench { sim, a, b } = bench();
        let ptr = alloc(&sim, 4096);
        sim.submit(a, writer("a", ptr)).unwrap();
        wait(&sim, a);
        sim.submit(b, writer("b", ptr)).unwrap();
        assert_eq!(races(&sim), 0);
    }
}

#[test]
fn a_query_that_says_no_orders_nothing() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    sim.submit(a, writer("a", ptr)).unwrap();
    assert!(!sim.event_query(mark(&sim, a)).unwrap());
    assert!(!sim.stream_query(a).unwrap());
    sim.submit(b, writer("b", ptr)).unwrap();
    assert_eq!(races(&sim), 1);
}

#[test]
fn time_that_passed_is_no_order() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    sim.submit(a, writer("a", ptr)).unwrap();
    sim.advance_ns(1_000_000_000);
    assert!(sim.idle());
    sim.submit(b, writer("b", ptr)).unwrap();
    assert_eq!(races(&sim), 1, "it worked by luck");
}

#[test]
fn what_one_thread_waited_for_is_known_to_the_others() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    sim.submit(a, writer("a", ptr)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| sim.stream_synchronize(a).unwrap()).join().unwrap();
        scope.spawn(|| sim.submit(b, writer("b", ptr)).unwrap()).join().unwrap();
    });
    assert_eq!(races(&sim), 0);
}

#[test]
fn the_legacy_default_stream_orders_blocking_streams_and_no_others() {
    let legacy = Stream::legacy_default(D);
    for (non_blocking, expected) in [(false, 0), (true, 2)] {
        let Bench { sim, .. } = bench();
        let make = || sim.stream_create(D, StreamOptions { non_blocking, priority: 0 }).unwrap();
        let (one, other) = (make(), make());
        let ptr = alloc(&sim, 4096);
        sim.submit(one, writer("one", ptr)).unwrap();
        sim.submit(legacy, writer("legacy", ptr)).unwrap();
        sim.submit(other, writer("other", ptr)).unwrap();
        assert_eq!(races(&sim), expected, "non-blocking: {non_blocking}");
    }
}

#[test]
fn asking_the_legacy_default_stream_orders_nothing() {
    let Bench { sim, .. } = bench();
    let (one, other) = (blocking_stream(&sim), blocking_stream(&sim));
    let ptr = alloc(&sim, 4096);
    sim.submit(one, writer("one", ptr)).unwrap();
    assert!(!sim.stream_query(Stream::legacy_default(D)).unwrap());
    sim.submit(other, writer("other", ptr)).unwrap();
    assert_eq!(races(&sim), 1);
}

#[test]
fn per_thread_default_streams_are_one_a_thread() {
    let Bench { sim, .. } = bench();
    let own = Stream::per_thread_default(D);
    let ptr = alloc(&sim, 4096);
    sim.submit(own, writer("main", ptr)).unwrap();
    sim.submit(own, writer("main again", ptr)).unwrap();
    assert_eq!(races(&sim), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| sim.submit(own, writer("other thread", ptr)).unwrap());
    });
    assert_eq!(races(&sim), 1);
}

#[test]
fn two_addresses_of_one_handle_are_the_same_bytes() {
    let Bench { sim, a, b } = bench();
    let (first, handle) = mapped_page(&sim);
    let second = first.checked_add(common::PAGE).unwrap();
    sim.handle_map(second, common::PAGE, handle).unwrap();
    sim.access_set(second, common::PAGE, &[D]).unwrap();
    sim.submit(a, writer("a", first)).unwrap();
    sim.submit(b, writer("b", second)).unwrap();
    assert_eq!(races(&sim), 1);
}

#[test]
fn copies_race_on_pinned_host_memory() {
    let Bench { sim, a, b } = bench();
    let (one, other) = (alloc(&sim, 4096), alloc(&sim, 4096));
    let host = sim.host_alloc(4096).unwrap();
    // SAFETY: all ranges are valid, and the host memory is not looked at.
    unsafe {
        sim.fill_bytes(one, 1, 4096, a).unwrap();
        sim.fill_bytes(other, 2, 4096, b).unwrap();
        sim.copy_to_host(host.as_ptr(), one, 4096, a).unwrap();
        sim.copy_to_host(host.as_ptr(), other, 4096, b).unwrap();
    }
    let hazards = sim.take_hazards();
    assert!(
        matches!(&hazards[..], [Hazard::Race { place: Place::Host { bytes, .. }, .. }] if *bytes == (0..4096)),
        "{hazards:?}"
    );
}

#[test]
fn memory_that_was_freed_and_allocated_again_has_no_past() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    sim.submit(a, writer("a", ptr)).unwrap();
    sim.mem_free(D, ptr).unwrap();
    sim.submit(b, writer("b", alloc(&sim, 4096))).unwrap();
    assert!(sim.take_hazards().is_empty());
}
