//! Calls that are illegal while the same thread captures: refused, and the capture is lost.
//!
//! Most are legal in relaxed mode. What concerns the captured stream itself, or the legacy stream beside a captured
//! blocking one, is illegal in every mode. All of it was measured on an H200 with driver 580.

use headwater_driver::{CaptureMode, DriverError, Stream};

use super::{EVERY, STRICT};
use crate::case::Ground;
use crate::check::{Check, all_bytes, ensure, refused_in_capture};
use crate::kernels::PTX;

const BYTES: u64 = 1 << 20;

/// In each strict mode `call` is refused and the capture is lost. A stream captured later is not concerned.
#[track_caller]
fn loses_the_capture<T: std::fmt::Debug>(
    ground: &Ground,
    mut call: impl FnMut() -> Result<T, DriverError>,
) -> Check {
    for mode in STRICT {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        refused_in_capture(call())?;
        capture.was_lost()?;
        ground.capture(stream.id(), mode)?.end()?;
    }
    Ok(())
}

fn allocating_loses_it(ground: &Ground) -> Check {
    loses_the_capture(ground, || ground.driver.mem_alloc(ground.device, BYTES))
}

fn freeing_loses_it_and_frees_nothing(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    loses_the_capture(ground, || ground.driver.mem_free(ground.device, memory.ptr()))?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 0x2b, stream.id())?;
    ground.holds(memory.span(), 0x2b, stream.id())
}

fn allocating_pinned_memory_loses_it(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    loses_the_capture(ground, || ground.driver.host_alloc(BYTES))
}

fn freeing_pinned_memory_loses_it_and_frees_nothing(ground: &Ground) -> Check {
    let mut pinned = ground.pinned(BYTES as usize, 0x51)?;
    loses_the_capture(ground, || pinned.free())?;
    all_bytes("the pinned memory", 0x51, &pinned.read())
}

fn registering_host_memory_loses_it(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    let mut pages = ground.pages(4)?;
    loses_the_capture(ground, || pages.register())
}

fn unregistering_host_memory_loses_it(ground: &Ground) -> Check {
    ground.needs_pinning()?;
    let mut pages = ground.pages(4)?;
    pages.register()?;
    loses_the_capture(ground, || pages.unregister())?;
    Ok(pages.unregister()?)
}

fn querying_an_event_outside_loses_it(ground: &Ground) -> Check {
    let other = ground.stream()?;
    let event = ground.event_at(other.id())?;
    loses_the_capture(ground, || ground.driver.event_query(event.id()))
}

fn waiting_for_an_event_outside_loses_it(ground: &Ground) -> Check {
    let other = ground.stream()?;
    let event = ground.event_at(other.id())?;
    loses_the_capture(ground, || ground.driver.event_synchronize(event.id()))
}

fn synchronising_another_stream_loses_it(ground: &Ground) -> Check {
    let other = ground.stream()?;
    loses_the_capture(ground, || ground.driver.stream_synchronize(other.id()))
}

fn querying_another_stream_loses_it(ground: &Ground) -> Check {
    let other = ground.stream()?;
    loses_the_capture(ground, || ground.driver.stream_query(other.id()))
}

fn unloading_a_module_loses_it_and_unloads_nothing(ground: &Ground) -> Check {
    let module = ground.driver.module_load(ground.device, PTX)?;
    let lost = loses_the_capture(ground, || ground.driver.module_unload(module));
    let kernel = ground.driver.kernel_get(module, "hw_fill");
    ground.driver.module_unload(module)?;
    kernel?;
    lost
}

fn instantiating_a_graph_loses_it(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let graph = ground.capture(stream.id(), CaptureMode::Relaxed)?.end()?;
    loses_the_capture(ground, || ground.driver.graph_instantiate(ground.device, graph.id()))
}

fn asking_the_captured_stream_loses_it_in_every_mode(ground: &Ground) -> Check {
    for mode in EVERY {
        let stream = ground.stream()?;
        let capture = ground.capture(stream.id(), mode)?;
        refused_in_capture(ground.driver.stream_query(stream.id()))?;
        capture.was_lost()?;
        let capture = ground.capture(stream.id(), mode)?;
        refused_in_capture(ground.driver.stream_synchronize(stream.id()))?;
        capture.was_lost()?;
    }
    Ok(())
}

fn launching_a_graph_into_it_loses_it(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    ground.fill(memory.span(), 1, stream.id())?;
    let exec = capture.end()?.instantiate()?;
    for mode in EVERY {
        let capture = ground.capture(stream.id(), mode)?;
        // SAFETY: the graph's memory is held; the launch is refused.
        refused_in_capture(unsafe { ground.driver.graph_launch(exec.id(), stream.id()) })?;
        capture.was_lost()?;
    }
    Ok(())
}

/// The legacy stream waits for every blocking stream, and a captured one cannot be waited for: using it is illegal.
fn the_legacy_stream_loses_a_blocking_streams_capture(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let legacy = Stream::legacy_default(ground.device);
    let memory = ground.plain(BYTES)?;
    let stream = ground.blocking_stream()?;
    let event = ground.event()?;
    let calls: [&dyn Fn() -> Result<(), DriverError>; 6] = [
        &|| driver.stream_query(legacy).map(|_| ()),
        &|| driver.stream_synchronize(legacy),
        // SAFETY: the memory is held; the fill is refused.
        &|| unsafe { driver.fill_bytes(memory.ptr(), 1, BYTES, legacy) },
        &|| driver.event_record(event.id(), legacy),
        &|| driver.stream_wait_event(legacy, event.id()),
        &|| driver.capture_begin(legacy, CaptureMode::Relaxed),
    ];
    for mode in EVERY {
        for call in calls {
            let capture = ground.capture(stream.id(), mode)?;
            refused_in_capture(call())?;
            capture.was_lost()?;
        }
    }
    Ok(())
}

fn work_given_to_a_lost_capture_is_refused(ground: &Ground) -> Check {
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 1, stream.id())?;
    stream.wait()?;
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    refused_in_capture(ground.driver.mem_alloc(ground.device, BYTES))?;
    // SAFETY: the memory is held; the fill is refused.
    let filled = unsafe { ground.driver.fill_bytes(memory.ptr(), 2, BYTES, stream.id()) };
    ensure(filled.is_err(), "a lost capture takes no more work")?;
    capture.was_lost()?;
    ground.holds(memory.span(), 1, stream.id())
}

fn all_of_a_threads_captures_are_lost(ground: &Ground) -> Check {
    let streams = [ground.stream()?, ground.stream()?];
    let captures = [
        ground.capture(streams[0].id(), CaptureMode::Global)?,
        ground.capture(streams[1].id(), CaptureMode::ThreadLocal)?,
    ];
    refused_in_capture(ground.driver.mem_alloc(ground.device, BYTES))?;
    for capture in captures {
        capture.was_lost()?;
    }
    Ok(())
}

fn memory_calls_are_legal_in_relaxed_mode(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    ground.plain(BYTES)?.free()?;
    capture.is_valid()?;
    if ground.needs_pinning().is_ok() {
        ground.pinned(BYTES as usize, 1)?.free()?;
        let mut pages = ground.pages(4)?;
        pages.register()?;
        pages.unregister()?;
        capture.is_valid()?;
    }
    capture.end()?;
    Ok(())
}

fn waits_are_legal_in_relaxed_mode(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let event = ground.event_at(other.id())?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    event.wait()?;
    ensure(event.is_complete()?, "the event is complete")?;
    other.wait()?;
    ensure(ground.driver.stream_query(other.id())?, "the other stream has finished")?;
    capture.is_valid()?;
    capture.end()?;
    Ok(())
}

fn modules_and_graphs_are_legal_in_relaxed_mode(ground: &Ground) -> Check {
    let (stream, other) = (ground.stream()?, ground.stream()?);
    let graph = ground.capture(other.id(), CaptureMode::Relaxed)?.end()?;
    let capture = ground.capture(stream.id(), CaptureMode::Relaxed)?;
    drop(ground.kernels()?);
    capture.is_valid()?;
    let exec = graph.instantiate()?;
    exec.launch(other.id())?;
    exec.destroy()?;
    capture.is_valid()?;
    capture.end()?;
    Ok(())
}

super::list![capture:
    allocating_loses_it,
    freeing_loses_it_and_frees_nothing,
    allocating_pinned_memory_loses_it,
    freeing_pinned_memory_loses_it_and_frees_nothing,
    registering_host_memory_loses_it,
    unregistering_host_memory_loses_it,
    querying_an_event_outside_loses_it,
    waiting_for_an_event_outside_loses_it,
    synchronising_another_stream_loses_it,
    querying_another_stream_loses_it,
    unloading_a_module_loses_it_and_unloads_nothing,
    instantiating_a_graph_loses_it,
    asking_the_captured_stream_loses_it_in_every_mode,
    launching_a_graph_into_it_loses_it,
    the_legacy_stream_loses_a_blocking_streams_capture,
    work_given_to_a_lost_capture_is_refused,
    all_of_a_threads_captures_are_lost,
    memory_calls_are_legal_in_relaxed_mode,
    waits_are_legal_in_relaxed_mode,
    modules_and_graphs_are_legal_in_relaxed_mode,
];
