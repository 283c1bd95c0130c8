//! Blocks and streams: whose a block is, who else uses it, and when it is free.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::{Bench, DEVICE, KIB, MIB};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{Call, Capture, CaptureMode, DevicePtr, Stream, Streams};

const PYTORCH: &str = "backing:classic,cross_stream_reuse:False";
const MILLISECOND: u64 = 1_000_000;

#[test]
fn a_block_is_used_again_on_its_stream_at_once_and_on_no_other() {
    let bench = Bench::new(PYTORCH);
    let (mine, other) = (bench.stream(), bench.stream());
    let first = bench.allocate(MIB, mine);
    bench.write(first, MIB, mine, MILLISECOND);
    bench.give_back(first);
    assert_eq!(bench.all_calls(|| assert_eq!(bench.allocate(MIB, mine), first)), 0);
    bench.write(first, MIB, mine, 1000);
    bench.give_back(first);
    assert_ne!(bench.allocate(MIB, other), first);
    bench.check();
}

#[test]
fn record_stream_makes_no_driver_call_and_the_own_stream_is_ignored() {
    let bench = Bench::new(PYTORCH);
    let (mine, other) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(MIB, mine);
    let calls = bench.all_calls(|| {
        for stream in [mine, other, other] {
            bench.allocator.record_stream(ptr, stream).unwrap();
        }
    });
    assert_eq!(calls, 0);
    let own = bench.allocate(MIB, mine);
    bench.allocator.record_stream(own, mine).unwrap();
    assert_eq!(bench.all_calls(|| bench.give_back(own)), 0);
    assert_eq!(bench.pending_bytes(), 0);
}

#[test]
fn a_block_that_another_stream_uses_waits_for_it() {
    let bench = Bench::new(PYTORCH);
    let (mine, other) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(4 * MIB, mine);
    bench.write(ptr, 4 * MIB, mine, 1000);
    bench.order(mine, other);
    bench.write(ptr, 4 * MIB, other, MILLISECOND);
    bench.allocator.record_stream(ptr, other).unwrap();
    bench.give_back(ptr);
    assert_eq!(bench.pending_bytes(), 4 * MIB);
    let meanwhile = bench.allocate(4 * MIB, mine);
    assert_ne!(meanwhile, ptr);
    bench.sim.advance_ns(2 * MILLISECOND);
    assert_eq!(bench.allocate(4 * MIB, mine), ptr);
    assert_eq!(bench.pending_bytes(), 0);
    bench.write(ptr, 4 * MIB, mine, 1000);
    bench.check();
}

#[test]
fn one_event_serves_all_blocks_given_back_since_the_last() {
    let bench = Bench::new(PYTORCH);
    let (mine, other) = (bench.stream(), bench.stream());
    let blocks: Vec<DevicePtr> = (0..20).map(|_| bench.allocate(64 * KIB, mine)).collect();
    bench.busy(other, MILLISECOND);
    let events = bench.calls(Call::EventRecord, || {
        for ptr in &blocks {
            bench.allocator.record_stream(*ptr, other).unwrap();
            bench.give_back(*ptr);
        }
        bench.allocate(512, mine);
        bench.allocate(512, mine);
    });
    assert_eq!(events, 2, "one for the first block at once, one for the rest");
    bench.sim.advance_ns(2 * MILLISECOND);
    bench.allocate(512, mine);
    assert_eq!(bench.pending_bytes(), 0);
    // And the events are used again.
    let again = bench.allocate(64 * KIB, mine);
    bench.allocator.record_stream(again, other).unwrap();
    assert_eq!(bench.calls(Call::EventCreate, || bench.give_back(again)), 0);
}

#[test]
fn a_stream_with_long_work_holds_up_nobody_else() {
    let bench = Bench::new(PYTORCH);
    let (mine, slow, quick) = (bench.stream(), bench.stream(), bench.stream());
    let (a, b) = (bench.allocate(2 * MIB, mine), bench.allocate(3 * MIB, mine));
    bench.busy(slow, 1000 * MILLISECOND);
    bench.busy(quick, MILLISECOND);
    bench.allocator.record_stream(a, slow).unwrap();
    bench.allocator.record_stream(b, quick).unwrap();
    bench.give_back(a);
    bench.give_back(b);
    bench.sim.advance_ns(2 * MILLISECOND);
    bench.allocator.poll().unwrap();
    assert_eq!(bench.pending_bytes(), 2 * MIB);
}

#[test]
fn give_backs_that_need_events_wait_while_their_stream_is_captured() {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let bench = Bench::new(PYTORCH);
        let (mine, captured) = (bench.stream(), bench.stream());
        let (ptr, old) = (bench.allocate(2 * MIB, mine), bench.allocate(2 * MIB, mine));
        bench.allocator.record_stream(ptr, captured).unwrap();
        bench.allocator.record_stream(old, captured).unwrap();
        bench.busy(captured, MILLISECOND);
        bench.give_back(old);
        bench.sim.capture_begin(captured, mode).unwrap();
        let records = bench.calls(Call::EventRecord, || {
            bench.give_back(ptr);
            // Misses, asks the old event, and leaves the captured stream alone.
            bench.allocate(40 * MIB, mine);
            bench.allocate(40 * MIB, captured);
        });
        assert_eq!(records, 0);
        let graph = bench.sim.capture_end(captured).expect("the capture was harmed");
        bench.sim.graph_destroy(graph).unwrap();
        assert!(bench.pending_bytes() >= 2 * MIB);
        bench.sim.advance_ns(2 * MILLISECOND);
        bench.allocator.poll().unwrap();
        assert_eq!(bench.pending_bytes(), 0, "{mode:?}");
    }
}

#[test]
fn finished_memory_of_another_stream_serves_before_the_driver_is_asked() {
    let bench = Bench::new("backing:classic");
    let (one, two) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(32 * MIB, one);
    bench.write(ptr, 32 * MIB, one, MILLISECOND);
    bench.give_back(ptr);
    // Not finished: a new segment.
    let other = bench.allocate(32 * MIB, two);
    assert_ne!(other, ptr);
    bench.sim.advance_ns(2 * MILLISECOND);
    let taken = bench.calls(Call::MemAlloc, || assert_eq!(bench.allocate(32 * MIB, two), ptr));
    assert_eq!(taken, 0);
    bench.write(ptr, 32 * MIB, two, 1000);
    bench.check();
    assert_eq!(bench.allocator.block_at(ptr).unwrap().stream, two);
    // PyTorch keeps it for its stream.
    let bench = Bench::new(PYTORCH);
    let (one, two) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(32 * MIB, one);
    bench.give_back(ptr);
    assert_ne!(bench.allocate(32 * MIB, two), ptr);
}

#[test]
fn pieces_of_two_streams_become_one_block_again() {
    let bench = Bench::new("backing:classic");
    let (one, two) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(32 * MIB, one);
    bench.give_back(ptr);
    let half = bench.allocate(16 * MIB, two);
    assert_eq!(half, ptr);
    bench.give_back(half);
    assert_eq!(bench.allocate(32 * MIB, two), ptr);
    assert_eq!(bench.reserved_bytes(), 32 * MIB);
}

#[test]
fn memory_of_a_stream_that_took_leave_serves_all_when_its_work_has_finished() {
    let bench = Bench::new(PYTORCH);
    let (mine, other) = (bench.stream(), bench.stream());
    let (free, live) = (bench.allocate(12 * MIB, mine), bench.allocate(14 * MIB, mine));
    let used = bench.allocate(16 * MIB, other);
    bench.allocator.record_stream(used, mine).unwrap();
    bench.write(live, 14 * MIB, mine, MILLISECOND);
    bench.give_back(free);
    bench.allocator.forget_stream(mine).unwrap();
    bench.sim.stream_destroy(mine).unwrap();
    bench.give_back(live);
    bench.give_back(used);
    assert_ne!(bench.allocate(12 * MIB, other), free, "its work has not finished");
    bench.sim.advance_ns(2 * MILLISECOND);
    assert_eq!(bench.allocate(16 * MIB, other), used);
    assert_eq!(bench.allocate(12 * MIB, other), free);
    assert_eq!(bench.allocate(14 * MIB, other), live);
    bench.write(live, 14 * MIB, other, 1000);
    bench.check();
}

#[test]
fn memory_of_a_stream_destroyed_without_a_word_comes_back_with_the_next_returned_segment() {
    let bench = Bench::new(PYTORCH);
    let (mine, gone) = (bench.stream(), bench.stream());
    let (used, keep) = (bench.allocate(3 * MIB, mine), bench.allocate(3 * MIB, mine));
    bench.order(mine, gone);
    bench.write(used, 3 * MIB, gone, MILLISECOND);
    bench.allocator.record_stream(used, gone).unwrap();
    bench.sim.stream_destroy(gone).unwrap();
    bench.give_back(used);
    bench.sim.advance_ns(2 * MILLISECOND);
    bench.allocator.poll().unwrap();
    assert_eq!(bench.pending_bytes(), 3 * MIB, "nothing says that it has finished");
    let whole = bench.allocate(30 * MIB, mine);
    bench.give_back(whole);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 30 * MIB);
    assert_eq!(bench.pending_bytes(), 0);
    assert_eq!(bench.allocate(3 * MIB, mine), used);
    bench.write(used, 3 * MIB, mine, 1000);
    bench.check();
    bench.give_back(keep);
}

#[test]
fn a_segment_that_only_a_lost_stream_used_goes_back_by_itself() {
    let bench = Bench::new(PYTORCH);
    let (mine, gone) = (bench.stream(), bench.stream());
    let used = bench.allocate(30 * MIB, mine);
    bench.order(mine, gone);
    bench.write(used, 30 * MIB, gone, MILLISECOND);
    bench.allocator.record_stream(used, gone).unwrap();
    bench.sim.stream_destroy(gone).unwrap();
    bench.give_back(used);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 30 * MIB);
    assert_eq!((bench.reserved_bytes(), bench.pending_bytes()), (0, 0));
    bench.check();
}

#[test]
fn a_stream_that_is_captured_cannot_take_leave() {
    let bench = Bench::new(PYTORCH);
    let stream = bench.stream();
    let ptr = bench.allocate(MIB, stream);
    bench.sim.capture_begin(stream, CaptureMode::Relaxed).unwrap();
    assert_eq!(bench.allocator.forget_stream(stream), Err(AllocError::StreamCapturing { stream }));
    bench.sim.capture_end(stream).unwrap();
    bench.give_back(ptr);
}

#[test]
fn the_per_thread_stream_keeps_its_memory_apart_by_thread_and_leaves_none_behind() {
    let bench = Bench::new(PYTORCH);
    let stream = Stream::per_thread_default(DEVICE);
    let (theirs, used) = std::thread::scope(|scope| {
        let ask = || {
            let (theirs, used) = (bench.allocate(12 * MIB, stream), bench.allocate(14 * MIB, stream));
            bench.write(theirs, 12 * MIB, stream, MILLISECOND);
            // SAFETY: given back once.
            unsafe { bench.allocator.give_back(theirs).unwrap() };
            (theirs, used)
        };
        scope.spawn(ask).join().unwrap()
    });
    let mine = bench.allocate(12 * MIB, stream);
    assert_ne!(mine, theirs, "another thread's stream");
    // Announced by this thread, it means this thread's stream, and only this thread can record on it.
    bench.allocator.record_stream(used, stream).unwrap();
    bench.write(mine, 12 * MIB, stream, 1000);
    bench.give_back(used);
    bench.give_back(mine);
    bench.sim.wait_until_idle();
    bench.allocator.empty_cache().unwrap();
    assert_eq!(bench.allocator.empty_cache().unwrap() + bench.reserved_bytes(), 0);
    bench.check();
}

#[test]
fn given_back_memory_is_overwritten_before_anyone_gets_it() {
    for (setting, byte) in [("zero", 0), ("0xA5", 0xA5)] {
        let bench = Bench::new(&format!("{PYTORCH},fill_on_free:{setting}"));
        let (mine, other) = (bench.stream(), bench.stream());
        for share in [false, true] {
            let ptr = bench.allocate(64 * KIB, mine);
            bench.write(ptr, 64 * KIB, mine, 1000);
            if share {
                bench.order(mine, other);
                bench.write(ptr, 64 * KIB, other, MILLISECOND);
                bench.allocator.record_stream(ptr, other).unwrap();
            }
            bench.give_back(ptr);
            bench.sim.advance_ns(2 * MILLISECOND);
            bench.allocator.poll().unwrap();
            bench.sim.wait_until_idle();
            let bytes = bench.sim.peek(ptr.raw()..ptr.raw() + 64 * KIB).unwrap();
            assert!(bytes.iter().all(|found| *found == byte), "{setting}, shared: {share}");
            assert_eq!(bench.allocate(64 * KIB, mine), ptr);
            bench.give_back(ptr);
        }
    }
}

#[test]
fn a_fill_never_becomes_a_node_of_somebodys_graph() {
    let bench = Bench::new(&format!("{PYTORCH},fill_on_free:zero"));
    let stream = bench.stream();
    let ptr = bench.allocate(MIB, stream);
    bench.sim.capture_begin(stream, CaptureMode::Global).unwrap();
    let fills = bench.calls(Call::FillBytes, || {
        bench.give_back(ptr);
        assert_ne!(bench.allocate(MIB, stream), ptr, "it has not been overwritten");
    });
    assert_eq!(fills, 0);
    bench.sim.capture_end(stream).unwrap();
    bench.allocator.poll().unwrap();
    assert_eq!(bench.pending_bytes(), 0);
}

#[test]
fn streams_that_come_and_go_are_forgotten() {
    let bench = Bench::new("backing:classic");
    let keep = bench.stream();
    for _ in 0..1000 {
        let stream = bench.stream();
        let ptr = bench.allocator.allocate(Request::new(MIB, stream)).unwrap();
        bench.allocator.record_stream(ptr, keep).unwrap();
        // SAFETY: given back once.
        unsafe { bench.allocator.give_back(ptr).unwrap() };
        bench.allocator.forget_stream(stream).unwrap();
        bench.sim.stream_destroy(stream).unwrap();
    }
    assert!(bench.reserved_bytes() <= 4 * MIB, "{}", bench.reserved_bytes());
    bench.check();
}
