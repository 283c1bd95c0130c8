//! Many threads on one allocator: they allocate, share, give back for each other, and end.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use caching_support::{Bench, DEVICE, KIB, MIB};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DevicePtr, Stream};

const ROUNDS: u64 = 400;

fn mixed(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Each thread has its own stream and the per-thread default stream, takes blocks of others to give back, and sometimes makes
/// another stream use what it gives back. Work is queued on every block by the thread that gets it.
fn threads_give_back_for_each_other(settings: &str) {
    let bench = Bench::with_memory(settings, 512 * MIB);
    let passed_on: Mutex<Vec<DevicePtr>> = Mutex::new(Vec::new());
    let streams: Vec<Stream> = (0..6).map(|_| bench.stream()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6_u64)
            .map(|number| {
                let (bench, passed_on, streams) = (&bench, &passed_on, &streams);
                scope.spawn(move || {
                    let mut random = number + 1;
                    for _ in 0..ROUNDS {
                        let own = streams[number as usize];
                        let stream = if mixed(&mut random).is_multiple_of(4) {
                            Stream::per_thread_default(DEVICE)
                        } else {
                            own
                        };
                        let bytes =
                            (1 + mixed(&mut random) % 512) * KIB * (1 + 15 * (mixed(&mut random) % 2));
                        let ptr = match bench.allocator.allocate(Request::new(bytes, stream)) {
                            Ok(ptr) => ptr,
                            Err(AllocError::OutOfMemory(_)) => {
                                let given_up: Vec<DevicePtr> =
                                    std::mem::take(&mut *passed_on.lock().unwrap());
                                for ptr in given_up {
                                    // SAFETY: whoever takes an address out of the list is the only one to give it back.
                                    unsafe { bench.allocator.give_back(ptr).unwrap() };
                                }
                                continue;
                            }
                            Err(error) => unreachable!("{error}"),
                        };
                        bench.write(ptr, bytes, stream, 10_000);
                        if mixed(&mut random).is_multiple_of(3) {
                            let other = streams[(mixed(&mut random) % 6) as usize];
                            bench.order(stream, other);
                            if other != stream {
                                let read = headwater_sim::Work::new("read", 30_000)
                                    .reads(ptr.raw()..ptr.raw() + bytes);
                                bench.sim.submit(other, read).unwrap();
                                bench.allocator.record_stream(ptr, other).unwrap();
                            }
                        }
                        passed_on.lock().unwrap().push(ptr);
                        if mixed(&mut random).is_multiple_of(2) {
                            let taken = passed_on.lock().unwrap().pop();
                            if let Some(ptr) = taken {
                                // SAFETY: as above.
                                unsafe { bench.allocator.give_back(ptr).unwrap() };
                            }
                        }
                    }
                })
            })
            .collect();
        // Readers and a broom beside them.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                bench.allocator.stats();
                bench.allocator.snapshot();
                bench.allocator.reconcile().unwrap();
                bench.allocator.empty_cache().unwrap();
                std::thread::yield_now();
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    for ptr in passed_on.into_inner().unwrap() {
        bench.give_back(ptr);
    }
    bench.check();
    // All those threads have ended; what their default streams held is recovered.
    for _ in 0..3 {
        bench.sim.wait_until_idle();
        bench.allocator.empty_cache().unwrap();
    }
    assert_eq!(bench.reserved_bytes(), 0);
    assert_eq!(bench.allocator.stats().allocation.all.current, 0);
}

#[test]
fn threads_that_give_back_for_each_other_race_with_nobody() {
    threads_give_back_for_each_other("backing:classic,memory_limit:400M");
}

#[test]
fn they_race_with_nobody_where_threads_keep_blocks() {
    for settings in
        ["backing:classic,memory_limit:400M,thread_cache_mb:4", "backing:paged,thread_cache_mb:64"]
    {
        threads_give_back_for_each_other(settings);
    }
}

#[test]
fn they_race_with_nobody_in_the_paged_backing() {
    for _ in 0..3 {
        threads_give_back_for_each_other("backing:paged,memory_limit:400M");
    }
}
