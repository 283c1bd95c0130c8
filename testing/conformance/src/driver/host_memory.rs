//! Pinned host memory.

use std::ptr::NonNull;

use crate::case::Ground;
use crate::check::{Check, all_bytes, ensure, refused_value, same_bytes};
use crate::fixtures::{PAGE_BYTES, pattern};

const MIB: usize = 1 << 20;

fn pinned_memory_is_aligned_to_a_page_and_holds_bytes(ground: &Ground) -> Check {
    let mut pinned = ground.pinned(MIB + 1, 0)?;
    ensure(pinned.ptr().addr().get().is_multiple_of(PAGE_BYTES), "the address is that of a page")?;
    pinned.set(0x3c);
    all_bytes("the pinned memory", 0x3c, &pinned.read())
}

fn zero_bytes_are_refused(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    refused_value(ground.driver.host_alloc(0))?;
    let pages = ground.pages(1)?;
    // SAFETY: the pages are mapped, and zero bytes of them pin nothing.
    refused_value(unsafe { ground.driver.host_register(pages.ptr(), 0) })?;
    Ok(())
}

fn a_second_free_is_refused(ground: &Ground) -> Check {
    let mut pinned = ground.pinned(MIB, 0)?;
    let ptr = pinned.ptr();
    pinned.free()?;
    // SAFETY: nothing uses the memory any more; the driver is to find out that it is not its own.
    refused_value(unsafe { ground.driver.host_free(ptr) })?;
    Ok(())
}

fn an_unknown_address_is_not_freed(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    let mut pages = ground.pages(2)?;
    // SAFETY: the suite's own pages, of which the driver knows nothing: it must refuse and touch nothing.
    refused_value(unsafe { ground.driver.host_free(pages.ptr()) })?;
    pages.register()?;
    // SAFETY: as above; registered is not allocated.
    refused_value(unsafe { ground.driver.host_free(pages.ptr()) })?;
    pages.unregister()?;
    all_bytes("the pages", 0, &pages.read())
}

fn an_address_inside_is_not_freed(ground: &Ground) -> Check {
    let pinned = ground.pinned(MIB, 0x11)?;
    // SAFETY: one page into a mebibyte; the driver must refuse, and the guard frees it later.
    let inside = unsafe { pinned.ptr().add(PAGE_BYTES) };
    // SAFETY: as above.
    refused_value(unsafe { ground.driver.host_free(inside) })?;
    all_bytes("the pinned memory", 0x11, &pinned.read())
}

fn pages_can_be_registered_and_used(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    let mut pages = ground.pages(16)?;
    let memory = ground.plain(pages.bytes())?;
    pages.register()?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0x77, stream.id())?;
    // SAFETY: the pages are held and as long as the memory; nobody looks at them before the wait.
    unsafe {
        ground.driver.copy_to_host(pages.ptr().as_ptr(), memory.ptr(), pages.bytes(), stream.id())?;
    }
    stream.wait()?;
    pages.unregister()?;
    all_bytes("the pages", 0x77, &pages.read())
}

fn registering_over_registered_pages_is_refused(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    let mut pages = ground.pages(8)?;
    pages.register()?;
    refused_value(pages.register())?;
    // SAFETY: pages 2 and 3 of 8 are mapped; they are registered already, as part of all of them.
    refused_value(unsafe { ground.driver.host_register(pages.page(2), 2 * PAGE_BYTES as u64) })?;
    Ok(())
}

fn a_second_unregister_is_refused(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    let mut pages = ground.pages(4)?;
    refused_value(pages.unregister())?;
    pages.register()?;
    pages.unregister()?;
    refused_value(pages.unregister())?;
    // And the pages can be registered anew.
    pages.register()?;
    Ok(pages.unregister()?)
}

fn unregistering_in_the_middle_is_refused(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    let mut pages = ground.pages(4)?;
    pages.register()?;
    // SAFETY: no copy uses the pages.
    refused_value(unsafe { ground.driver.host_unregister(pages.page(1)) })?;
    Ok(pages.unregister()?)
}

fn a_pinned_copy_to_the_host_is_asynchronous(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let pinned = ground.pinned(MIB, 0)?;
    let memory = ground.plain(MIB as u64)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0x29, stream.id())?;
    kernels.spin(stream.id())?;
    copy_to(ground, pinned.ptr(), &memory, &stream)?;
    stream.is_busy()?;
    stream.wait()?;
    all_bytes("the pinned memory", 0x29, &pinned.read())
}

fn a_pinned_copy_to_the_device_is_asynchronous(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let pinned = ground.pinned(MIB, 0x4e)?;
    let memory = ground.plain(MIB as u64)?;
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    // SAFETY: both are held until the stream has finished, and nobody writes the pinned memory meanwhile.
    unsafe {
        ground.driver.copy_to_device(memory.ptr(), pinned.ptr().as_ptr(), MIB as u64, stream.id())?;
    }
    stream.is_busy()?;
    ground.holds(memory.span(), 0x4e, stream.id())
}

fn freeing_waits_for_running_work(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let mut pinned = ground.pinned(MIB, 0)?;
    let memory = ground.plain(MIB as u64)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 1, stream.id())?;
    kernels.spin(stream.id())?;
    copy_to(ground, pinned.ptr(), &memory, &stream)?;
    let end = ground.event_at(stream.id())?;
    ensure(!end.is_complete()?, "the work runs when the free begins")?;
    pinned.free()?;
    ensure(end.is_complete()?, "the work has finished when the free returns")
}

fn pinned_memory_serves_every_stream(ground: &Ground) -> Check {
    let content = pattern(MIB, 0x55);
    let memory = ground.plain(MIB as u64)?;
    let pinned = [ground.pinned(MIB, 0)?, ground.pinned(MIB, 0)?];
    let streams = [ground.stream()?, ground.stream()?];
    ground.write(memory.span(), &content, streams[0].id())?;
    for (pinned, stream) in pinned.iter().zip(&streams) {
        copy_to(ground, pinned.ptr(), &memory, stream)?;
    }
    for (pinned, stream) in pinned.iter().zip(&streams) {
        stream.wait()?;
        same_bytes("the pinned memory", &content, &pinned.read())?;
    }
    Ok(())
}

/// Copies a mebibyte of `memory` to `dst`, in stream order.
#[track_caller]
fn copy_to(
    ground: &Ground,
    dst: NonNull<u8>,
    memory: &crate::fixtures::Plain<'_>,
    stream: &crate::fixtures::StreamGuard<'_>,
) -> Check {
    let bytes = memory.span().bytes();
    // SAFETY: callers hold both, of the same size, until the stream has finished, and look at `dst` only then.
    Ok(unsafe { ground.driver.copy_to_host(dst.as_ptr(), memory.ptr(), bytes, stream.id()) }?)
}

super::list![host_memory:
    pinned_memory_is_aligned_to_a_page_and_holds_bytes,
    zero_bytes_are_refused,
    a_second_free_is_refused,
    an_unknown_address_is_not_freed,
    an_address_inside_is_not_freed,
    pages_can_be_registered_and_used,
    registering_over_registered_pages_is_refused,
    a_second_unregister_is_refused,
    unregistering_in_the_middle_is_refused,
    a_pinned_copy_to_the_host_is_asynchronous,
    a_pinned_copy_to_the_device_is_asynchronous,
    freeing_waits_for_running_work,
    pinned_memory_serves_every_stream,
];
