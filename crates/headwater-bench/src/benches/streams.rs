//! `record_stream`: announcing another user of a live block, each block once. `cross_stream`: pairs that change the stream
//! every time.

use std::hint::black_box;
use std::time::Instant;

use headwater::{AllocError, Allocator, Request};

use super::pair::pair;
use super::{Ground, Streams};
use crate::contestant::BenchError;
use crate::rounds::{Seen, clock_ns};

const BYTES: u64 = 64 << 10;

/// How many blocks are announced in a round: one half together, the other one by one.
const BLOCKS: usize = 1024;

pub(super) fn record_stream(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    for contestant in ground.contestants {
        let mut seen = Seen::default();
        let allocator = contestant.make("record_stream")?;
        let streams = Streams::new(&*allocator, 2)?;
        for _ in 0..ground.options.effort.rounds() {
            let measured = announce(black_box(&*allocator), &streams, &mut seen);
            measured.map_err(|error| contestant.failed("record_stream", error))?;
        }
        (ground.report)(seen.row("record_stream", contestant.name(), BYTES, 1));
    }
    Ok(())
}

fn announce(allocator: &dyn Allocator, streams: &Streams<'_>, seen: &mut Seen) -> Result<(), AllocError> {
    let take = |_| allocator.allocate(Request::new(BYTES, streams.get(0)));
    let blocks = (0..BLOCKS).map(take).collect::<Result<Vec<_>, _>>()?;
    let user = streams.get(1);
    let (together, one_by_one) = blocks.split_at(BLOCKS / 2);
    let clock = Instant::now();
    for ptr in together {
        allocator.record_stream(*ptr, user)?;
    }
    seen.note_round(clock.elapsed().as_nanos() as f64 / together.len() as f64);
    let clock_ns = clock_ns();
    for ptr in one_by_one {
        let clock = Instant::now();
        allocator.record_stream(*ptr, user)?;
        seen.note_single(clock.elapsed().as_nanos().saturating_sub(clock_ns));
    }
    // SAFETY: nothing uses the blocks, and they are given back once.
    blocks.iter().try_for_each(|ptr| unsafe { allocator.give_back(*ptr) })
}

pub(super) fn cross_stream(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    for contestant in ground.contestants {
        let mut seen = Seen::default();
        let operations = ground.options.effort.operations(contestant.is_slow());
        let allocator = contestant.make("cross_stream")?;
        let streams = Streams::new(&*allocator, 2)?;
        let (allocator, mut turn) = (black_box(&*allocator), 0);
        let mut step = || {
            turn += 1;
            pair(allocator, Request::new(BYTES, streams.get(turn)))
        };
        let measured = (0..4).try_for_each(|_| step()).and_then(|()| {
            (0..ground.options.effort.rounds()).try_for_each(|_| seen.round(operations, &mut step))?;
            seen.singles(operations, &mut step)
        });
        measured.map_err(|error| contestant.failed("cross_stream", error))?;
        (ground.report)(seen.row("cross_stream", contestant.name(), BYTES, 1));
    }
    Ok(())
}
