//! Limits, and what happens on the way to an out-of-memory error.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caching_support::{Bench, KIB, MIB};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{Call, Stream};

const PYTORCH: &str = "backing:classic,cross_stream_reuse:False";
const MILLISECOND: u64 = 1_000_000;

fn out_of_memory(answer: Result<headwater_driver::DevicePtr, AllocError>) -> headwater::OutOfMemoryReport {
    match answer {
        Err(AllocError::OutOfMemory(report)) => *report,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn cached_segments_are_returned_before_a_request_fails() {
    let bench = Bench::with_memory(PYTORCH, 100 * MIB);
    let (one, two) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(60 * MIB, one);
    bench.give_back(ptr);
    bench.allocate(60 * MIB, two);
    let stats = bench.allocator.stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams), (1, 0, 0));
    assert_eq!((stats.num_device_alloc, stats.num_device_free), (2, 1));
    bench.check();
}

#[test]
fn pending_blocks_are_waited_for_last_and_used_without_a_new_segment() {
    let bench = Bench::with_memory(PYTORCH, 100 * MIB);
    let (one, two) = (bench.stream(), bench.stream());
    let (ptr, small) = (bench.allocate(60 * MIB, one), bench.allocate(KIB, one));
    bench.busy(two, 50 * MILLISECOND);
    bench.allocator.record_stream(ptr, two).unwrap();
    bench.give_back(ptr);
    let before = bench.sim.now_ns();
    let allocs = bench.calls(Call::MemAlloc, || assert_eq!(bench.allocate(60 * MIB, one), ptr));
    // PyTorch searches no further after waiting, frees the segment and asks for another.
    assert_eq!(allocs, 1, "the one attempt that found no memory");
    assert!(bench.sim.now_ns() - before >= 49 * MILLISECOND);
    assert_eq!(bench.allocator.stats().num_sync_all_streams, 1);
    bench.give_back(small);
}

#[test]
fn waiting_is_for_the_oldest_first_and_stops_when_there_is_enough() {
    let bench = Bench::with_memory(PYTORCH, 100 * MIB);
    let (one, quick, slow) = (bench.stream(), bench.stream(), bench.stream());
    let (a, b) = (bench.allocate(40 * MIB, one), bench.allocate(40 * MIB, one));
    bench.busy(quick, MILLISECOND);
    bench.busy(slow, 10_000 * MILLISECOND);
    bench.allocator.record_stream(a, quick).unwrap();
    bench.allocator.record_stream(b, slow).unwrap();
    bench.give_back(a);
    bench.give_back(b);
    assert_eq!(bench.allocate(40 * MIB, one), a);
    assert!(bench.sim.now_ns() < 100 * MILLISECOND);
}

#[test]
fn an_error_has_the_full_picture() {
    let bench = Bench::with_memory("backing:classic,memory_limit:64M", 100 * MIB);
    let stream = bench.stream();
    let live = bench.allocate(3 * MIB - 100, stream);
    let report = out_of_memory(bench.try_allocate(70 * MIB, stream));
    assert_eq!((report.requested_bytes, report.live_bytes), (70 * MIB, 3 * MIB - 100));
    assert_eq!((report.allocated_bytes, report.cached_bytes), (3 * MIB, 17 * MIB));
    assert_eq!((report.reserved_bytes, report.pending_bytes), (20 * MIB, 0));
    assert_eq!((report.limit_bytes, report.over_limit), (Some(64 * MIB), true));
    assert_eq!(report.memory.unwrap().total_bytes, 100 * MIB);
    assert!(report.remedy.contains("memory_limit"), "{}", report.remedy);
    let stats = bench.allocator.stats();
    assert_eq!((stats.num_ooms, stats.num_oom_rejections), (1, 0));
    bench.give_back(live);
    bench.allocate(60 * MIB, stream);
}

#[test]
fn beyond_the_limit_a_request_can_be_made_to_fail_at_once() {
    let settings = "backing:classic,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True";
    let bench = Bench::with_memory(settings, 100 * MIB);
    let (one, two) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(40 * MIB, one);
    bench.give_back(ptr);
    bench.busy(one, MILLISECOND);
    let calls = bench.calls(Call::MemAlloc, || {
        assert!(out_of_memory(bench.try_allocate(45 * MIB, two)).over_limit);
    });
    assert_eq!(calls, 0);
    let stats = bench.allocator.stats();
    assert_eq!((stats.num_oom_rejections, stats.num_alloc_retries), (1, 0));
    assert_eq!(bench.reserved_bytes(), 40 * MIB, "the cache was left alone");
}

#[test]
fn the_failure_callback_may_free_and_the_request_is_tried_once_more() {
    let bench = Bench::with_memory(PYTORCH, 100 * MIB);
    let stream = bench.stream();
    let spillable = bench.allocate(60 * MIB, stream);
    let calls = Arc::new(AtomicU64::new(0));
    let (allocator, counted) = (Arc::downgrade(&bench.allocator), Arc::clone(&calls));
    bench.allocator.set_failure_callback(Some(Arc::new(move |report| {
        assert_eq!(report.requested_bytes, 80 * MIB);
        if counted.fetch_add(1, Ordering::Relaxed) > 0 {
            return false;
        }
        // No lock is held: the allocator can be used, down to emptying its cache.
        let allocator = allocator.upgrade().unwrap();
        // SAFETY: the test gives this block back nowhere else.
        unsafe { allocator.give_back(spillable).unwrap() };
        allocator.empty_cache().unwrap();
        true
    })));
    bench.allocate(80 * MIB, stream);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    out_of_memory(bench.try_allocate(80 * MIB, stream));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    bench.allocator.set_failure_callback(None);
    out_of_memory(bench.try_allocate(80 * MIB, stream));
}

#[test]
fn collection_returns_what_was_not_used_for_long_and_keeps_the_rest() {
    let settings = format!("{PYTORCH},memory_limit:100M,garbage_collection_threshold:0.5");
    let bench = Bench::new(&settings);
    let stream = bench.stream();
    let (old, young) = (bench.allocate(20 * MIB, stream), bench.allocate(24 * MIB, stream));
    bench.give_back(old);
    for _ in 0..10 {
        let ptr = bench.allocate(12 * MIB, stream);
        bench.give_back(ptr);
        let ptr = bench.allocate(24 * MIB - 512 * KIB, stream);
        bench.give_back(ptr);
    }
    bench.give_back(young);
    // 20 + 24 + 24 MiB are reserved, more than half of the limit: the next new segment collects first.
    let frees = bench.calls(Call::MemFree, || {
        bench.allocate(30 * MIB, stream);
    });
    assert!(frees >= 1);
    let kept = bench.allocator.snapshot().segments;
    assert!(!kept.iter().any(|segment| segment.address == old), "the oldest went");
    assert_eq!(bench.allocator.stats().num_alloc_retries, 0);
    bench.check();
}

#[test]
fn oversize_segments_that_are_enough_go_before_everything_does() {
    let settings = format!("{PYTORCH},max_split_size_mb:20,memory_limit:160M");
    let bench = Bench::new(&settings);
    let stream = bench.stream();
    let blocks: Vec<_> = [30, 50, 40].into_iter().map(|mib| bench.allocate(mib * MIB, stream)).collect();
    let small = bench.allocate(3 * MIB, stream);
    assert_eq!(bench.allocator.stats().oversize_segments.current, 4);
    for ptr in blocks {
        bench.give_back(ptr);
    }
    bench.give_back(small);
    bench.allocate(75 * MIB, stream);
    let left: Vec<u64> =
        bench.allocator.snapshot().segments.iter().map(|segment| segment.total_bytes / MIB).collect();
    assert!(left.contains(&30) && left.contains(&20) && left.contains(&76), "{left:?}");
    assert!(!left.contains(&50) && !left.contains(&40), "the largest went: {left:?}");
    assert_eq!(bench.allocator.stats().num_alloc_retries, 0);
}

#[test]
fn an_oversize_block_is_reused_whole_and_only_for_about_its_size() {
    let settings = format!("{PYTORCH},max_split_size_mb:20");
    let bench = Bench::new(&settings);
    let stream = bench.stream();
    let large = bench.allocate(60 * MIB, stream);
    bench.give_back(large);
    let small = bench.allocate(15 * MIB, stream);
    assert_ne!(small, large, "a small request does not break an oversize block");
    assert_ne!(bench.allocate(39 * MIB, stream), large, "too much would be wasted");
    assert_eq!(bench.allocate(41 * MIB, stream), large);
    assert_eq!(bench.allocator.block_at(large).unwrap().allocated_bytes, 60 * MIB);
    assert_eq!(bench.allocator.stats().oversize_allocations.current, 2);
}

#[test]
fn sizes_are_rounded_to_shares_of_powers_of_two_where_asked_for() {
    let bench = Bench::new(&format!("{PYTORCH},roundup_power2_divisions:4"));
    let stream = bench.stream();
    let ptr = bench.allocate(9 * MIB, stream);
    assert_eq!(bench.allocator.block_at(ptr).unwrap().allocated_bytes, 10 * MIB);
    bench.give_back(ptr);
    assert_eq!(bench.allocate(10 * MIB, stream), ptr);
}

#[test]
fn the_large_segment_size_is_a_setting() {
    let bench = Bench::new(&format!("{PYTORCH},large_segment_size_mb:64"));
    let stream = bench.stream();
    bench.allocate(3 * MIB, stream);
    assert_eq!(bench.reserved_bytes(), 64 * MIB);
    bench.allocate(10 * MIB, stream);
    assert_eq!(bench.reserved_bytes(), 64 * MIB);
}

#[test]
fn without_caching_every_request_goes_to_the_driver_and_back() {
    let bench = Bench::new("caching_allocator:False");
    let (one, two) = (bench.stream(), bench.stream());
    for _ in 0..3 {
        let allocs = bench.calls(Call::MemAlloc, || {
            let ptr = bench.allocate(1000, one);
            assert_eq!(bench.reserved_bytes(), 1024);
            bench.give_back(ptr);
        });
        assert_eq!((allocs, bench.reserved_bytes()), (1, 0));
    }
    let ptr = bench.allocate(MIB, one);
    bench.busy(two, MILLISECOND);
    bench.allocator.record_stream(ptr, two).unwrap();
    bench.give_back(ptr);
    bench.sim.advance_ns(2 * MILLISECOND);
    let next = bench.allocate(MIB, one);
    assert_eq!(bench.reserved_bytes(), MIB, "what was waited for has gone");
    bench.give_back(next);
}

#[test]
fn empty_cache_returns_every_unused_segment_and_nothing_else() {
    let bench = Bench::new(PYTORCH);
    let stream = bench.stream();
    let (small, large, whole) =
        (bench.allocate(KIB, stream), bench.allocate(2 * MIB, stream), bench.allocate(50 * MIB, stream));
    let beside = bench.allocate(2 * MIB, stream);
    bench.give_back(whole);
    bench.give_back(beside);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 50 * MIB);
    bench.give_back(small);
    bench.give_back(large);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 22 * MIB);
    assert_eq!((bench.reserved_bytes(), bench.allocator.stats().num_sync_all_streams), (0, 0));
}

#[test]
fn the_last_of_the_memory_is_given_out_in_segments_of_just_the_size() {
    let bench = Bench::new(&format!("{PYTORCH},memory_limit:26M"));
    let stream = bench.stream();
    for _ in 0..9 {
        bench.allocate(2 * MIB, stream);
    }
    bench.allocate(3 * MIB, stream);
    bench.allocate(2 * MIB, stream);
    assert_eq!(bench.reserved_bytes(), 24 * MIB, "20 MiB, and 4 for the block of 3");
    assert!(out_of_memory(bench.try_allocate(3 * MIB, stream)).over_limit);
    bench.check();
}

#[test]
fn another_limit_can_be_set_at_any_time() {
    let bench = Bench::new(PYTORCH);
    let stream = bench.stream();
    assert_eq!(bench.allocator.limit_bytes(), None);
    let ptr = bench.allocate(50 * MIB, stream);
    bench.allocator.set_limit_bytes(Some(40 * MIB));
    assert!(out_of_memory(bench.try_allocate(KIB, stream)).over_limit);
    bench.give_back(ptr);
    bench.allocate(KIB, stream);
    assert_eq!(bench.reserved_bytes(), 2 * MIB, "what was beyond the limit had to go first");
}

#[test]
fn a_limit_is_never_passed_from_any_number_of_threads() {
    const LIMIT: u64 = 64 * MIB;
    let bench = Bench::new("backing:classic,memory_limit:64M");
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (bench, refused) = (&bench, &refused);
            let stream: Stream = bench.stream();
            scope.spawn(move || {
                for round in 0..60 {
                    let bytes = (1 + (thread * 7 + round * 3) % 23) * MIB;
                    match bench.allocator.allocate(Request::new(bytes, stream)) {
                        // SAFETY: given back once.
                        Ok(ptr) => unsafe { bench.allocator.give_back(ptr).unwrap() },
                        Err(AllocError::OutOfMemory(_)) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => unreachable!("{error}"),
                    }
                }
            });
        }
    });
    bench.check();
    assert!(bench.allocator.stats().reserved_bytes.all.peak <= LIMIT);
    println!("{} requests were refused", refused.load(Ordering::Relaxed));
}
