//! Stream capture: memory comes and goes while graphs are made, and no capture is lost for it.

use std::thread;

use headwater::Request;
use headwater_driver::CaptureMode;

use super::accounts::reconciles;
use super::ground::{AllocatorGround, ends, fill, give_back, holds, is_empty};
use crate::check::{Check, joined};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// Sizes that no allocator has ready: each needs the driver.
const SIZES: [u64; 3] = [1000, 3 << 20, 40 << 20];

fn memory_comes_and_goes_in_the_capturing_thread(ground: &AllocatorGround<'_>) -> Check {
    for mode in MODES {
        let allocator = ground.allocator()?;
        let (captured, free) = (ground.stream()?, ground.stream()?);
        let earlier = ground.block(&allocator, 5 << 20, free.id())?;
        let capture = ground.ground.capture(captured.id(), mode)?;
        for bytes in SIZES {
            // For the captured stream, and for another one meanwhile.
            let within = ground.block(&allocator, bytes, captured.id())?;
            capture.is_valid()?;
            let beside = ground.block(&allocator, bytes, free.id())?;
            capture.is_valid()?;
            ends(within)?;
            capture.is_valid()?;
            ends(beside)?;
            capture.is_valid()?;
        }
        ends(earlier)?;
        capture.is_valid()?;
        reconciles(&allocator)?;
        drop(capture.end()?);
        is_empty(&allocator)?;
    }
    Ok(())
}

fn memory_comes_and_goes_in_another_thread(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let (captured, free) = (ground.stream()?, ground.stream()?);
    let capture = ground.ground.capture(captured.id(), CaptureMode::Global)?;
    let churn = || SIZES.iter().try_for_each(|bytes| ends(ground.block(&allocator, *bytes, free.id())?));
    thread::scope(|scope| joined(scope.spawn(churn)))?;
    capture.is_valid()?;
    drop(capture.end()?);
    is_empty(&allocator)
}

fn the_threads_mode_is_as_it_was(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    for mode in MODES {
        let _former = ground.ground.thread_mode(mode)?;
        ends(ground.block(&allocator, 4096, stream.id())?)?;
        allocator.empty_cache()?;
        let now = ground.ground.thread_mode(mode)?;
        crate::check::same("the thread's mode after the calls", mode, now.former())?;
    }
    is_empty(&allocator)
}

fn a_graph_uses_memory_from_its_capture(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let capture = ground.ground.capture(stream.id(), CaptureMode::Global)?;
    let ptr = allocator.allocate(Request::new(1 << 20, stream.id()))?;
    fill(&allocator, ptr, 1 << 20, 0x42, stream.id())?;
    let graph = capture.end()?;
    let exec = graph.instantiate()?;
    for _ in 0..2 {
        fill(&allocator, ptr, 1 << 20, 0, stream.id())?;
        exec.launch(stream.id())?;
        holds(&allocator, ptr, 1 << 20, 0x42, stream.id())?;
    }
    drop((exec, graph));
    give_back(&allocator, ptr)?;
    is_empty(&allocator)
}

fn a_block_used_in_a_capture_can_be_recorded_and_given_back(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let (captured, free) = (ground.stream()?, ground.stream()?);
    let block = ground.block(&allocator, 1 << 20, free.id())?;
    let kept = ground.block(&allocator, 1 << 20, free.id())?;
    let capture = ground.ground.capture(captured.id(), CaptureMode::Global)?;
    block.record_stream(captured.id())?;
    ends(block)?;
    capture.is_valid()?;
    ends(ground.block(&allocator, 1 << 20, free.id())?)?;
    capture.is_valid()?;
    drop(capture.end()?);
    ends(kept)?;
    ends(ground.block(&allocator, 1 << 20, free.id())?)?;
    is_empty(&allocator)
}

fn an_abandoned_capture_leaves_the_allocator_working(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let capture = ground.ground.capture(stream.id(), CaptureMode::Global)?;
    let block = ground.block(&allocator, 1 << 20, stream.id())?;
    // Illegal, and the capture is lost.
    let queried = ground.driver().stream_synchronize(stream.id());
    crate::check::refused_in_capture(queried)?;
    ends(block)?;
    let late = ground.block(&allocator, 1 << 20, stream.id())?;
    capture.was_lost()?;
    fill(&allocator, late.ptr(), 1 << 20, 9, stream.id())?;
    holds(&allocator, late.ptr(), 1 << 20, 9, stream.id())?;
    ends(late)?;
    is_empty(&allocator)
}

super::list_cases!(capture:
    memory_comes_and_goes_in_the_capturing_thread,
    memory_comes_and_goes_in_another_thread,
    the_threads_mode_is_as_it_was,
    a_graph_uses_memory_from_its_capture,
    a_block_used_in_a_capture_can_be_recorded_and_given_back,
    an_abandoned_capture_leaves_the_allocator_working,
);
