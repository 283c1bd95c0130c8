//! Pools that graphs and others share: by turns, by a route, over the same physical memory, under one limit, with checkpoints.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod graph_support;

use graph_support::{GROUNDS, MIB, Stage, on_every_ground, run};
use headwater::graph::{GraphError, PoolHandle, RunnableGraph, SharedPhysical};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{Capture, CaptureMode, DevicePtr, Stream, Streams};

/// Sizes of ten graphs, in MiB; each is made of four tensors.
const TEN: [u64; 10] = [40, 120, 64, 200, 96, 24, 160, 72, 480, 300];

fn capture_of_size(stage: &Stage, stream: Stream, mib: u64, pool: Option<&PoolHandle>) -> RunnableGraph {
    stage.begin(stream, pool);
    let tensors: Vec<DevicePtr> = (0..4).map(|_| stage.allocate(mib * MIB / 4, stream)).collect();
    tensors.into_iter().for_each(|ptr| stage.give_back(ptr));
    stage.end(stream).instantiate().unwrap()
}

#[test]
fn ten_graphs_that_take_turns_reserve_little_more_than_the_largest() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        let (largest, sum) = (TEN.iter().max().unwrap() * MIB, TEN.iter().sum::<u64>() * MIB);

        let apart: Vec<_> = TEN.iter().map(|mib| capture_of_size(&stage, stream, *mib, None)).collect();
        let apart_bytes = stage.pool_bytes();
        assert!(apart_bytes >= sum);
        drop(apart);
        assert_eq!(stage.pool_bytes(), 0);

        let pool = stage.allocator.new_pool().unwrap();
        let turns: Vec<_> =
            TEN.iter().map(|mib| capture_of_size(&stage, stream, *mib, Some(&pool))).collect();
        let shared_bytes = stage.pool_bytes();
        println!(
            "ten graphs, largest {} MiB, sum {} MiB: one pool reserves {} MiB, separate pools {} MiB",
            largest / MIB,
            sum / MIB,
            shared_bytes / MIB,
            apart_bytes / MIB
        );
        // Plain memory cannot be made into larger pieces, so that graphs in rising order strand some.
        let bound = if stage.plain { sum } else { largest + largest / 20 };
        assert!(shared_bytes <= bound, "{shared_bytes} of {bound}");
        for _ in 0..3 {
            turns.iter().for_each(|graph| run(&stage, graph, stream));
        }
        drop((turns, pool));
        stage.finish(&[stream]);
    });
}

#[test]
fn pools_of_a_group_share_physical_memory_and_refuse_to_run_together() {
    let stage = Stage::new(false, "backing:classic", 1 << 30);
    let (stream, other) = (stage.stream(), stage.stream());
    let group = SharedPhysical::new(stage.sim.clone(), graph_support::DEVICE).unwrap();
    let (largest, free) =
        (*TEN.iter().max().unwrap(), stage.sim.memory_now(graph_support::DEVICE).unwrap().free_bytes);
    let graphs: Vec<_> = TEN
        .iter()
        .map(|mib| {
            let pool = stage.allocator.new_pool_in(&group).unwrap();
            capture_of_size(&stage, stream, *mib, Some(&pool))
        })
        .collect();
    let taken = free - stage.sim.memory_now(graph_support::DEVICE).unwrap().free_bytes;
    println!(
        "ten pools of a group map {} MiB over {} MiB of physical memory",
        stage.pool_bytes() / MIB,
        group.physical_bytes() / MIB
    );
    assert_eq!((taken, group.physical_bytes(), stage.allocator.private_bytes()), (taken, taken, taken));
    assert!(taken <= (largest + largest / 20) * MIB);
    // Different pools have different addresses.
    let mut ranges: Vec<_> =
        stage.allocator.pool_snapshots().iter().flat_map(|pool| pool.blocks.clone()).collect();
    ranges.sort_unstable_by_key(|block| block.ptr);
    assert!(ranges.windows(2).all(|pair| pair[0].ptr.raw() + pair[0].bytes <= pair[1].ptr.raw()));
    // In one stream they take turns by themselves.
    for graph in &graphs {
        // SAFETY: the graphs touch memory of their pools only.
        unsafe { graph.launch(stream) }.unwrap();
    }
    // SAFETY: as above; it is refused.
    let refused = unsafe { graphs[0].launch(other) };
    assert!(matches!(refused, Err(GraphError::RunningTogether { .. })), "{refused:?}");
    stage.sim.stream_synchronize(stream).unwrap();
    run(&stage, &graphs[0], other);
    drop(graphs);
    assert_eq!(group.physical_bytes(), 0);
    drop(group);
    stage.finish(&[stream, other]);
}

#[test]
fn captures_begun_by_somebody_else_use_the_pool_they_are_routed_to() {
    on_every_ground(|stage| {
        let (captured, eager) = (stage.stream(), stage.stream());
        let pool = stage.allocator.new_pool().unwrap();
        stage.allocator.begin_allocate_to_pool(&pool, move |stream| stream == captured).unwrap();
        let again = stage.allocator.begin_allocate_to_pool(&pool, |_| true);
        assert!(matches!(again, Err(GraphError::AlreadyRouted { .. })));
        stage.sim.capture_begin(captured, CaptureMode::Global).unwrap();
        let block = stage.allocate(24 * MIB, captured);
        stage.give_back(block);
        assert_eq!(stage.allocate(24 * MIB, captured), block);
        let outside = stage.allocate(MIB, eager);
        assert!(stage.caching.block_at(outside).is_some());
        stage.give_back(block);
        let graph = stage.sim.capture_end(captured).unwrap();
        stage.allocator.end_allocate_to_pool(&pool).unwrap();
        assert!(matches!(stage.allocator.end_allocate_to_pool(&pool), Err(GraphError::NotRouted { .. })));
        // The second use finds the memory of the first.
        let bytes = pool.reserved_bytes();
        let everything = stage.allocator.new_pool().unwrap();
        stage.allocator.begin_allocate_to_pool(&everything, |_| true).unwrap();
        stage.allocator.begin_allocate_to_pool(&pool, move |stream| stream == eager).unwrap();
        // The newest route wins, and the stream is not captured.
        let warm_up = stage.allocate(24 * MIB, eager);
        assert_eq!((warm_up, pool.reserved_bytes()), (block, bytes));
        stage.give_back(warm_up);
        stage.allocator.end_allocate_to_pool(&pool).unwrap();
        stage.allocator.end_allocate_to_pool(&everything).unwrap();
        stage.allocator.release_pool(&everything).unwrap();
        stage.allocator.release_pool(&pool).unwrap();
        assert_eq!(pool.reserved_bytes(), bytes);
        stage.sim.graph_destroy(graph).unwrap();
        stage.allocator.release_pool(&pool).unwrap();
        assert_eq!(pool.reserved_bytes(), 0);
        assert!(matches!(stage.allocator.release_pool(&pool), Err(GraphError::NotInUse { .. })));
        stage.give_back(outside);
        drop((pool, everything));
        stage.finish(&[captured, eager]);
    });
}

#[test]
fn work_outside_of_captures_is_waited_for_before_a_graph_gets_its_memory() {
    on_every_ground(|stage| {
        let (stream, eager) = (stage.stream(), stage.stream());
        let pool = stage.allocator.new_pool().unwrap();
        stage.allocator.begin_allocate_to_pool(&pool, |_| true).unwrap();
        let block = stage.allocate(24 * MIB, eager);
        stage.give_back(block);
        // The write of `eager` still runs.
        let other = stage.allocate(24 * MIB, stream);
        assert_ne!(other, block);
        stage.sim.stream_synchronize(eager).unwrap();
        assert_eq!(stage.allocate(24 * MIB, stream), block);
        stage.check();
        stage.give_back(block);
        stage.give_back(other);
        stage.allocator.end_allocate_to_pool(&pool).unwrap();
        stage.allocator.release_pool(&pool).unwrap();
        drop(pool);
        stage.finish(&[stream, eager]);
    });
}

#[test]
fn a_checkpoint_brings_back_the_blocks_there_were() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        let pool = stage.begin(stream, None);
        let kept = stage.allocate(24 * MIB, stream);
        let given_back_later = stage.allocate(30 * MIB, stream);
        let first = stage.end(stream);
        let checkpoint = stage.allocator.checkpoint(&pool).unwrap();
        assert_eq!(checkpoint.blocks().count(), 2);

        stage.begin(stream, Some(&pool));
        let later = stage.allocate(3 * MIB, stream);
        stage.give_back(given_back_later);
        let reused = stage.allocate(10 * MIB, stream);
        let second = stage.end(stream);

        // SAFETY: `later` and `reused` are not used or given back any more.
        let restored = unsafe { stage.allocator.restore(&pool, &checkpoint) }.unwrap();
        let mut freed = restored.freed.clone();
        freed.sort_unstable();
        let mut expected = vec![later, reused];
        expected.sort_unstable();
        // `reused` may lie at the address of what was given back, as another block.
        assert_eq!(freed, expected);
        assert_eq!(restored.allocated, [given_back_later]);
        stage.check();
        let facts = stage.allocator.block_at(given_back_later).unwrap();
        assert_eq!((facts.ptr, facts.requested_bytes), (given_back_later, 30 * MIB));

        // The other branch.
        stage.begin(stream, Some(&pool));
        let branch = stage.allocate(3 * MIB, stream);
        stage.give_back(branch);
        let third = stage.end(stream);
        stage.give_back(kept);
        stage.give_back(given_back_later);
        drop((first, second, third));
        assert_eq!(pool.reserved_bytes(), 0);
        // SAFETY: nobody holds a block.
        let gone = unsafe { stage.allocator.restore(&pool, &checkpoint) };
        assert!(matches!(gone, Err(GraphError::CannotRestore { busy: false, .. })), "{gone:?}");
        drop(pool);
        stage.finish(&[stream]);
    });
}

#[test]
fn private_memory_counts_under_the_limit_and_cached_memory_makes_way() {
    for (plain, settings) in GROUNDS {
        let stage = Stage::new(plain, &format!("{settings},memory_limit:200M"), 4 << 30);
        let stream = stage.stream();
        let cached = stage.allocate(150 * MIB, stream);
        stage.give_back(cached);
        stage.sim.wait_until_idle();
        let pool = stage.begin(stream, None);
        let block = stage.allocate(100 * MIB, stream);
        assert!(stage.caching.stats().reserved_bytes.all.current + pool.reserved_bytes() <= 200 * MIB);
        let refused = stage.allocator.allocate(Request::new(120 * MIB, stream));
        assert!(matches!(&refused, Err(AllocError::OutOfMemory(report)) if report.over_limit), "{refused:?}");
        let other = stage.stream();
        let refused = stage.allocator.allocate(Request::new(120 * MIB, other));
        assert!(matches!(&refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
        stage.give_back(block);
        drop((stage.end(stream), pool));
        let after = stage.allocate(180 * MIB, other);
        stage.give_back(after);
        stage.finish(&[stream, other]);
    }
}

#[test]
fn a_release_with_blocks_left_waits_before_their_neighbours_are_free() {
    on_every_ground(|stage| {
        let (eager, other) = (stage.stream(), stage.stream());
        let pool = stage.allocator.new_pool().unwrap();
        let everything = |_: Stream| true;
        stage.allocator.begin_allocate_to_pool(&pool, everything).unwrap();
        let (given_back, kept) = (stage.allocate(2 * MIB, eager), stage.allocate(2 * MIB, eager));
        // The write of `eager` still runs.
        stage.give_back(given_back);
        stage.allocator.end_allocate_to_pool(&pool).unwrap();
        stage.allocator.release_pool(&pool).unwrap();
        assert!(pool.reserved_bytes() > 0);
        stage.allocator.begin_allocate_to_pool(&pool, everything).unwrap();
        let again = stage.allocate(2 * MIB, other);
        assert_eq!(again, given_back);
        stage.check();
        stage.give_back(again);
        stage.give_back(kept);
        stage.allocator.end_allocate_to_pool(&pool).unwrap();
        stage.allocator.release_pool(&pool).unwrap();
        assert_eq!(pool.reserved_bytes(), 0);
        drop(pool);
        stage.finish(&[eager, other]);
    });
}
