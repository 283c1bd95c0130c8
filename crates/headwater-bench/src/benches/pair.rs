//! `pair`: one block out and back, by size, with everything cached. The operation is the pair.

use std::convert::Infallible;
use std::hint::black_box;

use headwater::{AllocError, Allocator, Request};

use super::{Ground, Streams};
use crate::contestant::BenchError;
use crate::rounds::{Seen, malloc_pair};

/// The size that the yardstick's row shows.
const MALLOC_BYTES: u64 = 64;

pub(super) fn run(ground: &mut Ground<'_>) -> Result<(), BenchError> {
    let (effort, sizes) = (ground.options.effort, &ground.options.sizes);
    let contestants = ground.contestants;
    let allocators: Vec<_> =
        contestants.iter().map(|contestant| contestant.make("pair")).collect::<Result<_, _>>()?;
    let streams: Vec<_> =
        allocators.iter().map(|allocator| Streams::new(&**allocator, 1)).collect::<Result<_, _>>()?;
    let mut malloc = Seen::default();
    let mut seen: Vec<Vec<Seen>> =
        sizes.iter().map(|_| contestants.iter().map(|_| Seen::default()).collect()).collect();
    let mut measure_malloc = || {
        let Ok(()) = malloc.round(effort.operations(false), || {
            malloc_pair();
            Ok::<(), Infallible>(())
        });
    };
    for _ in 0..effort.rounds() {
        for (size, seen) in sizes.iter().zip(&mut seen) {
            measure_malloc();
            for (place, contestant) in contestants.iter().enumerate() {
                // Unknown to the compiler, so that it calls through the table of methods as everybody does.
                let allocator = black_box(&*allocators[place]);
                let request = Request::new(*size, streams[place].get(0));
                let operations = effort.operations(contestant.is_slow());
                let pair = || pair(allocator, request);
                let measured = pair().and_then(|()| seen[place].round(operations, pair));
                let measured = measured.and_then(|()| seen[place].singles(operations / 5, pair));
                measured.map_err(|error| contestant.failed("pair", error))?;
            }
        }
    }
    let Ok(()) = malloc.singles(effort.operations(false), || {
        malloc_pair();
        Ok::<(), Infallible>(())
    });
    (ground.report)(malloc.row("pair", "malloc", MALLOC_BYTES, 1));
    for (size, seen) in sizes.iter().zip(seen) {
        for (contestant, seen) in contestants.iter().zip(seen) {
            (ground.report)(seen.row("pair", contestant.name(), *size, 1));
        }
    }
    Ok(())
}

/// One block out and back.
#[inline(always)]
pub(super) fn pair(allocator: &dyn Allocator, request: Request) -> Result<(), AllocError> {
    let ptr = allocator.allocate(request)?;
    // SAFETY: the block came out just now, nothing owns it and nothing uses it.
    unsafe { allocator.give_back(ptr) }
}
