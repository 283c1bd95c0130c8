//! Hundreds of tasks over data that does not fit, with random sizes, priorities, cancellations and aborts, while driver, memory and
//! disk fail. Whatever happens: every task ends in success or in an error that was to be expected, nothing hangs, every byte that is
//! read back is the one that was written, every reservation is returned, and nothing is left on the disk.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at its first surprise")]

mod spill_support;

use std::sync::atomic::{AtomicU32, Ordering};

use headwater_driver::{Copies, Stream, StreamOptions, Streams};
use headwater_tiers::disk::DiskError;
use headwater_tiers::{SpillBuffer, Task, Tier, TierError};
use spill_support::{DEVICE, KIB, Machine, Random, is_expected, seeds};

const THREADS: u64 = 8;
const TASKS_EACH: u64 = 30;

/// A buffer and what it must hold; no bytes where a failure left that open.
struct Known {
    buffer: SpillBuffer<u8>,
    bytes: Option<Vec<u8>>,
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

/// One use of one buffer, on the GPU or on the host, reading or writing.
fn use_once(
    machine: &Machine,
    task: &Task,
    known: &mut Known,
    stream: Stream,
    random: &mut Random,
) -> Result<(), TierError> {
    let bytes = known.buffer.len();
    match random.below(6) {
        0 | 1 => drop(known.buffer.read_on_gpu(stream, &task.wait())?),
        2 => {
            let write = known.buffer.write_on_gpu(stream, &task.wait())?;
            let value = random.below(256) as u8;
            // SAFETY: the access keeps the block where it is, and the stream is ordered after its other users.
            let filled = unsafe { machine.sim.fill_bytes(write.ptr(), value, bytes as u64, stream) };
            filled?;
            known.bytes = Some(vec![value; bytes]);
        }
        3 => {
            let fresh = pattern(bytes, random.below(1 << 30));
            known.buffer.write_on_host(&task.wait())?.copy_from_slice(&fresh)?;
            known.bytes = Some(fresh);
        }
        4 => {
            let tier = if random.one_in(2) { Tier::Host } else { Tier::Disk };
            known.buffer.spill_to(tier, &task.wait())?;
        }
        _ => {
            let back = known.buffer.read_on_host(&task.wait())?.to_vec()?;
            assert!(known.bytes.as_ref().is_none_or(|bytes| *bytes == back), "wrong bytes were read back");
        }
    }
    Ok(())
}

/// Tries something that a failing driver or disk may refuse, until it does not. Whatever was refused has changed nothing, so
/// trying again is all there is to do about it; what the disk has corrupted stays so, and is an error.
fn insist<T>(mut attempt: impl FnMut() -> Result<T, TierError>) -> Result<T, TierError> {
    for _ in 0..50 {
        match attempt() {
            Err(TierError::Disk(error)) if matches!(*error, DiskError::Corrupt { .. }) => {
                return Err(TierError::Disk(error));
            }
            Err(
                TierError::Disk(_)
                | TierError::Driver(_)
                | TierError::Alloc(_)
                | TierError::OutOfMemory { .. },
            ) => {}
            answer => return answer,
        }
    }
    attempt()
}

/// One task from beginning to end: it makes buffers, uses them in any order, and checks them all at the end.
fn work(machine: &Machine, task: &Task, stream: Stream, seed: u64) -> Result<(), TierError> {
    let mut buffers: Vec<Known> = Vec::new();
    task.run(|attempt| {
        let mut random = Random(seed);
        buffers.clear();
        for _ in 0..1 + random.below(4) {
            let len = (1 + random.below(96 * KIB / u64::from(attempt.pieces))) as usize;
            let bytes = pattern(len, random.below(1 << 30));
            let tier = [Tier::Gpu, Tier::Host, Tier::Disk][random.below(3) as usize];
            let buffer = insist(|| machine.spill.buffer_from_slice(&bytes, tier, DEVICE, &task.wait()))?;
            buffer.set_priority(task.priority());
            buffers.push(Known { buffer, bytes: Some(bytes) });
        }
        for _ in 0..random.below(12) {
            let which = random.below(buffers.len() as u64) as usize;
            insist(|| use_once(machine, task, &mut buffers[which], stream, &mut random))?;
            if random.one_in(40) {
                // Aborted by its owner.
                return Err(TierError::Cancelled);
            }
        }
        // All at once on the GPU: what tasks wait for each other for.
        let pin = |known: &Known| insist(|| known.buffer.read_on_gpu(stream, &task.wait()));
        let pinned = buffers.iter().map(pin).collect::<Result<Vec<_>, _>>()?;
        drop(pinned);
        for known in &buffers {
            let back = insist(|| known.buffer.read_on_host(&task.wait())?.to_vec())?;
            assert!(known.bytes.as_ref().is_none_or(|bytes| *bytes == back), "wrong bytes were read back");
        }
        Ok(())
    })
}

fn simulate(seed: u64, with_faults: bool) -> u32 {
    let machine = Machine::new(seed);
    let options = StreamOptions { non_blocking: true, priority: 0 };
    let streams: Vec<_> = (0..THREADS).map(|_| machine.sim.stream_create(DEVICE, options).unwrap()).collect();
    if with_faults {
        machine.fail_some(seed);
    }
    let succeeded = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for (thread, stream) in streams.iter().enumerate() {
            let (machine, succeeded) = (&machine, &succeeded);
            scope.spawn(move || {
                for number in 0..TASKS_EACH {
                    let seed = seed * 1_000_003 + thread as u64 * TASKS_EACH + number;
                    let mut random = Random(seed);
                    let task = machine.spill.task(random.below(5) as i32);
                    let is_called_off = random.one_in(12);
                    let outcome = std::thread::scope(|inner| {
                        if is_called_off {
                            let canceller = task.canceller();
                            inner.spawn(move || canceller.cancel());
                        }
                        work(machine, &task, *stream, seed)
                    });
                    match outcome {
                        Ok(()) => drop(succeeded.fetch_add(1, Ordering::Relaxed)),
                        Err(TierError::Cancelled) => {}
                        Err(error) if with_faults && is_expected(&error) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            });
        }
    });
    println!("seed {seed}: {succeeded:?} of {} tasks, {:?}", THREADS * TASKS_EACH, machine.spill.figures());
    machine.sim.set_faults(headwater_sim::FaultPlan::none());
    for stream in streams {
        machine.sim.stream_destroy(stream).unwrap();
    }
    machine.end(seed);
    succeeded.into_inner()
}

#[test]
fn every_task_ends_well_when_nothing_fails() {
    for seed in seeds(2) {
        let succeeded = simulate(seed, false);
        // A few are called off or abort.
        assert!(u64::from(succeeded) > THREADS * TASKS_EACH * 7 / 10, "seed {seed}: {succeeded}");
    }
}

#[test]
fn every_task_ends_as_expected_while_driver_memory_and_disk_fail() {
    for seed in seeds(3) {
        // What the disk corrupts is lost to its task, and some are called off.
        assert!(u64::from(simulate(seed, true)) > THREADS * TASKS_EACH / 3, "seed {seed}");
    }
}
