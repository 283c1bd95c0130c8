//! The order of work: in one stream, and between a blocking stream and the legacy default stream.

use headwater_driver::{Stream, StreamOptions};

use crate::case::Ground;
use crate::check::{Check, ensure, joined};
use crate::fixtures::word_of;

const BYTES: u64 = 1 << 20;

fn a_new_stream_has_finished(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    ensure(ground.driver.stream_query(stream.id())?, "a stream with no work has finished")?;
    stream.wait()
}

fn work_in_one_stream_runs_in_order(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (first, second) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let stream = ground.stream()?;
    kernels.fill_late(first.span(), word_of(1), stream.id())?;
    kernels.add(first.span(), word_of(2), stream.id())?;
    ground.copy(second.span(), first.span(), stream.id())?;
    ground.fill(first.span(), 9, stream.id())?;
    ground.holds(second.span(), 3, stream.id())?;
    ground.holds(first.span(), 9, stream.id())
}

fn query_is_false_while_work_runs(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    ensure(!ground.driver.stream_query(stream.id())?, "the stream has not finished")?;
    stream.wait()?;
    ensure(ground.driver.stream_query(stream.id())?, "the stream has finished after the wait")
}

fn synchronising_waits_for_all_work(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = ground.stream()?;
    kernels.spin(stream.id())?;
    let end = ground.event_at(stream.id())?;
    ensure(!end.is_complete()?, "the work runs")?;
    stream.wait()?;
    ensure(end.is_complete()?, "the work has finished after the wait")
}

fn synchronising_waits_for_no_other_stream(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (busy, idle) = (ground.stream()?, ground.stream()?);
    kernels.spin(busy.id())?;
    idle.wait()?;
    busy.is_busy()
}

fn streams_run_beside_each_other(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let (busy, free) = (ground.stream()?, ground.stream()?);
    kernels.spin(busy.id())?;
    kernels.fill(memory.span(), word_of(5), free.id())?;
    let end = ground.event_at(free.id())?;
    end.wait()?;
    busy.is_busy()?;
    ground.holds(memory.span(), 5, free.id())
}

fn a_destroyed_stream_finishes_its_work(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let reader = ground.stream()?;
    let stream = ground.stream()?;
    kernels.fill_late(memory.span(), word_of(0x6d), stream.id())?;
    let end = ground.event_at(stream.id())?;
    stream.destroy()?;
    ensure(!end.is_complete()?, "destroying does not wait")?;
    end.wait()?;
    ground.holds(memory.span(), 0x6d, reader.id())
}

fn the_default_streams_work(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let streams = [Stream::legacy_default(ground.device), Stream::per_thread_default(ground.device)];
    for (stream, value) in streams.into_iter().zip([0x12, 0x34]) {
        kernels.fill(memory.span(), word_of(value), stream)?;
        ground.holds(memory.span(), value, stream)?;
        ensure(ground.driver.stream_query(stream)?, "the stream has finished")?;
    }
    Ok(())
}

fn the_null_stream_is_the_legacy_default_stream(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    ground.fill(memory.span(), 0x56, Stream::from_raw(ground.device, 0))?;
    ground.holds(memory.span(), 0x56, Stream::legacy_default(ground.device))
}

fn the_legacy_stream_waits_for_blocking_streams(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (written, read) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let legacy = Stream::legacy_default(ground.device);
    let blocking = ground.blocking_stream()?;
    kernels.fill_late(written.span(), word_of(0x21), blocking.id())?;
    ground.copy(read.span(), written.span(), legacy)?;
    ground.holds(read.span(), 0x21, legacy)
}

fn blocking_streams_wait_for_the_legacy_stream(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (written, read) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let legacy = Stream::legacy_default(ground.device);
    let blocking = ground.blocking_stream()?;
    kernels.fill_late(written.span(), word_of(0x43), legacy)?;
    ground.copy(read.span(), written.span(), blocking.id())?;
    ground.holds(read.span(), 0x43, blocking.id())
}

fn the_legacy_stream_and_non_blocking_streams_do_not_wait(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let legacy = Stream::legacy_default(ground.device);
    let free = ground.stream()?;
    kernels.spin(free.id())?;
    let end = ground.event_at(legacy)?;
    end.wait()?;
    free.is_busy()?;
    free.wait()?;
    kernels.spin(legacy)?;
    let end = ground.event_at(free.id())?;
    end.wait()?;
    ensure(!ground.driver.stream_query(legacy)?, "the legacy stream is still busy")?;
    Ok(ground.driver.stream_synchronize(legacy)?)
}

fn blocking_streams_do_not_wait_for_each_other(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (busy, idle) = (ground.blocking_stream()?, ground.blocking_stream()?);
    kernels.spin(busy.id())?;
    let end = ground.event_at(idle.id())?;
    end.wait()?;
    busy.is_busy()
}

fn every_thread_has_its_own_default_stream(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let stream = Stream::per_thread_default(ground.device);
    kernels.spin(stream)?;
    let other_is_idle = std::thread::scope(|scope| {
        joined(scope.spawn(|| -> Check<bool> { Ok(ground.driver.stream_query(stream)?) }))
    })?;
    ensure(other_is_idle, "the other thread's default stream has no work")?;
    ensure(!ground.driver.stream_query(stream)?, "this thread's default stream is busy")?;
    Ok(ground.driver.stream_synchronize(stream)?)
}

fn priorities_are_accepted_and_clamped(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    for (priority, value) in [(-1000, 1), (-1, 2), (0, 3), (1000, 4)] {
        for non_blocking in [false, true] {
            let stream = ground.stream_with(ground.device, StreamOptions { non_blocking, priority })?;
            ground.fill(memory.span(), value, stream.id())?;
            ground.holds(memory.span(), value, stream.id())?;
        }
    }
    Ok(())
}

super::list![streams:
    a_new_stream_has_finished,
    work_in_one_stream_runs_in_order,
    query_is_false_while_work_runs,
    synchronising_waits_for_all_work,
    synchronising_waits_for_no_other_stream,
    streams_run_beside_each_other,
    a_destroyed_stream_finishes_its_work,
    the_default_streams_work,
    the_null_stream_is_the_legacy_default_stream,
    the_legacy_stream_waits_for_blocking_streams,
    blocking_streams_wait_for_the_legacy_stream,
    the_legacy_stream_and_non_blocking_streams_do_not_wait,
    blocking_streams_do_not_wait_for_each_other,
    every_thread_has_its_own_default_stream,
    priorities_are_accepted_and_clamped,
];
