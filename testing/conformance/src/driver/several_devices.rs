//! What is true of two devices of one machine. A machine with one device cannot show it, and says so.

use headwater_driver::{CaptureMode, EventOptions, Stream, StreamOptions};

use crate::case::{Ground, Stop};
use crate::check::{Check, ensure, refused_handle, same_bytes};
use crate::fixtures::{pattern, word_of};

const MIB: u64 = 1 << 20;
const FREE: StreamOptions = StreamOptions { non_blocking: true, priority: 0 };

fn each_has_memory_of_its_own(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    let free_bytes = |device| -> Check<u64> { Ok(ground.driver.memory_info(device)?.free_bytes) };
    let before = (free_bytes(ground.device)?, free_bytes(second)?);
    let _memory = ground.plain_on(second, 256 * MIB)?;
    let after = (free_bytes(ground.device)?, free_bytes(second)?);
    ensure(before.0.abs_diff(after.0) <= 64 * MIB, "the first device gave nothing")?;
    ensure(before.1.saturating_sub(after.1) >= 256 * MIB, "the second device gave the memory")
}

fn each_runs_its_own_work(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    for (device, value) in [(ground.device, 0x17), (second, 0x18)] {
        let kernels = ground.kernels_on(device)?;
        let memory = ground.plain_on(device, MIB)?;
        let stream = ground.stream_with(device, FREE)?;
        kernels.fill(memory.span(), word_of(value), stream.id())?;
        ground.holds(memory.span(), value, stream.id())?;
    }
    Ok(())
}

fn each_has_default_streams_of_its_own(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    let kernels = ground.kernels()?;
    let (mine, theirs) = (Stream::legacy_default(ground.device), Stream::legacy_default(second));
    kernels.spin(mine)?;
    ensure(ground.driver.stream_query(theirs)?, "the second device's default stream is idle")?;
    ensure(!ground.driver.stream_query(mine)?, "the first device's default stream is busy")?;
    Ok(ground.driver.stream_synchronize(mine)?)
}

fn bytes_are_copied_between_them(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    let bytes = 3 * MIB + 5;
    let (here, there) = (ground.plain(bytes)?, ground.plain_on(second, bytes)?);
    let stream = ground.stream()?;
    let content = pattern(bytes as usize, 0x3d);
    ground.write(here.span(), &content, stream.id())?;
    // SAFETY: both ranges are held until the stream has finished.
    unsafe {
        let (from, to) = ((ground.device, here.ptr()), (second, there.ptr()));
        ground.driver.copy_peer(to, from, bytes, stream.id())?;
        ground.driver.fill_bytes(here.ptr(), 0, bytes, stream.id())?;
        ground.driver.copy_peer(from, to, bytes, stream.id())?;
    }
    same_bytes("there and back", &content, &ground.read(here.span(), stream.id())?)
}

fn a_stream_waits_for_the_other_devices_event(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    let kernels = ground.kernels()?;
    let (here, there) = (ground.plain(MIB)?, ground.plain_on(second, MIB)?);
    let (writer, reader) = (ground.stream()?, ground.stream_with(second, FREE)?);
    kernels.fill_late(here.span(), word_of(0x1c), writer.id())?;
    let event = ground.event_at(writer.id())?;
    event.holds_back(reader.id())?;
    // SAFETY: both ranges are held until the stream has finished.
    unsafe {
        let (from, to) = ((ground.device, here.ptr()), (second, there.ptr()));
        ground.driver.copy_peer(to, from, MIB, reader.id())?;
    }
    ground.holds(there.span(), 0x1c, reader.id())
}

fn an_event_is_recorded_on_its_own_device_only(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    let event = ground.event_with(second, EventOptions::default())?;
    let stream = ground.stream()?;
    refused_handle(ground.driver.event_record(event.id(), stream.id()))?;
    ensure(event.is_complete()?, "the event was not recorded")
}

fn peer_access_is_enabled_once_or_twice(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    needs_peers(ground)?;
    ground.driver.peer_access_enable(second, ground.device)?;
    ground.driver.peer_access_enable(second, ground.device)?;
    let kernels = ground.kernels_on(second)?;
    let memory = ground.plain(MIB)?;
    {
        let stream = ground.stream_with(second, FREE)?;
        kernels.fill(memory.span(), word_of(0x5c), stream.id())?;
        stream.wait()?;
    }
    let reader = ground.stream()?;
    ground.holds(memory.span(), 0x5c, reader.id())
}

fn virtual_memory_is_shared_with_those_it_names(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    needs_peers(ground)?;
    let memory = ground.mapped(ground.granularity()?)?;
    ground.driver.access_set(memory.span().ptr(), memory.span().bytes(), &[second])?;
    let kernels = ground.kernels_on(second)?;
    {
        let stream = ground.stream_with(second, FREE)?;
        kernels.fill(memory.span(), word_of(0x7e), stream.id())?;
        stream.wait()?;
    }
    // Naming the second device took nothing from the first.
    let reader = ground.stream()?;
    ground.holds(memory.span(), 0x7e, reader.id())
}

fn a_capture_on_one_leaves_the_other_alone(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    let memory = ground.plain_on(second, MIB)?;
    let (stream, other) = (ground.stream()?, ground.stream_with(second, FREE)?);
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    ground.fill(memory.span(), 0x0e, other.id())?;
    capture.is_valid()?;
    capture.end()?;
    ground.holds(memory.span(), 0x0e, other.id())
}

/// Ends a case on two devices that cannot reach each other's memory.
fn needs_peers(ground: &Ground) -> Check {
    let second = ground.second_device()?;
    if ground.driver.peer_access_possible(second, ground.device)? {
        return Ok(());
    }
    Err(Stop::NotApplicable("the two devices are no peers"))
}

super::list![several_devices:
    each_has_memory_of_its_own,
    each_runs_its_own_work,
    each_has_default_streams_of_its_own,
    bytes_are_copied_between_them,
    a_stream_waits_for_the_other_devices_event,
    an_event_is_recorded_on_its_own_device_only,
    peer_access_is_enabled_once_or_twice,
    virtual_memory_is_shared_with_those_it_names,
    a_capture_on_one_leaves_the_other_alone,
];
