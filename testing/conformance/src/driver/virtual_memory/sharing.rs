//! Handles that are exported as file descriptors and imported again. The two ends are in one process here, which CUDA allows;
//! between processes it is `headwater conformance --prove share`.

use std::os::fd::{AsFd, OwnedFd};

use headwater_driver::ErrorClass;

use crate::case::{Ground, Stop};
use crate::check::{Check, ensure, refused_as, refused_handle, refused_value, same_bytes};
use crate::driver::capture::EVERY;
use crate::fixtures::{pattern, word_of};

const MIB: u64 = 1 << 20;

/// The granularity, or the end of a case on a device whose handles cannot be exported.
#[track_caller]
fn shareable(ground: &Ground) -> Check<u64> {
    let granularity = ground.granularity()?;
    if !ground.driver.device_properties(ground.device)?.capabilities.shareable_handles {
        return Err(Stop::NotApplicable("handles of the device cannot be exported"));
    }
    Ok(granularity)
}

fn an_imported_handle_is_the_same_memory(ground: &Ground) -> Check {
    let bytes = 2 * shareable(ground)?;
    let range = ground.reservation(2 * bytes)?;
    let handle = ground.exportable_handle(bytes)?;
    let fd = ground.driver.handle_export(handle.id())?;
    let imported = ground.import(fd.as_fd(), bytes)?;
    let here = ground.map(range.ptr(), &handle)?;
    let there = ground.map(range.at(bytes), &imported)?;
    let stream = ground.stream()?;
    let content = pattern(bytes as usize, 5);
    ground.write(here.span(), &content, stream.id())?;
    same_bytes("what was imported", &content, &ground.read(there.span(), stream.id())?)?;
    ground.fill(there.span(), 0x61, stream.id())?;
    ground.holds(here.span(), 0x61, stream.id())
}

fn a_kernel_writes_imported_memory(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let bytes = shareable(ground)?;
    let range = ground.reservation(2 * bytes)?;
    let handle = ground.exportable_handle(bytes)?;
    let imported = ground.import(ground.driver.handle_export(handle.id())?.as_fd(), bytes)?;
    let here = ground.map(range.ptr(), &handle)?;
    let there = ground.map(range.at(bytes), &imported)?;
    let stream = ground.stream()?;
    ground.fill(here.span(), 0x20, stream.id())?;
    kernels.add(there.span(), word_of(1), stream.id())?;
    ground.holds(here.span(), 0x21, stream.id())
}

fn a_closed_descriptor_takes_nothing_away(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let range = ground.reservation(bytes)?;
    let handle = ground.exportable_handle(bytes)?;
    let fd: OwnedFd = ground.driver.handle_export(handle.id())?;
    let imported = ground.import(fd.as_fd(), bytes)?;
    drop(fd);
    let mapping = ground.map(range.ptr(), &imported)?;
    let stream = ground.stream()?;
    ground.fill(mapping.span(), 3, stream.id())?;
    ground.holds(mapping.span(), 3, stream.id())
}

fn each_export_is_a_descriptor_of_its_own(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let handle = ground.exportable_handle(bytes)?;
    let first = ground.driver.handle_export(handle.id())?;
    let second = ground.driver.handle_export(handle.id())?;
    drop(first);
    ground.import(second.as_fd(), bytes)?.release()?;
    // One descriptor serves any number of imports.
    ground.import(second.as_fd(), bytes)?.release()?;
    Ok(())
}

fn memory_stays_until_the_last_of_both_lets_go(ground: &Ground) -> Check {
    let free_bytes = || -> Check<u64> { Ok(ground.driver.memory_info(ground.device)?.free_bytes) };
    let bytes = (64 * MIB).next_multiple_of(shareable(ground)?);
    let before = free_bytes()?;
    let handle = ground.exportable_handle(bytes)?;
    let fd = ground.driver.handle_export(handle.id())?;
    let imported = ground.import(fd.as_fd(), bytes)?;
    ensure(before.saturating_sub(free_bytes()?) < 2 * bytes, "an import takes no memory of its own")?;
    drop(fd);
    handle.release()?;
    ensure(before.saturating_sub(free_bytes()?) >= bytes, "the importer keeps what the exporter released")?;
    imported.release()?;
    ensure(before.saturating_sub(free_bytes()?) <= 32 * MIB, "the memory is back after the last release")
}

fn a_descriptor_of_something_else_is_refused(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let (reader, _writer) =
        std::io::pipe().map_err(|error| Stop::from(crate::case::Failure::new(error.to_string())))?;
    // CUDA's own answer is the code for an unknown error, which elsewhere means that the device is lost. It is not.
    refused_value(ground.driver.handle_import(ground.device, reader.as_fd(), bytes))?;
    ground.exportable_handle(bytes)?.release()?;
    Ok(())
}

fn a_private_handle_is_not_exported(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let handle = ground.handle(bytes)?;
    refused_as(ground.driver.handle_export(handle.id()), &[ErrorClass::NotSupported])?;
    // It is as good as before.
    let range = ground.reservation(bytes)?;
    let mapping = ground.map(range.ptr(), &handle)?;
    let stream = ground.stream()?;
    ground.fill(mapping.span(), 7, stream.id())?;
    ground.holds(mapping.span(), 7, stream.id())
}

fn an_imported_handle_is_not_exported_on(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let handle = ground.exportable_handle(bytes)?;
    let imported = ground.import(ground.driver.handle_export(handle.id())?.as_fd(), bytes)?;
    refused_as(ground.driver.handle_export(imported.id()), &[ErrorClass::NotSupported])?;
    Ok(())
}

fn sizes_of_exportable_handles_are_checked(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    for odd_bytes in [0, 1, bytes + 4096] {
        refused_value(ground.driver.handle_create_exportable(ground.device, odd_bytes))?;
    }
    Ok(())
}

fn a_stale_handle_is_not_exported(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let stale = ground.exportable_handle(bytes)?.release()?;
    refused_handle(ground.driver.handle_export(stale))?;
    Ok(())
}

fn odd_sizes_are_not_imported(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let handle = ground.exportable_handle(bytes)?;
    let fd = ground.driver.handle_export(handle.id())?;
    for odd_bytes in [0, 1, bytes + 4096] {
        refused_value(ground.driver.handle_import(ground.device, fd.as_fd(), odd_bytes))?;
    }
    Ok(())
}

fn a_wrong_size_is_refused_when_mapped_at_the_latest(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let range = ground.reservation(4 * bytes)?;
    let handle = ground.exportable_handle(2 * bytes)?;
    let fd = ground.driver.handle_export(handle.id())?;
    for wrong_bytes in [bytes, 4 * bytes] {
        let Ok(imported) = ground.driver.handle_import(ground.device, fd.as_fd(), wrong_bytes) else {
            continue;
        };
        let mapped = ground.driver.handle_map(range.ptr(), wrong_bytes, imported);
        if mapped.is_ok() {
            ground.driver.handle_unmap(ground.device, range.ptr(), wrong_bytes)?;
        }
        ground.driver.handle_release(imported)?;
        refused_as(mapped, &[ErrorClass::InvalidValue, ErrorClass::NotSupported])?;
    }
    Ok(())
}

fn sharing_is_legal_in_capture(ground: &Ground) -> Check {
    let bytes = shareable(ground)?;
    let handle = ground.exportable_handle(bytes)?;
    for mode in EVERY {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        let fd = ground.driver.handle_export(handle.id())?;
        capture.is_valid()?;
        let imported = ground.import(fd.as_fd(), bytes)?;
        capture.is_valid()?;
        imported.release()?;
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

super::list![virtual_memory:
    an_imported_handle_is_the_same_memory,
    a_kernel_writes_imported_memory,
    a_closed_descriptor_takes_nothing_away,
    each_export_is_a_descriptor_of_its_own,
    memory_stays_until_the_last_of_both_lets_go,
    a_descriptor_of_something_else_is_refused,
    a_private_handle_is_not_exported,
    an_imported_handle_is_not_exported_on,
    sizes_of_exportable_handles_are_checked,
    a_stale_handle_is_not_exported,
    odd_sizes_are_not_imported,
    a_wrong_size_is_refused_when_mapped_at_the_latest,
    sharing_is_legal_in_capture,
];
