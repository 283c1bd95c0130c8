//! Use after free, unmapped and unwritten memory, and what is left at the end.

// Tests may panic; clippy knows that of `#[test]` functions only, not of what they call.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, D, PAGE, alloc, bench, class, code, mapped_page, mark, reader, writer};
use headwater_driver::{
    Call, Copies, DeviceId, DevicePtr, Devices, ErrorClass, Events, HostMemory, PlainMemory, Streams,
    VirtualMemory,
};
use headwater_sim::{Hazard, LeakKind, SimDriver, Work};

#[test]
fn work_on_freed_memory_is_reported_and_loses_the_device_when_it_ends() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    sim.mem_free(D, ptr).unwrap();
    let freed_at = sim.now_ns();
    sim.submit(a, writer("late", ptr)).unwrap();
    let hazards = sim.take_hazards();
    let [Hazard::UseAfterFree { user, removal, .. }] = &hazards[..] else { panic!("{hazards:?}") };
    assert_eq!((user.label.as_str(), removal.call), ("late", Call::MemFree));
    assert!(removal.at_ns <= freed_at);

    assert!(!sim.stream_query(a).unwrap(), "the failure shows when the work has run");
    let error = sim.stream_synchronize(a).unwrap_err();
    assert_eq!((error.class(), error.code()), (ErrorClass::DeviceLost, 700));
    // And from then on everywhere.
    assert_eq!(class(sim.mem_alloc(D, 4096)), ErrorClass::DeviceLost);
    assert_eq!(class(sim.submit(b, Work::new("k", 1))), ErrorClass::DeviceLost);
    assert_eq!(class(sim.memory_info(D)), ErrorClass::DeviceLost);
}

#[test]
fn only_the_device_that_failed_is_lost() {
    let sim = SimDriver::builder().devices(2).build();
    let a = common::stream(&sim);
    sim.submit(a, Work::new("wild", 1).writes(64..128)).unwrap();
    assert!(matches!(sim.take_hazards()[..], [Hazard::NeverAllocated { .. }]));
    sim.stream_synchronize(a).unwrap_err();
    assert!(sim.mem_alloc(DeviceId(1), 4096).is_ok());
}

#[test]
fn a_copy_with_freed_memory_is_refused_and_reported() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 4096);
    sim.mem_free(D, ptr).unwrap();
    // SAFETY: the address is bad on purpose; the simulated device refuses it.
    let refused = unsafe { sim.fill_bytes(ptr, 0, 4096, a) };
    assert_eq!(class(refused), ErrorClass::InvalidValue);
    assert!(matches!(sim.take_hazards()[..], [Hazard::UseAfterFree { .. }]));
    assert!(sim.stream_synchronize(a).is_ok(), "nothing ran");
}

#[test]
fn an_access_beyond_the_end_of_an_allocation_is_found() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 4096).raw();
    sim.submit(a, Work::new("overrun", 1).writes(ptr..ptr + 4097)).unwrap();
    assert!(matches!(sim.take_hazards()[..], [Hazard::NeverAllocated { .. }]));
}

#[test]
fn unmapped_and_inaccessible_addresses_are_told_apart() {
    let Bench { sim, a, .. } = bench();
    let (ptr, _) = mapped_page(&sim);
    let beside = ptr.checked_add(PAGE).unwrap();
    sim.submit(a, writer("beside", beside)).unwrap();
    let handle = sim.handle_create(D, PAGE).unwrap();
    sim.handle_map(beside, PAGE, handle).unwrap();
    sim.submit(a, writer("no access", beside)).unwrap();
    sim.access_set(beside, PAGE, &[D]).unwrap();
    sim.submit(a, writer("fine", beside)).unwrap();
    let hazards = sim.take_hazards();
    assert!(
        matches!(hazards[..], [Hazard::Unmapped { .. }, Hazard::NoAccess { device: D, .. }]),
        "{hazards:?}"
    );
}

#[test]
fn kernels_reach_plain_memory_of_a_peer_only_with_peer_access() {
    let sim = SimDriver::builder().devices(2).build();
    let a = common::stream(&sim);
    let far = sim.mem_alloc(DeviceId(1), 4096).unwrap();
    sim.peer_access_enable(D, DeviceId(1)).unwrap();
    sim.submit(a, writer("peer", far)).unwrap();
    assert!(sim.take_hazards().is_empty());
    let b = sim.stream_create(DeviceId(1), Default::default()).unwrap();
    let near = alloc(&sim, 4096);
    sim.submit(b, writer("the other way", near)).unwrap();
    assert!(matches!(sim.take_hazards()[..], [Hazard::NoAccess { device: DeviceId(1), .. }]));
}

#[test]
fn unmapping_what_may_still_be_used_is_reported_unless_the_host_waited() {
    for wait in [false, true] {
        let Bench { sim, a, .. } = bench();
        let (ptr, _) = mapped_page(&sim);
        sim.submit(a, writer("user", ptr)).unwrap();
        let marked = mark(&sim, a);
        if wait {
            sim.event_synchronize(marked).unwrap();
        }
        sim.handle_unmap(D, ptr, PAGE).unwrap();
        let hazards = sim.take_hazards();
        match wait {
            true => assert!(hazards.is_empty(), "{hazards:?}"),
            false => assert!(
                matches!(&hazards[..], [Hazard::RemovedInUse { user, removal, .. }]
                    if user.label == "user" && removal.call == Call::HandleUnmap),
                "{hazards:?}"
            ),
        }
        // The work was still running when its page went away: as on a device, that is fatal.
        assert_eq!(sim.stream_synchronize(a).is_err(), !wait);
    }
}

#[test]
fn unmapping_one_address_does_not_harm_uses_of_another() {
    let Bench { sim, a, .. } = bench();
    let (first, handle) = mapped_page(&sim);
    let second = first.checked_add(PAGE).unwrap();
    sim.handle_map(second, PAGE, handle).unwrap();
    sim.access_set(second, PAGE, &[D]).unwrap();
    sim.submit(a, writer("user", first)).unwrap();
    sim.handle_unmap(D, second, PAGE).unwrap();
    sim.stream_synchronize(a).unwrap();
    assert!(sim.take_hazards().is_empty());
}

#[test]
fn a_plain_free_waits_and_so_is_no_hazard() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 4096);
    sim.submit(a, Work::new("long", 100_000_000).writes(ptr.raw()..ptr.raw() + 1)).unwrap();
    sim.mem_free(D, ptr).unwrap();
    assert!(sim.now_ns() >= 100_000_000, "measured: a 100 ms kernel makes the free take 100 ms");
    assert!(sim.take_hazards().is_empty());
}

#[test]
fn a_peer_may_still_use_what_a_plain_free_takes() {
    let sim = SimDriver::builder().devices(2).build();
    let other = DeviceId(1);
    sim.peer_access_enable(other, D).unwrap();
    let b = sim.stream_create(other, Default::default()).unwrap();
    let ptr = alloc(&sim, 4096);
    sim.submit(b, writer("peer", ptr)).unwrap();
    sim.mem_free(D, ptr).unwrap();
    assert!(matches!(sim.take_hazards()[..], [Hazard::RemovedInUse { .. }]));
}

#[test]
fn reading_what_nobody_wrote_is_found_when_the_read_ends() {
    let Bench { sim, a, .. } = bench();
    let ptr = alloc(&sim, 8192);
    sim.submit(a, writer("half", ptr)).unwrap();
    sim.submit(a, Work::new("all", 1).reads(ptr.raw()..ptr.raw() + 8192)).unwrap();
    assert!(sim.hazards().is_empty());
    sim.stream_synchronize(a).unwrap();
    let hazards = sim.take_hazards();
    let [Hazard::Unwritten { user, place }] = &hazards[..] else { panic!("{hazards:?}") };
    assert_eq!(user.label, "all");
    assert_eq!(place.to_string(), format!("{:#x}..{:#x}", ptr.raw() + 4096, ptr.raw() + 8192));
}

#[test]
fn unwritten_reads_can_be_allowed() {
    let sim = SimDriver::builder().report_unwritten_reads(false).build();
    let a = common::stream(&sim);
    sim.submit(a, reader("r", alloc(&sim, 4096))).unwrap();
    sim.stream_synchronize(a).unwrap();
    assert!(sim.hazards().is_empty());
}

#[test]
fn a_handle_mapped_elsewhere_keeps_its_bytes_and_a_new_one_has_none() {
    let Bench { sim, a, .. } = bench();
    let (ptr, handle) = mapped_page(&sim);
    sim.submit(a, writer("w", ptr)).unwrap();
    sim.stream_synchronize(a).unwrap();
    sim.handle_unmap(D, ptr, PAGE).unwrap();
    let elsewhere = ptr.checked_add(3 * PAGE).unwrap();
    let fresh = sim.handle_create(D, PAGE).unwrap();
    sim.handle_map(elsewhere, PAGE, handle).unwrap();
    sim.handle_map(ptr, PAGE, fresh).unwrap();
    sim.access_set(elsewhere, PAGE, &[D]).unwrap();
    sim.access_set(ptr, PAGE, &[D]).unwrap();
    sim.submit(a, reader("moved", elsewhere)).unwrap();
    sim.stream_synchronize(a).unwrap();
    assert!(sim.take_hazards().is_empty());
    sim.submit(a, reader("fresh", ptr)).unwrap();
    sim.stream_synchronize(a).unwrap();
    assert!(matches!(sim.take_hazards()[..], [Hazard::Unwritten { .. }]));
}

#[test]
fn leaks_name_what_was_not_given_back() {
    let Bench { sim, a, b } = bench();
    let ptr = alloc(&sim, 4096);
    let (range, handle) = mapped_page(&sim);
    let host = sim.host_alloc(4096).unwrap();
    let marked = mark(&sim, a);
    let kinds = |sim: &SimDriver| sim.leaks().iter().map(|leak| leak.kind).collect::<Vec<_>>();
    use LeakKind::{AddressRange, Event, Handle, HostMemory, Mapping, PlainMemory, Stream};
    assert_eq!(kinds(&sim), [PlainMemory, AddressRange, Mapping, Handle, HostMemory, Stream, Stream, Event]);
    assert!(sim.leaks()[0].to_string().starts_with("plain memory"));

    sim.mem_free(D, ptr).unwrap();
    sim.handle_release(handle).unwrap();
    assert!(kinds(&sim).contains(&Mapping), "a released handle lives on in its mapping");
    sim.handle_unmap(D, range, PAGE).unwrap();
    sim.address_free(D, range, 8 * PAGE).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { sim.host_free(host).unwrap() };
    sim.event_destroy(marked).unwrap();
    for stream in [a, b] {
        sim.stream_destroy(stream).unwrap();
    }
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    assert_eq!(sim.memory_now(D).map(|memory| memory.free_bytes == memory.total_bytes), Some(true));
}

#[test]
fn bad_addresses_are_refused_by_free() {
    let Bench { sim, .. } = bench();
    let ptr = alloc(&sim, 4096);
    for bad in [DevicePtr::NULL, DevicePtr::new(ptr.raw() + 512), DevicePtr::new(7)] {
        assert_eq!(code(sim.mem_free(D, bad)), 1);
    }
    sim.mem_free(D, ptr).unwrap();
    assert_eq!(class(sim.mem_free(D, ptr)), ErrorClass::InvalidValue, "a second free");
}
