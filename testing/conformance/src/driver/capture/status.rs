//! Beginning, being in, and ending a capture; who takes part in it.

use headwater_driver::{CaptureMode, CaptureStatus, ErrorClass, Stream};

use super::EVERY;
use crate::case::Ground;
use crate::check::{Check, ensure, refused_as, refused_in_capture, refused_value, same};

const BYTES: u64 = 1 << 20;

fn a_stream_is_captured_between_begin_and_end(ground: &Ground) -> Check {
    for mode in EVERY {
        let stream = ground.stream()?;
        same("before", CaptureStatus::None, ground.driver.capture_status(stream.id())?)?;
        let capture = ground.capture(stream.id(), mode)?;
        let id = capture.is_valid()?;
        same("the id a moment later", id, capture.is_valid()?)?;
        capture.end()?;
        same("after", CaptureStatus::None, ground.driver.capture_status(stream.id())?)?;
    }
    Ok(())
}

fn other_streams_are_not_captured(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    same("the other stream", CaptureStatus::None, ground.driver.capture_status(other.id())?)?;
    let default = Stream::per_thread_default(ground.device);
    same("the thread's stream", CaptureStatus::None, ground.driver.capture_status(default)?)?;
    capture.end()?;
    Ok(())
}

fn every_capture_has_an_id_of_its_own(ground: &Ground) -> Check {
    let (first, second) = (ground.stream()?, ground.stream()?);
    let captures = [
        ground.capture(first.id(), CaptureMode::Relaxed)?,
        ground.capture(second.id(), CaptureMode::Relaxed)?,
    ];
    let ids = [captures[0].is_valid()?, captures[1].is_valid()?];
    ensure(ids[0] != ids[1], "two captures at once have two ids")?;
    for capture in captures {
        capture.end()?;
    }
    let again = ground.capture(first.id(), CaptureMode::Relaxed)?;
    ensure(!ids.contains(&again.is_valid()?), "a later capture of the same stream has a new id")?;
    again.end()?;
    Ok(())
}

fn a_captured_stream_is_not_captured_again(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let fork = ground.event()?;
    for mode in EVERY {
        let capture = ground.capture(stream.id(), mode)?;
        refused_in_capture(ground.driver.capture_begin(stream.id(), mode))?;
        fork.record(stream.id())?;
        fork.holds_back(other.id())?;
        refused_in_capture(ground.driver.capture_begin(other.id(), mode))?;
        // The attempts do no harm.
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

fn the_legacy_stream_cannot_be_captured(ground: &Ground) -> Check {
    let legacy = Stream::legacy_default(ground.device);
    refused_in_capture(ground.driver.capture_begin(legacy, CaptureMode::Relaxed))?;
    same("its status", CaptureStatus::None, ground.driver.capture_status(legacy)?)
}

fn the_per_thread_stream_can_be_captured(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let stream = Stream::per_thread_default(ground.device);
    let capture = ground.capture(stream, CaptureMode::ThreadLocal)?;
    ground.fill(memory.span(), 6, stream)?;
    let exec = capture.end()?.instantiate()?;
    exec.launch(stream)?;
    ground.holds(memory.span(), 6, stream)
}

fn what_is_not_captured_cannot_be_ended(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let allowed = [ErrorClass::InvalidValue, ErrorClass::IllegalInCapture];
    refused_as(ground.driver.capture_end(stream.id()), &allowed)?;
    // The stream is as good as before.
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    capture.end()?;
    Ok(())
}

fn a_blocking_stream_in_capture_makes_the_legacy_stream_unanswerable(ground: &Ground) -> Check {
    let legacy = Stream::legacy_default(ground.device);
    let stream = ground.blocking_stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    refused_in_capture(ground.driver.capture_status(legacy))?;
    // Asking does not harm the capture; CUDA's reference says so.
    capture.is_valid()?;
    capture.end()?;
    same("afterwards", CaptureStatus::None, ground.driver.capture_status(legacy)?)
}

fn a_non_blocking_stream_in_capture_does_not_concern_the_legacy_stream(ground: &Ground) -> Check {
    let legacy = Stream::legacy_default(ground.device);
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    same("the legacy stream", CaptureStatus::None, ground.driver.capture_status(legacy)?)?;
    capture.end()?;
    Ok(())
}

fn waiting_for_a_captured_event_joins_the_capture(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let (fork, join) = (ground.event()?, ground.event()?);
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    fork.record(stream.id())?;
    fork.holds_back(other.id())?;
    let id = capture.is_valid()?;
    same("the joined stream", CaptureStatus::Active(id), ground.driver.capture_status(other.id())?)?;
    join.record(other.id())?;
    join.holds_back(stream.id())?;
    capture.end()?;
    same("the joined stream afterwards", CaptureStatus::None, ground.driver.capture_status(other.id())?)
}

fn a_joined_stream_must_be_joined_back(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let fork = ground.event()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    fork.record(stream.id())?;
    fork.holds_back(other.id())?;
    ground.fill(memory.span(), 1, other.id())?;
    refused_in_capture(capture.try_end())?;
    for stream in [&stream, &other] {
        same("afterwards", CaptureStatus::None, ground.driver.capture_status(stream.id())?)?;
    }
    Ok(())
}

fn a_joined_stream_without_work_need_not_be_joined_back(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let fork = ground.event()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    fork.record(stream.id())?;
    fork.holds_back(other.id())?;
    capture.end()?;
    same("the joined stream", CaptureStatus::None, ground.driver.capture_status(other.id())?)
}

fn a_joined_stream_that_ends_the_capture_loses_it(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let fork = ground.event()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    fork.record(stream.id())?;
    fork.holds_back(other.id())?;
    refused_in_capture(ground.driver.capture_end(other.id()))?;
    same("the joined stream", CaptureStatus::Invalidated, ground.driver.capture_status(other.id())?)?;
    capture.was_lost()?;
    same("the joined stream afterwards", CaptureStatus::None, ground.driver.capture_status(other.id())?)
}

fn joining_two_captures_loses_both(ground: &Ground) -> Check {
    let (first, second) = (ground.stream()?, ground.stream()?);
    let event = ground.event()?;
    let captures = [
        ground.capture(first.id(), CaptureMode::Relaxed)?,
        ground.capture(second.id(), CaptureMode::Relaxed)?,
    ];
    event.record(first.id())?;
    refused_in_capture(ground.driver.stream_wait_event(second.id(), event.id()))?;
    captures.into_iter().try_for_each(|capture| capture.was_lost())
}

fn waiting_for_work_outside_loses_it(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let event = ground.event_at(other.id())?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    refused_in_capture(ground.driver.stream_wait_event(stream.id(), event.id()))?;
    capture.was_lost()
}

fn asking_for_an_event_of_the_capture_loses_it(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let event = ground.event()?;
    for mode in EVERY {
        let capture = ground.capture(stream.id(), mode)?;
        event.record(stream.id())?;
        refused_in_capture(ground.driver.event_query(event.id()))?;
        capture.was_lost()?;
        let capture = ground.capture(stream.id(), mode)?;
        event.record(stream.id())?;
        refused_in_capture(ground.driver.event_synchronize(event.id()))?;
        capture.was_lost()?;
    }
    Ok(())
}

fn an_event_of_a_capture_that_is_over_has_no_point(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let event = ground.event()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    event.record(stream.id())?;
    capture.end()?;
    refused_value(ground.driver.event_query(event.id()))?;
    refused_value(ground.driver.event_synchronize(event.id()))?;
    refused_value(ground.driver.stream_wait_event(other.id(), event.id()))?;
    // Recorded anew, it is an event like any other.
    event.record(other.id())?;
    event.wait()?;
    ensure(event.is_complete()?, "the event is complete after it was recorded outside")
}

super::list![capture:
    a_stream_is_captured_between_begin_and_end,
    other_streams_are_not_captured,
    every_capture_has_an_id_of_its_own,
    a_captured_stream_is_not_captured_again,
    the_legacy_stream_cannot_be_captured,
    the_per_thread_stream_can_be_captured,
    what_is_not_captured_cannot_be_ended,
    a_blocking_stream_in_capture_makes_the_legacy_stream_unanswerable,
    a_non_blocking_stream_in_capture_does_not_concern_the_legacy_stream,
    waiting_for_a_captured_event_joins_the_capture,
    a_joined_stream_must_be_joined_back,
    a_joined_stream_without_work_need_not_be_joined_back,
    a_joined_stream_that_ends_the_capture_loses_it,
    joining_two_captures_loses_both,
    waiting_for_work_outside_loses_it,
    asking_for_an_event_of_the_capture_loses_it,
    an_event_of_a_capture_that_is_over_has_no_point,
];
