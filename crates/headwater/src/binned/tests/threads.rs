//! Threads that allocate for each other, die, and share streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use super::*;

fn draws(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |end| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    }
}

#[test]
fn blocks_that_another_thread_gives_back_come_home_in_batches() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let blocks: Vec<_> = (0..32).map(|_| take(&pool, 64 * KIB, STREAM)).collect();
    let reserved = reserved_bytes(&pool);
    let elsewhere = pool.clone();
    let given = blocks.clone();
    thread::spawn(move || given.iter().for_each(|ptr| give_back(&elsewhere, *ptr).unwrap())).join().unwrap();
    assert_eq!(pool.stats().allocation.all.current, 0, "they are given back, wherever they are");
    let mut again: Vec<_> = (0..32).map(|_| take(&pool, 64 * KIB, STREAM)).collect();
    assert_eq!(reserved_bytes(&pool), reserved);
    again.sort_unstable();
    again.dedup();
    assert_eq!(again.len(), 32);
    pool.reconcile().unwrap();
}

#[test]
fn what_an_idle_thread_keeps_serves_others_before_the_pool_grows() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let (ready, wait) = (mpsc::sync_channel::<()>(0), mpsc::sync_channel::<()>(0));
    let idle = {
        let (pool, ready, wait) = (pool.clone(), ready.0, wait.1);
        thread::spawn(move || {
            give_back(&pool, take(&pool, 20 * MIB, STREAM)).unwrap();
            ready.send(()).unwrap();
            wait.recv().unwrap();
        })
    };
    ready.1.recv().unwrap();
    // The first miss sees what the thread has, the second that it was not needed.
    let held = [(); 2].map(|()| take(&pool, 20 * MIB, STREAM));
    assert_eq!(reserved_bytes(&pool), 64 * MIB);
    wait.0.send(()).unwrap();
    idle.join().unwrap();
    held.into_iter().for_each(|ptr| give_back(&pool, ptr).unwrap());
}

#[test]
fn a_limit_reaches_into_the_caches_of_threads() {
    let sim = SimDriver::new();
    let pool = pool_with(&sim, BinnedOptions { limit_bytes: Some(32 * MIB), ..BinnedOptions::default() });
    let (ready, wait) = (mpsc::sync_channel::<()>(0), mpsc::sync_channel::<()>(0));
    let idle = {
        let (pool, ready, wait) = (pool.clone(), ready.0, wait.1);
        thread::spawn(move || {
            give_back(&pool, take(&pool, 20 * MIB, STREAM)).unwrap();
            ready.send(()).unwrap();
            wait.recv().unwrap();
        })
    };
    ready.1.recv().unwrap();
    give_back(&pool, take(&pool, 4 * MIB, STREAM)).unwrap();
    wait.0.send(()).unwrap();
    idle.join().unwrap();
    pool.reconcile().unwrap();
}

#[test]
fn threads_allocate_for_each_other_die_and_share_streams() {
    const THREADS: usize = 6;
    const GENERATIONS: u64 = 4;
    const STEPS: u64 = 600;
    let sim = SimDriver::new();
    let options = BinnedOptions { thread_cache_bytes: 4 * MIB, ..BinnedOptions::default() };
    let pool = pool_with(&sim, options);
    let streams = [stream(&sim), stream(&sim)];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let visitor = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pool.reconcile().unwrap();
                pool.stats();
                pool.empty_cache().unwrap();
                thread::yield_now();
            }
        });
        for generation in 0..GENERATIONS {
            let channels: Vec<_> = (0..THREADS).map(|_| mpsc::channel::<DevicePtr>()).collect();
            let senders: Vec<_> = channels.iter().map(|(sender, _)| sender.clone()).collect();
            let workers: Vec<_> = channels
                .into_iter()
                .enumerate()
                .map(|(place, (_, receiver))| {
                    let (pool, senders) = (&pool, senders.clone());
                    scope.spawn(move || {
                        let mut draw = draws(1 + place as u64 * 31 + generation);
                        let mut held = Vec::new();
                        for _ in 0..STEPS {
                            let ptr = take(pool, 1 + draw(96 * KIB), streams[draw(2) as usize]);
                            match draw(4) {
                                0 => held.push(ptr),
                                1 => give_back(pool, ptr).unwrap(),
                                // A thread that has ended gives nothing back: the next generation's pool does.
                                _ => {
                                    senders[draw(THREADS as u64) as usize].send(ptr).unwrap_or_else(|lost| {
                                        give_back(pool, lost.0).unwrap();
                                    })
                                }
                            }
                            receiver.try_iter().for_each(|ptr| give_back(pool, ptr).unwrap());
                            if draw(10) == 0 {
                                held.drain(..).for_each(|ptr| give_back(pool, ptr).unwrap());
                            }
                        }
                        held.into_iter().for_each(|ptr| give_back(pool, ptr).unwrap());
                        drop(senders);
                        receiver
                    })
                })
                .collect();
            drop(senders);
            let mailboxes: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            // What arrived after its thread had ended.
            mailboxes
                .iter()
                .flat_map(|mailbox| mailbox.try_iter())
                .for_each(|ptr| give_back(&pool, ptr).unwrap());
        }
        done.store(true, Ordering::Relaxed);
        visitor.join().unwrap();
    });
    let stats = pool.stats();
    assert_eq!((stats.allocation.all.current, stats.requested_bytes.all.current), (0, 0));
    assert_eq!(stats.allocation.all.allocated, GENERATIONS * THREADS as u64 * STEPS);
    pool.reconcile().unwrap();
    pool.empty_cache().unwrap();
    assert_eq!(reserved_bytes(&pool), 0);
}

#[test]
fn live_blocks_of_many_threads_never_overlap() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let work = |seed: u64| {
        let mut draw = draws(seed);
        (0..400).map(|_| take(&pool, 1 + draw(300 * KIB), STREAM)).collect::<Vec<_>>()
    };
    let mut all: Vec<DevicePtr> = thread::scope(|scope| {
        let threads: Vec<_> = (1..=4).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    for pair in all.windows(2) {
        let bytes = pool.block_at(pair[0]).unwrap().allocated_bytes;
        assert!(pair[0].raw() + bytes <= pair[1].raw());
    }
    all.into_iter().for_each(|ptr| give_back(&pool, ptr).unwrap());
    pool.reconcile().unwrap();
}

#[test]
fn a_block_is_given_back_while_its_thread_ends() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    for _ in 0..50 {
        let (sender, receiver) = mpsc::channel();
        let owner = {
            let pool = pool.clone();
            thread::spawn(move || (0..20).for_each(|_| sender.send(take(&pool, 4096, STREAM)).unwrap()))
        };
        receiver.iter().for_each(|ptr| give_back(&pool, ptr).unwrap());
        owner.join().unwrap();
    }
    pool.reconcile().unwrap();
    pool.empty_cache().unwrap();
    assert_eq!(reserved_bytes(&pool), 0);
}

#[test]
fn with_race_checks_one_of_two_racing_give_backs_succeeds() {
    const ROUNDS: usize = 2_000;
    let sim = SimDriver::new();
    let pool = pool_with(&sim, BinnedOptions { race_checks: true, ..BinnedOptions::default() });
    let (to_other, from_here) = mpsc::sync_channel::<DevicePtr>(1);
    let (to_here, from_other) = mpsc::sync_channel::<bool>(1);
    thread::scope(|scope| {
        let pool = &pool;
        scope.spawn(move || {
            for ptr in from_here {
                to_here.send(give_back(pool, ptr).is_ok()).unwrap();
            }
        });
        for round in 0..ROUNDS {
            let ptr = take(pool, 4096, STREAM);
            to_other.send(ptr).unwrap();
            // The two meet at another point of their ways each time.
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            let here = give_back(pool, ptr).is_ok();
            assert!(here != from_other.recv().unwrap(), "in round {round}");
        }
        drop(to_other);
    });
    assert_eq!(pool.stats().allocation.all.current, 0);
    pool.reconcile().unwrap();
}
