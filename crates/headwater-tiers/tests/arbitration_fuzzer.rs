//! Tasks that hold some of the GPU and want more, so that they wait for each other again and again, while its capacity is lowered and
//! raised under them, some abort and some operations fail. No task hangs: each does its work or ends with an error that says why.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at its first surprise")]

mod spill_support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use headwater_tiers::{Reservation, Task, TierError};
use spill_support::{DEVICE, GPU, GPU_BYTES, KIB, Machine, Random, is_expected, seeds};

const THREADS: u64 = 24;
const TASKS_EACH: u64 = 6;

/// Takes several reservations and buffers one after the other and holds on to all of them.
fn work(machine: &Machine, task: &Task, seed: u64) -> Result<(), TierError> {
    task.run(|attempt| {
        let mut random = Random(seed);
        for _ in 0..attempt.pieces {
            let (mut reservations, mut buffers): (Vec<Reservation>, Vec<_>) = (Vec::new(), Vec::new());
            for _ in 0..2 + random.below(4) {
                let bytes = ((8 + random.below(120)) * KIB / u64::from(attempt.pieces)).max(1);
                // Seven in ten can be spilled.
                if random.below(10) < 7 {
                    buffers.push(machine.spill.buffer::<u8>(bytes as usize, DEVICE, &task.wait())?);
                } else {
                    let space = machine.spill.tiers().space(GPU)?;
                    reservations.push(space.make_reservation(bytes, &task.wait())?);
                }
                if random.one_in(60) {
                    return Err(TierError::Cancelled);
                }
            }
        }
        Ok(())
    })
}

fn fuzz(seed: u64, with_faults: bool) {
    let machine = Machine::new(seed);
    if with_faults {
        machine.fail_some(seed);
    }
    let (succeeded, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (machine, succeeded, is_over) = (&machine, &succeeded, &is_over);
        let shrinking = scope.spawn(move || {
            let space = machine.spill.tiers().space(GPU).unwrap();
            let mut random = Random(seed);
            while !is_over.load(Ordering::Relaxed) {
                let capacity_bytes = if random.one_in(3) { GPU_BYTES * 3 / 4 } else { GPU_BYTES };
                space.set_limits(capacity_bytes, space.thresholds()).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            space.set_limits(GPU_BYTES, space.thresholds()).unwrap();
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    for number in 0..TASKS_EACH {
                        let seed = seed * 7919 + thread * TASKS_EACH + number;
                        let task = machine.spill.task((seed % 4) as i32);
                        match work(machine, &task, seed) {
                            Ok(()) => drop(succeeded.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => assert!(is_expected(&error), "seed {seed}: {error}"),
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        shrinking.join().unwrap();
    });
    let figures = machine.spill.figures();
    assert!(figures.rollbacks > 0, "seed {seed}: nobody ever had to give way");
    let least = if with_faults { 1 } else { THREADS as u32 * TASKS_EACH as u32 * 8 / 10 };
    assert!(succeeded.into_inner() >= least, "seed {seed}: {figures:?}");
    machine.end(seed);
}

#[test]
fn tasks_that_starve_each_other_are_untied_until_all_are_done() {
    for seed in seeds(2) {
        fuzz(seed, false);
    }
}

#[test]
fn the_same_holds_while_driver_memory_and_disk_fail() {
    for seed in seeds(2) {
        fuzz(seed, true);
    }
}
