//! What is legal during capture in every mode and leaves it valid. The paged backing lives by this list.

use headwater_driver::CaptureStatus;

use super::EVERY;
use crate::case::Ground;
use crate::check::{Check, all_bytes, ensure, same};
use crate::fixtures::word_of;
use crate::kernels::PTX;

const BYTES: u64 = 1 << 20;

fn virtual_memory_is_legal(ground: &Ground) -> Check {
    let bytes = ground.granularity()?;
    for mode in EVERY {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        let range = ground.reservation(2 * bytes)?;
        capture.is_valid()?;
        let handle = ground.handle(bytes)?;
        capture.is_valid()?;
        let mapping = ground.map_only(range.at(bytes), &handle)?;
        capture.is_valid()?;
        ground.driver.access_set(mapping.ptr(), bytes, &[ground.device])?;
        capture.is_valid()?;
        mapping.unmap()?;
        capture.is_valid()?;
        handle.release()?;
        capture.is_valid()?;
        drop(range);
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

fn memory_mapped_during_a_capture_serves_its_graph(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let bytes = ground.granularity()?;
    for mode in EVERY {
        let range = ground.reservation(bytes)?;
        let recorder = ground.stream()?;
        let capture = ground.capture(recorder.id(), mode)?;
        let handle = ground.handle(bytes)?;
        let mapping = ground.map(range.ptr(), &handle)?;
        kernels.fill(mapping.span(), word_of(0x39), recorder.id())?;
        let exec = capture.end()?.instantiate()?;
        let stream = ground.stream()?;
        exec.launch(stream.id())?;
        ground.holds(mapping.span(), 0x39, stream.id())?;
    }
    Ok(())
}

fn making_events_and_streams_is_legal(ground: &Ground) -> Check {
    for mode in EVERY {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        let event = ground.event()?;
        capture.is_valid()?;
        let other = ground.stream()?;
        capture.is_valid()?;
        // Both are waited for and given back only when the capture has ended.
        event.record(other.id())?;
        capture.end()?;
        event.wait()?;
    }
    Ok(())
}

fn destroying_events_and_other_streams_is_legal(ground: &Ground) -> Check {
    for mode in EVERY {
        let (stream, other) = (ground.stream()?, ground.stream()?);
        let (inside, outside) = (ground.event()?, ground.event_at(other.id())?);
        let capture = ground.capture(stream.id(), mode)?;
        inside.record(stream.id())?;
        inside.destroy()?;
        outside.destroy()?;
        other.destroy()?;
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

fn recording_an_event_of_the_capture_outside_takes_it_out(ground: &Ground) -> Check {
    for mode in EVERY {
        let (stream, other) = (ground.stream()?, ground.stream()?);
        let event = ground.event()?;
        let capture = ground.capture(stream.id(), mode)?;
        event.record(stream.id())?;
        event.record(other.id())?;
        event.holds_back(other.id())?;
        same("the other stream", CaptureStatus::None, ground.driver.capture_status(other.id())?)?;
        capture.is_valid()?;
        capture.end()?;
        event.wait()?;
    }
    Ok(())
}

fn loading_a_module_is_legal(ground: &Ground) -> Check {
    for mode in EVERY {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        let module = ground.driver.module_load(ground.device, PTX)?;
        let kernel = ground.driver.kernel_get(module, "hw_fill");
        let valid = capture.is_valid();
        let graph = capture.end();
        // Unloading is not legal, so it waits for the end.
        ground.driver.module_unload(module)?;
        kernel?;
        valid?;
        graph?;
    }
    Ok(())
}

fn pageable_copies_on_another_stream_are_legal(ground: &Ground) -> Check {
    let memory = ground.plain(4096)?;
    for (mode, value) in EVERY.into_iter().zip(1..) {
        let (stream, other) = (ground.stream()?, ground.stream()?);
        let capture = ground.capture(stream.id(), mode)?;
        let (content, mut back) = (vec![value; 4096], vec![0; 4096]);
        // SAFETY: both host buffers live past the copies: the second call returns when all of it has finished.
        unsafe {
            ground.driver.copy_to_device(memory.ptr(), content.as_ptr(), 4096, other.id())?;
            ground.driver.copy_to_host(back.as_mut_ptr(), memory.ptr(), 4096, other.id())?;
        }
        capture.is_valid()?;
        capture.end()?;
        all_bytes("the copy back", value, &back)?;
    }
    Ok(())
}

fn recording_an_event_on_another_stream_is_legal(ground: &Ground) -> Check {
    for mode in EVERY {
        let (stream, other) = (ground.stream()?, ground.stream()?);
        let event = ground.event()?;
        let capture = ground.capture(stream.id(), mode)?;
        event.record(other.id())?;
        capture.is_valid()?;
        capture.end()?;
        event.wait()?;
        ensure(event.is_complete()?, "the event stands outside of the capture")?;
    }
    Ok(())
}

fn asking_for_memory_and_status_is_legal(ground: &Ground) -> Check {
    for mode in EVERY {
        let (stream, other) = (ground.stream()?, ground.stream()?);
        let capture = ground.capture(stream.id(), mode)?;
        let memory = ground.driver.memory_info(ground.device)?;
        ensure(memory.free_bytes <= memory.total_bytes, "the answer makes sense")?;
        ground.driver.device_properties(ground.device)?;
        same("the other stream", CaptureStatus::None, ground.driver.capture_status(other.id())?)?;
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

fn work_on_another_stream_runs_at_once(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    for (mode, value) in EVERY.into_iter().zip(1..) {
        let (stream, other) = (ground.stream()?, ground.stream()?);
        let capture = ground.capture(stream.id(), mode)?;
        kernels.fill(memory.span(), word_of(value), other.id())?;
        ground.fill(memory.span().part(0, BYTES / 2)?, 0x80, other.id())?;
        capture.is_valid()?;
        capture.end()?;
        ground.holds(memory.span().part(0, BYTES / 2)?, 0x80, other.id())?;
        ground.holds(memory.span().part(BYTES / 2, BYTES / 2)?, value, other.id())?;
    }
    Ok(())
}

fn a_wait_between_other_streams_is_legal(ground: &Ground) -> Check {
    for mode in EVERY {
        let (stream, first, second) = (ground.stream()?, ground.stream()?, ground.stream()?);
        let event = ground.event()?;
        let capture = ground.capture(stream.id(), mode)?;
        event.record(first.id())?;
        event.holds_back(second.id())?;
        same("the waiting stream", CaptureStatus::None, ground.driver.capture_status(second.id())?)?;
        capture.is_valid()?;
        capture.end()?;
    }
    Ok(())
}

super::list![capture:
    virtual_memory_is_legal,
    memory_mapped_during_a_capture_serves_its_graph,
    making_events_and_streams_is_legal,
    destroying_events_and_other_streams_is_legal,
    recording_an_event_on_another_stream_is_legal,
    recording_an_event_of_the_capture_outside_takes_it_out,
    loading_a_module_is_legal,
    pageable_copies_on_another_stream_are_legal,
    asking_for_memory_and_status_is_legal,
    work_on_another_stream_runs_at_once,
    a_wait_between_other_streams_is_legal,
];
