//! What virtual memory refuses. None of it is touched by the device: a refused call must leave no trace to touch.

use headwater_driver::{DevicePtr, ErrorClass};

use crate::case::Ground;
use crate::check::{Check, out_of_memory, refused_as, refused_handle, refused_value, same};
use crate::fixtures::offset;

fn part_of_a_handle_cannot_be_mapped(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(4 * bytes)?;
    let handle = ground.handle(2 * bytes)?;
    let allowed = [ErrorClass::NotSupported, ErrorClass::InvalidValue];
    refused_as(ground.driver.handle_map(range.ptr(), bytes, handle.id()), &allowed)?;
    refused_as(ground.driver.handle_map(range.ptr(), 3 * bytes, handle.id()), &allowed)?;
    // The whole of it can.
    ground.map(range.ptr(), &handle)?.unmap()
}

fn a_size_that_is_no_multiple_of_the_granularity_is_refused(ground: &Ground) -> Check {
    let (driver, device, granularity) = (&ground.driver, ground.device, ground.granularity()?);
    for bytes in [1, granularity - 1, granularity + 4096, 3 * granularity / 2] {
        refused_value(driver.handle_create(device, bytes))?;
        refused_value(driver.address_reserve(device, bytes, 0))?;
    }
    Ok(())
}

fn zero_bytes_are_refused(ground: &Ground) -> Check {
    let (driver, device) = (&ground.driver, ground.device);
    let memory = ground.mapped(ground.granularity()?)?;
    refused_value(driver.handle_create(device, 0))?;
    refused_value(driver.address_reserve(device, 0, 0))?;
    refused_value(driver.handle_unmap(device, memory.span().ptr(), 0))?;
    refused_value(driver.access_set(memory.span().ptr(), 0, &[device]))?;
    Ok(())
}

fn an_alignment_that_is_no_power_of_two_is_refused(ground: &Ground) -> Check {
    let granularity = ground.granularity()?;
    refused_value(ground.driver.address_reserve(ground.device, granularity, 3 * granularity))?;
    Ok(())
}

fn more_than_there_is_is_out_of_memory(ground: &Ground) -> Check {
    let granularity = ground.granularity()?;
    let total_bytes = ground.driver.memory_info(ground.device)?.total_bytes;
    let asked = (total_bytes + (1 << 30)).next_multiple_of(granularity);
    let (requested_bytes, _) = out_of_memory(ground.driver.handle_create(ground.device, asked))?;
    same("bytes that the error says were asked for", asked, requested_bytes)
}

fn a_range_beyond_the_address_space_is_out_of_memory(ground: &Ground) -> Check {
    ground.granularity()?;
    // No device has addresses of more than 57 bits.
    let (requested_bytes, _) = out_of_memory(ground.driver.address_reserve(ground.device, 1 << 60, 0))?;
    same("bytes that the error says were asked for", 1 << 60, requested_bytes)
}

fn a_mapping_over_another_is_refused(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(3 * bytes)?;
    let (small, large) = (ground.handle(bytes)?, ground.handle(2 * bytes)?);
    let _middle = ground.map(range.at(bytes), &small)?;
    refused_value(ground.driver.handle_map(range.at(bytes), bytes, small.id()))?;
    refused_value(ground.driver.handle_map(range.ptr(), 2 * bytes, large.id()))?;
    refused_value(ground.driver.handle_map(range.at(bytes), 2 * bytes, large.id()))?;
    Ok(())
}

fn a_mapping_outside_of_a_reserved_range_is_refused(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    let handle = ground.handle(2 * bytes)?;
    refused_value(ground.driver.handle_map(range.at(bytes), 2 * bytes, handle.id()))?;
    refused_value(ground.driver.handle_map(DevicePtr::new(bytes), 2 * bytes, handle.id()))?;
    Ok(())
}

fn a_mapping_at_an_unaligned_address_is_refused(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    let handle = ground.handle(bytes)?;
    refused_value(ground.driver.handle_map(range.at(4096), bytes, handle.id()))?;
    Ok(())
}

fn unmapping_where_nothing_is_mapped_is_refused(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    refused_value(ground.driver.handle_unmap(ground.device, range.ptr(), bytes))?;
    let handle = ground.handle(bytes)?;
    let mapping = ground.map(range.ptr(), &handle)?;
    mapping.unmap()?;
    refused_value(ground.driver.handle_unmap(ground.device, range.ptr(), bytes))?;
    Ok(())
}

fn unmapping_a_run_with_a_gap_is_refused(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(3 * bytes)?;
    let handles = [ground.handle(bytes)?, ground.handle(bytes)?];
    let first = ground.map(range.ptr(), &handles[0])?;
    let third = ground.map(range.at(2 * bytes), &handles[1])?;
    refused_value(ground.driver.handle_unmap(ground.device, range.ptr(), 3 * bytes))?;
    // Both are still there: each can be unmapped by itself.
    first.unmap()?;
    third.unmap()
}

fn unmapping_part_of_a_mapping_is_refused(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let memory = ground.mapped(2 * bytes)?;
    let ptr = memory.span().ptr();
    refused_value(ground.driver.handle_unmap(ground.device, ptr, bytes))?;
    refused_value(ground.driver.handle_unmap(ground.device, offset(ptr, bytes), bytes))?;
    Ok(())
}

fn access_to_what_is_not_mapped_is_refused(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    refused_value(ground.driver.access_set(range.ptr(), bytes, &[ground.device]))?;
    let handle = ground.handle(bytes)?;
    let _mapping = ground.map_only(range.ptr(), &handle)?;
    refused_value(ground.driver.access_set(range.ptr(), 2 * bytes, &[ground.device]))?;
    Ok(())
}

fn access_for_an_unknown_device_is_refused(ground: &Ground) -> Check {
    let memory = ground.mapped(ground.granularity()?)?;
    let (ptr, bytes) = (memory.span().ptr(), memory.span().bytes());
    refused_value(ground.driver.access_set(ptr, bytes, &[ground.no_such_device()]))?;
    Ok(())
}

fn a_range_with_something_mapped_is_not_given_back(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    let handle = ground.handle(bytes)?;
    let mapping = ground.map(range.at(bytes), &handle)?;
    refused_value(ground.driver.address_free(ground.device, range.ptr(), 2 * bytes))?;
    mapping.unmap()
}

fn another_range_than_the_reserved_one_is_not_given_back(ground: &Ground) -> Check {
    let (driver, device, bytes) = (&ground.driver, ground.device, ground.granularity()?);
    let range = driver.address_reserve(device, 4 * bytes, 0)?;
    refused_value(driver.address_free(device, range, 2 * bytes))?;
    refused_value(driver.address_free(device, offset(range, bytes), 3 * bytes))?;
    driver.address_free(device, range, 4 * bytes)?;
    refused_value(driver.address_free(device, range, 4 * bytes))?;
    Ok(())
}

fn a_second_release_is_refused(ground: &Ground) -> Check {
    let stale = ground.handle(ground.granularity()?)?.release()?;
    refused_handle(ground.driver.handle_release(stale))?;
    Ok(())
}

fn a_released_handle_cannot_be_mapped(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    let handle = ground.handle(bytes)?;
    // Still mapped once, so its memory is alive; its name is not.
    let _mapping = ground.map(range.ptr(), &handle)?;
    let stale = handle.release()?;
    refused_handle(ground.driver.handle_map(range.at(bytes), bytes, stale))?;
    Ok(())
}

super::list![virtual_memory:
    part_of_a_handle_cannot_be_mapped,
    a_size_that_is_no_multiple_of_the_granularity_is_refused,
    zero_bytes_are_refused,
    an_alignment_that_is_no_power_of_two_is_refused,
    more_than_there_is_is_out_of_memory,
    a_range_beyond_the_address_space_is_out_of_memory,
    a_mapping_over_another_is_refused,
    a_mapping_outside_of_a_reserved_range_is_refused,
    a_mapping_at_an_unaligned_address_is_refused,
    unmapping_where_nothing_is_mapped_is_refused,
    unmapping_a_run_with_a_gap_is_refused,
    unmapping_part_of_a_mapping_is_refused,
    access_to_what_is_not_mapped_is_refused,
    access_for_an_unknown_device_is_refused,
    a_range_with_something_mapped_is_not_given_back,
    another_range_than_the_reserved_one_is_not_given_back,
    a_second_release_is_refused,
    a_released_handle_cannot_be_mapped,
];
