//! Graphs: what was captured runs when launched, as often as launched, on whatever is then behind its addresses.

use headwater_driver::{CaptureMode, Stream};

use crate::case::Ground;
use crate::check::{Check, all_bytes, ensure, refused_handle};
use crate::fixtures::{GraphGuard, KernelsGuard, Span, StreamGuard, word_of};

const BYTES: u64 = 1 << 20;

/// A graph of one kernel that adds `value` to every byte of `memory`.
#[track_caller]
fn adding_graph<'g>(
    ground: &'g Ground,
    kernels: &KernelsGuard<'_>,
    memory: Span<'_>,
    value: u8,
    stream: &StreamGuard<'_>,
) -> Check<GraphGuard<'g>> {
    let capture = ground.capture(stream.id(), CaptureMode::ThreadLocal)?;
    kernels.add(memory, word_of(value), stream.id())?;
    capture.end()
}

fn captured_work_does_not_run_until_launched(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    ground.fill(memory.span(), 1, stream.id())?;
    stream.wait()?;
    let graph = adding_graph(ground, &kernels, memory.span(), 1, &stream)?;
    ground.holds(memory.span(), 1, stream.id())?;
    let exec = graph.instantiate()?;
    ground.holds(memory.span(), 1, stream.id())?;
    exec.launch(stream.id())?;
    ground.holds(memory.span(), 2, stream.id())
}

fn a_graph_runs_as_often_as_it_is_launched(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let exec = adding_graph(ground, &kernels, memory.span(), 3, &stream)?.instantiate()?;
    ground.fill(memory.span(), 0, stream.id())?;
    for _ in 0..5 {
        exec.launch(stream.id())?;
    }
    ground.holds(memory.span(), 15, stream.id())
}

fn a_graph_keeps_the_order_of_its_stream(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (first, second) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    kernels.fill_late(first.span(), word_of(1), stream.id())?;
    kernels.add(first.span(), word_of(1), stream.id())?;
    ground.copy(second.span(), first.span(), stream.id())?;
    ground.fill(first.span(), 9, stream.id())?;
    kernels.add(second.span(), word_of(5), stream.id())?;
    let exec = capture.end()?.instantiate()?;
    exec.launch(stream.id())?;
    ground.holds(second.span(), 7, stream.id())?;
    ground.holds(first.span(), 9, stream.id())
}

fn a_graph_is_one_piece_of_work_of_its_stream(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let exec = adding_graph(ground, &kernels, memory.span(), 1, &stream)?.instantiate()?;
    kernels.fill_late(memory.span(), word_of(10), stream.id())?;
    exec.launch(stream.id())?;
    stream.is_busy()?;
    kernels.add(memory.span(), word_of(20), stream.id())?;
    ground.holds(memory.span(), 31, stream.id())
}

fn a_graph_can_be_launched_in_any_stream(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let (recorder, stream) = (ground.stream()?, ground.stream()?);
    let exec = adding_graph(ground, &kernels, memory.span(), 1, &recorder)?.instantiate()?;
    recorder.destroy()?;
    let legacy = Stream::legacy_default(ground.device);
    ground.fill(memory.span(), 0, stream.id())?;
    exec.launch(stream.id())?;
    stream.wait()?;
    exec.launch(legacy)?;
    ground.holds(memory.span(), 2, legacy)
}

fn streams_forked_and_joined_are_one_graph(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let (left, right) = (ground.plain(BYTES)?, ground.plain(BYTES)?);
    let (stream, branch) = (ground.stream()?, ground.stream()?);
    let (fork, join) = (ground.event()?, ground.event()?);
    let capture = ground.capture(stream.id(), CaptureMode::Global)?;
    ground.fill(left.span(), 1, stream.id())?;
    fork.record(stream.id())?;
    fork.holds_back(branch.id())?;
    kernels.fill_late(right.span(), word_of(40), branch.id())?;
    join.record(branch.id())?;
    kernels.add(left.span(), word_of(1), stream.id())?;
    join.holds_back(stream.id())?;
    ground.copy(left.span().part(0, BYTES / 2)?, right.span().part(0, BYTES / 2)?, stream.id())?;
    let exec = capture.end()?.instantiate()?;
    for _ in 0..2 {
        exec.launch(stream.id())?;
        ground.holds(left.span().part(0, BYTES / 2)?, 40, stream.id())?;
        ground.holds(left.span().part(BYTES / 2, BYTES / 2)?, 2, stream.id())?;
    }
    // The events were used up by the capture and the branch is an ordinary stream again.
    ground.fill(right.span(), 0, branch.id())?;
    ground.holds(right.span(), 0, branch.id())
}

fn a_captured_copy_reads_its_source_at_launch(ground: &Ground) -> Check {
    let mut pinned = ground.pinned(BYTES as usize, 1)?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::ThreadLocal)?;
    // SAFETY: both are held until the graph has run for the last time; the host writes only between launches.
    unsafe { ground.driver.copy_to_device(memory.ptr(), pinned.ptr().as_ptr(), BYTES, stream.id()) }?;
    let exec = capture.end()?.instantiate()?;
    for value in [2, 3] {
        pinned.set(value);
        exec.launch(stream.id())?;
        ground.holds(memory.span(), value, stream.id())?;
    }
    Ok(())
}

fn a_captured_copy_to_the_host_runs_at_launch(ground: &Ground) -> Check {
    let pinned = ground.pinned(BYTES as usize, 0)?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let capture = ground.capture(stream.id(), CaptureMode::ThreadLocal)?;
    ground.fill(memory.span(), 0x64, stream.id())?;
    // SAFETY: both are held until the graph has run; the host looks only after the wait.
    unsafe { ground.driver.copy_to_host(pinned.ptr().as_ptr(), memory.ptr(), BYTES, stream.id()) }?;
    let exec = capture.end()?.instantiate()?;
    all_bytes("the pinned memory before the launch", 0, &pinned.read())?;
    exec.launch(stream.id())?;
    stream.wait()?;
    all_bytes("the pinned memory after the launch", 0x64, &pinned.read())
}

fn a_launch_writes_the_pages_that_are_behind_its_addresses_now(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let bytes = ground.granularity()?;
    let range = ground.reservation(2 * bytes)?;
    let (old, new) = (ground.handle(bytes)?, ground.handle(bytes)?);
    let old_pages = ground.map(range.ptr(), &old)?;
    let stream = ground.stream()?;
    let exec = {
        let capture = ground.capture(stream.id(), CaptureMode::Global)?;
        kernels.fill(old_pages.span(), word_of(0x6b), stream.id())?;
        kernels.add(old_pages.span(), word_of(1), stream.id())?;
        capture.end()?.instantiate()?
    };
    exec.launch(stream.id())?;
    ground.fill(old_pages.span(), 0x10, stream.id())?;
    stream.wait()?;
    // The pages behind the graph's addresses are swapped for others; the old ones are looked at elsewhere.
    old_pages.unmap()?;
    let new_pages = ground.map(range.ptr(), &new)?;
    let old_pages = ground.map(range.at(bytes), &old)?;
    exec.launch(stream.id())?;
    ground.holds(new_pages.span(), 0x6c, stream.id())?;
    ground.holds(old_pages.span(), 0x10, stream.id())
}

fn what_was_instantiated_outlives_its_graph(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let graph = adding_graph(ground, &kernels, memory.span(), 1, &stream)?;
    let exec = graph.instantiate()?;
    graph.destroy()?;
    ground.fill(memory.span(), 4, stream.id())?;
    exec.launch(stream.id())?;
    ground.holds(memory.span(), 5, stream.id())
}

fn a_graph_outlives_what_was_instantiated(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let graph = adding_graph(ground, &kernels, memory.span(), 1, &stream)?;
    ground.fill(memory.span(), 0, stream.id())?;
    for _ in 0..3 {
        let exec = graph.instantiate()?;
        exec.launch(stream.id())?;
        stream.wait()?;
    }
    ground.holds(memory.span(), 3, stream.id())
}

fn a_launch_that_runs_finishes_when_its_graph_is_destroyed(ground: &Ground) -> Check {
    let kernels = ground.kernels()?;
    let memory = ground.plain(BYTES)?;
    let stream = ground.stream()?;
    let exec = {
        let capture = ground.capture(stream.id(), CaptureMode::ThreadLocal)?;
        kernels.fill_late(memory.span(), word_of(0x4a), stream.id())?;
        capture.end()?.instantiate()?
    };
    exec.launch(stream.id())?;
    exec.destroy()?;
    ground.holds(memory.span(), 0x4a, stream.id())
}

fn an_empty_capture_is_an_empty_graph(ground: &Ground) -> Check {
    let stream = ground.stream()?;
    let exec = ground.capture(stream.id(), CaptureMode::Global)?.end()?.instantiate()?;
    exec.launch(stream.id())?;
    stream.wait()?;
    ensure(ground.driver.stream_query(stream.id())?, "the stream has finished")
}

fn a_destroyed_graph_is_refused(ground: &Ground) -> Check {
    let driver = &ground.driver;
    let stream = ground.stream()?;
    let graph = ground.capture(stream.id(), CaptureMode::Global)?.end()?;
    let exec = graph.instantiate()?;
    let (stale_graph, stale_exec) = (graph.destroy()?, exec.destroy()?);
    refused_handle(driver.graph_instantiate(ground.device, stale_graph))?;
    refused_handle(driver.graph_destroy(stale_graph))?;
    // SAFETY: the graph had no nodes, and does not exist any more.
    refused_handle(unsafe { driver.graph_launch(stale_exec, stream.id()) })?;
    refused_handle(driver.graph_exec_destroy(stale_exec))?;
    Ok(())
}

super::list![capture:
    captured_work_does_not_run_until_launched,
    a_graph_runs_as_often_as_it_is_launched,
    a_graph_keeps_the_order_of_its_stream,
    a_graph_is_one_piece_of_work_of_its_stream,
    a_graph_can_be_launched_in_any_stream,
    streams_forked_and_joined_are_one_graph,
    a_captured_copy_reads_its_source_at_launch,
    a_captured_copy_to_the_host_runs_at_launch,
    a_launch_writes_the_pages_that_are_behind_its_addresses_now,
    what_was_instantiated_outlives_its_graph,
    a_graph_outlives_what_was_instantiated,
    a_launch_that_runs_finishes_when_its_graph_is_destroyed,
    an_empty_capture_is_an_empty_graph,
    a_destroyed_graph_is_refused,
];
