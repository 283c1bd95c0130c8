//! The pool by hand, on the simulated device: each behaviour with virtual memory and with plain memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater_driver::{Call, DeviceId, Devices, ErrorClass};
use headwater_sim::{FaultPlan, SimDriver};

use super::*;
use crate::error::AllocError;
use crate::graph::GraphError;

const DEVICE: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;
const OOM: ErrorClass = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };

fn pool(sim: &Arc<SimDriver>, plain: bool, initial_bytes: u64, max_bytes: u64) -> GraphPool {
    let builder = GraphPool::builder(sim.clone(), DEVICE).plain_memory(plain);
    builder.max_capacity_bytes(max_bytes).initial_capacity_bytes(initial_bytes).build().unwrap()
}

/// Runs a test with both kinds of memory, and looks for leaks afterwards.
fn both(test: impl Fn(&Arc<SimDriver>, bool)) {
    for plain in [false, true] {
        let sim = SimDriver::new();
        test(&sim, plain);
        assert_eq!(sim.leaks(), [], "plain: {plain}");
        assert_eq!(sim.hazards(), [], "plain: {plain}");
    }
}

#[test]
fn a_pool_starts_with_half_a_gibibyte_in_blocks_of_16_mib() {
    let sim = SimDriver::new();
    let pool = GraphPool::new(sim.clone(), DEVICE).unwrap();
    assert_eq!((pool.allocated_bytes(), pool.block_count(), pool.in_use_bytes()), (512 * MIB, 32, 0));
    assert_eq!(sim.call_counts().of(Call::HandleCreate), 32);
    assert!(pool.initial_fill().is_complete());
    pool.verify().unwrap();
}

#[test]
fn blocks_of_various_sizes_have_ids_addresses_and_room() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 64 * MIB, u64::MAX);
        let sizes = [0, 1, 255, 256, 257, 4096, 100_000, MIB, 3 * MIB + 1, 16 * MIB, 17 * MIB, 90 * MIB];
        let blocks: Vec<GraphBlock> = sizes.iter().map(|bytes| pool.allocate(*bytes).unwrap()).collect();
        let mut ranges: Vec<_> =
            blocks.iter().map(|block| (block.ptr.raw(), block.ptr.raw() + block.extent_bytes)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:x?}");
        for (block, bytes) in blocks.iter().zip(sizes) {
            assert_eq!(block.bytes, bytes);
            assert!(block.extent_bytes >= bytes.max(1) && block.ptr.is_aligned_to(256) && block.in_use);
            assert_eq!(pool.block(block.id).unwrap(), *block);
        }
        assert_eq!(blocks.iter().map(|block| block.id).collect::<BTreeSet<_>>().len(), blocks.len());
        let extents: u64 = blocks.iter().map(|block| block.extent_bytes).sum();
        assert_eq!((pool.in_use_bytes(), pool.stats().in_use_blocks), (extents, blocks.len()));
        pool.verify().unwrap();
    });
}

#[test]
fn addresses_stay_across_resets_and_the_same_iteration_gets_the_same_blocks() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 32 * MIB, u64::MAX);
        let iteration = || -> Vec<GraphBlock> {
            [MIB, 5000, 20 * MIB, 5000, 7 * MIB].iter().map(|bytes| pool.allocate(*bytes).unwrap()).collect()
        };
        let first = iteration();
        let (bytes, count) = (pool.allocated_bytes(), pool.block_count());
        for _ in 0..100 {
            assert_eq!(pool.reset().unwrap(), first.len());
            assert_eq!(pool.in_use_bytes(), 0);
            for block in &first {
                let found = pool.block(block.id).unwrap();
                assert_eq!((found.ptr, found.in_use), (block.ptr, false));
            }
            let again = iteration();
            let ids = |blocks: &[GraphBlock]| {
                blocks.iter().map(|block| (block.id, block.ptr)).collect::<BTreeSet<_>>()
            };
            assert_eq!(ids(&again), ids(&first));
        }
        assert_eq!((pool.allocated_bytes(), pool.block_count()), (bytes, count));
        pool.verify().unwrap();
    });
}

#[test]
fn a_returned_block_is_used_again_where_it_is_by_the_best_fit() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 64 * MIB, 64 * MIB);
        let small = pool.allocate(MIB).unwrap();
        let medium = pool.allocate(2 * MIB).unwrap();
        let large = pool.allocate(3 * MIB).unwrap();
        for block in [large, medium, small] {
            pool.return_block(block.id).unwrap();
        }
        // The smallest that fits, not the first.
        assert_eq!(pool.allocate(2 * MIB - 300).unwrap().id, medium.id);
        assert_eq!(pool.allocate(MIB).unwrap().id, small.id);
        assert_eq!(pool.allocate(3 * MIB).unwrap().id, large.id);
        pool.verify().unwrap();
    });
}

#[test]
fn an_iteration_with_other_sizes_uses_the_memory_of_the_last_one() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 64 * MIB, 64 * MIB);
        let old: Vec<_> = (0..64).map(|_| pool.allocate(MIB).unwrap()).collect();
        assert!(matches!(pool.allocate(MIB), Err(GraphError::CapacityExceeded { .. })));
        pool.reset().unwrap();
        let whole = if plain { 16 } else { 64 };
        let new = pool.allocate(whole * MIB).unwrap();
        pool.verify().unwrap();
        // What was made into one block has ended; what was not touched has not.
        let ended = old.iter().filter(
            |block| matches!(pool.block(block.id), Err(GraphError::UnknownBlock { id }) if id == block.id),
        );
        assert_eq!(ended.count() as u64, whole);
        assert_eq!((new.extent_bytes, pool.allocated_bytes()), (whole * MIB, 64 * MIB));
    });
}

#[test]
fn aligned_requests_are_aligned_and_leave_nothing_behind() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 16 * MIB, u64::MAX);
        pool.allocate(512).unwrap();
        for shift in 0..=21 {
            let block = pool.allocate_aligned(1000, 1 << shift).unwrap();
            assert!(block.ptr.is_aligned_to(1 << shift), "{shift}");
            assert_eq!(pool.block_at(block.ptr).unwrap().unwrap().id, block.id);
            pool.return_block(block.id).unwrap();
            pool.verify().unwrap();
        }
        for bad in [0, 3, 768, 4 * MIB] {
            let answer = pool.allocate_aligned(1, bad);
            assert!(matches!(answer, Err(GraphError::Alloc(AllocError::BadAlignment { .. }))), "{bad}");
        }
        let answer = pool.allocate(u64::MAX);
        assert!(matches!(answer, Err(GraphError::Alloc(AllocError::TooLarge { .. }))));
    });
}

#[test]
fn beyond_the_maximum_is_an_error_that_names_both_numbers_and_changes_nothing() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 16 * MIB, 40 * MIB);
        let held = pool.allocate(10 * MIB).unwrap();
        let before = (pool.stats(), sim.call_counts());
        // Plain blocks are not contiguous, so that all of the request is missing.
        let needed = if plain { 16 + 31 } else { 16 + 31 - 6 };
        match pool.allocate(31 * MIB) {
            Err(error @ GraphError::CapacityExceeded { .. }) => {
                let words = error.to_string();
                assert!(words.contains(&(needed * MIB).to_string()), "{words}");
                assert!(words.contains(&(40 * MIB).to_string()), "{words}");
            }
            answer => panic!("{answer:?}"),
        }
        assert_eq!((pool.stats(), sim.call_counts()), before);
        assert_eq!(pool.block(held.id).unwrap(), held);
        // Up to the maximum, to the byte.
        pool.allocate(if plain { 24 } else { 30 } * MIB).unwrap();
        assert_eq!(pool.allocated_bytes(), 40 * MIB);
        let answer =
            GraphPool::builder(sim.clone(), DEVICE).initial_capacity_bytes(2).max_capacity_bytes(1).build();
        assert!(matches!(answer, Err(GraphError::BadCapacity { .. })));
    });
}

#[test]
fn a_maximum_below_a_page_is_kept_to_the_byte() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 0, 3000);
        pool.allocate(1000).unwrap();
        pool.allocate(1000).unwrap();
        assert!(matches!(pool.allocate(1000), Err(GraphError::CapacityExceeded { .. })));
        assert!(pool.allocated_bytes() <= 3000);
        pool.verify().unwrap();
    });
}

#[test]
fn a_device_that_runs_out_during_the_initial_fill_leaves_what_was_got() {
    for plain in [false, true] {
        let sim = SimDriver::builder().memory_bytes(100 * MIB).build();
        let pool = GraphPool::builder(sim.clone(), DEVICE).plain_memory(plain).build().unwrap();
        let fill = pool.initial_fill();
        assert_eq!((fill.wanted_bytes, fill.got_bytes), (512 * MIB, 96 * MIB));
        assert!(fill.shortage.as_ref().is_some_and(|error| error.is_out_of_memory()));
        assert_eq!((pool.allocated_bytes(), pool.block_count()), (96 * MIB, 6));
        pool.allocate(16 * MIB).unwrap();
        let answer = pool.allocate(100 * MIB);
        assert!(matches!(answer, Err(GraphError::Alloc(AllocError::OutOfMemory(_)))), "{answer:?}");
        pool.verify().unwrap();
        drop(pool);
        assert_eq!(sim.leaks(), []);
    }
}

#[test]
fn bad_ids_are_named_and_change_nothing() {
    both(|sim, plain| {
        let (pool, other) = (pool(sim, plain, 16 * MIB, u64::MAX), pool(sim, plain, 16 * MIB, u64::MAX));
        let (block, foreign) = (pool.allocate(100).unwrap(), other.allocate(100).unwrap());
        assert_eq!(pool.block(foreign.id), Err(GraphError::UnknownBlock { id: foreign.id }));
        assert_eq!(pool.return_block(foreign.id), Err(GraphError::UnknownBlock { id: foreign.id }));
        pool.return_block(block.id).unwrap();
        assert_eq!(pool.return_block(block.id), Err(GraphError::AlreadyReturned { id: block.id }));
        pool.verify().unwrap();
    });
}

#[test]
fn a_closed_pool_has_freed_everything_and_says_so() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 32 * MIB, u64::MAX);
        let block = pool.allocate(100).unwrap();
        pool.close().unwrap();
        assert_eq!(sim.leaks(), []);
        assert_eq!(pool.allocate(1), Err(GraphError::Closed));
        assert_eq!(pool.block(block.id), Err(GraphError::Closed));
        assert_eq!(pool.return_block(block.id), Err(GraphError::Closed));
        assert_eq!(pool.reset(), Err(GraphError::Closed));
        assert_eq!((pool.allocated_bytes(), pool.block_count(), pool.in_use_bytes()), (0, 0, 0));
        pool.close().unwrap();
    });
}

#[test]
fn threads_share_a_pool() {
    both(|sim, plain| {
        let pool = pool(sim, plain, 32 * MIB, 256 * MIB);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..50_u64 {
                        let bytes = 1 + (thread * 7919 + round * 104_729) % (2 * MIB);
                        let block = pool.allocate_aligned(bytes, 256 << (round % 5)).unwrap();
                        assert_eq!(pool.block(block.id).unwrap(), block);
                        if round % 3 > 0 {
                            pool.return_block(block.id).unwrap();
                        }
                    }
                });
            }
        });
        pool.verify().unwrap();
        assert_eq!(pool.reset().unwrap(), 8 * 17);
    });
}

#[test]
fn every_driver_call_can_fail_and_nothing_leaks() {
    for plain in [false, true] {
        for class in [ErrorClass::Other, OOM] {
            let mut position = 1;
            loop {
                let sim = SimDriver::new();
                sim.set_faults(FaultPlan::none().fail_nth_of_any(position, class));
                let play = || -> Result<(), GraphError> {
                    let builder = GraphPool::builder(sim.clone(), DEVICE).plain_memory(plain);
                    let pool = builder.initial_capacity_bytes(48 * MIB).build()?;
                    let first = pool.allocate(10 * MIB);
                    let second = pool.allocate(100 * MIB);
                    pool.verify().unwrap();
                    let calls =
                        [pool.allocate(100 * MIB).map(|_| ()), pool.reset().map(|_| ()), pool.close()];
                    pool.verify().unwrap();
                    drop(pool);
                    first.and(second)?;
                    calls.into_iter().collect()
                };
                let before = sim.call_counts().total();
                let answer = play();
                let calls = sim.call_counts().total() - before;
                sim.set_faults(FaultPlan::none());
                assert_eq!(sim.leaks(), [], "{position} {class:?} {answer:?}");
                if position > calls {
                    answer.unwrap();
                    break;
                }
                position += 1;
            }
            assert!(position > 10);
        }
    }
}
