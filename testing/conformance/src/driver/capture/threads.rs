//! Captures and threads: whose calls are refused, in which of the modes, and who may end what.

use headwater_driver::{CaptureMode, CaptureStatus, DriverError, ErrorClass};

use super::{EVERY, STRICT};
use crate::case::Ground;
use crate::check::{Check, joined, refused_as, refused_in_capture, same};

const BYTES: u64 = 1 << 20;

/// Runs `act` in another thread, whose capture mode is CUDA's first one: `Global`.
#[track_caller]
fn elsewhere<T: Send>(act: impl FnOnce() -> Check<T> + Send) -> Check<T> {
    std::thread::scope(|scope| joined(scope.spawn(act)))
}

/// A potentially unsafe call that leaves nothing behind.
fn unsafe_call(ground: &Ground) -> Result<(), DriverError> {
    let ptr = ground.driver.mem_alloc(ground.device, BYTES)?;
    ground.driver.mem_free(ground.device, ptr)
}

fn a_threads_mode_is_exchanged_for_the_former_one(ground: &Ground) -> Check {
    elsewhere(|| {
        let mut former = CaptureMode::Global;
        for mode in EVERY {
            same("the former mode", former, ground.driver.capture_mode_exchange(mode)?)?;
            former = mode;
        }
        same("the last mode", former, ground.driver.capture_mode_exchange(CaptureMode::Global)?)
    })
}

fn a_threads_mode_is_its_own(ground: &Ground) -> Check {
    let _relaxed = ground.thread_mode(CaptureMode::Relaxed)?;
    let theirs = elsewhere(|| Ok(ground.thread_mode(CaptureMode::ThreadLocal)?.former()))?;
    same("another thread's mode", CaptureMode::Global, theirs)?;
    same("our own mode", CaptureMode::Relaxed, ground.thread_mode(CaptureMode::Relaxed)?.former())
}

fn a_global_capture_is_lost_to_another_threads_call(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    elsewhere(|| refused_in_capture(unsafe_call(ground)))?;
    capture.was_lost()
}

fn a_thread_local_capture_does_not_concern_another_thread(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::ThreadLocal)?;
    elsewhere(|| Ok(unsafe_call(ground)?))?;
    capture.is_valid()?;
    capture.end()?;
    Ok(())
}

fn another_thread_that_cares_for_itself_may_call_what_it_likes(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    for mode in [CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let capture = ground.capture(stream.id(), CaptureMode::Global)?;
        elsewhere(|| {
            let _own = ground.thread_mode(mode)?;
            Ok(unsafe_call(ground)?)
        })?;
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

fn a_relaxed_thread_may_call_what_it_likes_in_its_own_capture(ground: &Ground) -> Check {
    for mode in STRICT {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        {
            let _relaxed = ground.thread_mode(CaptureMode::Relaxed)?;
            unsafe_call(ground)?;
        }
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

fn a_thread_local_thread_loses_its_own_captures(ground: &Ground) -> Check {
    for mode in STRICT {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        let own = ground.thread_mode(CaptureMode::ThreadLocal)?;
        refused_in_capture(unsafe_call(ground))?;
        drop(own);
        capture.was_lost()?;
    }
    Ok(())
}

fn another_thread_that_ends_a_strict_capture_loses_it(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    for mode in STRICT {
        let (stream, joined_stream) = (ground.stream()?, ground.stream()?);
        let fork = ground.event()?;
        let capture = ground.capture(stream.id(), mode)?;
        fork.record(stream.id())?;
        fork.holds_back(joined_stream.id())?;
        ground.fill(memory.span(), 1, joined_stream.id())?;
        elsewhere(|| refused_in_capture(ground.driver.capture_end(stream.id())))?;
        capture.was_ended();
        // It is over for everybody: no stream is captured, and nothing is forbidden any more.
        for stream in [&stream, &joined_stream] {
            same("afterwards", CaptureStatus::None, ground.driver.capture_status(stream.id())?)?;
        }
        unsafe_call(ground)?;
        let allowed = [ErrorClass::InvalidValue, ErrorClass::IllegalInCapture];
        refused_as(ground.driver.capture_end(stream.id()), &allowed)?;
        ground.capture(stream.id(), mode)?.end()?;
    }
    Ok(())
}

fn another_thread_can_end_a_relaxed_capture(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    let graph = elsewhere(|| Ok(ground.driver.capture_end(stream.id())?))?;
    capture.was_ended();
    Ok(ground.driver.graph_destroy(graph)?)
}

fn two_threads_capture_at_once(ground: &Ground) -> Check {
    let memory = [ground.plain(BYTES)?, ground.plain(BYTES)?];
    std::thread::scope(|scope| {
        let threads = memory.each_ref().map(|memory| {
            scope.spawn(move || -> Check {
                let stream = ground.stream()?;
                for value in 1..=20 {
                    let capture = ground.capture(stream.id(), CaptureMode::ThreadLocal)?;
                    ground.fill(memory.span(), value, stream.id())?;
                    let exec = capture.end()?.instantiate()?;
                    exec.launch(stream.id())?;
                    ground.holds(memory.span(), value, stream.id())?;
                }
                Ok(())
            })
        });
        threads.into_iter().try_for_each(joined)
    })
}

super::list![capture:
    a_threads_mode_is_exchanged_for_the_former_one,
    a_threads_mode_is_its_own,
    a_global_capture_is_lost_to_another_threads_call,
    a_thread_local_capture_does_not_concern_another_thread,
    another_thread_that_cares_for_itself_may_call_what_it_likes,
    a_relaxed_thread_may_call_what_it_likes_in_its_own_capture,
    a_thread_local_thread_loses_its_own_captures,
    another_thread_that_ends_a_strict_capture_loses_it,
    another_thread_can_end_a_relaxed_capture,
    two_threads_capture_at_once,
];
