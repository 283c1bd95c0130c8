//! Sleep and wake: physical memory goes and comes back behind live blocks, at the same addresses, whatever fails on the way.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::{Bench, DEVICE, MIB};
use headwater::caching::Contents;
use headwater::{AllocError, Allocator};
use headwater_driver::{Call, Capture, CaptureMode, Copies, DevicePtr, Devices, ErrorClass, Stream, Streams};
use headwater_sim::FaultPlan;

/// More than one handle.
const BYTES: u64 = 14 * MIB;

fn pattern(seed: u8) -> Vec<u8> {
    let mut pattern = vec![0; BYTES as usize];
    for (page, bytes) in pattern.chunks_mut(4096).enumerate() {
        bytes.fill(page as u8 ^ seed);
    }
    pattern
}

fn write_pattern(bench: &Bench, ptr: DevicePtr, seed: u8, stream: Stream) {
    let pattern = pattern(seed);
    // SAFETY: the block is live and large enough, and the source is pageable: it has been read when the call returns.
    unsafe { bench.sim.copy_to_device(ptr, pattern.as_ptr(), BYTES, stream).unwrap() };
    bench.sim.stream_synchronize(stream).unwrap();
}

fn holds_pattern(bench: &Bench, ptr: DevicePtr, seed: u8, stream: Stream) -> bool {
    let mut found = vec![0_u8; BYTES as usize];
    // SAFETY: the block is live, and the destination lives past the wait.
    unsafe { bench.sim.copy_to_host(found.as_mut_ptr(), ptr, BYTES, stream).unwrap() };
    bench.sim.stream_synchronize(stream).unwrap();
    found == pattern(seed)
}

/// Three blocks with contents.
fn stage(settings: &str) -> (Bench, Stream, [DevicePtr; 3]) {
    let bench = Bench::new(settings);
    let stream = bench.stream();
    let blocks = [1, 2, 3].map(|seed| {
        let ptr = bench.allocate(BYTES, stream);
        write_pattern(&bench, ptr, seed, stream);
        ptr
    });
    (bench, stream, blocks)
}

#[test]
fn contents_and_addresses_survive_sleep() {
    let (bench, stream, blocks) = stage("backing:paged");
    let reserved_bytes = bench.reserved_bytes();
    // SAFETY: nothing uses the blocks until they are awake.
    let (nap, released_bytes) = unsafe { bench.allocator.sleep(&blocks, Contents::Saved, stream) }.unwrap();
    bench.check();
    assert_eq!((released_bytes, bench.reserved_bytes()), (reserved_bytes, 0));
    let memory = bench.sim.memory_info(DEVICE).unwrap();
    assert_eq!(memory.free_bytes, memory.total_bytes);
    bench.allocator.wake(nap, stream).unwrap();
    bench.check();
    for (ptr, seed) in blocks.into_iter().zip(1..) {
        assert!(holds_pattern(&bench, ptr, seed, stream));
        bench.give_back(ptr);
    }
    assert_eq!(bench.reserved_bytes(), reserved_bytes);
}

#[test]
fn what_stays_awake_is_not_touched() {
    let (bench, stream, blocks) = stage("backing:paged");
    // SAFETY: nothing uses the block until it is awake.
    let (nap, released_bytes) =
        unsafe { bench.allocator.sleep(&blocks[1..2], Contents::Lost, stream) }.unwrap();
    assert!(released_bytes > 0 && released_bytes <= BYTES, "{released_bytes}");
    bench.check();
    assert!(holds_pattern(&bench, blocks[0], 1, stream) && holds_pattern(&bench, blocks[2], 3, stream));
    // What was released can be used for other blocks meanwhile.
    let other = bench.allocate(BYTES, stream);
    bench.write(other, BYTES, stream, 1_000);
    bench.give_back(other);
    bench.allocator.wake(nap, stream).unwrap();
    bench.write(blocks[1], BYTES, stream, 1_000);
    assert!(holds_pattern(&bench, blocks[0], 1, stream) && holds_pattern(&bench, blocks[2], 3, stream));
    bench.check();
}

#[test]
fn a_sleeping_block_is_neither_given_back_nor_put_to_sleep_again() {
    let (bench, stream, blocks) = stage("backing:paged");
    // SAFETY: nothing uses the blocks until they are awake.
    let (nap, _) = unsafe { bench.allocator.sleep(&blocks, Contents::Lost, stream) }.unwrap();
    let asleep = AllocError::Asleep { ptr: blocks[0] };
    // SAFETY: refused, so nothing is given back.
    assert_eq!(unsafe { bench.allocator.give_back(blocks[0]) }, Err(asleep.clone()));
    assert_eq!(bench.allocator.record_stream(blocks[0], stream), Err(asleep.clone()));
    // SAFETY: refused, so nothing sleeps.
    let again = unsafe { bench.allocator.sleep(&blocks, Contents::Lost, stream) };
    assert_eq!(again.unwrap_err(), asleep);
    bench.allocator.wake(nap, stream).unwrap();
    assert!(bench.allocator.wake(nap, stream).is_err(), "nothing sleeps under this name any more");
    blocks.into_iter().for_each(|ptr| bench.give_back(ptr));
}

#[test]
fn a_graph_gives_right_results_after_its_memory_slept() {
    let (bench, stream, blocks) = stage("backing:paged");
    bench.sim.capture_begin(stream, CaptureMode::Global).unwrap();
    // SAFETY: both blocks stay live for as long as the graph.
    unsafe { bench.sim.copy_on_device(blocks[1], blocks[0], BYTES, stream).unwrap() };
    let graph = bench.sim.capture_end(stream).unwrap();
    let runnable = bench.sim.graph_instantiate(DEVICE, graph).unwrap();
    // SAFETY: the graph is not launched until the blocks are awake.
    let (nap, _) = unsafe { bench.allocator.sleep(&blocks, Contents::Saved, stream) }.unwrap();
    bench.allocator.wake(nap, stream).unwrap();
    // SAFETY: what the graph touches is mapped again.
    unsafe { bench.sim.graph_launch(runnable, stream).unwrap() };
    assert!(holds_pattern(&bench, blocks[1], 1, stream));
    bench.check();
}

#[test]
fn waking_beyond_the_limit_fails_and_can_be_tried_again() {
    let (bench, stream, blocks) = stage("backing:paged,memory_limit:50M");
    // SAFETY: nothing uses the blocks until they are awake.
    let (nap, _) = unsafe { bench.allocator.sleep(&blocks, Contents::Saved, stream) }.unwrap();
    let guest = bench.allocate(40 * MIB, stream);
    assert!(bench.allocator.wake(nap, stream).unwrap_err().is_out_of_memory());
    bench.check();
    bench.give_back(guest);
    bench.sim.wait_until_idle();
    bench.allocator.empty_cache().unwrap();
    bench.allocator.wake(nap, stream).unwrap();
    assert!(blocks.into_iter().zip(1..).all(|(ptr, seed)| holds_pattern(&bench, ptr, seed, stream)));
}

/// Every call of sleeping and waking fails once, and then pairs of calls.
#[test]
fn a_call_that_fails_on_the_way_harms_nothing() {
    let calls = [
        Call::HandleCreate,
        Call::HandleRelease,
        Call::HandleMap,
        Call::HandleUnmap,
        Call::AccessSet,
        Call::HostAlloc,
        Call::CopyToHost,
        Call::CopyToDevice,
        Call::StreamSynchronize,
    ];
    for run in 1..=3 {
        for position in 1..40 {
            let (bench, stream, blocks) = stage("backing:paged");
            let plan = (0..run).fold(FaultPlan::none(), |plan, step| {
                plan.fail_nth_of_any(position + step, ErrorClass::Other)
            });
            bench.sim.set_faults(plan.only(&calls));
            // SAFETY: nothing uses the blocks until they are awake.
            let nap = unsafe { bench.allocator.sleep(&blocks, Contents::Saved, stream) };
            bench.check();
            if let Ok((nap, _)) = nap {
                let woken = bench.allocator.wake(nap, stream);
                bench.check();
                bench.sim.set_faults(FaultPlan::none());
                if woken.is_err() {
                    bench.allocator.wake(nap, stream).unwrap();
                }
            }
            bench.sim.set_faults(FaultPlan::none());
            for (ptr, seed) in blocks.into_iter().zip(1..) {
                assert!(holds_pattern(&bench, ptr, seed, stream), "{position} {run}");
                bench.give_back(ptr);
            }
            bench.sim.wait_until_idle();
            bench.allocator.empty_cache().unwrap();
            assert_eq!(bench.reserved_bytes(), 0);
            let Bench { sim, allocator } = bench;
            drop(allocator);
            sim.stream_destroy(stream).unwrap();
            assert!(sim.leaks().is_empty(), "{}", sim.leaks()[0]);
        }
    }
}
