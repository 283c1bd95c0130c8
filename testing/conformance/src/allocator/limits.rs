//! Limits: the allocator's own, and the device's.

use std::sync::Barrier;
use std::thread;

use headwater::{AllocError, OutOfMemoryReport, Request};
use headwater_driver::DevicePtr;

use super::accounts::{Accounts, reconciles};
use super::ground::{AllocatorGround, ends, give_back, is_empty};
use crate::case::Failure;
use crate::check::{Check, ensure, joined, same};

const MIB: u64 = 1 << 20;

/// The request ends in an out-of-memory error; its report.
#[track_caller]
fn runs_out(answer: Result<DevicePtr, AllocError>) -> Check<OutOfMemoryReport> {
    match answer {
        Err(AllocError::OutOfMemory(report)) => Ok(*report),
        answer => Err(Failure::new(format!("expected out of memory, got {answer:?}")).into()),
    }
}

fn a_request_beyond_the_limit_names_both(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.limited(64 * MIB)?;
    let stream = ground.stream()?;
    let block = ground.block(&allocator, 40 * MIB, stream.id())?;
    let before = Accounts::of(&allocator);
    for bytes in [64 * MIB + 1, 40 * MIB] {
        let report = runs_out(allocator.allocate(Request::new(bytes, stream.id())))?;
        same("the request", bytes, report.requested_bytes)?;
        same("the limit", Some(64 * MIB), report.limit_bytes)?;
        same("live bytes", 40 * MIB, report.live_bytes)?;
        ensure(report.over_limit, "the limit stood in the way")?;
        ensure(!report.remedy.is_empty(), "the report says what would help")?;
        same("the accounts", before, Accounts::of(&allocator))?;
    }
    ends(block)?;
    ends(ground.block(&allocator, 60 * MIB, stream.id())?)?;
    is_empty(&allocator)
}

fn the_whole_limit_can_be_used(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.limited(64 * MIB)?;
    let stream = ground.stream()?;
    for _ in 0..3 {
        ends(ground.block(&allocator, 64 * MIB, stream.id())?)?;
    }
    is_empty(&allocator)
}

fn a_cache_does_not_stand_in_the_way_of_the_limit(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.limited(64 * MIB)?;
    let stream = ground.stream()?;
    // Each leaves another size behind in a cache, together far beyond the limit.
    for bytes in [1, 2, 5, 9, 12, 20, 33, 50, 64] {
        // The first must fit, whatever is cached. How many more do depends on how the allocator cuts memory up.
        let first = ground.block(&allocator, bytes * MIB, stream.id())?;
        let more = std::iter::from_fn(|| ground.block(&allocator, bytes * MIB, stream.id()).ok());
        let held: Vec<_> = std::iter::once(first).chain(more).collect();
        ensure(Accounts::of(&allocator).reserved_bytes <= 64 * MIB, "the limit holds")?;
        held.into_iter().try_for_each(ends)?;
    }
    is_empty(&allocator)
}

fn more_than_the_device_has_is_out_of_memory(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let block = ground.block(&allocator, MIB, stream.id())?;
    let before = Accounts::of(&allocator);
    let total_bytes = ground.driver().memory_info(ground.device())?.total_bytes;
    let bytes = total_bytes + 64 * MIB;
    let report = runs_out(allocator.allocate(Request::new(bytes, stream.id())))?;
    same("the request", bytes, report.requested_bytes)?;
    same("the device", ground.device(), report.device)?;
    same("the device's memory", Some(total_bytes), report.memory.map(|memory| memory.total_bytes))?;
    ensure(!report.over_limit, "no limit stood in the way")?;
    same("the accounts", before, Accounts::of(&allocator))?;
    same("errors counted", 1, allocator.stats().num_ooms)?;
    ends(block)?;
    ends(ground.block(&allocator, MIB, stream.id())?)?;
    is_empty(&allocator)
}

fn threads_together_stay_within_the_limit(ground: &AllocatorGround<'_>) -> Check {
    const LIMIT_BYTES: u64 = 40 * MIB;
    const THREADS: usize = 8;
    let allocator = ground.limited(LIMIT_BYTES)?;
    let stream = ground.stream()?;
    let meeting = Barrier::new(THREADS);
    // All ask at once and hold what they got until all have asked. No early return: it would leave the others waiting.
    let ask = || -> Vec<Result<(), AllocError>> {
        let round = |_| {
            meeting.wait();
            let answer = allocator.allocate(Request::new(12 * MIB, stream.id()));
            meeting.wait();
            answer.and_then(|ptr| give_back(&allocator, ptr))
        };
        (0..25).map(round).collect()
    };
    let answers = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| Ok(ask()))).collect();
        threads.into_iter().map(joined).collect::<Check<Vec<_>>>()
    })?;
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().flatten().partition(Result::is_ok);
    ensure(
        refused.into_iter().flat_map(Result::err).all(|error| error.is_out_of_memory()),
        "only the limit refuses",
    )?;
    ensure((25..=25 * 3).contains(&served.len()), "a round serves one to three, which is all that fits")?;
    ensure(allocator.stats().reserved_bytes.all.peak <= LIMIT_BYTES, "the limit held at every moment")?;
    reconciles(&allocator)?;
    is_empty(&allocator)
}

super::list_cases!(limits:
    a_request_beyond_the_limit_names_both,
    the_whole_limit_can_be_used,
    a_cache_does_not_stand_in_the_way_of_the_limit,
    more_than_the_device_has_is_out_of_memory,
    threads_together_stay_within_the_limit,
);
