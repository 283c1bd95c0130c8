//! Copies and fills: every byte arrives, and only those.

use headwater_driver::DevicePtr;

use crate::case::Ground;
use crate::check::{Check, all_bytes, ensure, refused_value, same_bytes};
use crate::fixtures::{pattern, word_of};

const MIB: usize = 1 << 20;

/// Sizes and offsets that no engine likes: one byte, around a word, a page and a mebibyte.
const ODD: [(u64, usize); 8] =
    [(0, 1), (1, 3), (3, 61), (255, 4095), (4097, 4097), (17, 65_537), (513, MIB - 1), (1, MIB + 1)];

fn there_and_back_in_odd_sizes(ground: &Ground) -> Check {
    let memory = ground.plain(2 * MIB as u64)?;
    let stream = ground.stream()?;
    for ((offset_bytes, bytes), seed) in ODD.into_iter().zip(1..) {
        let part = memory.span().part(offset_bytes, bytes as u64)?;
        let content = pattern(bytes, seed);
        ground.write(part, &content, stream.id())?;
        same_bytes("the copy back", &content, &ground.read(part, stream.id())?)?;
    }
    Ok(())
}

fn on_the_device_in_odd_sizes(ground: &Ground) -> Check {
    let (src, dst) = (ground.plain(2 * MIB as u64)?, ground.plain(2 * MIB as u64)?);
    let stream = ground.stream()?;
    let content = pattern(2 * MIB, 9);
    ground.write(src.span(), &content, stream.id())?;
    for (offset_bytes, bytes) in ODD {
        ground.fill(dst.span(), 0, stream.id())?;
        let from = src.span().part(offset_bytes, bytes as u64)?;
        let to = dst.span().part(2 * offset_bytes, bytes as u64)?;
        ground.copy(to, from, stream.id())?;
        let got = ground.read(dst.span(), stream.id())?;
        let (start, end) = (2 * offset_bytes as usize, 2 * offset_bytes as usize + bytes);
        all_bytes("before the copy", 0, &got[..start])?;
        same_bytes("the copy", &content[offset_bytes as usize..][..bytes], &got[start..end])?;
        all_bytes("after the copy", 0, &got[end..])?;
    }
    Ok(())
}

fn fills_by_byte_touch_nothing_else(ground: &Ground) -> Check {
    let memory = ground.plain(2 * MIB as u64)?;
    let stream = ground.stream()?;
    for (offset_bytes, bytes) in ODD {
        ground.fill(memory.span(), 0x0f, stream.id())?;
        ground.fill(memory.span().part(offset_bytes, bytes as u64)?, 0xf0, stream.id())?;
        let got = ground.read(memory.span(), stream.id())?;
        let (start, end) = (offset_bytes as usize, offset_bytes as usize + bytes);
        all_bytes("before the fill", 0x0f, &got[..start])?;
        all_bytes("the fill", 0xf0, &got[start..end])?;
        all_bytes("after the fill", 0x0f, &got[end..])?;
    }
    Ok(())
}

fn fills_by_word_keep_the_byte_order(ground: &Ground) -> Check {
    let memory = ground.plain(4096)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0, stream.id())?;
    let middle = memory.span().part(4, 4088)?;
    // SAFETY: the words are inside of memory that is held until the stream has finished.
    unsafe { ground.driver.fill_words(middle.ptr(), 0x0102_0304, middle.words(), stream.id()) }?;
    let got = ground.read(memory.span(), stream.id())?;
    all_bytes("before the fill", 0, &got[..4])?;
    same_bytes("the fill", &0x0102_0304_u32.to_ne_bytes().repeat(1022), &got[4..4092])?;
    all_bytes("after the fill", 0, &got[4092..])
}

fn words_at_an_odd_address_are_refused(ground: &Ground) -> Check {
    let memory = ground.plain(4096)?;
    let stream = ground.stream()?;
    let odd = memory.span().part(1, 16)?;
    // SAFETY: the range is inside of memory that is held; the fill is refused.
    refused_value(unsafe { ground.driver.fill_words(odd.ptr(), 1, 4, stream.id()) })?;
    Ok(())
}

fn zero_bytes_do_nothing(ground: &Ground) -> Check {
    let memory = ground.plain(4096)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0x33, stream.id())?;
    let mut host = [0x44_u8; 16];
    let upper = memory.span().part(2048, 16)?;
    // SAFETY: nothing is copied, so any address will do.
    unsafe {
        ground.driver.copy_to_device(DevicePtr::NULL, std::ptr::null(), 0, stream.id())?;
        ground.driver.copy_to_host(std::ptr::null_mut(), DevicePtr::NULL, 0, stream.id())?;
        ground.driver.copy_on_device(DevicePtr::NULL, DevicePtr::NULL, 0, stream.id())?;
        ground.driver.fill_bytes(DevicePtr::NULL, 1, 0, stream.id())?;
        ground.driver.copy_to_device(memory.ptr(), host.as_ptr(), 0, stream.id())?;
        ground.driver.copy_to_host(host.as_mut_ptr(), memory.ptr(), 0, stream.id())?;
        ground.driver.copy_on_device(upper.ptr(), memory.ptr(), 0, stream.id())?;
        ground.driver.fill_bytes(memory.ptr(), 1, 0, stream.id())?;
        ground.driver.fill_words(memory.ptr(), 1, 0, stream.id())?;
    }
    ground.holds(memory.span(), 0x33, stream.id())?;
    all_bytes("the host memory", 0x44, &host)
}

fn null_addresses_are_refused(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let memory = ground.plain(4096)?;
    let stream = ground.stream()?;
    let mut host = [0_u8; 64];
    // SAFETY: the one valid side of each copy is held; the other is null, so nothing may be copied.
    unsafe {
        refused_value(driver.copy_to_device(DevicePtr::NULL, host.as_ptr(), 64, stream.id()))?;
        refused_value(driver.copy_to_device(memory.ptr(), std::ptr::null(), 64, stream.id()))?;
        refused_value(driver.copy_to_host(host.as_mut_ptr(), DevicePtr::NULL, 64, stream.id()))?;
        refused_value(driver.copy_to_host(std::ptr::null_mut(), memory.ptr(), 64, stream.id()))?;
        refused_value(driver.copy_on_device(DevicePtr::NULL, memory.ptr(), 64, stream.id()))?;
        refused_value(driver.copy_on_device(memory.ptr(), DevicePtr::NULL, 64, stream.id()))?;
        refused_value(driver.fill_bytes(DevicePtr::NULL, 1, 64, stream.id()))?;
        refused_value(driver.fill_words(DevicePtr::NULL, 1, 16, stream.id()))?;
    }
    stream.wait()
}

fn a_pageable_source_may_be_overwritten_after_the_call(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(MIB as u64)?;
    let stream = ground.stream()?;
    for bytes in [64, 4096, MIB] {
        let mut content = pattern(bytes, 0x18);
        let part = memory.span().part(0, bytes as u64)?;
        kernels.spin(stream.id())?;
        // SAFETY: the memory is held; a pageable source has been read when the call returns.
        unsafe { ground.driver.copy_to_device(part.ptr(), content.as_ptr(), part.bytes(), stream.id()) }?;
        content.fill(0xee);
        same_bytes("the memory", &pattern(bytes, 0x18), &ground.read(part, stream.id())?)?;
    }
    Ok(())
}

fn a_pageable_destination_is_written_when_the_call_returns(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(MIB as u64)?;
    let stream = ground.stream()?;
    let mut content = vec![0; MIB];
    kernels.fill_late(memory.span(), word_of(0x2d), stream.id())?;
    // SAFETY: both are held and equally long; to pageable memory the call returns when the copy has finished.
    unsafe { ground.driver.copy_to_host(content.as_mut_ptr(), memory.ptr(), MIB as u64, stream.id()) }?;
    all_bytes("the copy back, with no wait", 0x2d, &content)
}

fn copies_run_in_stream_order(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (first, second) = (ground.plain(MIB as u64)?, ground.plain(MIB as u64)?);
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    for value in 1..=10 {
        ground.fill(first.span(), value, stream.id())?;
        ground.copy(second.span(), first.span(), stream.id())?;
    }
    ground.fill(first.span(), 0xff, stream.id())?;
    stream.is_busy()?;
    ground.holds(second.span(), 10, stream.id())
}

fn fills_are_asynchronous(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(MIB as u64)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 1, stream.id())?;
    stream.wait()?;
    kernels.spin(stream.id())?;
    ground.fill(memory.span(), 2, stream.id())?;
    stream.is_busy()?;
    ground.holds(memory.span(), 2, stream.id())
}

fn large_copies_arrive_whole(ground: &Ground) -> Check {
    let bytes = 64 * MIB;
    let (first, second) = (ground.plain(bytes as u64)?, ground.plain(bytes as u64)?);
    let stream = ground.stream()?;
    let content = pattern(bytes, 0x99);
    ground.write(first.span(), &content, stream.id())?;
    ground.copy(second.span(), first.span(), stream.id())?;
    let got = ground.read(second.span(), stream.id())?;
    ensure(got.len() == bytes, "all bytes came back")?;
    same_bytes("the copy", &content, &got)
}

fn plain_and_virtual_memory_copy_to_each_other(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    let (virtual_memory, plain) = (ground.mapped(bytes)?, ground.plain(bytes)?);
    let stream = ground.stream()?;
    let content = pattern(bytes as usize, 0x42);
    ground.write(plain.span(), &content, stream.id())?;
    ground.copy(virtual_memory.span(), plain.span(), stream.id())?;
    ground.fill(plain.span(), 0, stream.id())?;
    ground.copy(plain.span(), virtual_memory.span(), stream.id())?;
    same_bytes("the copy", &content, &ground.read(plain.span(), stream.id())?)
}

super::list![copies:
    there_and_back_in_odd_sizes,
    on_the_device_in_odd_sizes,
    fills_by_byte_touch_nothing_else,
    fills_by_word_keep_the_byte_order,
    words_at_an_odd_address_are_refused,
    zero_bytes_do_nothing,
    null_addresses_are_refused,
    a_pageable_source_may_be_overwritten_after_the_call,
    a_pageable_destination_is_written_when_the_call_returns,
    copies_run_in_stream_order,
    fills_are_asynchronous,
    large_copies_arrive_whole,
    plain_and_virtual_memory_copy_to_each_other,
];
