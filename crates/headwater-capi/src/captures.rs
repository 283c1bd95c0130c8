//! Captures and graphs: what a captured stream asks for comes from a private pool, and stays where it is while a graph lives.

use std::sync::Arc;

use headwater::graph::{CapturedGraph, RunnableGraph};
use headwater_driver::CaptureMode;

use crate::allocator::hw_allocator;
use crate::arguments::out;
use crate::device::hw_stream;
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::layers::Base;
use crate::pools::{Pool, hw_pool};
use crate::status::{Failure, hw_status};

/// A captured graph.
#[derive(Debug)]
pub struct hw_graph {
    _opaque: [u8; 0],
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct hw_graph_exec {
    _opaque: [u8; 0],
}

handle_kind!(hw_graph, 7, "graph", Captured);
handle_kind!(hw_graph_exec, 8, "executable graph", Runnable);

/// What is behind a graph handle. The memory goes after the graph.
#[derive(Debug)]
pub struct Captured {
    graph: CapturedGraph,
    base: Arc<Base>,
}

/// What is behind an executable graph's handle.
#[derive(Debug)]
pub struct Runnable {
    graph: RunnableGraph,
    base: Arc<Base>,
}

/// How strictly potentially unsafe calls are refused during a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum hw_capture_mode {
    /// Refused in every thread.
    Global = 0,
    /// Refused in the capturing thread.
    ThreadLocal = 1,
    /// Not refused.
    Relaxed = 2,
}

fn mode_of(mode: u32) -> Result<CaptureMode, Failure> {
    match mode {
        mode if mode == hw_capture_mode::Global as u32 => Ok(CaptureMode::Global),
        mode if mode == hw_capture_mode::ThreadLocal as u32 => Ok(CaptureMode::ThreadLocal),
        mode if mode == hw_capture_mode::Relaxed as u32 => Ok(CaptureMode::Relaxed),
        other => Err(Failure::argument(format!("{other} is no hw_capture_mode"))),
    }
}

/// Starts capturing `stream`: what it, and streams that join its capture, ask for comes from `pool`, or from a fresh one where that is null.
/// `used_pool` (may be null) gets a new handle for the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_capture_begin(
    allocator: *const hw_allocator,
    stream: hw_stream,
    mode: u32,
    pool: *const hw_pool,
    used_pool: *mut *mut hw_pool,
) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        let mode = mode_of(mode)?;
        let pool = if pool.is_null() { None } else { Some(handles::get(pool)?) };
        // SAFETY: the caller's promise.
        let place = if used_pool.is_null() { None } else { Some(unsafe { out(used_pool, "used_pool") }?) };
        // SAFETY: as above.
        let stream = unsafe { object.stream(stream) }?;
        let pool = pool.as_ref().map(|pool| &pool.handle);
        let handle = object.base.graphs()?.begin_capture(stream, mode, pool)?;
        if let Some(place) = place {
            place.write(handles::make(Pool { base: Arc::clone(&object.base), handle }));
        }
        Ok(())
    })
}

/// Ends the capture begun on `stream` and returns its graph, which keeps the pool's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_capture_end(
    allocator: *const hw_allocator,
    stream: hw_stream,
    graph: *mut *mut hw_graph,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(graph, "graph") }?;
        let object = handles::get(allocator)?;
        // SAFETY: as above.
        let stream = unsafe { object.stream(stream) }?;
        let graph = object.base.graphs()?.end_capture(stream)?;
        place.write(handles::make(Captured { graph, base: Arc::clone(&object.base) }));
        Ok(())
    })
}

/// Ends the capture begun on `stream`, whatever its state, and throws away its graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_capture_abandon(allocator: *const hw_allocator, stream: hw_stream) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { object.stream(stream) }?;
        Ok(object.base.graphs()?.abandon_capture(stream)?)
    })
}

/// Makes what comes in `after` wait for what is in `before`, on the device or in their capture, and remembers it: memory that `before` freed
/// in this capture can then serve `after`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_order_streams(
    allocator: *const hw_allocator,
    before: hw_stream,
    after: hw_stream,
) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        // SAFETY: the caller's promise.
        let (before, after) = unsafe { (object.stream(before)?, object.stream(after)?) };
        Ok(object.base.graphs()?.order_streams(before, after)?)
    })
}

/// Makes a graph runnable on the device it was captured on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_instantiate(
    graph: *const hw_graph,
    exec: *mut *mut hw_graph_exec,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(exec, "exec") }?;
        let captured = handles::get(graph)?;
        let graph = captured.graph.instantiate()?;
        place.write(handles::make(Runnable { graph, base: Arc::clone(&captured.base) }));
        Ok(())
    })
}

/// Launches a graph in `stream`. Memory outside of its pool that it touches is still good; no other graph of the pool, and nothing else that
/// uses the pool's memory, runs at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_launch(exec: *const hw_graph_exec, stream: hw_stream) -> hw_status {
    guarded(|| {
        let runnable = handles::get(exec)?;
        // SAFETY: the caller's promise.
        unsafe {
            let stream = runnable.base.device.stream(stream)?;
            Ok(runnable.graph.launch(stream)?)
        }
    })
}

/// The driver's own value for a graph (`CUgraph`), for other libraries. It goes with the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_raw(graph: *const hw_graph, raw: *mut u64) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(raw, "raw") }?;
        place.write(handles::get(graph)?.graph.graph().raw());
        Ok(())
    })
}

/// The driver's own value for an executable graph (`CUgraphExec`). It goes with the handle. Whoever launches it by this value sees to it that
/// it has finished before the handle is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_exec_raw(exec: *const hw_graph_exec, raw: *mut u64) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(raw, "raw") }?;
        place.write(handles::get(exec)?.graph.exec().raw());
        Ok(())
    })
}

/// Destroys a graph; what was instantiated from it lives on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_destroy(graph: *mut hw_graph) -> hw_status {
    guarded(|| handles::take(graph).map(drop))
}

/// Destroys an executable graph; launches that are running still finish before its memory goes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_graph_exec_destroy(exec: *mut hw_graph_exec) -> hw_status {
    guarded(|| handles::take(exec).map(drop))
}
