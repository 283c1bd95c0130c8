//! Streams: a byte is handed out again only when every use of it is finished, or ordered before the new use.
//!
//! Each case leaves a kernel behind that writes late, gives the block back under it, and takes memory again. Whoever
//! got the same bytes too early finds the late value in them.

use headwater_driver::Stream;

use super::accounts::reconciles;
use super::ground::{AllocatorGround, ends, fill, holds, is_empty};
use crate::check::Check;
use crate::fixtures::word_of;

/// Small, and large: allocators keep them in different places.
const SIZES: [u64; 2] = [4096, 4 << 20];

const LATE: u8 = 0xee;
const NEW: u8 = 0x11;

/// Takes memory in `stream` again, as much as was just given back and more, and finds that it stays as it is written.
fn nothing_late_comes_through(
    ground: &AllocatorGround<'_>,
    allocator: &std::sync::Arc<dyn headwater::Allocator>,
    bytes: u64,
    stream: Stream,
    late: Stream,
) -> Check {
    let again: Check<Vec<_>> = (0..4).map(|_| ground.block(allocator, bytes, stream)).collect();
    let again = again?;
    for block in &again {
        fill(allocator, block.ptr(), bytes, NEW, stream)?;
    }
    reconciles(allocator)?;
    ground.driver().stream_synchronize(late)?;
    for block in &again {
        holds(allocator, block.ptr(), bytes, NEW, stream)?;
    }
    again.into_iter().try_for_each(ends)
}

fn memory_is_reused_in_its_own_stream_in_order(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    for bytes in SIZES {
        let block = ground.block(&allocator, bytes, stream.id())?;
        kernels.fill_late(block.ptr(), bytes, word_of(LATE), stream.id())?;
        ends(block)?;
        nothing_late_comes_through(ground, &allocator, bytes, stream.id(), stream.id())?;
    }
    is_empty(&allocator)
}

fn memory_of_one_stream_is_not_early_in_another(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let kernels = ground.kernels()?;
    let (own, other) = (ground.stream()?, ground.stream()?);
    for bytes in SIZES {
        let block = ground.block(&allocator, bytes, own.id())?;
        kernels.fill_late(block.ptr(), bytes, word_of(LATE), own.id())?;
        ends(block)?;
        nothing_late_comes_through(ground, &allocator, bytes, other.id(), own.id())?;
    }
    is_empty(&allocator)
}

fn a_recorded_stream_is_waited_for(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let kernels = ground.kernels()?;
    let (own, user) = (ground.stream()?, ground.stream()?);
    for bytes in SIZES {
        let block = ground.block(&allocator, bytes, own.id())?;
        let ready = ground.ground.event_at(own.id())?;
        ready.holds_back(user.id())?;
        kernels.fill_late(block.ptr(), bytes, word_of(LATE), user.id())?;
        block.record_stream(user.id())?;
        ends(block)?;
        nothing_late_comes_through(ground, &allocator, bytes, own.id(), user.id())?;
    }
    is_empty(&allocator)
}

fn several_recorded_streams_are_all_waited_for(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let kernels = ground.kernels()?;
    let (own, quick, slow) = (ground.stream()?, ground.stream()?, ground.stream()?);
    let bytes = 1 << 20;
    let block = ground.block(&allocator, 2 * bytes, own.id())?;
    let ready = ground.ground.event_at(own.id())?;
    // One half each: two streams that wrote the same bytes would race with each other.
    let halves = [(quick.id(), block.ptr()), (slow.id(), crate::fixtures::offset(block.ptr(), bytes))];
    kernels.spin(slow.id())?;
    for (user, half) in halves {
        ready.holds_back(user)?;
        kernels.fill_late(half, bytes, word_of(LATE), user)?;
        // Twice is once.
        block.record_stream(user)?;
        block.record_stream(user)?;
    }
    ends(block)?;
    nothing_late_comes_through(ground, &allocator, 2 * bytes, own.id(), slow.id())?;
    is_empty(&allocator)
}

fn the_own_stream_needs_no_record(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let block = ground.block(&allocator, 4096, stream.id())?;
    block.record_stream(stream.id())?;
    ends(block)?;
    is_empty(&allocator)
}

fn the_default_streams_can_be_used(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let device = ground.device();
    for stream in [Stream::legacy_default(device), Stream::per_thread_default(device)] {
        let block = ground.block(&allocator, 4096, stream)?;
        fill(&allocator, block.ptr(), 4096, NEW, stream)?;
        holds(&allocator, block.ptr(), 4096, NEW, stream)?;
        ends(block)?;
    }
    is_empty(&allocator)
}

fn memory_outlives_the_stream_it_was_for(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let (kept, gone) = (ground.stream()?, ground.stream()?);
    let block = ground.block(&allocator, 4096, gone.id())?;
    let pending = ground.block(&allocator, 4096, kept.id())?;
    pending.record_stream(gone.id())?;
    fill(&allocator, block.ptr(), 4096, NEW, gone.id())?;
    gone.wait()?;
    gone.destroy()?;
    holds(&allocator, block.ptr(), 4096, NEW, kept.id())?;
    ends(block)?;
    ends(pending)?;
    is_empty(&allocator)
}

super::list_cases!(streams:
    memory_is_reused_in_its_own_stream_in_order,
    memory_of_one_stream_is_not_early_in_another,
    a_recorded_stream_is_waited_for,
    several_recorded_streams_are_all_waited_for,
    the_own_stream_needs_no_record,
    the_default_streams_can_be_used,
    memory_outlives_the_stream_it_was_for,
);
