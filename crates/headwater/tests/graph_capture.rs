//! Memory for captured graphs: which pool serves whom, what is reused when, and what goes when.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod graph_support;

use std::sync::Arc;

use graph_support::{MIB, Stage, on_every_ground, run};
use headwater::graph::{GraphAllocator, GraphError};
use headwater::{AllocError, Allocator, Direct, Request};
use headwater_driver::{
    Call, Capture, CaptureMode, DevicePtr, Devices, ErrorClass, EventOptions, Events, Stream, Streams,
};

#[test]
fn a_captured_stream_gets_private_memory_and_other_streams_do_not() {
    on_every_ground(|stage| {
        let (captured, other) = (stage.stream(), stage.stream());
        let pool = stage.begin(captured, None);
        let (a, b) = (stage.allocate(3 * MIB, captured), stage.allocate(100, captured));
        let outside = stage.allocate(3 * MIB, other);
        assert!(stage.caching.block_at(outside).is_some());
        assert!(stage.caching.block_at(a).is_none() && stage.caching.block_at(b).is_none());
        let blocks = &stage.allocator.pool_snapshots()[0].blocks;
        assert!([a, b].iter().all(|ptr| blocks.iter().any(|block| block.ptr == *ptr)));
        assert_eq!(stage.allocator.block_at(a).unwrap().requested_bytes, 3 * MIB);
        let graph = stage.end(captured);
        assert_eq!(graph.pool(), pool);
        // After the capture the stream asks like any other.
        let after = stage.allocate(MIB, captured);
        assert!(stage.caching.block_at(after).is_some());
        stage.check();
        [a, b, outside, after].into_iter().for_each(|ptr| stage.give_back(ptr));
        drop((graph, pool));
        stage.finish(&[captured, other]);
    });
}

#[test]
fn a_stream_that_joined_the_capture_gets_memory_of_its_pool() {
    on_every_ground(|stage| {
        let (first, second, bystander) = (stage.stream(), stage.stream(), stage.stream());
        stage.begin(first, None);
        stage.write(stage.allocate(MIB, first), MIB, first);
        stage.allocator.order_streams(first, second).unwrap();
        let joined = stage.allocate(5 * MIB, second);
        assert!(stage.caching.block_at(joined).is_none());
        let outside = stage.allocate(MIB, bystander);
        assert!(stage.caching.block_at(outside).is_some());
        stage.allocator.order_streams(second, first).unwrap();
        let graph = stage.end(first).instantiate().unwrap();
        for _ in 0..3 {
            run(&stage, &graph, first);
        }
        assert_eq!(stage.allocator.pool_snapshots()[0].graphs, 1);
        stage.give_back(outside);
        let held: Vec<DevicePtr> = live_blocks(&stage);
        held.into_iter().for_each(|ptr| stage.give_back(ptr));
        drop(graph);
        stage.finish(&[first, second, bystander]);
    });
}

fn live_blocks(stage: &Stage) -> Vec<DevicePtr> {
    let pools = stage.allocator.pool_snapshots();
    let blocks = pools.iter().flat_map(|pool| &pool.blocks);
    let live = blocks.filter(|block| block.state == headwater::allocator::BlockState::Live);
    live.map(|block| block.ptr).collect()
}

#[test]
fn memory_given_back_in_a_capture_serves_the_same_stream_at_once() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        let pool = stage.begin(stream, None);
        let first = stage.allocate(40 * MIB, stream);
        let bytes = pool.reserved_bytes();
        for _ in 0..20 {
            stage.give_back(first);
            assert_eq!(stage.allocate(40 * MIB, stream), first);
        }
        assert_eq!(pool.reserved_bytes(), bytes);
        stage.give_back(first);
        let graph = stage.end(stream).instantiate().unwrap();
        run(&stage, &graph, stream);
        drop((graph, pool));
        stage.finish(&[stream]);
    });
}

#[test]
fn another_stream_of_the_capture_gets_it_only_where_the_order_is_known() {
    on_every_ground(|stage| {
        let (first, second) = (stage.stream(), stage.stream());
        let pool = stage.begin(first, None);
        let fork = stage.sim.event_create(graph_support::DEVICE, EventOptions::default()).unwrap();
        stage.sim.event_record(fork, first).unwrap();
        stage.sim.stream_wait_event(second, fork).unwrap();
        let block = stage.allocate(30 * MIB, first);
        stage.give_back(block);
        // `second` has not waited for the work on `block`.
        let apart = stage.allocate(30 * MIB, second);
        assert_ne!(apart, block);
        stage.give_back(apart);
        stage.allocator.order_streams(first, second).unwrap();
        let small = stage.allocate(30 * MIB, second);
        let ordered = stage.allocate(30 * MIB, second);
        assert!([small, ordered].contains(&block));
        // A block that both use waits for both.
        stage.allocator.order_streams(second, first).unwrap();
        stage.allocator.record_stream(small, first).unwrap();
        stage.read(small, 30 * MIB, first);
        stage.give_back(small);
        assert_ne!(stage.allocate(30 * MIB, second), small);
        stage.allocator.order_streams(first, second).unwrap();
        assert_eq!(stage.allocate(30 * MIB, second), small);
        stage.allocator.order_streams(second, first).unwrap();
        let graph = stage.end(first).instantiate().unwrap();
        run(&stage, &graph, first);
        stage.check();
        live_blocks(&stage).into_iter().for_each(|ptr| stage.give_back(ptr));
        drop((graph, pool));
        stage.sim.event_destroy(fork).unwrap();
        stage.finish(&[first, second]);
    });
}

/// The program orders its streams by events of its own and never tells the allocator, as PyTorch does. Whether the block of the
/// first stream, which the second one used, serves the first one again after the join.
fn reuse_after_a_join_of_the_programs_own(settings: &str, begun_by_somebody_else: bool) -> bool {
    let stage = Stage::new(false, settings, 4 << 30);
    let (first, second) = (stage.stream(), stage.stream());
    let pool = stage.allocator.new_pool().unwrap();
    if begun_by_somebody_else {
        let of_the_capture = move |stream: Stream| stream == first || stream == second;
        stage.allocator.begin_allocate_to_pool(&pool, of_the_capture).unwrap();
        stage.sim.capture_begin(first, CaptureMode::Global).unwrap();
    } else {
        stage.begin(first, Some(&pool));
    }
    let order = |before, after| {
        let event = stage.sim.event_create(graph_support::DEVICE, EventOptions::default()).unwrap();
        stage.sim.event_record(event, before).unwrap();
        stage.sim.stream_wait_event(after, event).unwrap();
        stage.sim.event_destroy(event).unwrap();
    };
    let block = stage.allocate(30 * MIB, first);
    order(first, second);
    stage.read(block, 30 * MIB, second);
    stage.allocator.record_stream(block, second).unwrap();
    stage.give_back(block);
    let apart = stage.allocate(30 * MIB, first);
    assert_ne!(apart, block, "the first stream has not waited for the second");
    // What the second stream does after the give-back is not waited for.
    order(second, first);
    let beside = stage.allocate(MIB, second);
    let after = stage.allocate(30 * MIB, first);
    order(second, first);
    let launched = if begun_by_somebody_else {
        let graph = stage.sim.capture_end(first).unwrap();
        stage.allocator.end_allocate_to_pool(&pool).unwrap();
        let exec = stage.sim.graph_instantiate(graph_support::DEVICE, graph).unwrap();
        // SAFETY: the pool keeps the graph's memory until it is released below.
        unsafe { stage.sim.graph_launch(exec, first) }.unwrap();
        stage.sim.stream_synchronize(first).unwrap();
        stage.sim.graph_exec_destroy(exec).unwrap();
        stage.sim.graph_destroy(graph).unwrap();
        None
    } else {
        let graph = stage.end(first).instantiate().unwrap();
        run(&stage, &graph, first);
        Some(graph)
    };
    stage.check();
    [apart, beside, after].into_iter().for_each(|ptr| stage.give_back(ptr));
    drop(launched);
    if begun_by_somebody_else {
        stage.allocator.release_pool(&pool).unwrap();
    }
    drop(pool);
    stage.finish(&[first, second]);
    after == block
}

#[test]
fn the_order_is_read_off_the_capture_where_the_setting_says_so() {
    for backing in ["backing:classic", "backing:paged"] {
        for begun_by_somebody_else in [false, true] {
            let on = format!("{backing},graph_capture_record_stream_reuse:True");
            assert!(reuse_after_a_join_of_the_programs_own(&on, begun_by_somebody_else));
            assert!(!reuse_after_a_join_of_the_programs_own(backing, begun_by_somebody_else));
        }
    }
}

#[test]
fn addresses_stay_valid_for_as_long_as_a_graph_of_the_pool_lives() {
    on_every_ground(|stage| {
        let (stream, other) = (stage.stream(), stage.stream());
        stage.begin(stream, None);
        let scratch = stage.allocate(64 * MIB, stream);
        stage.give_back(scratch);
        let graph = stage.end(stream);
        let (one, two) = (graph.instantiate().unwrap(), graph.instantiate().unwrap());
        drop(graph);
        // Nobody holds a block, everything is free, and pressure comes.
        stage.allocator.empty_cache().unwrap();
        let rest = stage.sim.memory_now(graph_support::DEVICE).unwrap().free_bytes;
        let answer = stage.allocator.allocate(Request::new(rest + MIB, other));
        assert!(matches!(answer, Err(AllocError::OutOfMemory(_))));
        run(&stage, &one, stream);
        drop(one);
        run(&stage, &two, other);
        stage.check();
        assert!(stage.pool_bytes() >= 64 * MIB);
        drop(two);
        assert_eq!(stage.pool_bytes(), 0);
        stage.finish(&[stream, other]);
    });
}

#[test]
fn a_graph_dropped_while_it_runs_keeps_its_memory_until_it_has_finished() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        stage.begin(stream, None);
        let scratch = stage.allocate(8 * MIB, stream);
        stage.give_back(scratch);
        let graph = stage.end(stream).instantiate().unwrap();
        // SAFETY: the graph touches memory of its pool only, and runs alone.
        unsafe { graph.launch(stream) }.unwrap();
        drop(graph);
        assert!(stage.pool_bytes() > 0, "the memory went while the graph ran");
        stage.sim.stream_synchronize(stream).unwrap();
        stage.allocator.empty_cache().unwrap();
        assert_eq!(stage.pool_bytes(), 0);
        stage.finish(&[stream]);
    });
}

#[test]
fn several_captures_at_once_keep_apart() {
    on_every_ground(|stage| {
        let streams: Vec<Stream> = (0..3).map(|_| stage.stream()).collect();
        let pools: Vec<_> = streams.iter().map(|stream| stage.begin(*stream, None)).collect();
        let mut blocks = Vec::new();
        for round in 1..=4 {
            blocks.extend(streams.iter().map(|stream| stage.allocate(round * MIB, *stream)));
        }
        assert_eq!(stage.allocator.pool_snapshots().len(), 3);
        // Not in the order in which they began.
        let graphs: Vec<_> =
            [1, 2, 0].map(|place: usize| stage.end(streams[place]).instantiate().unwrap()).into();
        for graph in &graphs {
            // SAFETY: graphs of different pools, touching memory of their pools only.
            unsafe { graph.launch(streams[0]) }.unwrap();
        }
        stage.check();
        stage.sim.wait_until_idle();
        blocks.into_iter().for_each(|ptr| stage.give_back(ptr));
        drop((graphs, pools));
        stage.finish(&streams);
    });
}

#[test]
fn a_lost_or_abandoned_capture_leaves_nothing_behind_and_the_allocator_works_on() {
    on_every_ground(|stage| {
        let (stream, doomed) = (stage.stream(), stage.stream());
        // Lost by an illegal call.
        stage.begin(stream, None);
        let block = stage.allocate(30 * MIB, stream);
        assert!(stage.sim.stream_synchronize(stream).is_err());
        let late = stage.allocator.allocate(Request::new(MIB, stream)).unwrap();
        match stage.allocator.end_capture(stream) {
            Err(GraphError::Alloc(AllocError::Driver(error))) => {
                assert_eq!(error.class(), ErrorClass::CaptureInvalidated);
            }
            answer => panic!("{answer:?}"),
        }
        stage.give_back(block);
        stage.give_back(late);
        assert_eq!(stage.pool_bytes(), 0);
        // Abandoned.
        stage.begin(stream, None);
        let block = stage.allocate(30 * MIB, stream);
        stage.give_back(block);
        stage.allocator.abandon_capture(stream).unwrap();
        assert_eq!(stage.pool_bytes(), 0);
        assert!(matches!(stage.allocator.end_capture(stream), Err(GraphError::NotCapturing { .. })));
        // Its stream destroyed, and nobody says a word.
        stage.begin(doomed, None);
        let block = stage.allocate(30 * MIB, doomed);
        stage.give_back(block);
        stage.sim.stream_destroy(doomed).unwrap();
        stage.allocator.empty_cache().unwrap();
        assert_eq!(stage.pool_bytes(), 0);
        // Begun twice: the first goes on.
        let pool = stage.begin(stream, None);
        assert!(stage.allocator.begin_capture(stream, CaptureMode::Global, None).is_err());
        let block = stage.allocate(MIB, stream);
        stage.give_back(block);
        drop((stage.end(stream), pool));
        assert_eq!(stage.pool_bytes(), 0);
        stage.finish(&[stream]);
    });
}

#[test]
fn blocks_held_after_their_graph_is_gone_keep_their_memory_and_nothing_else() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        stage.begin(stream, None);
        let output = stage.allocate(32 * MIB, stream);
        let scratch = stage.allocate(64 * MIB, stream);
        stage.give_back(scratch);
        let graph = stage.end(stream).instantiate().unwrap();
        run(&stage, &graph, stream);
        drop(graph);
        // Where regions can go one by one, only that of the output is left.
        assert!(stage.pool_bytes() < 64 * MIB, "{}", stage.pool_bytes());
        stage.read(output, 32 * MIB, stream);
        stage.check();
        stage.give_back(output);
        stage.finish(&[stream]);
    });
}

#[test]
fn a_hit_in_a_capture_makes_no_driver_call_and_a_request_outside_no_more_than_before() {
    on_every_ground(|stage| {
        let (stream, other) = (stage.stream(), stage.stream());
        let calls = |what: &dyn Fn()| {
            let before = stage.sim.call_counts();
            what();
            stage.sim.call_counts().since(&before)
        };
        let pair = |stream: Stream| {
            let ptr = stage.allocator.allocate(Request::new(MIB, stream)).unwrap();
            // SAFETY: held here, and nothing uses it.
            unsafe { stage.allocator.give_back(ptr) }.unwrap();
        };
        pair(other);
        assert_eq!(calls(&|| pair(other)).total(), 0);
        let pool = stage.begin(stream, None);
        pair(stream);
        assert_eq!(calls(&|| pair(stream)).total(), 0);
        // Whether another stream has joined must be asked.
        let asked = calls(&|| pair(other));
        assert_eq!((asked.total(), asked.of(Call::CaptureStatus)), (1, 1));
        drop((stage.end(stream), pool));
        stage.finish(&[stream, other]);
    });
}

#[test]
fn pools_of_another_allocator_are_refused() {
    on_every_ground(|stage| {
        let direct = Direct::new(stage.sim.clone(), graph_support::DEVICE).unwrap();
        let other = GraphAllocator::new(Arc::new(direct)).unwrap();
        let pool = other.new_pool().unwrap();
        let stream = stage.stream();
        let refused = stage.allocator.begin_capture(stream, CaptureMode::Global, Some(&pool));
        assert!(matches!(refused, Err(GraphError::ForeignPool { .. })));
        assert!(matches!(
            stage.allocator.begin_allocate_to_pool(&pool, |_| true),
            Err(GraphError::ForeignPool { .. })
        ));
        drop(pool);
        assert!(other.pool_snapshots().is_empty());
        drop(other);
        stage.finish(&[stream]);
    });
}

#[test]
fn bad_addresses_of_a_pool_are_named() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        let pool = stage.begin(stream, None);
        let ptr = stage.allocate(MIB, stream);
        let inside = DevicePtr::new(ptr.raw() + 512);
        // SAFETY: an address that names no block is an error.
        let answer = unsafe { stage.allocator.give_back(inside) };
        assert_eq!(answer, Err(AllocError::InsideBlock { ptr: inside, block: ptr }));
        stage.give_back(ptr);
        // SAFETY: as above.
        let answer = unsafe { stage.allocator.give_back(ptr) };
        assert_eq!(answer, Err(AllocError::AlreadyGivenBack { ptr }));
        assert_eq!(stage.allocator.record_stream(ptr, stream), Err(AllocError::AlreadyGivenBack { ptr }));
        assert_eq!(stage.allocator.allocate(Request::new(0, stream)), Ok(DevicePtr::NULL));
        drop((stage.end(stream), pool));
        stage.finish(&[stream]);
    });
}
