//! A training-like loop settles: from the third identical iteration on it makes no driver call at all.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::{Bench, KIB, MIB};
use headwater::Allocator;
use headwater_driver::{Call, DevicePtr, Stream};

const LAYERS: u64 = 12;

/// One training step of a small transformer, layer by layer. Forward: activations that stay until the backward pass, and
/// workspaces that go at once. Backward: gradients that stay until the update, and the activations go in reverse.
fn iteration(bench: &Bench, stream: Stream) {
    let mut activations: Vec<DevicePtr> = Vec::new();
    let batch = bench.allocate(900 * KIB, stream);
    for _ in 0..LAYERS {
        for mib in [12, 36, 12] {
            let workspace = bench.allocate(2 * mib * MIB + 600 * KIB, stream);
            bench.write(workspace, MIB, stream, 1_000);
            activations.push(bench.allocate(mib * MIB + 300 * KIB, stream));
            activations.push(bench.allocate(3 * KIB, stream));
            bench.give_back(workspace);
        }
    }
    let logits = bench.allocate(200 * MIB, stream);
    bench.give_back(logits);
    let mut gradients = Vec::new();
    for _ in 0..LAYERS {
        for mib in [7, 28, 7] {
            let scratch = bench.allocate(mib * MIB + 100 * KIB, stream);
            gradients.push(bench.allocate(mib * MIB, stream));
            bench.give_back(scratch);
            for _ in 0..2 {
                bench.give_back(activations.pop().unwrap());
            }
        }
    }
    gradients.into_iter().for_each(|gradient| bench.give_back(gradient));
    bench.give_back(batch);
}

fn calls_of_iterations(bench: &Bench, streams: &[Stream], iterations: usize) -> Vec<u64> {
    let run = |_| {
        bench.all_calls(|| {
            for stream in streams {
                iteration(bench, *stream);
            }
        })
    };
    let work = |before: u64| {
        // Each iteration writes three times a layer: those launches are the program's own.
        before - 3 * LAYERS * streams.len() as u64
    };
    (0..iterations).map(run).map(work).collect()
}

#[test]
fn from_the_third_iteration_on_no_call_is_made() {
    let bench = Bench::with_memory("backing:paged", 8 << 30);
    let stream = bench.stream();
    let calls = calls_of_iterations(&bench, &[stream], 6);
    assert_eq!(calls[2..], [0; 4], "{calls:?}");
    assert!(bench.allocator.stats().fragmentation() < 0.08, "{}", bench.allocator.stats().fragmentation());
}

/// Whose turn it is has to learn that the other has finished, by an event; but nothing is mapped any more.
#[test]
fn two_streams_in_turn_settle_too() {
    let bench = Bench::with_memory("backing:paged", 8 << 30);
    let streams = [bench.stream(), bench.stream()];
    calls_of_iterations(&bench, &streams, 3);
    for call in [Call::HandleCreate, Call::HandleMap, Call::HandleUnmap, Call::AccessSet] {
        let calls = bench.calls(call, || drop(calls_of_iterations(&bench, &streams, 1)));
        assert_eq!(calls, 0, "{call}");
    }
}

/// Workspaces of ever other sizes, in a program so tight that each one's memory is taken from the one before.
#[test]
fn a_loop_that_moves_memory_in_circles_comes_to_rest() {
    let bench = Bench::with_memory("backing:paged", 8 << 30);
    let stream = bench.stream();
    let iteration = || {
        let mut held = Vec::new();
        for layer in 0..24 {
            let workspace = bench.allocate(40 * MIB + layer * 512 * KIB, stream);
            held.push(bench.allocate(12 * MIB + (layer % 5) * 777 * KIB, stream));
            bench.give_back(workspace);
        }
        while let Some(block) = held.pop() {
            bench.give_back(block);
        }
    };
    let calls: Vec<u64> = (0..16).map(|_| bench.all_calls(iteration)).collect();
    assert_eq!(calls[12..], [0; 4], "{calls:?}");
    let stats = bench.allocator.stats();
    assert!(stats.fragmentation() < 0.15, "{}", stats.fragmentation());
}

#[test]
fn plain_memory_is_never_used() {
    let bench = Bench::with_memory("backing:paged", 8 << 30);
    let stream = bench.stream();
    let plain = bench.calls(Call::MemAlloc, || iteration(&bench, stream));
    assert_eq!(plain, 0);
    bench.allocator.trim(0).unwrap();
    assert_eq!(bench.calls(Call::MemFree, || iteration(&bench, stream)), 0);
}
