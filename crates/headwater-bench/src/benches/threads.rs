//! `threads`: several at once. `threads` itself: each in a stream of its own, mixed sizes and 1 MiB; `threads_shared`: all in
//! one stream; `threads_handover`: one half allocates, the other gives back. The operation is one call.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DevicePtr, Stream};

use super::mixed::Mixed;
use super::pair::pair;
use super::{Ground, Streams};
use crate::contestant::{BenchError, Contestant};
use crate::rounds::Seen;

const PAIR_BYTES: u64 = 1 << 20;
const HANDOVER_BYTES: u64 = 64 << 10;

/// When a thread began, after all were ready, and when it had done its calls.
type Span = (Instant, Instant);

/// What one of several threads does: gets ready, waits for the others, and makes so many calls.
type Work<'a> = dyn Fn(usize, usize, &Barrier) -> Result<Span, AllocError> + Sync + 'a;

pub(super) fn run(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    for contestant in ground.contestants {
        for threads in ground.options.threads.clone() {
            let allocator = contestant.make("threads")?;
            let streams = Streams::new(&*allocator, threads.max(1))?;
            let allocator = &*allocator;
            let own = |place: usize| streams.get(place);
            let shared = |_: usize| streams.get(0);
            let mixed = |stream: &(dyn Fn(usize) -> Stream + Sync), place, calls, start: &Barrier| {
                let begun = Mixed::new(allocator, stream(place), 1 + place as u64);
                let begun =
                    begun.and_then(|mut mixed| (0..4096).try_for_each(|_| mixed.step()).map(|()| mixed));
                start.wait();
                let clock = Instant::now();
                let mut mixed = begun?;
                (0..calls / 2).try_for_each(|_| mixed.step())?;
                let span = (clock, Instant::now());
                mixed.end().map(|()| span)
            };
            let pairs = |place, calls, start: &Barrier| {
                let request = Request::new(PAIR_BYTES, own(place));
                let begun = pair(allocator, request);
                start.wait();
                let clock = Instant::now();
                begun?;
                (0..calls / 2).try_for_each(|_| pair(allocator, request))?;
                Ok((clock, Instant::now()))
            };
            measure(ground, contestant, "threads", 0, threads, &|place, calls, start| {
                mixed(&own, place, calls, start)
            })?;
            measure(ground, contestant, "threads", PAIR_BYTES, threads, &pairs)?;
            measure(ground, contestant, "threads_shared", 0, threads, &|place, calls, start| {
                mixed(&shared, place, calls, start)
            })?;
            if threads >= 2 && threads.is_multiple_of(2) {
                let belts: Vec<Belt> = (0..threads / 2).map(|_| Belt::default()).collect();
                measure(
                    ground,
                    contestant,
                    "threads_handover",
                    HANDOVER_BYTES,
                    threads,
                    &|place, calls, start| {
                        let belt = &belts[place / 2];
                        start.wait();
                        let clock = Instant::now();
                        if place.is_multiple_of(2) {
                            belt.produce(allocator, Request::new(HANDOVER_BYTES, own(place)), calls)?;
                        } else {
                            belt.consume(allocator, calls)?;
                        }
                        Ok((clock, Instant::now()))
                    },
                )?;
            }
        }
    }
    Ok(())
}

fn measure(
    ground: &mut Ground<'_>,
    contestant: &Contestant,
    bench: &'static str,
    size: u64,
    threads: usize,
    work: &Work<'_>,
) -> Result<(), BenchError> {
    let effort = ground.options.effort;
    // Long enough that the moments in which threads wake up and end do not count.
    let calls = effort.operations(contestant.is_slow()) * 20;
    let mut seen = Seen::default();
    for _ in 0..effort.rounds() {
        let start = Barrier::new(threads);
        let start = &start;
        let spans = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..threads).map(|place| scope.spawn(move || work(place, calls, start))).collect();
            let join =
                |thread: std::thread::ScopedJoinHandle<'_, Result<Span, AllocError>>| match thread.join() {
                    Ok(answer) => answer.map_err(|error| contestant.failed(bench, error)),
                    Err(_) => Err(BenchError::ThreadEnded { bench }),
                };
            threads.into_iter().map(join).collect::<Result<Vec<Span>, _>>()
        })?;
        // From the first that began to the last that ended.
        let first = spans.iter().map(|(begun, _)| *begun).min();
        let last = spans.iter().map(|(_, ended)| *ended).max();
        let wall = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_nanos() as f64);
        seen.note_round(wall / calls as f64);
    }
    (ground.report)(seen.row(bench, contestant.name(), size, threads));
    Ok(())
}

/// From one thread to another: a ring of places, 0 where one is free. What it costs itself is a few nanoseconds.
struct Belt {
    places: [AtomicU64; 256],
}

impl Default for Belt {
    fn default() -> Self {
        Self { places: [const { AtomicU64::new(0) }; 256] }
    }
}

/// Tells the other side that nothing more comes, because this side failed.
const BROKEN: u64 = u64::MAX;

impl Belt {
    fn produce(&self, allocator: &dyn Allocator, request: Request, blocks: usize) -> Result<(), AllocError> {
        for number in 0..blocks {
            let made = allocator.allocate(request);
            let place = &self.places[number % self.places.len()];
            while place.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
            place.store(made.as_ref().map_or(BROKEN, |ptr| ptr.raw()), Ordering::Release);
            made?;
        }
        Ok(())
    }

    fn consume(&self, allocator: &dyn Allocator, blocks: usize) -> Result<(), AllocError> {
        let mut answer = Ok(());
        for number in 0..blocks {
            let place = &self.places[number % self.places.len()];
            let raw = loop {
                match place.load(Ordering::Acquire) {
                    0 => std::thread::yield_now(),
                    raw => break raw,
                }
            };
            place.store(0, Ordering::Release);
            if raw == BROKEN {
                break;
            }
            // SAFETY: the producer handed it over, and nothing uses it. After a failure the rest is still taken off the
            // belt, so that the producer comes to its end.
            answer = answer.and(unsafe { allocator.give_back(DevicePtr::new(raw)) });
        }
        answer
    }
}
