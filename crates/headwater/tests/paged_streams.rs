//! Memory and streams on the paged backing: who may have what, when, and that nobody waits who need not.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::{Bench, MIB};
use headwater::{Allocator, Request};
use headwater_driver::{Call, Capture, CaptureMode, Devices, Streams};

const LONG_NS: u64 = 1_000_000_000;

#[test]
fn finished_memory_of_another_stream_is_used_without_a_wait() {
    let bench = Bench::new("backing:paged");
    let (first, second) = (bench.stream(), bench.stream());
    let block = bench.allocate(100 * MIB, first);
    bench.write(block, 100 * MIB, first, 1_000);
    bench.give_back(block);
    bench.sim.advance_ns(LONG_NS);
    let waits = bench.calls(Call::StreamWaitEvent, || {
        let other = bench.allocate(100 * MIB, second);
        bench.write(other, 100 * MIB, second, 1_000);
    });
    assert_eq!(waits, 0);
    assert_eq!(bench.reserved_bytes(), 100 * MIB);
    bench.check();
}

#[test]
fn unfinished_memory_of_another_stream_is_left_alone_while_there_is_room() {
    let bench = Bench::new("backing:paged");
    let (first, second) = (bench.stream(), bench.stream());
    let block = bench.allocate(100 * MIB, first);
    bench.write(block, 100 * MIB, first, LONG_NS);
    bench.give_back(block);
    let waits = bench.calls(Call::StreamWaitEvent, || {
        let other = bench.allocate(100 * MIB, second);
        bench.write(other, 100 * MIB, second, 1_000);
    });
    assert_eq!((waits, bench.reserved_bytes()), (0, 200 * MIB), "growing comes before ordering");
    bench.check();
}

#[test]
fn under_a_limit_the_other_stream_waits_on_the_device_and_the_host_does_not() {
    let bench = Bench::new("backing:paged,memory_limit:128M");
    let (first, second) = (bench.stream(), bench.stream());
    let block = bench.allocate(100 * MIB, first);
    bench.write(block, 100 * MIB, first, LONG_NS);
    bench.give_back(block);
    let before_ns = bench.sim.now_ns();
    let waits = bench.calls(Call::StreamWaitEvent, || {
        let other = bench.allocate(100 * MIB, second);
        bench.write(other, 100 * MIB, second, 1_000);
    });
    assert_eq!(waits, 1);
    assert!(bench.sim.now_ns() - before_ns < LONG_NS / 2, "the host waited");
    bench.check();
}

#[test]
fn where_reuse_across_streams_is_off_no_stream_waits_for_another() {
    let bench = Bench::new("backing:paged,memory_limit:128M,cross_stream_reuse:False");
    let (first, second) = (bench.stream(), bench.stream());
    let block = bench.allocate(100 * MIB, first);
    bench.write(block, 100 * MIB, first, LONG_NS);
    bench.give_back(block);
    let waits = bench.calls(Call::StreamWaitEvent, || {
        // The host waits instead, as the last resort.
        let other = bench.allocate(100 * MIB, second);
        bench.write(other, 100 * MIB, second, 1_000);
    });
    assert_eq!(waits, 0);
    bench.check();
}

#[test]
fn a_stream_takes_its_own_memory_elsewhere_while_it_still_uses_it() {
    let bench = Bench::new("backing:paged,memory_limit:120M");
    let stream = bench.stream();
    let [a, b, c] = [30, 40, 30].map(|mib| bench.allocate(mib * MIB, stream));
    for (ptr, mib) in [(a, 30), (b, 40), (c, 30)] {
        bench.write(ptr, mib * MIB, stream, LONG_NS);
    }
    bench.give_back(a);
    bench.give_back(c);
    let before_ns = bench.sim.now_ns();
    // Only in two pieces, and both are busy: brought together by mapping, and nobody waits.
    let joined = bench.allocate(60 * MIB, stream);
    bench.write(joined, 60 * MIB, stream, 1_000);
    assert!(bench.sim.now_ns() - before_ns < LONG_NS / 2, "the host waited");
    assert!(bench.reserved_bytes() <= 120 * MIB);
    bench.check();
    bench.sim.advance_ns(10 * LONG_NS);
    bench.give_back(joined);
    bench.give_back(b);
    bench.sim.wait_until_idle();
    assert_eq!(bench.allocator.trim(0).unwrap(), 100 * MIB);
    bench.check();
}

#[test]
fn two_independent_streams_never_wait_for_each_other_while_memory_suffices() {
    let bench = Bench::new("backing:paged");
    let streams = [bench.stream(), bench.stream()];
    let waits = bench.calls(Call::StreamWaitEvent, || {
        for round in 0..50 {
            for stream in streams {
                let block = bench.allocate((20 + round % 7) * MIB, stream);
                bench.write(block, 20 * MIB, stream, 100_000);
                bench.give_back(block);
            }
        }
    });
    assert_eq!(waits, 0);
}

#[test]
fn growing_and_taking_are_legal_in_a_capture() {
    let bench = Bench::new("backing:paged,memory_limit:100M");
    let stream = bench.stream();
    let other = bench.stream();
    let spare = bench.allocate(50 * MIB, other);
    bench.give_back(spare);
    bench.sim.capture_begin(stream, CaptureMode::Global).unwrap();
    let first = bench.allocate(30 * MIB, stream);
    bench.give_back(first);
    let second = bench.allocate(60 * MIB, stream);
    bench.give_back(second);
    let graph = bench.sim.capture_end(stream).expect("the allocator harmed the capture");
    bench.sim.graph_destroy(graph).unwrap();
    bench.check();
}

#[test]
fn a_peer_gets_access_to_what_is_there_and_to_what_comes() {
    use headwater_driver::DeviceId;
    let sim = headwater_sim::SimDriver::builder().devices(2).build();
    let config = headwater::config::Config::parse("backing:paged").unwrap();
    let allocator = headwater::CachingAllocator::new(sim.clone(), DeviceId(0), config).unwrap();
    let stream = sim.stream_create(DeviceId(0), Default::default()).unwrap();
    let before = allocator.allocate(Request::new(20 * MIB, stream)).unwrap();
    if !sim.peer_access_possible(DeviceId(1), DeviceId(0)).unwrap() {
        assert!(allocator.enable_peer(DeviceId(1)).is_err());
        return;
    }
    allocator.enable_peer(DeviceId(1)).unwrap();
    let after = allocator.allocate(Request::new(20 * MIB, stream)).unwrap();
    let peer_stream = sim.stream_create(DeviceId(1), Default::default()).unwrap();
    for ptr in [before, after] {
        let work = headwater_sim::Work::new("peer write", 1_000).writes(ptr.raw()..ptr.raw() + MIB);
        sim.submit(peer_stream, work).unwrap();
    }
    sim.wait_until_idle();
    assert!(sim.hazards().is_empty(), "{}", sim.hazards()[0]);
}
