//! `miss`: requests for which the allocator has nothing, so that the driver is asked. The operation is one request. On the
//! simulated device this is the host's cost; what a real driver would take is in its virtual time.

use std::hint::black_box;
use std::time::Instant;

use headwater::{AllocError, Allocator, Request};
use headwater_driver::Stream;

use super::{Ground, Streams};
use crate::contestant::BenchError;
use crate::rounds::{Seen, clock_ns};

const BYTES: u64 = 16 << 20;

/// Requests a round.
const REQUESTS: usize = 64;

pub(super) fn miss(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    for contestant in ground.contestants {
        let mut seen = Seen::default();
        let allocator = contestant.make("miss")?;
        let streams = Streams::new(&*allocator, 1)?;
        for _ in 0..ground.options.effort.rounds() {
            let measured = from_nothing(black_box(&*allocator), streams.get(0), &mut seen);
            measured.map_err(|error| contestant.failed("miss", error))?;
        }
        (ground.report)(seen.row("miss", contestant.name(), BYTES, 1));
    }
    Ok(())
}

fn from_nothing(allocator: &dyn Allocator, stream: Stream, seen: &mut Seen) -> Result<(), AllocError> {
    let mut blocks = Vec::with_capacity(REQUESTS);
    let clock_ns = clock_ns();
    let clock = Instant::now();
    for _ in 0..REQUESTS {
        let one = Instant::now();
        blocks.push(allocator.allocate(Request::new(BYTES, stream))?);
        seen.note_single(one.elapsed().as_nanos().saturating_sub(clock_ns));
    }
    seen.note_round(clock.elapsed().as_nanos() as f64 / REQUESTS as f64);
    // SAFETY: nothing uses the blocks, and they are given back once.
    blocks.iter().try_for_each(|ptr| unsafe { allocator.give_back(*ptr) })?;
    allocator.empty_cache().map(|_| ())
}
