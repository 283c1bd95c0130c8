//! Streams: who gets a block when, and how many driver calls that takes.

use headwater_driver::{Call, Devices};
use headwater_sim::Work;

use super::*;
use crate::allocator::BlockState;

/// Lets `stream` be busy with the block for a while.
fn keep_busy(sim: &SimDriver, stream: Stream, ptr: DevicePtr, bytes: u64) {
    sim.submit(stream, Work::new("late", 1_000_000_000).writes(ptr.raw()..ptr.raw() + bytes)).unwrap();
}

#[test]
fn a_finished_stream_gives_its_memory_to_another_before_the_pool_grows() {
    let sim = SimDriver::new();
    let (pool, own, other) = (pool(&sim), stream(&sim), stream(&sim));
    let ptr = take(&pool, 20 * MIB, own);
    give_back(&pool, ptr).unwrap();
    // It lies in this thread's cache: the second miss finds that it was not needed since the first.
    let first = take(&pool, 20 * MIB, other);
    let second = take(&pool, 20 * MIB, other);
    assert!(first == ptr || second == ptr);
    assert_eq!(class_of(&pool, 32 * MIB).misses, 2);
}

#[test]
fn an_unfinished_stream_keeps_its_memory_and_gives_it_up_with_a_wait_when_there_is_no_other() {
    let sim = SimDriver::new();
    let options = BinnedOptions { limit_bytes: Some(64 * MIB), ..BinnedOptions::default() };
    let (pool, own, other) = (pool_with(&sim, options), stream(&sim), stream(&sim));
    let ptr = take(&pool, 20 * MIB, own);
    keep_busy(&sim, own, ptr, 20 * MIB);
    give_back(&pool, ptr).unwrap();
    let second = take(&pool, 20 * MIB, other);
    assert_ne!(second, ptr);
    let before = sim.call_counts();
    let third = take(&pool, 20 * MIB, other);
    assert_eq!(third, ptr, "the limit leaves nothing else");
    let calls = sim.call_counts().since(&before);
    assert_eq!((calls.of(Call::StreamWaitEvent), calls.of(Call::StreamSynchronize)), (1, 0));
    keep_busy(&sim, other, third, 20 * MIB);
    assert_eq!(sim.hazards(), []);
}

#[test]
fn without_cross_stream_reuse_streams_keep_to_themselves() {
    let sim = SimDriver::new();
    let options = BinnedOptions { cross_stream_reuse: false, ..BinnedOptions::default() };
    let (pool, own, other) = (pool_with(&sim, options), stream(&sim), stream(&sim));
    let ptr = take(&pool, 20 * MIB, own);
    give_back(&pool, ptr).unwrap();
    for _ in 0..4 {
        assert_ne!(take(&pool, 20 * MIB, other), ptr);
    }
    assert_eq!(take(&pool, 20 * MIB, own), ptr);
}

#[test]
fn events_are_recorded_once_a_stream_however_many_blocks_wait() {
    let sim = SimDriver::new();
    let (pool, own, users) = (pool(&sim), stream(&sim), [stream(&sim), stream(&sim)]);
    let blocks: Vec<_> = (0..30).map(|_| take(&pool, 64 * KIB, own)).collect();
    for ptr in &blocks {
        for user in users {
            pool.record_stream(*ptr, user).unwrap();
            pool.record_stream(*ptr, user).unwrap();
        }
        keep_busy(&sim, users[0], *ptr, 1);
    }
    let before = sim.call_counts();
    for ptr in &blocks {
        give_back(&pool, *ptr).unwrap();
    }
    assert_eq!(sim.call_counts().since(&before).total(), 0, "a give-back records nothing");
    assert_eq!(class_of(&pool, 64 * KIB).pending_blocks, 30);
    assert_eq!(pool.block_at(blocks[0]).unwrap().state, BlockState::Pending);
    assert_eq!(pool.process_deferred().unwrap(), 0);
    assert_eq!(sim.call_counts().since(&before).of(Call::EventRecord), 2);
    sim.stream_synchronize(users[0]).unwrap();
    assert_eq!(pool.process_deferred().unwrap(), 30);
    assert_eq!(sim.call_counts().since(&before).of(Call::EventRecord), 2);
    assert_eq!(pool.stats().pending_bytes(), 0);
    pool.reconcile().unwrap();
}

#[test]
fn a_block_of_a_stream_that_is_gone_can_still_go_back_to_the_driver() {
    let sim = SimDriver::new();
    let (pool, own, gone) = (pool(&sim), stream(&sim), stream(&sim));
    let ptr = take(&pool, 64 * KIB, own);
    keep_busy(&sim, gone, ptr, 1);
    pool.record_stream(ptr, gone).unwrap();
    sim.stream_destroy(gone).unwrap();
    give_back(&pool, ptr).unwrap();
    pool.process_deferred().unwrap();
    assert_eq!(pool.block_at(ptr).unwrap().state, BlockState::Pending, "nobody knows when it has finished");
    assert!((0..64).all(|_| take(&pool, 64 * KIB, own) != ptr));
    pool.reconcile().unwrap();
}

#[test]
fn the_default_stream_of_a_thread_is_another_in_every_thread() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let stream = Stream::per_thread_default(DEVICE);
    let there = {
        let (pool, sim) = (pool.clone(), sim.clone());
        let thread = std::thread::spawn(move || {
            let ptr = take(&pool, 20 * MIB, stream);
            sim.submit(stream, Work::new("late", 1_000_000).writes(ptr.raw()..ptr.raw() + 1)).unwrap();
            give_back(&pool, ptr).unwrap();
            ptr
        });
        thread.join().unwrap()
    };
    let here = take(&pool, 20 * MIB, stream);
    sim.submit(stream, Work::new("use", 1_000).writes(here.raw()..here.raw() + 1)).unwrap();
    assert_ne!(here, there, "the other thread's work may still run");
    assert_eq!(sim.hazards(), []);
    pool.empty_cache().unwrap();
    pool.reconcile().unwrap();
}

#[test]
fn a_block_deallocated_in_another_stream_is_taken_up_when_that_has_finished() {
    let sim = SimDriver::new();
    let (pool, own, other) = (pool(&sim), stream(&sim), stream(&sim));
    let ptr = pool.allocate_async(MIB, own).unwrap();
    keep_busy(&sim, other, ptr, MIB);
    // SAFETY: only what is queued in the two streams uses it.
    unsafe { pool.deallocate_async(ptr, other).unwrap() };
    assert_eq!(pool.block_at(ptr).unwrap().state, BlockState::Pending);
    assert_eq!(pool.process_deferred().unwrap(), 0);
    assert_ne!(pool.allocate_async(MIB, own).unwrap(), ptr);
    sim.stream_synchronize(other).unwrap();
    assert_eq!(pool.process_deferred().unwrap(), 1);
    assert_eq!(pool.block_at(ptr).unwrap().state, BlockState::Cached);
    assert_eq!(sim.hazards(), []);
    pool.reconcile().unwrap();
}

#[test]
fn a_block_deallocated_in_its_own_stream_serves_that_at_once() {
    let sim = SimDriver::new();
    let (pool, own) = (pool(&sim), stream(&sim));
    let ptr = pool.allocate_async(MIB, own).unwrap();
    keep_busy(&sim, own, ptr, MIB);
    // SAFETY: only what is queued in its stream uses it.
    unsafe { pool.deallocate_async(ptr, own).unwrap() };
    assert_eq!(pool.allocate_async(MIB, own).unwrap(), ptr);
}

#[test]
fn a_bad_asynchronous_give_back_is_refused_and_changes_nothing() {
    let sim = SimDriver::new();
    let (pool, own, other) = (pool(&sim), stream(&sim), stream(&sim));
    let ptr = pool.allocate_async(MIB, own).unwrap();
    let elsewhere = Stream::legacy_default(DeviceId(7));
    let foreign = DevicePtr::new(0x1234_0000);
    // SAFETY: all of these are refused, but the last two, which own the block and the empty block.
    unsafe {
        assert!(matches!(pool.deallocate_async(ptr, elsewhere), Err(AllocError::WrongDevice { .. })));
        assert_eq!(pool.deallocate_async(foreign, other), Err(AllocError::ForeignPointer { ptr: foreign }));
        let inside = DevicePtr::new(ptr.raw() + 512);
        assert!(matches!(pool.deallocate_async(inside, other), Err(AllocError::InsideBlock { .. })));
        assert_eq!(pool.block_at(ptr).unwrap().state, BlockState::Live);
        pool.deallocate_async(ptr, own).unwrap();
        assert_eq!(pool.deallocate_async(ptr, own), Err(AllocError::AlreadyGivenBack { ptr }));
        pool.deallocate_async(pool.allocate_async(0, own).unwrap(), own).unwrap();
    }
    pool.reconcile().unwrap();
}
