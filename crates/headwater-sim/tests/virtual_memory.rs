//! Virtual memory: the life of ranges, handles and mappings, and every refusal.

// Tests may panic; clippy knows that of `#[test]` functions only, not of what they call.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::fd::AsFd;

use common::{Bench, D, PAGE, bench, class, code};
use headwater_driver::{Capabilities, DeviceId, DevicePtr, Devices, ErrorClass, VirtualMemory};
use headwater_sim::SimDriver;

fn at(ptr: DevicePtr, page: u64) -> DevicePtr {
    DevicePtr::new(ptr.raw() + page * PAGE)
}

#[test]
fn memory_is_free_again_when_a_handle_is_released_and_mapped_nowhere() {
    let sim = SimDriver::builder().memory_bytes(4 * PAGE).build();
    let free = || sim.memory_info(D).unwrap().free_bytes;
    let range = sim.address_reserve(D, 8 * PAGE, 0).unwrap();
    assert_eq!(free(), 4 * PAGE, "addresses take no memory");
    let handle = sim.handle_create(D, 3 * PAGE).unwrap();
    assert_eq!(free(), PAGE);
    let error = sim.handle_create(D, 2 * PAGE).unwrap_err();
    let ErrorClass::OutOfMemory { requested_bytes, memory: Some(memory) } = error.class() else {
        panic!("{error}")
    };
    assert_eq!((requested_bytes, memory.free_bytes, memory.total_bytes), (2 * PAGE, PAGE, 4 * PAGE));
    sim.handle_map(range, 3 * PAGE, handle).unwrap();
    sim.handle_map(at(range, 3), 3 * PAGE, handle).unwrap();
    sim.handle_release(handle).unwrap();
    assert_eq!(code(sim.handle_release(handle)), 400);
    sim.handle_unmap(D, range, 3 * PAGE).unwrap();
    assert_eq!(free(), PAGE, "still mapped at its other address");
    sim.handle_unmap(D, at(range, 3), 3 * PAGE).unwrap();
    assert_eq!(free(), 4 * PAGE);
    sim.address_free(D, range, 8 * PAGE).unwrap();
    assert!(sim.leaks().is_empty());
}

#[test]
fn sizes_and_alignments_are_checked() {
    let Bench { sim, .. } = bench();
    for bytes in [0, 1, PAGE - 1, PAGE + 4096] {
        assert_eq!(class(sim.address_reserve(D, bytes, 0)), ErrorClass::InvalidValue, "{bytes}");
        assert_eq!(class(sim.handle_create(D, bytes)), ErrorClass::InvalidValue, "{bytes}");
    }
    assert_eq!(class(sim.address_reserve(D, PAGE, 3 * PAGE)), ErrorClass::InvalidValue);
    assert!(sim.address_reserve(D, PAGE, 1 << 30).unwrap().is_aligned_to(1 << 30));
    assert!(matches!(class(sim.address_reserve(D, 1 << 60, 0)), ErrorClass::OutOfMemory { .. }));
    assert_eq!(class(sim.address_reserve(DeviceId(9), PAGE, 0)), ErrorClass::InvalidValue);
    assert_eq!(sim.granularity(D).unwrap(), PAGE);
}

#[test]
fn only_whole_handles_are_mapped_and_only_into_free_reserved_addresses() {
    let Bench { sim, .. } = bench();
    let range = sim.address_reserve(D, 4 * PAGE, 0).unwrap();
    let handle = sim.handle_create(D, 2 * PAGE).unwrap();
    assert_eq!(code(sim.handle_map(range, PAGE, handle)), 801, "part of a handle");
    assert_eq!(
        class(sim.handle_map(at(range, 3), 2 * PAGE, handle)),
        ErrorClass::InvalidValue,
        "over the end"
    );
    let odd = DevicePtr::new(range.raw() + 4096);
    assert_eq!(class(sim.handle_map(odd, 2 * PAGE, handle)), ErrorClass::InvalidValue, "not aligned");
    assert_eq!(class(sim.handle_map(DevicePtr::NULL, 2 * PAGE, handle)), ErrorClass::InvalidValue);
    sim.handle_map(at(range, 1), 2 * PAGE, handle).unwrap();
    for page in [0, 1, 2] {
        let overlap = sim.handle_map(at(range, page), 2 * PAGE, handle);
        assert_eq!(class(overlap), ErrorClass::InvalidValue, "overlaps at page {page}");
    }
}

#[test]
fn only_whole_mappings_are_unmapped_and_given_access() {
    let Bench { sim, .. } = bench();
    let range = sim.address_reserve(D, 8 * PAGE, 0).unwrap();
    for page in [0, 2, 4] {
        let handle = sim.handle_create(D, 2 * PAGE).unwrap();
        sim.handle_map(at(range, page), 2 * PAGE, handle).unwrap();
    }
    for (page, pages) in [(0, 1), (1, 2), (0, 3), (4, 4), (6, 1), (0, 0)] {
        let (ptr, bytes) = (at(range, page), pages * PAGE);
        assert_eq!(class(sim.access_set(ptr, bytes, &[D])), ErrorClass::InvalidValue, "{page} {pages}");
        assert_eq!(class(sim.handle_unmap(D, ptr, bytes)), ErrorClass::InvalidValue, "{page} {pages}");
    }
    assert_eq!(class(sim.access_set(range, 2 * PAGE, &[DeviceId(5)])), ErrorClass::InvalidValue);
    sim.access_set(range, 6 * PAGE, &[D]).unwrap();
    let refused = sim.address_free(D, range, 8 * PAGE);
    assert_eq!(class(refused), ErrorClass::InvalidValue, "something is mapped");
    sim.handle_unmap(D, range, 4 * PAGE).unwrap();
    sim.handle_unmap(D, at(range, 4), 2 * PAGE).unwrap();
    for (ptr, bytes) in [(range, 4 * PAGE), (at(range, 1), 7 * PAGE)] {
        assert_eq!(class(sim.address_free(D, ptr, bytes)), ErrorClass::InvalidValue);
    }
    sim.address_free(D, range, 8 * PAGE).unwrap();
}

#[test]
fn a_run_of_handles_costs_as_many_times_as_it_has_handles() {
    let Bench { sim, .. } = bench();
    let range = sim.address_reserve(D, 8 * PAGE, 0).unwrap();
    for page in 0..8 {
        let handle = sim.handle_create(D, PAGE).unwrap();
        sim.handle_map(at(range, page), PAGE, handle).unwrap();
    }
    let cost = |call: &dyn Fn()| {
        let before = sim.modelled_driver_ns();
        call();
        sim.modelled_driver_ns() - before
    };
    let one = cost(&|| sim.access_set(range, PAGE, &[D]).unwrap());
    assert_eq!(cost(&|| sim.access_set(range, 8 * PAGE, &[D]).unwrap()), 8 * one);
    let one = cost(&|| sim.handle_unmap(D, range, PAGE).unwrap());
    assert_eq!(cost(&|| sim.handle_unmap(D, at(range, 1), 7 * PAGE).unwrap()), 7 * one);
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    let none = Capabilities {
        virtual_memory: false,
        capture: true,
        host_pinning: true,
        peer_access: false,
        shareable_handles: false,
    };
    let sim = SimDriver::builder().capabilities(none).build();
    assert_eq!(class(sim.granularity(D)), ErrorClass::NotSupported);
    assert_eq!(class(sim.address_reserve(D, PAGE, 0)), ErrorClass::NotSupported);
    assert_eq!(class(sim.handle_create(D, PAGE)), ErrorClass::NotSupported);
    assert_eq!(class(sim.handle_create_exportable(D, PAGE)), ErrorClass::NotSupported);
}

#[test]
fn a_descriptor_of_something_else_gets_the_code_that_cuda_has_for_it() {
    let sim = SimDriver::new();
    let (reader, _writer) = std::io::pipe().unwrap();
    let refused = sim.handle_import(D, reader.as_fd(), PAGE).unwrap_err();
    assert_eq!((refused.code(), refused.class()), (999, ErrorClass::InvalidValue));
    let gone = sim.handle_create_exportable(D, PAGE).unwrap();
    let fd = sim.handle_export(gone).unwrap();
    sim.handle_release(gone).unwrap();
    assert_eq!(code(sim.handle_import(D, fd.as_fd(), PAGE)), 999);
    assert!(sim.leaks().is_empty());
}
