//! Bad input: each kind has its error, and nothing changes.
//!
//! Every case holds a block with known content, hands the allocator something bad, and finds the block, its content
//! and the accounts as they were.

use std::sync::Arc;

use headwater::allocator::{MAX_ALIGNMENT_BYTES, MAX_REQUEST_BYTES};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DeviceId, DevicePtr, Stream};

use super::accounts::Accounts;
use super::ground::{AllocatorGround, ends, fill, give_back, holds, is_empty, refused};
use crate::check::{Check, same};

/// Does something bad to an allocator that holds one block of 4096 bytes.
fn nothing_changes(
    ground: &AllocatorGround<'_>,
    bad: impl FnOnce(&Arc<dyn Allocator>, DevicePtr, Stream) -> Check,
) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let block = ground.block(&allocator, 4096, stream.id())?;
    fill(&allocator, block.ptr(), 4096, 0x5a, stream.id())?;
    let before = Accounts::of(&allocator);
    bad(&allocator, block.ptr(), stream.id())?;
    same("the accounts", before, Accounts::of(&allocator))?;
    holds(&allocator, block.ptr(), 4096, 0x5a, stream.id())?;
    ends(block)?;
    is_empty(&allocator)
}

fn a_foreign_pointer_is_refused(ground: &AllocatorGround<'_>) -> Check {
    let foreign = ground.ground.plain(4096)?;
    nothing_changes(ground, |allocator, _, stream| {
        for ptr in [foreign.ptr(), DevicePtr::new(1), DevicePtr::new(0x1000), DevicePtr::new(u64::MAX)] {
            refused(give_back(allocator, ptr), AllocError::ForeignPointer { ptr })?;
            refused(allocator.record_stream(ptr, stream), AllocError::ForeignPointer { ptr })?;
            same("facts of a foreign pointer", None, allocator.block_at(ptr))?;
        }
        Ok(())
    })
}

fn a_block_of_another_allocator_is_refused(ground: &AllocatorGround<'_>) -> Check {
    let stream = ground.stream()?;
    let other = ground.allocator()?;
    let block = ground.block(&other, 4096, stream.id())?;
    let ptr = block.ptr();
    nothing_changes(ground, |allocator, _, _| {
        refused(give_back(allocator, ptr), AllocError::ForeignPointer { ptr })
    })?;
    ends(block)
}

fn a_pointer_inside_a_block_is_refused(ground: &AllocatorGround<'_>) -> Check {
    nothing_changes(ground, |allocator, block, stream| {
        for offset_bytes in [1, 256, 512, 4095] {
            let ptr = DevicePtr::new(block.raw() + offset_bytes);
            refused(give_back(allocator, ptr), AllocError::InsideBlock { ptr, block })?;
            refused(allocator.record_stream(ptr, stream), AllocError::InsideBlock { ptr, block })?;
        }
        Ok(())
    })
}

fn a_second_give_back_is_refused(ground: &AllocatorGround<'_>) -> Check {
    nothing_changes(ground, |allocator, _, stream| {
        // Small and large, because allocators keep them in different places.
        for bytes in [100, 1 << 20, 30 << 20] {
            let ptr = allocator.allocate(Request::new(bytes, stream))?;
            give_back(allocator, ptr)?;
            refused(give_back(allocator, ptr), AllocError::AlreadyGivenBack { ptr })?;
            refused(allocator.record_stream(ptr, stream), AllocError::AlreadyGivenBack { ptr })?;
        }
        allocator.empty_cache()?;
        Ok(())
    })
}

fn a_request_beyond_the_address_space_is_refused(ground: &AllocatorGround<'_>) -> Check {
    nothing_changes(ground, |allocator, _, stream| {
        for requested_bytes in [MAX_REQUEST_BYTES + 1, u64::MAX - 511, u64::MAX] {
            let error = AllocError::TooLarge { requested_bytes, max_bytes: MAX_REQUEST_BYTES };
            refused(allocator.allocate(Request::new(requested_bytes, stream)), error)?;
        }
        Ok(())
    })
}

fn an_alignment_that_is_none_is_refused(ground: &AllocatorGround<'_>) -> Check {
    nothing_changes(ground, |allocator, _, stream| {
        for alignment_bytes in [0, 3, 768, MAX_ALIGNMENT_BYTES + 1, 2 * MAX_ALIGNMENT_BYTES, 1 << 63] {
            for bytes in [0, 4096] {
                let error = AllocError::BadAlignment { alignment_bytes, max_bytes: MAX_ALIGNMENT_BYTES };
                refused(allocator.allocate(Request::new(bytes, stream).aligned_to(alignment_bytes)), error)?;
            }
        }
        Ok(())
    })
}

fn a_stream_of_another_device_is_refused(ground: &AllocatorGround<'_>) -> Check {
    let device = ground.device();
    nothing_changes(ground, |allocator, block, _| {
        // Its number is enough to tell: the other device need not exist.
        let stream = Stream::legacy_default(DeviceId(device.0 + 1));
        let error = || AllocError::WrongDevice { stream, device };
        refused(allocator.allocate(Request::new(4096, stream)), error())?;
        refused(allocator.allocate(Request::new(0, stream)), error())?;
        refused(allocator.record_stream(block, stream), error())
    })
}

fn an_allocator_for_a_device_that_is_not_there_is_refused(ground: &AllocatorGround<'_>) -> Check {
    match (ground.make)(Arc::clone(ground.driver()), ground.ground.no_such_device(), None) {
        Err(AllocError::Driver(_)) => Ok(()),
        answer => crate::check::ensure(false, &format!("there is no such device (it got {answer:?})")),
    }
}

super::list_cases!(bad_input:
    a_foreign_pointer_is_refused,
    a_block_of_another_allocator_is_refused,
    a_pointer_inside_a_block_is_refused,
    a_second_give_back_is_refused,
    a_request_beyond_the_address_space_is_refused,
    an_alignment_that_is_none_is_refused,
    a_stream_of_another_device_is_refused,
    an_allocator_for_a_device_that_is_not_there_is_refused,
);
