//! Plain device memory: what is given, what is refused, and that freeing waits.

use headwater_driver::{DevicePtr, ErrorClass};

use crate::case::Ground;
use crate::check::{Check, ensure, out_of_memory, refused_value, same, same_bytes};
use crate::fixtures::{offset, pattern, word_of};

const MIB: u64 = 1 << 20;

fn is_aligned_to_256_bytes(ground: &Ground) -> Check {
    let sizes = [1, 255, 256, 257, 4097, MIB + 1];
    let held = sizes.iter().map(|bytes| ground.plain(*bytes)).collect::<Check<Vec<_>>>()?;
    for memory in &held {
        ensure(memory.ptr().is_aligned_to(256), "the address is a multiple of 256")?;
        ensure(!memory.ptr().is_null(), "the address is not null")?;
    }
    Ok(())
}

fn allocations_do_not_overlap(ground: &Ground) -> Check {
    let held = (0..16).map(|_| ground.plain(12_345)).collect::<Check<Vec<_>>>()?;
    let mut starts: Vec<u64> = held.iter().map(|memory| memory.ptr().raw()).collect();
    starts.sort_unstable();
    ensure(starts.windows(2).all(|pair| pair[1] - pair[0] >= 12_345), "no two allocations share a byte")
}

fn zero_bytes_are_refused(ground: &Ground) -> Check {
    refused_value(ground.driver.mem_alloc(ground.device, 0))?;
    Ok(())
}

fn more_than_there_is_is_out_of_memory(ground: &Ground) -> Check {
    let total_bytes = ground.driver.memory_info(ground.device)?.total_bytes;
    let asked = total_bytes + (1 << 30);
    let (requested_bytes, error) = out_of_memory(ground.driver.mem_alloc(ground.device, asked))?;
    same("bytes that the error says were asked for", asked, requested_bytes)?;
    match error.class() {
        ErrorClass::OutOfMemory { memory: Some(memory), .. } => {
            same("total bytes in the error", total_bytes, memory.total_bytes)
        }
        class => ensure(false, &format!("the error says what there was ({class:?})")),
    }
}

fn a_failed_allocation_changes_nothing(ground: &Ground) -> Check {
    let before = ground.driver.memory_info(ground.device)?;
    out_of_memory(ground.driver.mem_alloc(ground.device, before.total_bytes + (1 << 30)))?;
    let after = ground.driver.memory_info(ground.device)?;
    ensure(before.free_bytes.abs_diff(after.free_bytes) <= 64 * MIB, "as much is free as before")?;
    ground.plain(MIB)?.free()?;
    Ok(())
}

fn an_unknown_pointer_is_not_freed(ground: &Ground) -> Check {
    refused_value(ground.driver.mem_free(ground.device, DevicePtr::new(0x1000)))?;
    refused_value(ground.driver.mem_free(ground.device, DevicePtr::NULL))?;
    Ok(())
}

fn a_second_free_is_refused(ground: &Ground) -> Check {
    let stale = ground.plain(MIB)?.free()?;
    refused_value(ground.driver.mem_free(ground.device, stale))?;
    Ok(())
}

fn an_address_inside_an_allocation_is_not_freed(ground: &Ground) -> Check {
    let memory = ground.plain(MIB)?;
    refused_value(ground.driver.mem_free(ground.device, offset(memory.ptr(), 256)))?;
    // The refusal changed nothing: the memory still works and is freed by its guard.
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0x5a, stream.id())?;
    ground.holds(memory.span(), 0x5a, stream.id())
}

fn a_mapped_address_is_not_freed_as_plain_memory(ground: &Ground) -> Check {
    let memory = ground.mapped(ground.granularity()?)?;
    refused_value(ground.driver.mem_free(ground.device, memory.span().ptr()))?;
    Ok(())
}

fn freeing_waits_for_running_work(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(MIB)?;
    let stream = ground.stream()?;
    kernels.fill_late(memory.span(), 1, stream.id())?;
    let end = ground.event_at(stream.id())?;
    ensure(!end.is_complete()?, "the work runs when the free begins")?;
    memory.free()?;
    ensure(end.is_complete()?, "the work has finished when the free returns")
}

fn allocating_does_not_wait_for_running_work(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    // Taken and given back before, so that the driver has memory at hand and need not set anything up.
    ground.plain(MIB)?.free()?;
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    let memory = ground.plain(MIB)?;
    stream.is_busy()?;
    stream.wait()?;
    drop(memory);
    Ok(())
}

fn content_survives_other_allocations(ground: &Ground) -> Check {
    let memory = ground.plain(3 * MIB + 17)?;
    let stream = ground.stream()?;
    let content = pattern(3 * (MIB as usize) + 17, 0x21);
    ground.write(memory.span(), &content, stream.id())?;
    for bytes in [512, MIB, 20 * MIB] {
        let neighbour = ground.plain(bytes)?;
        ground.fill(neighbour.span(), 0xff, stream.id())?;
        stream.wait()?;
    }
    same_bytes("the memory", &content, &ground.read(memory.span(), stream.id())?)
}

fn memory_is_reusable_after_a_free(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    for round in 1..=8_u8 {
        let memory = ground.plain(2 * MIB)?;
        let stream = ground.stream()?;
        kernels.fill(memory.span(), word_of(round), stream.id())?;
        ground.holds(memory.span(), round, stream.id())?;
    }
    Ok(())
}

super::list![plain_memory:
    is_aligned_to_256_bytes,
    allocations_do_not_overlap,
    zero_bytes_are_refused,
    more_than_there_is_is_out_of_memory,
    a_failed_allocation_changes_nothing,
    an_unknown_pointer_is_not_freed,
    a_second_free_is_refused,
    an_address_inside_an_allocation_is_not_freed,
    a_mapped_address_is_not_freed_as_plain_memory,
    freeing_waits_for_running_work,
    allocating_does_not_wait_for_running_work,
    content_survives_other_allocations,
    memory_is_reusable_after_a_free,
];
