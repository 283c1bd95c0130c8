//! Being seen: statistics, history, snapshot and the queries.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::{Bench, KIB, MIB};
use headwater::Allocator;
use headwater::caching::history::Action;
use headwater::caching::label;
use headwater::caching::snapshot::SnapshotState;
use headwater::stats::PoolKind;
use headwater_driver::Call;

const PYTORCH: &str = "backing:classic,cross_stream_reuse:False";

#[test]
fn statistics_are_kept_by_pool() {
    let bench = Bench::new(PYTORCH);
    let stream = bench.stream();
    let (small, large) = (bench.allocate(1000, stream), bench.allocate(3 * MIB, stream));
    let stats = bench.allocator.stats();
    assert_eq!(stats.requested_bytes.small_pool.current, 1000);
    assert_eq!(stats.allocated_bytes.small_pool.current, 1024);
    assert_eq!(stats.reserved_bytes.of(PoolKind::LargePool).current, 20 * MIB);
    assert_eq!((stats.segment.all.current, stats.inactive_split.all.current), (2, 2));
    assert_eq!(stats.inactive_split_bytes.large_pool.current, 17 * MIB);
    bench.give_back(small);
    bench.give_back(large);
    let stats = bench.allocator.stats();
    assert_eq!((stats.allocation.all.current, stats.active.all.current), (0, 0));
    assert_eq!((stats.inactive_split.all.current, stats.allocation.all.allocated), (0, 2));
    bench.allocate(1000, stream);
    let stats = bench.allocator.stats();
    assert_eq!((stats.hits, stats.misses, stats.hit_rate()), (1, 2, Some(1.0 / 3.0)));
    bench.allocator.reset_peaks();
    bench.allocator.reset_totals();
    let stats = bench.allocator.stats();
    assert_eq!((stats.allocated_bytes.all.peak, stats.num_device_alloc, stats.hits), (1024, 0, 0));
    bench.allocator.reconcile().unwrap();
}

#[test]
fn the_history_tells_the_life_of_a_block_with_labels() {
    let bench = Bench::with_memory(&format!("{PYTORCH},history_events:100"), 64 * MIB);
    let (mine, other) = (bench.stream(), bench.stream());
    let ptr = {
        let _step = label::scope("forward");
        bench.allocate(MIB, mine)
    };
    bench.busy(other, 1_000_000);
    bench.allocator.record_stream(ptr, other).unwrap();
    bench.give_back(ptr);
    bench.sim.advance_ns(2_000_000);
    bench.allocator.poll().unwrap();
    bench.allocator.empty_cache().unwrap();
    bench.try_allocate(100 * MIB, mine).unwrap_err();
    let snapshot = bench.allocator.snapshot();
    let actions: Vec<Action> = snapshot.trace.iter().map(|event| event.action).collect();
    let expected = [
        Action::SegmentAlloc,
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentFree,
        Action::Oom,
    ];
    assert_eq!(actions, expected);
    assert!(snapshot.trace[..5].iter().all(|event| event.ptr == ptr && event.stream == mine));
    assert_eq!(snapshot.trace[1].label.as_deref(), Some("forward"));
    assert_eq!(snapshot.trace[2].label, None);
    assert_eq!((snapshot.trace[1].bytes, snapshot.trace[5].bytes), (MIB, 100 * MIB));
    assert!(snapshot.trace.is_sorted_by_key(|event| event.time_us));
}

#[test]
fn the_history_is_off_by_default_and_bounded_where_it_is_on() {
    let off = Bench::new(PYTORCH);
    off.allocate(1, off.stream());
    assert!(off.allocator.snapshot().trace.is_empty());
    let on = Bench::new(&format!("{PYTORCH},history_events:3"));
    let stream = on.stream();
    for _ in 0..10 {
        let ptr = on.allocate(KIB, stream);
        on.give_back(ptr);
    }
    let snapshot = on.allocator.snapshot();
    assert_eq!((snapshot.trace.len(), snapshot.trace_dropped), (3, 28));
    let mode = Bench::new(&format!("{PYTORCH},trace_malloc_mode:1"));
    mode.allocate(1, mode.stream());
    assert_eq!(mode.allocator.snapshot().trace.len(), 2);
}

#[test]
fn a_snapshot_accounts_for_every_byte_of_every_segment() {
    let bench = Bench::new(PYTORCH);
    let (mine, other) = (bench.stream(), bench.stream());
    let (_live, pending) = (bench.allocate(3 * MIB - 5, mine), bench.allocate(2 * MIB, mine));
    bench.busy(other, 1_000_000);
    bench.allocator.record_stream(pending, other).unwrap();
    bench.give_back(pending);
    let snapshot = bench.allocator.snapshot();
    let [segment] = &snapshot.segments[..] else { unreachable!("{snapshot:?}") };
    assert_eq!((segment.total_bytes, segment.pool, segment.stream), (20 * MIB, PoolKind::LargePool, mine));
    assert_eq!((segment.allocated_bytes, segment.active_bytes), (3 * MIB, 5 * MIB));
    assert_eq!(segment.requested_bytes, 3 * MIB - 5);
    let states: Vec<&str> = segment.blocks.iter().map(|block| block.state.name()).collect();
    assert_eq!(states, ["active_allocated", "active_pending_free", "inactive"]);
    assert_eq!(segment.blocks.iter().map(|block| block.bytes).sum::<u64>(), segment.total_bytes);
    assert_eq!(segment.blocks[2].state, SnapshotState::Inactive);
    assert!(snapshot.settings.contains("backing:classic"), "{}", snapshot.settings);
}

#[test]
fn fragmentation_says_what_is_of_no_use_and_why() {
    let bench = Bench::new(PYTORCH);
    let stream = bench.stream();
    let (_live, whole) = (bench.allocate(4 * MIB - 100, stream), bench.allocate(30 * MIB, stream));
    bench.give_back(whole);
    let fragmentation = bench.allocator.fragmentation();
    assert_eq!(fragmentation.split_bytes, 16 * MIB);
    assert_eq!((fragmentation.releasable_bytes, fragmentation.largest_free_bytes), (30 * MIB, 30 * MIB));
    assert_eq!(fragmentation.rounding_bytes, 100);
    assert!((fragmentation.current - (1.0 - 4.0 / 50.0)).abs() < 1e-5);
    assert!((fragmentation.peak - (1.0 - 34.0 / 50.0)).abs() < 1e-5);
}

#[test]
fn the_largest_available_block_can_really_be_had() {
    let bench = Bench::with_memory(&format!("{PYTORCH},memory_limit:80M"), 100 * MIB);
    let (one, two) = (bench.stream(), bench.stream());
    bench.allocate(4 * MIB, one);
    let cached = bench.allocate(30 * MIB, one);
    bench.give_back(cached);
    let largest = bench.allocator.largest_available(one).unwrap();
    assert_eq!(
        (largest.cached_bytes, largest.growable_bytes, largest.bytes()),
        (30 * MIB, 60 * MIB, 60 * MIB)
    );
    assert_eq!(bench.allocator.largest_available(two).unwrap().cached_bytes, 0);
    let calls = bench.calls(Call::MemAlloc, || assert_eq!(bench.allocate(30 * MIB, one), cached));
    assert_eq!(calls, 0);
    let largest = bench.allocator.largest_available(two).unwrap().bytes();
    assert_eq!(largest, 30 * MIB);
    bench.allocate(largest, two);
    assert!(bench.try_allocate(2 * MIB, two).is_err());
}
