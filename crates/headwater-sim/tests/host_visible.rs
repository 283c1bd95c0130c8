//! Device memory that the host sees in place: the same bytes at the same addresses, for as long as they are mapped.
//!
//! All machines have the same addresses, so only one of a process can show its memory: one test, in a program of its own.

use headwater_driver::{Copies, DeviceId, PlainMemory, Stream, Streams, VirtualMemory};
use headwater_sim::SimDriver;

const DEVICE: DeviceId = DeviceId(0);
const PAGE: u64 = 2 << 20;

#[test]
fn the_host_sees_mapped_memory_at_the_devices_addresses() {
    let sim = SimDriver::builder().host_visible(true).build();
    let stream = Stream::legacy_default(DEVICE);
    let range = sim.address_reserve(DEVICE, 4 * PAGE, 0).unwrap();
    let handles = [sim.handle_create(DEVICE, PAGE).unwrap(), sim.handle_create(DEVICE, PAGE).unwrap()];
    let second = range.checked_add(PAGE).unwrap();
    sim.handle_map(range, PAGE, handles[0]).unwrap();
    sim.handle_map(second, PAGE, handles[1]).unwrap();
    sim.access_set(range, 2 * PAGE, &[DEVICE]).unwrap();
    assert!(sim.is_host_visible(range.raw()..range.raw() + 2 * PAGE));
    assert!(!sim.is_host_visible(range.raw()..range.raw() + 3 * PAGE), "the third page has no memory");

    // One stretch of host memory over two handles.
    let seen = range.raw() as *mut u8;
    let host = |offset: u64| seen.wrapping_add(offset as usize);
    // SAFETY: mapped, and nothing else runs.
    unsafe {
        sim.fill_bytes(range, 7, 2 * PAGE, stream).unwrap();
        sim.stream_synchronize(stream).unwrap();
        assert_eq!((*host(0), *host(PAGE - 1), *host(PAGE), *host(2 * PAGE - 1)), (7, 7, 7, 7));
        *host(PAGE - 1) = 1;
        *host(PAGE) = 2;
        let mut read = [0; 3];
        sim.copy_to_host(read.as_mut_ptr(), range.checked_add(PAGE - 1).unwrap(), 3, stream).unwrap();
        sim.stream_synchronize(stream).unwrap();
        assert_eq!(read, [1, 2, 7]);
        // Copies within the device too.
        sim.copy_on_device(range, second, 2, stream).unwrap();
        sim.stream_synchronize(stream).unwrap();
        assert_eq!((*host(0), *host(1)), (2, 7));
    }

    // A handle that moves takes its bytes along.
    sim.handle_unmap(DEVICE, range, 2 * PAGE).unwrap();
    assert!(!sim.is_host_visible(range.raw()..range.raw() + 1));
    let third = range.checked_add(2 * PAGE).unwrap();
    sim.handle_map(third, PAGE, handles[0]).unwrap();
    sim.access_set(third, PAGE, &[DEVICE]).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { (*host(2 * PAGE), *host(3 * PAGE - 1)) }, (2, 1));

    // Plain memory from a mebibyte on begins at a page.
    let plain = sim.mem_alloc(DEVICE, PAGE).unwrap();
    assert!(sim.is_host_visible(plain.raw()..plain.raw() + PAGE));
    sim.mem_free(DEVICE, plain).unwrap();
    assert!(!sim.is_host_visible(plain.raw()..plain.raw() + PAGE));
    assert!(sim.hazards().is_empty(), "{:?}", sim.hazards());

    // Another machine has the same addresses, and does not get them.
    let other = SimDriver::builder().host_visible(true).build();
    let taken = other.address_reserve(DEVICE, 4 * PAGE, 0).unwrap();
    assert_eq!(taken, range);
    let handle = other.handle_create(DEVICE, PAGE).unwrap();
    let third = taken.checked_add(2 * PAGE).unwrap();
    other.handle_map(third, PAGE, handle).unwrap();
    assert!(!other.is_host_visible(third.raw()..third.raw() + PAGE));
    // Nor does an ordinary one show anything.
    let ordinary = SimDriver::new();
    let plain = ordinary.mem_alloc(DEVICE, PAGE).unwrap();
    assert!(!ordinary.is_host_visible(plain.raw()..plain.raw() + PAGE));
}
