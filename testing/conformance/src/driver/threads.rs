//! Many threads at one driver.

use std::sync::atomic::{AtomicBool, Ordering};

use headwater_driver::{DriverError, Stream};

use crate::case::Ground;
use crate::check::{Check, ensure, joined, same, same_bytes};
use crate::fixtures::{pattern, word_of};

const THREADS: u8 = 8;
const BYTES: u64 = 64 << 10;

/// Runs `act` in eight threads at once, each with its number, and hands on the first thing one of them found.
#[track_caller]
fn in_threads(act: impl Fn(u8) -> Check + Sync) -> Check {
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = (1..=THREADS).map(|number| scope.spawn(move || act(number))).collect();
        // All are joined, also after one has failed: the scope would wait for them anyway.
        threads.into_iter().map(joined).fold(Ok(()), Check::and)
    })
}

fn each_with_its_own_stream_and_memory(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    in_threads(|number| {
        for round in 0..10 {
            let value = number.wrapping_mul(16).wrapping_add(round);
            let memory = ground.plain(BYTES)?;
            let stream = ground.stream()?;
            kernels.fill(memory.span(), word_of(value), stream.id())?;
            ground.holds(memory.span(), value, stream.id())?;
            let content = pattern(BYTES as usize, value);
            ground.write(memory.span(), &content, stream.id())?;
            same_bytes("the memory", &content, &ground.read(memory.span(), stream.id())?)?;
        }
        Ok(())
    })
}

fn all_in_one_stream(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let shared = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    ground.fill(shared.span(), 0, stream.id())?;
    in_threads(|number| {
        let own = ground.plain(BYTES)?;
        for _ in 0..5 {
            kernels.fill(own.span(), word_of(number), stream.id())?;
            // Additions in one stream run one after the other, whoever gave them.
            kernels.add(shared.span(), word_of(1), stream.id())?;
            ground.holds(own.span(), number, stream.id())?;
        }
        Ok(())
    })?;
    ground.holds(shared.span(), 5 * THREADS, stream.id())
}

fn each_with_virtual_memory_of_its_own(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    in_threads(|number| {
        for _ in 0..5 {
            let memory = ground.mapped(bytes)?;
            let stream = ground.stream()?;
            ground.fill(memory.span(), number, stream.id())?;
            ground.holds(memory.span(), number, stream.id())?;
        }
        Ok(())
    })
}

fn each_with_its_own_part_of_one_range(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(u64::from(THREADS) * bytes)?;
    in_threads(|number| {
        let place = range.at(u64::from(number - 1) * bytes);
        for round in 0..5 {
            let handle = ground.handle(bytes)?;
            let mapping = ground.map(place, &handle)?;
            let stream = ground.stream()?;
            let value = number.wrapping_mul(8).wrapping_add(round);
            ground.fill(mapping.span(), value, stream.id())?;
            ground.holds(mapping.span(), value, stream.id())?;
        }
        Ok(())
    })
}

fn each_behind_the_event_of_the_one_before(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let streams = (0..THREADS).map(|_| ground.stream()).collect::<Check<Vec<_>>>()?;
    let events = (0..THREADS).map(|_| ground.event()).collect::<Check<Vec<_>>>()?;
    // A relay: every thread adds to the memory in its own stream, behind the event of the thread before it.
    ground.fill(memory.span(), 0, streams[0].id())?;
    let turn = parking_lot::Mutex::new(1_u8);
    let turned = parking_lot::Condvar::new();
    let stopped = AtomicBool::new(false);
    in_threads(|number| {
        let mut now = turn.lock();
        while *now != number && !stopped.load(Ordering::Relaxed) {
            turned.wait(&mut now);
        }
        let place = usize::from(number - 1);
        let ran = (|| -> Check {
            let stream = streams[place].id();
            if let Some(before) = place.checked_sub(1) {
                events[before].holds_back(stream)?;
            }
            kernels.add(memory.span(), word_of(number), stream)?;
            events[place].record(stream)
        })();
        // A thread that failed lets the others go, so that the case ends.
        stopped.fetch_or(ran.is_err(), Ordering::Relaxed);
        *now += 1;
        turned.notify_all();
        ran
    })?;
    ground.holds(memory.span(), (1..=THREADS).sum(), streams[usize::from(THREADS) - 1].id())
}

fn streams_and_events_come_and_go_beside_working_ones(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    in_threads(|number| {
        if number % 2 == 0 {
            for _ in 0..50 {
                let stream = ground.stream()?;
                let event = ground.event_at(stream.id())?;
                event.wait()?;
                event.destroy()?;
                stream.destroy()?;
            }
            return Ok(());
        }
        let memory = ground.plain(BYTES)?;
        let stream = ground.stream()?;
        ground.fill(memory.span(), 0, stream.id())?;
        for _ in 0..50 {
            kernels.add(memory.span(), word_of(1), stream.id())?;
        }
        ground.holds(memory.span(), 50, stream.id())
    })
}

fn default_streams_are_one_for_each(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = Stream::per_thread_default(ground.device);
    in_threads(|number| {
        let memory = ground.plain(BYTES)?;
        kernels.fill(memory.span(), word_of(number), stream)?;
        ground.holds(memory.span(), number, stream)
    })
}

fn no_two_get_the_same_memory(ground: &Ground) -> Check {
    let all = parking_lot::Mutex::new(Vec::new());
    in_threads(|_| {
        for _ in 0..8 {
            all.lock().push(ground.plain(BYTES)?);
        }
        Ok(())
    })?;
    let held = all.into_inner();
    same("allocations", 8 * usize::from(THREADS), held.len())?;
    let mut starts: Vec<u64> = held.iter().map(|memory| memory.ptr().raw()).collect();
    starts.sort_unstable();
    ensure(starts.windows(2).all(|pair| pair[1] - pair[0] >= BYTES), "no two allocations share a byte")
}

fn only_one_of_many_frees_succeeds(ground: &Ground) -> Check {
    let ptr = ground.driver.mem_alloc(ground.device, BYTES)?;
    let answers = parking_lot::Mutex::new(Vec::<Result<(), DriverError>>::new());
    in_threads(|_| {
        let freed = ground.driver.mem_free(ground.device, ptr);
        answers.lock().push(freed);
        Ok(())
    })?;
    let freed = answers.into_inner().iter().filter(|answer| answer.is_ok()).count();
    same("frees that succeeded", 1, freed)
}

super::list![threads:
    each_with_its_own_stream_and_memory,
    all_in_one_stream,
    each_with_virtual_memory_of_its_own,
    each_with_its_own_part_of_one_range,
    each_behind_the_event_of_the_one_before,
    streams_and_events_come_and_go_beside_working_ones,
    default_streams_are_one_for_each,
    no_two_get_the_same_memory,
    only_one_of_many_frees_succeeds,
];
