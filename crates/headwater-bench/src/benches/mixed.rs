//! `mixed`: sizes of 512 bytes to 16 MiB with 256 blocks live; each step gives one back and takes another. The operation is
//! one call.

use std::hint::black_box;

use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DevicePtr, Stream};

use super::{Draws, Ground, Streams};
use crate::contestant::BenchError;
use crate::rounds::Seen;

/// How many blocks are live.
const LIVE: usize = 256;

/// Steps before the sequence begins again. Drawn before the clock runs.
const STEPS: usize = 4096;

pub(super) fn run(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    for contestant in ground.contestants {
        let mut seen = Seen::default();
        let operations = ground.options.effort.operations(contestant.is_slow());
        let allocator = contestant.make("mixed")?;
        let streams = Streams::new(&*allocator, 1)?;
        let measured = Mixed::new(black_box(&*allocator), streams.get(0), 1).and_then(|mut mixed| {
            // Once through, so that everything has been allocated.
            (0..STEPS).try_for_each(|_| mixed.step())?;
            for _ in 0..ground.options.effort.rounds() {
                seen.round_of(operations, 2, || mixed.step())?;
            }
            seen.singles_of(operations, 2, || mixed.step())?;
            mixed.end()
        });
        measured.map_err(|error| contestant.failed("mixed", error))?;
        (ground.report)(seen.row("mixed", contestant.name(), 0, 1));
    }
    Ok(())
}

/// The work of one thread.
pub(super) struct Mixed<'a> {
    allocator: &'a dyn Allocator,
    stream: Stream,
    steps: Vec<(usize, u64)>,
    live: Vec<DevicePtr>,
    next: usize,
}

impl<'a> Mixed<'a> {
    pub(super) fn new(allocator: &'a dyn Allocator, stream: Stream, seed: u64) -> Result<Self, AllocError> {
        let mut draws = Draws::new(seed);
        let steps = (0..STEPS).map(|_| (draws.below(LIVE as u64) as usize, draws.size())).collect();
        let live = (0..LIVE).map(|_| allocator.allocate(Request::new(draws.size(), stream)));
        Ok(Self { allocator, stream, steps, live: live.collect::<Result<_, _>>()?, next: 0 })
    }

    /// One block back, another out.
    #[inline(always)]
    pub(super) fn step(&mut self) -> Result<(), AllocError> {
        let (place, bytes) = self.steps[self.next % STEPS];
        self.next += 1;
        // SAFETY: nothing uses the block, and its place gets another.
        unsafe { self.allocator.give_back(self.live[place]) }?;
        self.live[place] = self.allocator.allocate(Request::new(bytes, self.stream))?;
        Ok(())
    }

    /// All blocks back.
    pub(super) fn end(self) -> Result<(), AllocError> {
        // SAFETY: nothing uses the blocks, and they are given back once.
        self.live.iter().try_for_each(|ptr| unsafe { self.allocator.give_back(*ptr) })
    }
}
