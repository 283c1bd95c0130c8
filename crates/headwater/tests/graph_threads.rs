//! Threads that capture, launch and drop graphs through one allocator at the same time, some into a pool that they take turns with.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod graph_support;

use std::sync::atomic::{AtomicBool, Ordering};

use graph_support::{DEVICE, GROUNDS, MIB, Stage, on_every_ground};
use headwater::{Allocator, Request};
use headwater_driver::{CaptureMode, Streams};
use parking_lot::Mutex;

#[test]
fn threads_capture_launch_and_drop_at_the_same_time() {
    on_every_ground(|stage| {
        let streams: Vec<_> = (0..4).map(|_| stage.stream()).collect();
        let shared = stage.allocator.new_pool().unwrap();
        // Graphs of one pool do not run at once: whoever has the turn captures and runs.
        let turn = Mutex::new(());
        std::thread::scope(|scope| {
            for (number, stream) in streams.iter().copied().enumerate() {
                let (stage, shared, turn) = (&stage, &shared, &turn);
                scope.spawn(move || {
                    for round in 0..20_u64 {
                        let in_turn = (number % 2 == 0).then(|| turn.lock());
                        let pool = in_turn.as_ref().map(|_| shared);
                        stage.allocator.begin_capture(stream, CaptureMode::ThreadLocal, pool).unwrap();
                        let large = stage.allocate((1 + round % 5) * 4 * MIB, stream);
                        let small = stage.allocate(1000 + round, stream);
                        stage.give_back(large);
                        let again = stage.allocate(3 * MIB, stream);
                        let graph = stage.allocator.end_capture(stream).unwrap().instantiate().unwrap();
                        let outside = stage.allocator.allocate(Request::new(2 * MIB, stream)).unwrap();
                        // SAFETY: the graph touches memory of its pool only, and has the turn where it shares it.
                        unsafe { graph.launch(stream) }.unwrap();
                        stage.sim.stream_synchronize(stream).unwrap();
                        [small, again, outside].into_iter().for_each(|ptr| stage.give_back(ptr));
                        drop(graph);
                        drop(in_turn);
                    }
                });
            }
        });
        drop(shared);
        stage.finish(&streams);
    });
}

/// Pools and the allocator beside them grow at the same time, in two threads; a third one looks at what the device has given.
#[test]
fn the_shared_limit_is_not_exceeded_for_a_moment() {
    const LIMIT: u64 = 200 * MIB;
    for (plain, settings) in GROUNDS {
        let stage = Stage::new(plain, &format!("{settings},memory_limit:200M"), 4 << 30);
        let (inside, outside) = (stage.stream(), stage.stream());
        let total = stage.sim.memory_now(DEVICE).unwrap().total_bytes;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pools = scope.spawn(|| {
                for round in 1..40 {
                    let mode = CaptureMode::ThreadLocal;
                    let pool = stage.allocator.begin_capture(inside, mode, None).unwrap();
                    // Refused now and then: there is not room for both.
                    let block = stage.allocator.allocate(Request::new((round % 7 + 1) * 20 * MIB, inside));
                    if let Ok(ptr) = block {
                        stage.give_back(ptr);
                    }
                    drop((stage.end(inside), pool));
                }
                done.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if let Ok(ptr) = stage.allocator.allocate(Request::new(90 * MIB, outside)) {
                        stage.give_back(ptr);
                    }
                    stage.allocator.empty_cache().unwrap();
                }
            });
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let used = total - stage.sim.memory_now(DEVICE).unwrap().free_bytes;
                    // Beside both there is the smallest block, by which the device is waited for.
                    assert!(used <= LIMIT + 2 * MIB, "{used} bytes");
                }
            });
            pools.join().unwrap();
        });
        stage.finish(&[inside, outside]);
    }
}
