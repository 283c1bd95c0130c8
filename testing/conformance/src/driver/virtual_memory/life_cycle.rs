//! What virtual memory can do, from the reserved range to the remapped page.

use crate::case::Ground;
use crate::check::{Check, ensure, same_bytes};
use crate::fixtures::{pattern, word_of};

const MIB: u64 = 1 << 20;

fn the_granularity_is_a_power_of_two(ground: &Ground) -> Check {
    let granularity = ground.granularity()?;
    ensure(granularity.is_power_of_two(), "the granularity is a power of two")?;
    ensure((4096..=512 * MIB).contains(&granularity), "the granularity is between a page and 512 MiB")
}

fn the_whole_life_cycle(ground: &Ground) -> Check {
    let (driver, device, bytes) = (&ground.driver, ground.device, 4 * ground.granularity()?);
    let stream = ground.stream()?;
    let range = driver.address_reserve(device, bytes, 0)?;
    let handle = driver.handle_create(device, bytes)?;
    driver.handle_map(range, bytes, handle)?;
    driver.access_set(range, bytes, &[device])?;
    let content = vec![0x17; bytes as usize];
    let mut back = vec![0; bytes as usize];
    // SAFETY: the range is mapped with access, and both host buffers outlive the wait below.
    unsafe {
        driver.copy_to_device(range, content.as_ptr(), bytes, stream.id())?;
        driver.copy_to_host(back.as_mut_ptr(), range, bytes, stream.id())?;
    }
    stream.wait()?;
    driver.handle_unmap(device, range, bytes)?;
    driver.handle_release(handle)?;
    driver.address_free(device, range, bytes)?;
    same_bytes("the copy back", &content, &back)
}

fn a_range_is_aligned_as_asked(ground: &Ground) -> Check {
    let granularity = ground.granularity()?;
    for alignment_bytes in [0, granularity, 16 * granularity, 512 * MIB] {
        let ptr = ground.driver.address_reserve(ground.device, granularity, alignment_bytes)?;
        let aligned = ptr.is_aligned_to(alignment_bytes.max(granularity));
        ground.driver.address_free(ground.device, ptr, granularity)?;
        ensure(aligned, "the range is aligned as asked, and to the granularity in any case")?;
    }
    Ok(())
}

fn a_range_can_be_larger_than_the_memory(ground: &Ground) -> Check {
    ground.granularity()?;
    let total_bytes = ground.driver.memory_info(ground.device)?.total_bytes;
    let before = ground.driver.memory_info(ground.device)?.free_bytes;
    let range = ground.reservation((4 * total_bytes).next_multiple_of(512 * MIB))?;
    let after = ground.driver.memory_info(ground.device)?.free_bytes;
    ensure(!range.ptr().is_null(), "the range has an address")?;
    ensure(before.abs_diff(after) <= 64 * MIB, "addresses take no memory")
}

fn one_handle_at_two_addresses_shares_its_bytes(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    let handle = ground.handle(bytes)?;
    let first = ground.map(range.ptr(), &handle)?;
    let second = ground.map(range.at(bytes), &handle)?;
    let stream = ground.stream()?;
    let content = pattern(bytes as usize, 3);
    ground.write(first.span(), &content, stream.id())?;
    same_bytes("the second address", &content, &ground.read(second.span(), stream.id())?)?;
    ground.fill(second.span(), 9, stream.id())?;
    ground.holds(first.span(), 9, stream.id())
}

fn a_remap_takes_the_content_to_another_address(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(4 * bytes)?;
    let handle = ground.handle(bytes)?;
    let content = pattern(bytes as usize, 77);
    let before = ground.map(range.ptr(), &handle)?;
    {
        let stream = ground.stream()?;
        ground.write(before.span(), &content, stream.id())?;
    }
    before.unmap()?;
    let after = ground.map(range.at(3 * bytes), &handle)?;
    let stream = ground.stream()?;
    same_bytes("the new address", &content, &ground.read(after.span(), stream.id())?)
}

fn another_handle_at_the_same_address_has_its_own_content(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(bytes)?;
    let handles = [ground.handle(bytes)?, ground.handle(bytes)?];
    for (handle, value) in handles.iter().zip([0x11, 0x22]) {
        let mapping = ground.map(range.ptr(), handle)?;
        let stream = ground.stream()?;
        ground.fill(mapping.span(), value, stream.id())?;
        stream.wait()?;
    }
    for (handle, value) in handles.iter().zip([0x11, 0x22]) {
        let mapping = ground.map(range.ptr(), handle)?;
        let stream = ground.stream()?;
        ground.holds(mapping.span(), value, stream.id())?;
    }
    Ok(())
}

fn neighbouring_handles_are_one_range_for_a_kernel(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let bytes = ground.granularity()?;
    let whole = ground.plain(3 * bytes)?;
    let range = ground.reservation(3 * bytes)?;
    let handles = (0..3).map(|_| ground.handle(bytes)).collect::<Check<Vec<_>>>()?;
    let mappings = handles.iter().zip(0..).map(|(handle, place)| ground.map(range.at(place * bytes), handle));
    let mappings = mappings.collect::<Check<Vec<_>>>()?;
    let stream = ground.stream()?;
    ground.fill(whole.span(), 0x44, stream.id())?;
    // SAFETY: the three mappings are one contiguous range with access, and outlive the stream.
    unsafe { ground.driver.copy_on_device(range.ptr(), whole.ptr(), 3 * bytes, stream.id()) }?;
    for mapping in &mappings {
        kernels.add(mapping.span(), word_of(1), stream.id())?;
        ground.holds(mapping.span(), 0x45, stream.id())?;
    }
    Ok(())
}

fn access_is_set_for_a_run_of_mappings_in_one_call(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(3 * bytes)?;
    let handles = (0..3).map(|_| ground.handle(bytes)).collect::<Check<Vec<_>>>()?;
    let mappings =
        handles.iter().zip(0..).map(|(handle, place)| ground.map_only(range.at(place * bytes), handle));
    let mappings = mappings.collect::<Check<Vec<_>>>()?;
    ground.driver.access_set(range.ptr(), 3 * bytes, &[ground.device])?;
    let stream = ground.stream()?;
    for mapping in &mappings {
        ground.fill(mapping.span(), 0x66, stream.id())?;
        ground.holds(mapping.span(), 0x66, stream.id())?;
    }
    Ok(())
}

fn setting_access_again_changes_nothing(ground: &Ground) -> Check {
    let memory = ground.mapped(ground.granularity()?)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0x31, stream.id())?;
    stream.wait()?;
    ground.driver.access_set(memory.span().ptr(), memory.span().bytes(), &[ground.device])?;
    ground.holds(memory.span(), 0x31, stream.id())
}

fn a_run_of_mappings_is_unmapped_in_one_call(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(3 * bytes)?;
    let handles = (0..3).map(|_| ground.handle(bytes)).collect::<Check<Vec<_>>>()?;
    let mappings = handles.iter().zip(0..).map(|(handle, place)| ground.map(range.at(place * bytes), handle));
    let mappings = mappings.collect::<Check<Vec<_>>>()?;
    ground.driver.handle_unmap(ground.device, range.ptr(), 3 * bytes)?;
    mappings.into_iter().for_each(|mapping| mapping.was_unmapped());
    // All three places are free again.
    for (handle, place) in handles.iter().zip(0..) {
        ground.map(range.at(place * bytes), handle)?.unmap()?;
    }
    Ok(())
}

fn a_released_handle_lives_while_it_is_mapped(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let (range, handle, mapping) = ground.mapped(bytes)?.into_parts();
    let content = pattern(bytes as usize, 200);
    {
        let stream = ground.stream()?;
        ground.write(mapping.span(), &content, stream.id())?;
        handle.release()?;
        same_bytes("the mapping", &content, &ground.read(mapping.span(), stream.id())?)?;
    }
    mapping.unmap()?;
    drop(range);
    Ok(())
}

fn memory_is_taken_on_create_and_back_after_the_last_use(ground: &Ground) -> Check {
    let free_bytes = || -> Check<u64> { Ok(ground.driver.memory_info(ground.device)?.free_bytes) };
    let bytes = (64 * MIB).next_multiple_of(ground.granularity()?);
    let before = free_bytes()?;
    let range = ground.reservation(bytes)?;
    let handle = ground.handle(bytes)?;
    let taken = before.saturating_sub(free_bytes()?);
    ensure(taken >= bytes, "a handle takes its memory when it is created")?;
    ensure(taken <= bytes + 32 * MIB, "a handle takes not many more bytes than its own")?;
    let mapping = ground.map(range.ptr(), &handle)?;
    handle.release()?;
    ensure(before.saturating_sub(free_bytes()?) >= bytes, "a released handle keeps its memory while mapped")?;
    mapping.unmap()?;
    ensure(before.saturating_sub(free_bytes()?) <= 32 * MIB, "the memory is back after release and unmap")
}

fn nothing_waits_for_running_work(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let bytes = ground.granularity()?;
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    let (range, handle, mapping) = ground.mapped(4 * bytes)?.into_parts();
    stream.is_busy()?;
    mapping.unmap()?;
    stream.is_busy()?;
    handle.release()?;
    stream.is_busy()?;
    drop(range);
    stream.is_busy()
}

fn many_small_handles_can_be_held(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let range = ground.reservation(32 * bytes)?;
    let handles = (0..32).map(|_| ground.handle(bytes)).collect::<Check<Vec<_>>>()?;
    // Handles sit in the range in the opposite order, so that address order and creation order differ.
    let mappings = handles.iter().rev().zip(0..);
    let mappings = mappings.map(|(handle, place)| ground.map(range.at(place * bytes), handle));
    let mappings = mappings.collect::<Check<Vec<_>>>()?;
    let stream = ground.stream()?;
    for (mapping, value) in mappings.iter().zip(1..) {
        ground.fill(mapping.span().part(0, 4096)?, value, stream.id())?;
    }
    for (mapping, value) in mappings.iter().zip(1..) {
        ground.holds(mapping.span().part(0, 4096)?, value, stream.id())?;
    }
    Ok(())
}

super::list![virtual_memory:
    the_granularity_is_a_power_of_two,
    the_whole_life_cycle,
    a_range_is_aligned_as_asked,
    a_range_can_be_larger_than_the_memory,
    one_handle_at_two_addresses_shares_its_bytes,
    a_remap_takes_the_content_to_another_address,
    another_handle_at_the_same_address_has_its_own_content,
    neighbouring_handles_are_one_range_for_a_kernel,
    access_is_set_for_a_run_of_mappings_in_one_call,
    setting_access_again_changes_nothing,
    a_run_of_mappings_is_unmapped_in_one_call,
    a_released_handle_lives_while_it_is_mapped,
    memory_is_taken_on_create_and_back_after_the_last_use,
    nothing_waits_for_running_work,
    many_small_handles_can_be_held,
];
