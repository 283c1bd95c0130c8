//! Events: points in streams, and waiting for them on the host and on the device.

use headwater_driver::{ErrorClass, EventOptions};

use crate::case::Ground;
use crate::check::{Check, ensure, joined, refused_as, refused_handle, same};
use crate::fixtures::{SPIN_US, word_of};

const BYTES: u64 = 1 << 20;
const TIMED: EventOptions = EventOptions { timing: true };

fn one_that_was_never_recorded_is_complete(ground: &Ground) -> Check {
    let event = ground.event()?;
    ensure(event.is_complete()?, "an event that was never recorded is complete")?;
    event.wait()?;
    let stream = ground.stream()?;
    event.holds_back(stream.id())?;
    stream.wait()
}

fn it_is_complete_when_the_work_before_it_is(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    let event = ground.event_at(stream.id())?;
    ensure(!event.is_complete()?, "the event is not complete while the work before it runs")?;
    event.wait()?;
    ensure(event.is_complete()?, "the event is complete after the wait")
}

fn work_after_it_is_not_waited_for(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    let event = ground.event_at(stream.id())?;
    kernels.spin(stream.id())?;
    event.wait()?;
    ensure(event.is_complete()?, "the event is complete")?;
    stream.is_busy()
}

fn a_wait_orders_one_stream_behind_another(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (written, read) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let (writer, reader) = (ground.stream()?, ground.stream()?);
    ground.fill(written.span(), 1, writer.id())?;
    kernels.fill_late(written.span(), word_of(2), writer.id())?;
    let event = ground.event_at(writer.id())?;
    event.holds_back(reader.id())?;
    ground.copy(read.span(), written.span(), reader.id())?;
    ground.holds(read.span(), 2, reader.id())
}

fn a_wait_does_not_block_the_host(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (first, second) = (ground.stream()?, ground.stream()?);
    kernels.spin(first.id())?;
    let event = ground.event_at(first.id())?;
    event.holds_back(second.id())?;
    first.is_busy()?;
    second.is_busy()
}

fn work_queued_before_a_wait_is_not_held_back(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (busy, other) = (ground.stream()?, ground.stream()?);
    kernels.spin(busy.id())?;
    let held = ground.event_at(busy.id())?;
    let before = ground.event_at(other.id())?;
    held.holds_back(other.id())?;
    before.wait()?;
    other.is_busy()?;
    busy.is_busy()
}

fn recording_again_moves_it(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (busy, idle) = (ground.stream()?, ground.stream()?);
    kernels.spin(busy.id())?;
    let event = ground.event_at(busy.id())?;
    ensure(!event.is_complete()?, "the event stands behind running work")?;
    event.record(idle.id())?;
    event.wait()?;
    ensure(event.is_complete()?, "the event stands in the idle stream now")?;
    busy.is_busy()
}

fn a_queued_wait_keeps_the_point_it_was_queued_for(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (written, read) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let (writer, idle, reader) = (ground.stream()?, ground.stream()?, ground.stream()?);
    kernels.fill_late(written.span(), word_of(3), writer.id())?;
    let event = ground.event_at(writer.id())?;
    event.holds_back(reader.id())?;
    event.record(idle.id())?;
    event.wait()?;
    reader.is_busy()?;
    ground.copy(read.span(), written.span(), reader.id())?;
    ground.holds(read.span(), 3, reader.id())
}

fn a_wait_after_recording_again_uses_the_new_point(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (busy, idle, waiter) = (ground.stream()?, ground.stream()?, ground.stream()?);
    kernels.spin(busy.id())?;
    let event = ground.event_at(busy.id())?;
    event.record(idle.id())?;
    event.holds_back(waiter.id())?;
    waiter.wait()?;
    busy.is_busy()
}

fn a_destroyed_one_still_holds_back_what_it_held(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (written, read) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let (writer, reader) = (ground.stream()?, ground.stream()?);
    kernels.fill_late(written.span(), word_of(4), writer.id())?;
    let event = ground.event_at(writer.id())?;
    event.holds_back(reader.id())?;
    event.destroy()?;
    writer.is_busy()?;
    ground.copy(read.span(), written.span(), reader.id())?;
    ground.holds(read.span(), 4, reader.id())
}

fn a_destroyed_one_is_refused_everywhere(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let stream = ground.stream()?;
    let live = ground.event_with(ground.device, TIMED)?;
    live.record(stream.id())?;
    live.wait()?;
    let stale = ground.event_with(ground.device, TIMED)?.destroy()?;
    refused_handle(driver.event_record(stale, stream.id()))?;
    refused_handle(driver.event_query(stale))?;
    refused_handle(driver.event_synchronize(stale))?;
    refused_handle(driver.stream_wait_event(stream.id(), stale))?;
    refused_handle(driver.event_elapsed_us(stale, live.id()))?;
    refused_handle(driver.event_elapsed_us(live.id(), stale))?;
    refused_handle(driver.event_destroy(stale))?;
    Ok(())
}

fn one_of_a_destroyed_stream_still_completes(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    let event = ground.event_at(stream.id())?;
    stream.destroy()?;
    event.wait()?;
    ensure(event.is_complete()?, "the event is complete")
}

fn elapsed_time_covers_the_work_between(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    let (start, end) = (ground.event_with(ground.device, TIMED)?, ground.event_with(ground.device, TIMED)?);
    start.record(stream.id())?;
    kernels.spin(stream.id())?;
    end.record(stream.id())?;
    end.wait()?;
    let elapsed_us = ground.driver.event_elapsed_us(start.id(), end.id())?;
    // The kernel's clock and the events' clock may tick differently by a little.
    ensure(elapsed_us >= 0.95 * SPIN_US as f64, "no less time passed than the kernel spun")?;
    // A shared machine may hold a kernel up, but hardly a hundred times as long.
    ensure(elapsed_us <= 100.0 * SPIN_US as f64, "the unit is microseconds")?;
    same("time from an event to itself", 0.0, ground.driver.event_elapsed_us(end.id(), end.id())?)
}

fn elapsed_time_of_running_work_is_not_ready(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    let (start, end) = (ground.event_with(ground.device, TIMED)?, ground.event_with(ground.device, TIMED)?);
    start.record(stream.id())?;
    kernels.spin(stream.id())?;
    end.record(stream.id())?;
    refused_as(ground.driver.event_elapsed_us(start.id(), end.id()), &[ErrorClass::NotReady])?;
    stream.wait()
}

fn elapsed_time_needs_events_that_keep_time(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let (timed, plain) = (ground.event_with(ground.device, TIMED)?, ground.event()?);
    timed.record(stream.id())?;
    plain.record(stream.id())?;
    stream.wait()?;
    refused_handle(ground.driver.event_elapsed_us(timed.id(), plain.id()))?;
    refused_handle(ground.driver.event_elapsed_us(plain.id(), timed.id()))?;
    Ok(())
}

fn elapsed_time_needs_events_that_were_recorded(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let (recorded, never) =
        (ground.event_with(ground.device, TIMED)?, ground.event_with(ground.device, TIMED)?);
    recorded.record(stream.id())?;
    stream.wait()?;
    refused_handle(ground.driver.event_elapsed_us(recorded.id(), never.id()))?;
    Ok(())
}

fn another_thread_can_wait_for_it(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    kernels.fill_late(memory.span(), word_of(8), stream.id())?;
    let event = ground.event_at(stream.id())?;
    std::thread::scope(|scope| {
        joined(scope.spawn(|| -> Check {
            event.wait()?;
            let reader = ground.stream()?;
            ground.holds(memory.span(), 8, reader.id())
        }))
    })
}

super::list![events:
    one_that_was_never_recorded_is_complete,
    it_is_complete_when_the_work_before_it_is,
    work_after_it_is_not_waited_for,
    a_wait_orders_one_stream_behind_another,
    a_wait_does_not_block_the_host,
    work_queued_before_a_wait_is_not_held_back,
    recording_again_moves_it,
    a_queued_wait_keeps_the_point_it_was_queued_for,
    a_wait_after_recording_again_uses_the_new_point,
    a_destroyed_one_still_holds_back_what_it_held,
    a_destroyed_one_is_refused_everywhere,
    one_of_a_destroyed_stream_still_completes,
    elapsed_time_covers_the_work_between,
    elapsed_time_of_running_work_is_not_ready,
    elapsed_time_needs_events_that_keep_time,
    elapsed_time_needs_events_that_were_recorded,
    another_thread_can_wait_for_it,
];
