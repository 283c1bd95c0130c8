//! The owned forms: blocks and typed buffers that give themselves back.

use std::ops::Deref;

use headwater::{AllocError, Allocator, Block, CurrentStream, DeviceVec, Request};
use headwater_driver::{CaptureMode, DevicePtr};

use super::ground::{AllocatorGround, fill, give_back, holds, is_empty, refused};
use crate::check::{Check, ensure, same, some};

fn a_dropped_block_is_given_back(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let ptr = ground.block(&allocator, 4096, stream.id())?.ptr();
    refused(give_back(&allocator, ptr), AllocError::AlreadyGivenBack { ptr })?;
    is_empty(&allocator)
}

fn a_block_goes_out_as_an_address_and_comes_back(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let block = ground.block(&allocator, 5000, stream.id())?;
    fill(&allocator, block.ptr(), block.bytes(), 7, stream.id())?;
    let ptr = block.into_raw();
    ensure(allocator.block_at(ptr).is_some(), "a bare address is still a live block")?;
    // SAFETY: the address came out of `into_raw` just now, and nothing else owns it.
    let block = unsafe { Block::from_raw(allocator.clone(), ptr) }?;
    same("bytes", 5000, block.bytes())?;
    same("stream", stream.id(), block.stream())?;
    holds(&allocator, block.ptr(), block.bytes(), 7, stream.id())?;
    drop(block);
    is_empty(&allocator)
}

fn only_the_first_address_of_a_live_block_can_be_owned(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let block = ground.block(&allocator, 4096, stream.id())?;
    let inside = some("an address inside", block.ptr().checked_add(8))?;
    // SAFETY: neither address is owned as a result: both are refused.
    let (within, foreign) = unsafe {
        (Block::from_raw(allocator.clone(), inside), Block::from_raw(allocator.clone(), DevicePtr::new(64)))
    };
    refused(within.map(Block::into_raw), AllocError::InsideBlock { ptr: inside, block: block.ptr() })?;
    refused(foreign.map(Block::into_raw), AllocError::ForeignPointer { ptr: DevicePtr::new(64) })?;
    drop(block);
    is_empty(&allocator)
}

fn a_block_can_borrow_its_allocator(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let borrowed: &dyn Allocator = allocator.deref();
    let block = Block::allocate(borrowed, Request::new(4096, stream.id()))?;
    fill(&allocator, block.ptr(), block.bytes(), 3, stream.id())?;
    block.give_back().map_err(|(_, error)| error)?;
    is_empty(&allocator)
}

fn values_come_back_as_they_went(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let numbers: Vec<u64> = (0..70_001).map(|n| n * n).collect();
    let mut buffer = DeviceVec::from_slice(allocator.clone(), &numbers, stream.id())?;
    ensure(buffer.to_vec(stream.id())? == numbers, "what comes back is what was sent")?;
    let reversed: Vec<u64> = numbers.iter().rev().copied().collect();
    buffer.copy_from_host(&reversed, stream.id())?;
    ensure(buffer.to_vec(stream.id())? == reversed, "what comes back is what was sent last")?;
    let zeroes = DeviceVec::<[f32; 3]>::zeroed(allocator.clone(), 1001, stream.id())?;
    ensure(zeroes.to_vec(stream.id())? == vec![[0.0; 3]; 1001], "zeroed values are zero")?;
    drop((buffer, zeroes));
    is_empty(&allocator)
}

fn a_copy_in_another_stream_comes_after_the_own_streams_work(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let kernels = ground.kernels()?;
    let (own, other) = (ground.stream()?, ground.stream()?);
    let buffer = DeviceVec::<u32>::zeroed(allocator.clone(), 1024, own.id())?;
    kernels.fill_late(buffer.ptr(), buffer.bytes(), 0x0707_0707, own.id())?;
    ensure(buffer.to_vec(other.id())? == vec![0x0707_0707; 1024], "the copy saw the late write")?;
    drop(buffer);
    is_empty(&allocator)
}

fn an_empty_buffer_is_no_special_case(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let mut buffer = DeviceVec::<f64>::from_slice(allocator.clone(), &[], stream.id())?;
    ensure(buffer.is_empty() && buffer.to_vec(stream.id())?.is_empty(), "nothing comes back")?;
    buffer.copy_from_host(&[], stream.id())?;
    drop(buffer);
    is_empty(&allocator)
}

fn a_wrong_length_is_refused(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let mut buffer = DeviceVec::from_slice(allocator.clone(), &[1_u8, 2, 3], stream.id())?;
    let copied = buffer.copy_from_host(&[9, 9], stream.id());
    refused(copied, AllocError::LengthMismatch { host: 2, device: 3 })?;
    let copied = buffer.copy_to_host(&mut [0; 4], stream.id());
    refused(copied, AllocError::LengthMismatch { host: 4, device: 3 })?;
    ensure(buffer.to_vec(stream.id())? == [1, 2, 3], "nothing was copied")?;
    drop(buffer);
    is_empty(&allocator)
}

fn a_buffer_beyond_the_address_space_is_refused(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    for len in [usize::MAX, usize::MAX / 8] {
        match DeviceVec::<u64>::uninit(allocator.clone(), len, stream.id()) {
            Err(AllocError::TooLarge { .. }) => {}
            answer => ensure(false, &format!("the request is too large (it got {answer:?})"))?,
        }
    }
    is_empty(&allocator)
}

fn a_copy_that_is_waited_for_does_not_harm_a_capture(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let (captured, free) = (ground.stream()?, ground.stream()?);
    let buffer = DeviceVec::from_slice(allocator.clone(), &[1_u8, 2, 3], free.id())?;
    let capture = ground.ground.capture(captured.id(), CaptureMode::Global)?;
    let copied = buffer.to_vec(captured.id());
    refused(copied, AllocError::StreamCapturing { stream: captured.id() })?;
    ensure(buffer.to_vec(free.id())? == [1, 2, 3], "another stream copies meanwhile")?;
    capture.is_valid()?;
    drop((capture.end()?, buffer));
    is_empty(&allocator)
}

fn the_current_stream_is_used_where_none_is_named(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let _scope = CurrentStream::enter(stream.id());
    let block = Block::allocate(allocator.clone(), Request::on_current_stream(512, ground.device()))?;
    same("the block's stream", stream.id(), block.stream())?;
    drop(block);
    is_empty(&allocator)
}

super::list_cases!(handles:
    a_dropped_block_is_given_back,
    a_block_goes_out_as_an_address_and_comes_back,
    only_the_first_address_of_a_live_block_can_be_owned,
    a_block_can_borrow_its_allocator,
    values_come_back_as_they_went,
    a_copy_in_another_stream_comes_after_the_own_streams_work,
    an_empty_buffer_is_no_special_case,
    a_wrong_length_is_refused,
    a_buffer_beyond_the_address_space_is_refused,
    a_copy_that_is_waited_for_does_not_harm_a_capture,
    the_current_stream_is_used_where_none_is_named,
);
