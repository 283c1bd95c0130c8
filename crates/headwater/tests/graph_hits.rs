//! What is given back inside of a capture and asked for again: quick, and still by every rule of captured order.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod graph_support;

use std::sync::Barrier;

use graph_support::{MIB, Stage, on_every_ground, run};
use headwater::allocator::BlockState;
use headwater::{Allocator, Request};
use headwater_driver::{CaptureMode, DevicePtr, Stream, Streams};

fn is_private(stage: &Stage, ptr: DevicePtr) -> bool {
    assert_eq!(stage.caching.block_at(ptr).is_some(), !is_in_a_pool(stage, ptr));
    is_in_a_pool(stage, ptr)
}

fn is_in_a_pool(stage: &Stage, ptr: DevicePtr) -> bool {
    let pools = stage.allocator.pool_snapshots();
    pools
        .iter()
        .any(|pool| pool.blocks.iter().any(|block| block.ptr == ptr && block.state == BlockState::Live))
}

#[test]
fn streams_of_a_capture_that_is_over_are_routed_like_any_other() {
    type End = fn(&Stage, Stream);
    let ends: [End; 3] = [
        |stage, origin| drop(stage.end(origin)),
        |stage, origin| stage.allocator.abandon_capture(origin).unwrap(),
        |stage, origin| {
            // An illegal call loses the capture; its end is then an error, and the end all the same.
            assert!(stage.sim.stream_synchronize(origin).is_err());
            assert!(stage.allocator.end_capture(origin).is_err());
        },
    ];
    for end in ends {
        on_every_ground(|stage| {
            let (origin, joined) = (stage.stream(), stage.stream());
            let pool = stage.begin(origin, None);
            stage.allocator.order_streams(origin, joined).unwrap();
            for stream in [origin, joined] {
                for _ in 0..3 {
                    let ptr = stage.allocate(MIB, stream);
                    assert!(is_private(&stage, ptr));
                    stage.give_back(ptr);
                }
            }
            stage.allocator.order_streams(joined, origin).unwrap();
            end(&stage, origin);
            for stream in [origin, joined] {
                let ptr = stage.allocate(MIB, stream);
                assert!(!is_private(&stage, ptr), "{stream:?} still goes to the pool");
                stage.give_back(ptr);
            }
            drop(pool);
            stage.finish(&[origin, joined]);
        });
    }
}

#[test]
fn captures_in_two_threads_at_once_keep_to_their_pools() {
    on_every_ground(|stage| {
        let streams = [stage.stream(), stage.stream()];
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for stream in streams {
                let (stage, both) = (&stage, &both);
                scope.spawn(move || {
                    let mode = CaptureMode::ThreadLocal;
                    let pool = stage.allocator.begin_capture(stream, mode, None).unwrap();
                    both.wait();
                    let first = stage.allocate(MIB, stream);
                    stage.give_back(first);
                    for _ in 0..500 {
                        let ptr = stage.allocator.allocate(Request::new(MIB, stream)).unwrap();
                        assert_eq!(ptr, first, "the other thread's block, or a fresh one");
                        stage.give_back(ptr);
                    }
                    both.wait();
                    assert_eq!(pool.reserved_bytes(), 2 * MIB);
                    let graph = stage.allocator.end_capture(stream).unwrap();
                    assert_eq!(graph.pool(), pool);
                });
            }
        });
        stage.finish(&streams);
    });
}

#[test]
fn a_block_given_back_a_moment_ago_is_free_in_every_view() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        let pool = stage.begin(stream, None);
        let blocks: Vec<DevicePtr> = (0..4).map(|_| stage.allocate(5 * MIB, stream)).collect();
        let reserved_bytes = pool.reserved_bytes();
        blocks.iter().for_each(|ptr| stage.give_back(*ptr));
        stage.check();
        let snapshot = &stage.allocator.pool_snapshots()[0];
        assert_eq!((snapshot.allocated_bytes, snapshot.pending_bytes), (0, 0));
        assert!(snapshot.blocks.iter().all(|block| block.state == BlockState::Cached));
        assert_eq!(snapshot.blocks.iter().map(|block| block.bytes).sum::<u64>(), reserved_bytes);
        assert_eq!(stage.allocator.block_at(blocks[1]).unwrap().state, BlockState::Cached);
        assert!(stage.allocator.record_stream(blocks[1], stream).is_err());
        // Neighbours are one for a larger request, and the pool does not grow.
        let whole = stage.allocate(20 * MIB, stream);
        assert_eq!((whole, pool.reserved_bytes()), (blocks[0], reserved_bytes));
        stage.give_back(whole);
        drop((stage.end(stream), pool));
        stage.finish(&[stream]);
    });
}

#[test]
fn alignment_and_recorded_streams_hold_for_blocks_given_back_a_moment_ago() {
    on_every_ground(|stage| {
        let (stream, other) = (stage.stream(), stage.stream());
        let pool = stage.begin(stream, None);
        let blocks: Vec<DevicePtr> = (0..2).map(|_| stage.allocate(512, stream)).collect();
        let unaligned = blocks.iter().find(|ptr| ptr.raw() % 4096 != 0).copied().unwrap();
        stage.give_back(unaligned);
        let aligned = stage.allocator.allocate(Request::new(512, stream).aligned_to(4096)).unwrap();
        assert_eq!(aligned.raw() % 4096, 0);
        // What another stream of the capture still uses is not handed out, whatever its size.
        let shared = stage.allocate(3 * MIB, stream);
        stage.allocator.order_streams(stream, other).unwrap();
        stage.allocator.record_stream(shared, other).unwrap();
        stage.read(shared, 3 * MIB, other);
        stage.give_back(shared);
        let apart = stage.allocate(3 * MIB, stream);
        assert_ne!(apart, shared);
        stage.allocator.order_streams(other, stream).unwrap();
        assert_eq!(stage.allocate(3 * MIB, stream), shared);
        let graph = stage.end(stream).instantiate().unwrap();
        run(&stage, &graph, stream);
        stage.check();
        let held = blocks.into_iter().filter(|ptr| *ptr != unaligned).chain([aligned, shared, apart]);
        held.for_each(|ptr| stage.give_back(ptr));
        drop((graph, pool));
        stage.finish(&[stream, other]);
    });
}

#[test]
fn a_restored_state_has_no_block_twice() {
    on_every_ground(|stage| {
        let stream = stage.stream();
        let pool = stage.begin(stream, None);
        let blocks: Vec<DevicePtr> = (0..6).map(|_| stage.allocate(MIB, stream)).collect();
        let checkpoint = stage.allocator.checkpoint(&pool).unwrap();
        blocks.iter().for_each(|ptr| stage.give_back(*ptr));
        // SAFETY: nothing is held that was not held then.
        let restored = unsafe { stage.allocator.restore(&pool, &checkpoint) }.unwrap();
        assert_eq!(restored.allocated, blocks);
        stage.check();
        // All six are held again: none of them comes out a second time.
        let more: Vec<DevicePtr> = (0..6).map(|_| stage.allocate(MIB, stream)).collect();
        assert!(more.iter().all(|ptr| !blocks.contains(ptr)));
        blocks.into_iter().chain(more).for_each(|ptr| stage.give_back(ptr));
        drop((stage.end(stream), pool));
        stage.finish(&[stream]);
    });
}
