//! Devices: how many there are, what they say of themselves, what they have left.

use headwater_driver::{Call, DeviceId};

use crate::case::Ground;
use crate::check::{Check, ensure, refused_value, same};

const MIB: u64 = 1 << 20;
/// What a driver may keep for itself beside an allocation, and what a neighbour on the machine may do meanwhile.
const SLACK_BYTES: u64 = 64 * MIB;

fn there_is_at_least_one(ground: &Ground) -> Check {
    ensure(ground.driver.device_count() >= 1, "there is at least one device")?;
    ensure(ground.device.0 < ground.driver.device_count(), "the device that is judged is one of them")
}

fn two_openings_see_the_same_machine(ground: &Ground) -> Check {
    same("devices", ground.driver.device_count(), ground.other.device_count())?;
    same("backend", ground.driver.backend(), ground.other.backend())?;
    let mine = ground.driver.device_properties(ground.device)?;
    same("properties", mine, ground.other.device_properties(ground.device)?)
}

fn properties_make_sense(ground: &Ground) -> Check {
    let properties = ground.driver.device_properties(ground.device)?;
    ensure(!properties.name.is_empty(), "the device has a name")?;
    ensure(properties.total_bytes >= 256 * MIB, "the device has at least 256 MiB")?;
    ensure(properties.multiprocessors > 0, "the device has multiprocessors")?;
    ensure(properties.compute_capability.0 >= 5, "the compute capability is one of this decade")?;
    // domain:bus:device.function
    let address = &properties.pci_address;
    ensure(address.split(':').count() == 3 && address.contains('.'), "the PCI address has its four parts")?;
    ensure(!ground.driver.version().is_empty(), "the driver names its version")
}

fn properties_stay_the_same(ground: &Ground) -> Check {
    let first = ground.driver.device_properties(ground.device)?;
    same("properties", first, ground.driver.device_properties(ground.device)?)
}

fn an_unknown_device_is_refused(ground: &Ground) -> Check {
    for device in [ground.no_such_device(), DeviceId(u32::MAX)] {
        refused_value(ground.driver.device_properties(device))?;
        refused_value(ground.driver.memory_info(device))?;
        refused_value(ground.driver.mem_alloc(device, MIB))?;
        refused_value(ground.driver.granularity(device))?;
        refused_value(ground.driver.stream_create(device, Default::default()))?;
        refused_value(ground.driver.event_create(device, Default::default()))?;
        refused_value(ground.driver.peer_access_possible(ground.device, device))?;
        refused_value(ground.driver.peer_access_enable(ground.device, device))?;
    }
    Ok(())
}

fn free_memory_is_part_of_all_memory(ground: &Ground) -> Check {
    let memory = ground.driver.memory_info(ground.device)?;
    ensure(memory.free_bytes <= memory.total_bytes, "no more is free than there is")?;
    let total_bytes = ground.driver.device_properties(ground.device)?.total_bytes;
    // cuMemGetInfo leaves out what the driver keeps for itself; cuDeviceTotalMem may not.
    ensure(total_bytes.abs_diff(memory.total_bytes) <= total_bytes / 10, "both totals are about the same")
}

fn an_allocation_is_seen_in_free_memory(ground: &Ground) -> Check {
    let free_bytes = || -> Check<u64> { Ok(ground.driver.memory_info(ground.device)?.free_bytes) };
    let before = free_bytes()?;
    let memory = ground.plain(256 * MIB)?;
    let taken = before.saturating_sub(free_bytes()?);
    ensure(taken >= 256 * MIB, "256 MiB fewer are free after an allocation of 256 MiB")?;
    ensure(taken <= 256 * MIB + SLACK_BYTES, "not many more than 256 MiB were taken")?;
    memory.free()?;
    ensure(before.abs_diff(free_bytes()?) <= SLACK_BYTES, "they are free again after the free")
}

fn a_device_is_no_peer_of_itself(ground: &Ground) -> Check {
    let (driver, device) = (&ground.driver, ground.device);
    same("peer of itself", false, driver.peer_access_possible(device, device)?)?;
    refused_value(driver.peer_access_enable(device, device))?;
    Ok(())
}

fn calls_are_counted_and_failed_ones_too(ground: &Ground) -> Check {
    let before = ground.driver.call_counts();
    ground.plain(MIB)?.free()?;
    refused_value(ground.driver.mem_alloc(ground.device, 0))?;
    let since = ground.driver.call_counts().since(&before);
    same("allocations counted", 2, since.of(Call::MemAlloc))?;
    same("frees counted", 1, since.of(Call::MemFree))?;
    same("stream creations counted", 0, since.of(Call::StreamCreate))
}

super::list![devices:
    there_is_at_least_one,
    two_openings_see_the_same_machine,
    properties_make_sense,
    properties_stay_the_same,
    an_unknown_device_is_refused,
    free_memory_is_part_of_all_memory,
    an_allocation_is_seen_in_free_memory,
    a_device_is_no_peer_of_itself,
    calls_are_counted_and_failed_ones_too,
];
