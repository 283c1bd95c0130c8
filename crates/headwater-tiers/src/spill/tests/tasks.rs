//! Tasks that wait for each other.

use super::*;
use crate::CancelToken;

#[test]
fn tasks_that_wait_for_each_other_are_untied_by_rolling_the_lowest_back() {
    let machine = machine(256, 1024, true);
    let finished = parking_lot::Mutex::new(Vec::new());
    // Both are known before either waits.
    let tasks = [1, 2].map(|priority| machine.spill.task(priority));
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for task in tasks {
            let (spill, barrier, finished) = (&machine.spill, &barrier, &finished);
            scope.spawn(move || {
                let outcome = task.run(|attempt| {
                    // Each holds half and wants half more: together they can never go on.
                    let gpu = spill.tiers().space(GPU)?;
                    let first = gpu.make_reservation(128 * KIB, &task.wait())?;
                    if attempt.number == 1 {
                        task.blocked(|| barrier.wait());
                    }
                    let second = gpu.make_reservation(128 * KIB, &task.wait())?;
                    finished.lock().push((task.priority(), attempt.number));
                    drop((first, second));
                    Ok(())
                });
                outcome.unwrap();
            });
        }
    });
    assert_eq!(*finished.lock(), [(2, 1), (1, 2)], "the lower one gave way, and both did their work");
    assert_eq!(machine.spill.figures().rollbacks, 1);
    machine.end();
}

#[test]
fn a_task_that_does_not_fit_alone_rolls_back_then_splits_then_gives_up() {
    let machine = machine(256, 1024, true);
    let task = machine.spill.task(0);
    let mut asked = Vec::new();
    let gpu = machine.spill.tiers().space(GPU).unwrap();
    let work = |attempt: Attempt, asked: &mut Vec<Attempt>| {
        asked.push(attempt);
        for _ in 0..attempt.pieces {
            let held = gpu.make_reservation(192 * KIB / u64::from(attempt.pieces), &task.wait())?;
            let more = gpu.make_reservation(192 * KIB / u64::from(attempt.pieces), &task.wait())?;
            drop((held, more));
        }
        Ok(())
    };
    task.run(|attempt| work(attempt, &mut asked)).unwrap();
    let pieces: Vec<_> = asked.iter().map(|attempt| attempt.pieces).collect();
    assert_eq!(pieces, [1, 1, 2], "rolled back, then split");

    let stubborn = machine.spill.task(0);
    drop(task);
    let outcome = stubborn.run(|_| {
        let held = gpu.make_reservation(192 * KIB, &stubborn.wait())?;
        let more = gpu.make_reservation(192 * KIB, &stubborn.wait())?;
        drop((held, more));
        Ok(())
    });
    assert_eq!(outcome, Err(TierError::GaveUp { rollbacks: 1, splits: 16 }));
    drop((stubborn, gpu));
    machine.end();
}

#[test]
fn a_task_that_is_called_off_stops_waiting() {
    // Nobody is asked to give way meanwhile.
    let config = SpillConfig { deadlock_patience: Duration::from_secs(600), ..SpillConfig::default() };
    let machine = machine_with(256, 1024, config, None);
    let gpu = machine.spill.tiers().space(GPU).unwrap();
    let held = gpu.make_reservation(256 * KIB, &patience()).unwrap();
    let task = machine.spill.task(0);
    let canceller = task.canceller();
    std::thread::scope(|scope| {
        scope.spawn(move || canceller.cancel());
        let outcome = task.run(|_| gpu.make_reservation(1, &task.wait()).map(drop));
        assert_eq!(outcome, Err(TierError::Cancelled));
    });
    drop((task, held, gpu));
    machine.end();
}

#[test]
fn a_wait_that_does_not_name_its_task_is_known_all_the_same() {
    let machine = machine(256, 1024, true);
    let tasks = [1, 2].map(|priority| machine.spill.task(priority));
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for task in tasks {
            let (spill, barrier) = (&machine.spill, &barrier);
            scope.spawn(move || {
                // Patience of their own, longer than the test has: only being seen ends the knot.
                let stubborn = Wait::until_cancelled_by(&CancelToken::new());
                let outcome = task.run(|attempt| {
                    let gpu = spill.tiers().space(GPU)?;
                    let first = gpu.make_reservation(128 * KIB, &stubborn)?;
                    if attempt.number == 1 {
                        task.blocked(|| barrier.wait());
                    }
                    let second = gpu.make_reservation(128 * KIB, &stubborn)?;
                    drop((first, second));
                    Ok(())
                });
                outcome.unwrap();
            });
        }
    });
    assert_eq!(machine.spill.figures().rollbacks, 1);
    assert!(machine.spill.figures().waits >= 2, "both waits were seen");
    machine.end();
}
