//! The tables that the project started from, with the same work.
//!
//! `seed_001_cold`, `seed_001_warm`: 1000 allocations of 1 MiB that are all held, before and after such blocks have been given
//! back. `seed_001_throughput`: 10,000 times 1 MiB out and back. `seed_001_threads`: the same from four threads at once.
//! `seed_000_tensors`: 1000 tensors of 1 MiB, made one after the other as a program does that drops each. `seed_000_montecarlo`:
//! 1000 iterations with ten buffers of 8 MB each; beside `direct`, which is the loop without caching. The operation is one
//! allocation with its give-back, in `cold` and `warm` one allocation.

use std::hint::black_box;
use std::time::Instant;

use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DevicePtr, Stream};

use super::pair::pair;
use super::{Ground, Streams};
use crate::contestant::{BenchError, Contestant};
use crate::options::Effort;
use crate::rounds::{Seen, clock_ns};

const MIB: u64 = 1 << 20;
const TENSORS: usize = 1000;
const THREADS: usize = 4;
const BUFFERS: usize = 10;
const BUFFER_BYTES: u64 = 8_000_000;

pub(super) fn pool_tables(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    for contestant in ground.contestants {
        let failed = |error| contestant.failed("seed_001", error);
        let (mut cold, mut warm) = (Seen::default(), Seen::default());
        for _ in 0..rounds(ground, contestant) {
            let allocator = contestant.make("seed_001")?;
            let streams = Streams::new(&*allocator, 1)?;
            for seen in [&mut cold, &mut warm] {
                hold_many(black_box(&*allocator), streams.get(0), seen).map_err(failed)?;
            }
        }
        (ground.report)(cold.row("seed_001_cold", contestant.name(), MIB, 1));
        (ground.report)(warm.row("seed_001_warm", contestant.name(), MIB, 1));

        let allocator = contestant.make("seed_001")?;
        let streams = Streams::new(&*allocator, THREADS)?;
        let (allocator, streams) = (black_box(&*allocator), &streams);
        let mut seen = Seen::default();
        let operations = scaled(ground, contestant, 10_000);
        for _ in 0..rounds(ground, contestant) {
            let request = Request::new(MIB, streams.get(0));
            seen.round(operations, || pair(allocator, request)).map_err(failed)?;
        }
        seen.singles(operations, || pair(allocator, Request::new(MIB, streams.get(0)))).map_err(failed)?;
        (ground.report)(seen.row("seed_001_throughput", contestant.name(), MIB, 1));

        let mut seen = Seen::default();
        for _ in 0..rounds(ground, contestant) {
            let clock = Instant::now();
            let answers: Vec<Result<(), AllocError>> = std::thread::scope(|scope| {
                let work = |place| {
                    let request = Request::new(MIB, streams.get(place));
                    (0..operations).try_for_each(|_| pair(allocator, request))
                };
                let threads: Vec<_> = (0..THREADS).map(|place| scope.spawn(move || work(place))).collect();
                threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
            });
            if answers.len() < THREADS {
                return Err(BenchError::ThreadEnded { bench: "seed_001_threads" });
            }
            answers.into_iter().collect::<Result<(), _>>().map_err(failed)?;
            seen.note_round(clock.elapsed().as_nanos() as f64 / operations as f64);
        }
        (ground.report)(seen.row("seed_001_threads", contestant.name(), MIB, THREADS));
    }
    Ok(())
}

pub(super) fn tensor_tables(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    for contestant in ground.contestants {
        let failed = |error| contestant.failed("seed_000", error);
        let (mut tensors, mut loops) = (Seen::default(), Seen::default());
        for _ in 0..rounds(ground, contestant) {
            let allocator = contestant.make("seed_000")?;
            let streams = Streams::new(&*allocator, 1)?;
            let (allocator, stream) = (black_box(&*allocator), streams.get(0));
            tensors.round(TENSORS, || pair(allocator, Request::new(MIB, stream))).map_err(failed)?;
            let iterations = scaled(ground, contestant, 1000);
            let clock = Instant::now();
            for _ in 0..iterations {
                let buffers = take(allocator, stream, BUFFERS, BUFFER_BYTES).map_err(failed)?;
                give_back(allocator, &buffers).map_err(failed)?;
            }
            loops.note_round(clock.elapsed().as_nanos() as f64 / (iterations * BUFFERS) as f64);
        }
        (ground.report)(tensors.row("seed_000_tensors", contestant.name(), MIB, 1));
        (ground.report)(loops.row("seed_000_montecarlo", contestant.name(), BUFFER_BYTES, 1));
    }
    Ok(())
}

/// A few rounds: the work is fixed, and long.
fn rounds(ground: &Ground<'_>, contestant: &Contestant) -> usize {
    if ground.options.effort == Effort::Glance || contestant.is_slow() { 1 } else { 5 }
}

/// The table's number of repetitions, or fewer where it would take minutes.
fn scaled(ground: &Ground<'_>, contestant: &Contestant, count: usize) -> usize {
    if ground.options.effort == Effort::Glance || contestant.is_slow() { count / 10 } else { count }
}

fn hold_many(allocator: &dyn Allocator, stream: Stream, seen: &mut Seen) -> Result<(), AllocError> {
    let mut blocks = Vec::with_capacity(TENSORS);
    let clock_ns = clock_ns();
    let clock = Instant::now();
    for _ in 0..TENSORS {
        let one = Instant::now();
        blocks.push(allocator.allocate(Request::new(MIB, stream))?);
        seen.note_single(one.elapsed().as_nanos().saturating_sub(clock_ns));
    }
    let all_ns = clock.elapsed().as_nanos().saturating_sub(clock_ns * TENSORS as u128);
    seen.note_round(all_ns as f64 / TENSORS as f64);
    give_back(allocator, &blocks)
}

fn take(
    allocator: &dyn Allocator,
    stream: Stream,
    count: usize,
    bytes: u64,
) -> Result<Vec<DevicePtr>, AllocError> {
    (0..count).map(|_| allocator.allocate(Request::new(bytes, stream))).collect()
}

fn give_back(allocator: &dyn Allocator, blocks: &[DevicePtr]) -> Result<(), AllocError> {
    // SAFETY: callers took them with `take`, give them back once, and nothing uses them.
    blocks.iter().try_for_each(|ptr| unsafe { allocator.give_back(*ptr) })
}
