//! Stream capture and graphs. Graphs belong to no context: only calls that name a stream need one.

use std::ffi::{c_uint, c_ulonglong, c_void};

use headwater_driver::{Capture, CaptureMode, CaptureNode, CaptureStatus};

use crate::abi::{CUgraph, CUgraphExec, CUresult, CUstream};
use crate::context;
use crate::entry::{Answer, Out, in_context, initialised};
use crate::machine::Machine;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_*`: free on launch, upload, device launch, node priority.
const INSTANTIATE_FLAGS: c_ulonglong = 1 | 2 | 4 | 8;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`, which the simulator cannot do.
const DEVICE_LAUNCH: c_ulonglong = 4;

fn mode_from(mode: c_uint) -> Answer<CaptureMode> {
    match mode {
        0 => Ok(CaptureMode::Global),
        1 => Ok(CaptureMode::ThreadLocal),
        2 => Ok(CaptureMode::Relaxed),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn mode_number(mode: CaptureMode) -> c_uint {
    match mode {
        CaptureMode::Global => 0,
        CaptureMode::ThreadLocal => 1,
        CaptureMode::Relaxed => 2,
    }
}

/// `CUstreamCaptureStatus` and the capture's id, zero where there is none.
fn status_numbers(status: CaptureStatus) -> (c_uint, c_ulonglong) {
    match status {
        CaptureStatus::None => (0, 0),
        CaptureStatus::Active(id) => (1, id.0),
        CaptureStatus::Invalidated => (2, 0),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint) -> CUresult {
    in_context("cuStreamBeginCapture_v2", |machine, context| {
        let (stream, mode) = (machine.stream(context, stream)?, mode_from(mode)?);
        Ok(machine.sim.capture_begin(stream, mode)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint) -> CUresult {
    in_context("cuStreamIsCapturing", |machine, context| {
        // SAFETY: the caller's place for the status.
        let out = unsafe { Out::required(status) }?;
        let status = machine.sim.capture_status(machine.stream(context, stream)?)?;
        out.put(status_numbers(status).0);
        Ok(())
    })
}

/// A graph for the length of one call. CUDA does not synchronise graphs: two calls on the same one at once are
/// undefined behaviour, and counted.
struct Turn<'m> {
    machine: &'m Machine,
    /// Nothing where another call has the turn.
    value: Option<u64>,
}

impl<'m> Turn<'m> {
    fn take(machine: &'m Machine, value: u64) -> Self {
        let alone = machine.objects().graphs_in_use.insert(value);
        if !alone {
            machine.undefined(CUresult::SUCCESS);
        }
        // Whoever else is about to use the graph has the chance to do so now, and be noticed.
        std::thread::yield_now();
        Self { machine, value: alone.then_some(value) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(value) = self.value {
            self.machine.objects().graphs_in_use.remove(&value);
        }
    }
}

/// The places a caller gives for what is known of a capture; all but the status may be left out.
struct InfoPlaces {
    status: *mut c_uint,
    id: *mut c_ulonglong,
    graph: *mut CUgraph,
    dependencies: *mut *const c_void,
    edges: *mut *const c_void,
    dependency_count: *mut usize,
}

impl InfoPlaces {
    /// Answers with status, id and the nodes that the stream's next work would come after. There is no graph to name before the end.
    ///
    /// # Safety
    /// Each place is null or valid for writing.
    unsafe fn fill(self, machine: &Machine, stream: CUstream) -> Answer {
        // SAFETY: the caller's promise, for this place and those below.
        let status_place = unsafe { Out::required(self.status) }?;
        let stream = machine.stream(context::current(machine)?, stream)?;
        let (status, id) = status_numbers(machine.sim.capture_status(stream)?);
        status_place.put(status);
        if status == 1 {
            // SAFETY: as above.
            unsafe { Out::optional(self.id) }.into_iter().for_each(|out| out.put(id));
            // SAFETY: as above.
            unsafe { Out::optional(self.graph) }.into_iter().for_each(|out| out.put(CUgraph::from_raw(0)));
            // SAFETY: as above.
            unsafe { Out::optional(self.edges) }.into_iter().for_each(|out| out.put(std::ptr::null()));
            let nodes: Box<[u64]> =
                machine.sim.capture_frontier(stream)?.into_iter().map(|node| node.0).collect();
            // Kept until the stream is asked again: libcuda's list is good until the stream's next work.
            let (list, count) = (nodes.as_ptr().cast::<c_void>(), nodes.len());
            machine.objects().frontiers.insert(stream, nodes);
            // SAFETY: as above.
            unsafe { Out::optional(self.dependencies) }.into_iter().for_each(|out| out.put(list));
            // SAFETY: as above.
            unsafe { Out::optional(self.dependency_count) }.into_iter().for_each(|out| out.put(count));
        }
        Ok(())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    status: *mut c_uint,
    id: *mut c_ulonglong,
    graph: *mut CUgraph,
    dependencies: *mut *const c_void,
    dependency_count: *mut usize,
) -> CUresult {
    in_context("cuStreamGetCaptureInfo_v2", |machine, _| {
        let edges = std::ptr::null_mut();
        // SAFETY: the caller's places.
        unsafe {
            InfoPlaces { status, id, graph, dependencies, edges, dependency_count }.fill(machine, stream)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    status: *mut c_uint,
    id: *mut c_ulonglong,
    graph: *mut CUgraph,
    dependencies: *mut *const c_void,
    edges: *mut *const c_void,
    dependency_count: *mut usize,
) -> CUresult {
    in_context("cuStreamGetCaptureInfo_v3", |machine, _| {
        // SAFETY: the caller's places.
        unsafe {
            InfoPlaces { status, id, graph, dependencies, edges, dependency_count }.fill(machine, stream)
        }
    })
}

/// Of nodes of captures that go on; finished graphs are not taken apart here.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetDependencies(
    node: u64,
    dependencies: *mut u64,
    count: *mut usize,
) -> CUresult {
    initialised("cuGraphNodeGetDependencies", |machine| {
        // SAFETY: the caller's place, with the room of the list in it where there is a list.
        let room = unsafe { count.as_ref() }.copied().ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: the same place, for the number.
        let out = unsafe { Out::required(count) }?;
        let before = machine.sim.capture_node_dependencies(CaptureNode(node));
        let before = before.ok_or_else(|| machine.undefined(CUresult::INVALID_VALUE))?;
        if !dependencies.is_null() {
            for (place, node) in before.iter().enumerate().take(room) {
                // SAFETY: the caller's list has `room` places.
                unsafe { dependencies.add(place).write(node.0) };
            }
        }
        out.put(before.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    in_context("cuStreamEndCapture", |machine, context| {
        // SAFETY: the caller's place for the graph.
        let out = unsafe { Out::required(graph) }?;
        let ended = machine.sim.capture_end(machine.stream(context, stream)?);
        // libcuda leaves no stale value in the place when there is no graph.
        out.put(CUgraph::from_raw(match &ended {
            Ok(graph) => machine.objects().graphs.insert(*graph),
            Err(_) => 0,
        }));
        ended?;
        Ok(())
    })
}

/// Exchanges the calling thread's mode with the one in the caller's place.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> CUresult {
    initialised("cuThreadExchangeStreamCaptureMode", |machine| {
        // SAFETY: the caller's place, null or with a mode in it.
        let wanted = unsafe { mode.as_ref() }.copied().ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: the same place, for the former mode.
        let out = unsafe { Out::required(mode) }?;
        out.put(mode_number(machine.sim.capture_mode_exchange(mode_from(wanted)?)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> CUresult {
    initialised("cuGraphInstantiateWithFlags", |machine| {
        // SAFETY: the caller's place for the executable graph.
        let out = unsafe { Out::required(exec) }?;
        let _turn = Turn::take(machine, graph.raw());
        let graph = machine.live(&machine.objects().graphs, graph.raw(), CUresult::INVALID_VALUE)?;
        if flags & !INSTANTIATE_FLAGS != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if flags & DEVICE_LAUNCH != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        // The nodes know their device; the simulator wants one for the whole.
        let exec = machine.sim.graph_instantiate(graph.device(), graph)?;
        out.put(CUgraphExec::from_raw(machine.objects().graph_execs.insert(exec)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult {
    in_context("cuGraphLaunch", |machine, context| {
        let _turn = Turn::take(machine, exec.raw());
        let exec = machine.live(&machine.objects().graph_execs, exec.raw(), CUresult::INVALID_VALUE)?;
        let stream = machine.stream(context, stream)?;
        // SAFETY: the caller vouches for what the graph's nodes touch.
        Ok(unsafe { machine.sim.graph_launch(exec, stream) }?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    initialised("cuGraphDestroy", |machine| {
        let _turn = Turn::take(machine, graph.raw());
        let object = machine.live(&machine.objects().graphs, graph.raw(), CUresult::INVALID_VALUE)?;
        machine.sim.graph_destroy(object)?;
        machine.objects().graphs.remove(graph.raw());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    initialised("cuGraphExecDestroy", |machine| {
        let _turn = Turn::take(machine, exec.raw());
        let object = machine.live(&machine.objects().graph_execs, exec.raw(), CUresult::INVALID_VALUE)?;
        machine.sim.graph_exec_destroy(object)?;
        machine.objects().graph_execs.remove(exec.raw());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn two_calls_on_one_graph_at_once_are_counted() {
        let machine = Machine::new(Settings::from_environment());
        let first = Turn::take(&machine, 64);
        drop(Turn::take(&machine, 128));
        assert_eq!(machine.undefined_uses(), 0, "another graph");
        drop(Turn::take(&machine, 64));
        assert_eq!(machine.undefined_uses(), 1);
        drop(first);
        drop(Turn::take(&machine, 64));
        assert_eq!(machine.undefined_uses(), 1, "one after the other");
    }
}
