//! The caches that threads have in front of the engine: quick, and otherwise as if they were not there.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, mpsc};

use caching_support::{Bench, DEVICE, KIB, MIB};
use headwater::allocator::BlockState;
use headwater::caching::snapshot::SnapshotState;
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DevicePtr, Stream};

const BACKINGS: [&str; 2] = ["backing:paged", "backing:classic,thread_cache_mb:8"];

fn give_back(bench: &Bench, ptr: DevicePtr) -> Result<(), AllocError> {
    // SAFETY: tests give back what they hold, or expect to be refused.
    unsafe { bench.allocator.give_back(ptr) }
}

#[test]
fn a_pair_makes_no_driver_call_and_is_counted_as_without_caches() {
    for settings in BACKINGS {
        let (bench, plain) = (Bench::new(settings), Bench::new(&off(settings)));
        for bytes in [1, 1000, 200 * KIB, MIB, 30 * MIB] {
            for bench in [&bench, &plain] {
                let stream = Stream::legacy_default(DEVICE);
                // Until it is a habit: large blocks are not kept before.
                for _ in 0..20 {
                    bench.give_back(bench.allocate(bytes, stream));
                }
                let calls = bench.all_calls(|| {
                    for less in 0..3 {
                        bench.give_back(bench.allocate(bytes - less.min(bytes - 1), stream));
                    }
                });
                assert_eq!(calls, 0, "{settings}, {bytes}");
            }
        }
        let (seen, expected) = (bench.allocator.stats(), plain.allocator.stats());
        assert_eq!(seen.hits, expected.hits);
        for (seen, expected) in [
            (seen.requested_bytes, expected.requested_bytes),
            (seen.allocated_bytes, expected.allocated_bytes),
            (seen.allocation, expected.allocation),
            (seen.active_bytes, expected.active_bytes),
        ] {
            assert_eq!(seen, expected, "{settings}");
        }
    }
}

fn off(settings: &str) -> String {
    format!("{},thread_cache_mb:0", settings.trim_end_matches(",thread_cache_mb:8"))
}

#[test]
fn what_a_thread_keeps_is_free_for_everyone_who_looks() {
    for settings in BACKINGS {
        let bench = Bench::new(settings);
        let ptr = bench.allocate(100 * KIB, bench.stream());
        let inside = DevicePtr::new(ptr.raw() + 512);
        assert_eq!(give_back(&bench, inside), Err(AllocError::InsideBlock { ptr: inside, block: ptr }));
        give_back(&bench, ptr).unwrap();
        let facts = bench.allocator.block_at(inside).unwrap();
        assert_eq!((facts.state, facts.requested_bytes), (BlockState::Cached, 0));
        let snapshot = bench.allocator.snapshot();
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        assert!(blocks.clone().all(|block| block.state == SnapshotState::Inactive), "{settings}");
        let before = (bench.allocator.stats(), snapshot.clone());
        for bad in [ptr, inside] {
            assert_eq!(give_back(&bench, bad), Err(AllocError::AlreadyGivenBack { ptr: bad }), "{settings}");
            let recorded = bench.allocator.record_stream(bad, Stream::legacy_default(DEVICE));
            assert_eq!(recorded, Err(AllocError::AlreadyGivenBack { ptr: bad }));
        }
        assert_eq!((bench.allocator.stats(), bench.allocator.snapshot()), before);
        bench.check();
        assert_eq!(bench.allocator.empty_cache().unwrap(), before.0.reserved_bytes.all.current);
    }
}

/// Up to 1 MiB, the thread that handed a block out and another one may both be told that it worked where they give it back in the
/// same nanoseconds; it is taken back once all the same. Above, and among threads that did not hand it out, one succeeds.
#[test]
fn a_block_that_several_threads_give_back_is_taken_back_once() {
    for (bytes, owner_joins) in [(4 * KIB, true), (4 * KIB, false), (3 * MIB, true), (3 * MIB, false)] {
        race_to_give_back(bytes, owner_joins);
    }
}

fn race_to_give_back(bytes: u64, owner_joins: bool) {
    const ROUNDS: usize = 1000;
    let bench = Bench::new("backing:paged");
    let stream = bench.stream();
    let (barrier, succeeded) = (Barrier::new(3), AtomicU32::new(0));
    let block = std::sync::Mutex::new(DevicePtr::NULL);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (bench, barrier, succeeded, block) = (&bench, &barrier, &succeeded, &block);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Each in turn owns what all give back.
                    let is_owner = round % 3 == thread;
                    if is_owner {
                        *block.lock().unwrap() = bench.allocate(bytes, stream);
                    }
                    barrier.wait();
                    let ptr = *block.lock().unwrap();
                    match (owner_joins || !is_owner).then(|| give_back(bench, ptr)) {
                        Some(Ok(())) => drop(succeeded.fetch_add(1, Ordering::Relaxed)),
                        Some(Err(error)) => assert_eq!(error, AllocError::AlreadyGivenBack { ptr }),
                        None => {}
                    }
                    barrier.wait();
                }
            });
        }
    });
    let (succeeded, rounds) = (succeeded.into_inner(), ROUNDS as u32);
    if owner_joins && bytes <= MIB {
        assert!((rounds..=2 * rounds).contains(&succeeded), "{succeeded}");
    } else {
        assert_eq!(succeeded, rounds, "{bytes}");
    }
    bench.check();
    assert_eq!(bench.allocator.stats().allocation.all.current, 0, "each was taken back once");
}

#[test]
fn a_block_that_another_stream_uses_waits_for_it_also_with_caches() {
    for settings in BACKINGS {
        let bench = Bench::new(settings);
        let (stream, other) = (bench.stream(), bench.stream());
        let first = bench.allocate(64 * KIB, stream);
        bench.give_back(first);
        let ptr = bench.allocate(64 * KIB, stream);
        assert_eq!(ptr, first);
        bench.write(ptr, 64 * KIB, stream, 10);
        bench.order(stream, other);
        bench.write(ptr, 64 * KIB, other, 1_000_000);
        assert_eq!(bench.all_calls(|| bench.allocator.record_stream(ptr, other).unwrap()), 0);
        bench.give_back(ptr);
        assert!(bench.pending_bytes() >= 64 * KIB, "{settings}");
        let next = bench.allocate(64 * KIB, stream);
        assert_ne!(next, ptr);
        bench.write(next, 64 * KIB, stream, 10);
        bench.check();
    }
}

#[test]
fn hits_alone_look_after_blocks_that_wait() {
    let bench = Bench::new("backing:paged");
    let (stream, other) = (bench.stream(), bench.stream());
    let waiting = bench.allocate(64 * KIB, stream);
    bench.busy(other, 1_000);
    bench.allocator.record_stream(waiting, other).unwrap();
    bench.give_back(waiting);
    assert!(bench.pending_bytes() > 0);
    bench.sim.wait_until_idle();
    let pair = || give_back(&bench, bench.allocator.allocate(Request::new(KIB, stream)).unwrap()).unwrap();
    (0..10_000).for_each(|_| pair());
    assert_eq!(bench.pending_bytes(), 0);
}

#[test]
fn what_other_threads_keep_serves_a_request_before_anything_grows() {
    for (settings, bytes) in
        BACKINGS.into_iter().flat_map(|settings| [(settings, 64 * KIB), (settings, 20 * MIB)])
    {
        let bench = Bench::new(settings);
        let stream = bench.stream();
        let (kept, end) = (mpsc::channel::<DevicePtr>(), mpsc::channel::<()>());
        std::thread::scope(|scope| {
            let bench = &bench;
            scope.spawn(move || {
                // All that fits, so that nothing else could serve the request.
                let blocks: Vec<_> =
                    (0..2 * MIB / bytes.min(2 * MIB)).map(|_| bench.allocate(bytes, stream)).collect();
                blocks.iter().for_each(|ptr| give_back(bench, *ptr).unwrap());
                kept.0.send(blocks[0]).unwrap();
                end.1.recv().unwrap();
            });
            kept.1.recv().unwrap();
            let before = bench.reserved_bytes();
            let count = 2 * MIB / bytes.min(2 * MIB);
            let blocks: Vec<_> = (0..count).map(|_| bench.allocate(bytes, stream)).collect();
            assert_eq!(bench.reserved_bytes(), before, "{settings}, {bytes}");
            blocks.into_iter().for_each(|ptr| bench.give_back(ptr));
            end.0.send(()).unwrap();
        });
        bench.check();
        bench.allocator.empty_cache().unwrap();
        assert_eq!(bench.reserved_bytes(), 0, "{settings}: what ended threads kept is the engine's");
    }
}

#[test]
fn blocks_that_another_thread_gives_back_return_to_the_one_that_asks_for_them() {
    let bench = Bench::new("backing:paged");
    let stream = bench.stream();
    let (belt, blocks) = mpsc::sync_channel::<DevicePtr>(32);
    std::thread::scope(|scope| {
        let bench = &bench;
        scope.spawn(move || blocks.into_iter().for_each(|ptr| give_back(bench, ptr).unwrap()));
        for _ in 0..20_000 {
            belt.send(bench.allocate(64 * KIB, stream)).unwrap();
        }
        drop(belt);
    });
    let stats = bench.allocator.stats();
    assert_eq!((stats.allocation.all.current, stats.allocation.all.freed), (0, 20_000));
    // 32 on the belt, 2 in hand, 64 gathered, 256 in the mail and two in their bins at the very most.
    assert!(stats.reserved_bytes.all.peak <= 420 * 64 * KIB, "{}", stats.reserved_bytes.all.peak);
    bench.check();
}

#[test]
fn an_idle_threads_blocks_leave_with_the_second_visit() {
    let bench = Bench::new("backing:paged");
    let stream = bench.stream();
    let (kept, end) = (mpsc::channel::<DevicePtr>(), mpsc::channel::<()>());
    std::thread::scope(|scope| {
        let bench = &bench;
        scope.spawn(move || {
            let ptr = bench.allocate(64 * KIB, stream);
            give_back(bench, ptr).unwrap();
            kept.0.send(ptr).unwrap();
            end.1.recv().unwrap();
        });
        let ptr = kept.1.recv().unwrap();
        let other = bench.allocate(64 * KIB, stream);
        assert_ne!(other, ptr, "the other thread keeps it");
        for _ in 0..2 {
            bench.allocator.poll().unwrap();
        }
        assert_eq!(bench.allocate(64 * KIB, stream), ptr);
        end.0.send(()).unwrap();
    });
}

#[test]
fn memory_of_a_stream_that_was_taken_leave_of_is_nobodys_in_particular() {
    for settings in BACKINGS {
        let bench = Bench::new(settings);
        let (stream, other) = (bench.stream(), bench.stream());
        let (kept, held) = (bench.allocate(4 * MIB, stream), bench.allocate(4 * MIB, stream));
        bench.give_back(kept);
        bench.allocator.forget_stream(stream).unwrap();
        bench.sim.wait_until_idle();
        // The name is used again: what was the old stream's must not be taken for the new one's.
        bench.give_back(held);
        bench.allocator.poll().unwrap();
        let before = bench.reserved_bytes();
        let blocks = [bench.allocate(4 * MIB, other), bench.allocate(4 * MIB, other)];
        assert_eq!(bench.reserved_bytes(), before, "{settings}");
        blocks.into_iter().for_each(|ptr| bench.give_back(ptr));
        bench.check();
    }
}

#[test]
fn totals_and_peaks_start_again_where_they_are_reset() {
    let bench = Bench::new("backing:paged");
    let stream = bench.stream();
    let held = bench.allocate(10 * KIB, stream);
    bench.give_back(bench.allocate(20 * KIB, stream));
    bench.allocator.reset_totals();
    bench.allocator.reset_peaks();
    bench.give_back(bench.allocate(20 * KIB, stream));
    let live = bench.allocator.stats().requested_bytes.all;
    assert_eq!((live.current, live.peak), (10 * KIB, 30 * KIB));
    assert_eq!((live.allocated, live.freed), (20 * KIB, 20 * KIB));
    bench.give_back(held);
    let live = bench.allocator.stats().requested_bytes.all;
    assert_eq!((live.current, live.allocated, live.freed), (0, 20 * KIB, 30 * KIB));
}
