//! The same demand with and without the manager: random tasks, four at a time, that take and give back device memory, one of them twice as
//! large as the others. Without the manager what does not fit fails its task; with it every task does its work, however often some have
//! to give way. After the Monte Carlo test of spark-rapids, with its proportions: tasks up to two thirds of the GPU, 12 of them, four
//! at a time, up to 50 allocations each.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at its first surprise")]

mod spill_support;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use headwater::{Block, Request};
use headwater_driver::{Copies, Stream, StreamOptions, Streams};
use headwater_tiers::{Reservation, SpillBuffer, Task, TierError};
use spill_support::{DEVICE, GPU, GPU_BYTES, KIB, Machine, Random, seeds};

const TASKS: usize = 12;
const AT_ONCE: usize = 4;
const ALLOCATIONS_MAX: u64 = 50;
const TASK_BYTES_MAX: u64 = GPU_BYTES * 2 / 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Take {
        bytes: u64,
        is_spillable: bool,
    },
    /// Gives back the oldest.
    GiveBack,
}

/// What one task does. A skewed one holds all of what it takes at first, which is more than there is.
fn plan(random: &mut Random, is_skewed: bool) -> Vec<Step> {
    let factor = if is_skewed { 2 } else { 1 };
    let (mut steps, mut held) = (Vec::new(), VecDeque::new());
    for _ in 0..10 + random.below(ALLOCATIONS_MAX - 10) {
        let bytes = (1 + random.below(64)) * KIB * factor;
        while held.iter().sum::<u64>() + bytes > TASK_BYTES_MAX * factor {
            held.pop_front();
            steps.push(Step::GiveBack);
        }
        held.push_back(bytes);
        steps.push(Step::Take { bytes, is_spillable: random.below(10) < 5 });
    }
    if is_skewed {
        let more_than_there_is = [Step::Take { bytes: GPU_BYTES / 6, is_spillable: false }; 8];
        steps = [&more_than_there_is[..], &[Step::GiveBack; 8], &steps].concat();
    }
    steps
}

/// What a program does that knows nothing of tiers: it takes memory, up to the same capacity, and fails when there is none.
fn baseline(machine: &Machine, steps: &[Step]) -> Result<(), TierError> {
    let space = machine.spill.tiers().space(GPU)?;
    let mut held = VecDeque::new();
    for step in steps {
        match step {
            Step::Take { bytes, .. } => {
                let claim = space.claim_unreserved(*bytes)?;
                let request = Request::new(*bytes, Stream::legacy_default(DEVICE));
                held.push_back((Block::allocate(space.allocator()?.clone(), request)?, claim));
            }
            Step::GiveBack => drop(held.pop_front()),
        }
        // So that tasks overlap, as they would if they computed something.
        std::thread::yield_now();
    }
    Ok(())
}

enum Held {
    Reserved(#[allow(dead_code, reason = "held, not looked at")] Reservation),
    /// A buffer and the number that all of its words have.
    Buffer(SpillBuffer<u32>, u32),
}

/// The same with the manager: half of it spillable, the rest reserved. Asked to split, it does the work in smaller pieces.
fn managed(machine: &Machine, task: &Task, stream: Stream, steps: &[Step]) -> Result<(), TierError> {
    task.run(|attempt| {
        for _ in 0..attempt.pieces {
            let mut held = VecDeque::new();
            for (number, step) in steps.iter().enumerate() {
                match step {
                    Step::Take { bytes, is_spillable } => {
                        let bytes = (bytes / u64::from(attempt.pieces)).max(4);
                        held.push_back(take(
                            machine,
                            task,
                            stream,
                            bytes,
                            is_spillable.then_some(number as u32),
                        )?);
                    }
                    Step::GiveBack => check(task, held.pop_front())?,
                }
            }
            held.into_iter().try_for_each(|held| check(task, Some(held)))?;
        }
        Ok(())
    })
}

/// A buffer full of `value`, or a reservation.
fn take(
    machine: &Machine,
    task: &Task,
    stream: Stream,
    bytes: u64,
    value: Option<u32>,
) -> Result<Held, TierError> {
    let Some(value) = value else {
        let space = machine.spill.tiers().space(GPU)?;
        return Ok(Held::Reserved(space.make_reservation(bytes, &task.wait())?));
    };
    let words = bytes / 4;
    let buffer = machine.spill.buffer::<u32>(words as usize, DEVICE, &task.wait())?;
    let access = buffer.write_on_gpu(stream, &task.wait())?;
    // SAFETY: the access has pinned the words for this stream.
    unsafe { machine.sim.fill_words(access.ptr(), value, words, stream)? };
    drop(access);
    Ok(Held::Buffer(buffer, value))
}

fn check(task: &Task, held: Option<Held>) -> Result<(), TierError> {
    if let Some(Held::Buffer(buffer, value)) = held {
        let words = buffer.read_on_host(&task.wait())?.to_vec()?;
        assert!(words.iter().all(|word| *word == value), "wrong words were read back");
    }
    Ok(())
}

/// Does all tasks, some at once, and says how many failed.
fn run_all(plans: &[Vec<Step>], work: impl Fn(usize, &[Step]) -> Result<(), TierError> + Sync) -> u32 {
    let (next, failed) = (AtomicUsize::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((number, steps)) = {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    plans.get(number).map(|steps| (number, steps))
                } {
                    if work(number, steps).is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    failed.into_inner()
}

#[test]
fn what_fails_without_the_manager_succeeds_with_it() {
    for seed in seeds(6) {
        let mut random = Random(seed);
        let plans: Vec<_> = (0..TASKS).map(|number| plan(&mut random, number == TASKS / 2)).collect();

        let machine = Machine::new(seed);
        let begun = Instant::now();
        let failed = run_all(&plans, |_, steps| baseline(&machine, steps));
        println!("seed {seed}: {failed} of {TASKS} tasks failed without the manager, {:?}", begun.elapsed());
        assert!(failed > 0, "seed {seed}: the skewed task is larger than the GPU");
        machine.end(seed);

        let machine = Machine::new(seed);
        let options = StreamOptions { non_blocking: true, priority: 0 };
        let streams: Vec<_> =
            plans.iter().map(|_| machine.sim.stream_create(DEVICE, options).unwrap()).collect();
        let begun = Instant::now();
        let failed = run_all(&plans, |number, steps| {
            let task = machine.spill.task((number % 3) as i32);
            managed(&machine, &task, streams[number], steps)
                .inspect_err(|error| println!("{number}: {error}"))
        });
        let figures = machine.spill.figures();
        println!(
            "seed {seed}: {failed} failed with it, {:?}: {} rollbacks, {} splits, {:?} lost in {} waits",
            begun.elapsed(),
            figures.rollbacks,
            figures.splits,
            figures.wait_time,
            figures.waits
        );
        assert_eq!(failed, 0, "seed {seed}");
        assert!(figures.splits > 0, "seed {seed}: the skewed task fits in pieces only");
        for stream in streams {
            machine.sim.stream_destroy(stream).unwrap();
        }
        machine.end(seed);
    }
}
