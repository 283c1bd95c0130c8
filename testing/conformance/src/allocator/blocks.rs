//! What is given out: where it lies, what it holds, what is known about it.

use headwater::Request;
use headwater::allocator::{BlockState, DEFAULT_ALIGNMENT_BYTES, MAX_ALIGNMENT_BYTES};
use headwater_driver::DevicePtr;

use super::ground::{AllocatorGround, ends, fill, give_back, holds, is_empty};
use crate::check::{Check, ensure, same, some};

/// Sizes around every boundary that an allocator is likely to have.
const SIZES: [u64; 18] = [
    1,
    255,
    256,
    257,
    511,
    512,
    513,
    4096,
    65_537,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (2 << 20) - 1,
    2 << 20,
    (10 << 20) - 1,
    10 << 20,
    (20 << 20) + 512,
    33 << 20,
];

fn live_blocks_do_not_overlap(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let mut held = Vec::new();
    for bytes in SIZES.into_iter().chain(SIZES) {
        held.push((allocator.allocate(Request::new(bytes, stream.id()))?, bytes));
    }
    let mut ranges: Vec<_> = held.iter().map(|(ptr, bytes)| (ptr.raw(), ptr.raw() + bytes)).collect();
    ranges.sort_unstable();
    ensure(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "no two live blocks share a byte")?;
    for (ptr, _) in held {
        give_back(&allocator, ptr)?;
    }
    is_empty(&allocator)
}

fn addresses_are_aligned_to_256_bytes_unasked(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    for bytes in SIZES {
        let block = ground.block(&allocator, bytes, stream.id())?;
        ensure(block.ptr().is_aligned_to(DEFAULT_ALIGNMENT_BYTES), "the address is a multiple of 256")?;
    }
    is_empty(&allocator)
}

fn every_alignment_is_honoured(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let mut held = Vec::new();
    for shift in 0..=MAX_ALIGNMENT_BYTES.ilog2() {
        for bytes in [1, 1000, (1 << 20) + 1] {
            let request = Request::new(bytes, stream.id()).aligned_to(1 << shift);
            let ptr = allocator.allocate(request)?;
            held.push(ptr);
            ensure(ptr.is_aligned_to(1 << shift), "the address is a multiple of what was asked for")?;
            fill(&allocator, ptr, bytes, shift as u8, stream.id())?;
            holds(&allocator, ptr, bytes, shift as u8, stream.id())?;
        }
    }
    for ptr in held {
        give_back(&allocator, ptr)?;
    }
    is_empty(&allocator)
}

fn zero_bytes_get_an_empty_block(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let ptr = allocator.allocate(Request::new(0, stream.id()))?;
    same("the address of nothing", DevicePtr::NULL, ptr)?;
    allocator.record_stream(ptr, stream.id())?;
    give_back(&allocator, ptr)?;
    give_back(&allocator, ptr)?;
    is_empty(&allocator)
}

fn contents_stay_while_others_come_and_go(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let mut held = Vec::new();
    for (place, bytes) in SIZES.into_iter().enumerate() {
        let ptr = allocator.allocate(Request::new(bytes, stream.id()))?;
        fill(&allocator, ptr, bytes, place as u8, stream.id())?;
        held.push((ptr, bytes, place as u8));
    }
    for bytes in SIZES {
        let passing = ground.block(&allocator, bytes, stream.id())?;
        fill(&allocator, passing.ptr(), bytes, 0xff, stream.id())?;
    }
    allocator.empty_cache()?;
    for (ptr, bytes, value) in &held {
        holds(&allocator, *ptr, *bytes, *value, stream.id())?;
    }
    for (ptr, ..) in held {
        give_back(&allocator, ptr)?;
    }
    is_empty(&allocator)
}

fn facts_are_known_from_any_address_of_a_block(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    for bytes in SIZES {
        let block = ground.block(&allocator, bytes, stream.id())?;
        for offset_bytes in [0, bytes / 2, bytes - 1] {
            let ptr = some("an address of the block", block.ptr().checked_add(offset_bytes))?;
            let facts = some("facts of a live block", allocator.block_at(ptr))?;
            same("the first address", block.ptr(), facts.ptr)?;
            same("the requested bytes", bytes, facts.requested_bytes)?;
            same("the stream", stream.id(), facts.stream)?;
            same("the state", BlockState::Live, facts.state)?;
            ensure(facts.allocated_bytes >= bytes, "a block takes up at least what was asked for")?;
        }
        let ptr = block.ptr();
        drop(block);
        let live = allocator.block_at(ptr).is_some_and(|facts| facts.state == BlockState::Live);
        ensure(!live, "a block that was given back is not live")?;
    }
    is_empty(&allocator)
}

fn given_back_memory_can_be_had_again(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let total_bytes = ground.driver().memory_info(ground.device())?.total_bytes;
    // Together more than the device has: without reuse this ends in out of memory.
    let bytes = total_bytes / 5;
    for _ in 0..12 {
        ends(ground.block(&allocator, bytes, stream.id())?)?;
    }
    is_empty(&allocator)
}

super::list_cases!(blocks:
    live_blocks_do_not_overlap,
    addresses_are_aligned_to_256_bytes_unasked,
    every_alignment_is_honoured,
    zero_bytes_get_an_empty_block,
    contents_stay_while_others_come_and_go,
    facts_are_known_from_any_address_of_a_block,
    given_back_memory_can_be_had_again,
);
