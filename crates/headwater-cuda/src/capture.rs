//! Stream capture and graphs.

use headwater_driver::{
    Call, Capture, CaptureId, CaptureMode, CaptureStatus, DeviceId, Graph, GraphExec, Result, Stream,
};
use parking_lot::Mutex;

use crate::CudaDriver;
use crate::abi::{CuGraph, CuGraphExec, CuResult, CuStream, capture_mode, capture_status};
use crate::objects::{GraphExecObject, GraphObject};
use crate::registry::Owned;
use crate::table::Table;

impl Capture for CudaDriver {
    fn capture_begin(&self, stream: Stream, mode: CaptureMode) -> Result<()> {
        let site = self.call(Call::CaptureBegin);
        let stream = site.stream(stream)?;
        // SAFETY: the stream is held.
        site.run(stream.context, |cuda| unsafe { (cuda.stream_begin_capture)(stream.raw, mode_to_raw(mode)) })
    }

    fn capture_status(&self, stream: Stream) -> Result<CaptureStatus> {
        let site = self.call(Call::CaptureStatus);
        let stream = site.stream(stream)?;
        let (mut status, mut id) = (capture_status::NONE, 0);
        site.run(stream.context, |cuda| capture_info(cuda, stream.raw, &mut status, &mut id))?;
        match status {
            capture_status::NONE => Ok(CaptureStatus::None),
            capture_status::ACTIVE => Ok(CaptureStatus::Active(CaptureId(id))),
            capture_status::INVALIDATED => Ok(CaptureStatus::Invalidated),
            other => Err(site.refuse(CuResult::NOT_SUPPORTED, format!("unknown capture status {other}"))),
        }
    }

    fn capture_end(&self, stream: Stream) -> Result<Graph> {
        let site = self.call(Call::CaptureEnd);
        let device = stream.device();
        let stream = site.stream(stream)?;
        let mut raw = CuGraph::default();
        // SAFETY: the stream is held; `raw` lives through the call.
        site.run(stream.context, |cuda| unsafe { (cuda.stream_end_capture)(stream.raw, &mut raw) })?;
        let key = self.new_key(device);
        let object = GraphObject { context: stream.context.clone(), raw, turn: Mutex::new(()) };
        self.graphs.insert(key, Owned::new(object));
        Ok(Graph::from_raw(key.0, key.1))
    }

    fn capture_mode_exchange(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let site = self.call(Call::CaptureModeExchange);
        let mut raw = mode_to_raw(mode);
        // The mode is the thread's, not a context's: none is entered.
        // SAFETY: `raw` lives through the call.
        let code = unsafe { (self.table.thread_exchange_capture_mode)(&mut raw) };
        if !code.is_success() {
            return Err(site.failure(code, None));
        }
        match raw {
            capture_mode::GLOBAL => Ok(CaptureMode::Global),
            capture_mode::THREAD_LOCAL => Ok(CaptureMode::ThreadLocal),
            capture_mode::RELAXED => Ok(CaptureMode::Relaxed),
            other => {
                Err(site.refuse(CuResult::NOT_SUPPORTED, format!("unknown former capture mode {other}")))
            }
        }
    }

    fn graph_instantiate(&self, device: DeviceId, graph: Graph) -> Result<GraphExec> {
        let site = self.call(Call::GraphInstantiate);
        let Some(graph_instantiate) = self.table.graph_instantiate else {
            return Err(site.too_old("cuGraphInstantiateWithFlags", "11.4"));
        };
        let context = site.context(device)?;
        let object = self.graphs.get((graph.device(), graph.raw())).ok_or_else(|| site.no_such(graph))?;
        let mut raw = CuGraphExec::default();
        {
            let _turn = object.turn.lock();
            // SAFETY: the graph is held and ours alone; `raw` lives through the call; there are no flags.
            site.run(context, |_| unsafe { graph_instantiate(&mut raw, object.raw, 0) })?;
        }
        let key = self.new_key(device);
        let object = GraphExecObject { context: context.clone(), raw, turn: Mutex::new(()) };
        self.graph_execs.insert(key, Owned::new(object));
        Ok(GraphExec::from_raw(key.0, key.1))
    }

    unsafe fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        let site = self.call(Call::GraphLaunch);
        let object = self.graph_execs.get((exec.device(), exec.raw())).ok_or_else(|| site.no_such(exec))?;
        let stream = site.stream(stream)?;
        let _turn = object.turn.lock();
        // SAFETY: both are held, the graph is ours alone; the caller vouches for what its nodes touch.
        site.run(stream.context, |cuda| unsafe { (cuda.graph_launch)(object.raw, stream.raw) })
    }

    fn graph_destroy(&self, graph: Graph) -> Result<()> {
        let site = self.call(Call::GraphDestroy);
        site.destroyed(self.graphs.destroy((graph.device(), graph.raw())), graph)
    }

    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        let site = self.call(Call::GraphExecDestroy);
        site.destroyed(self.graph_execs.destroy((exec.device(), exec.raw())), exec)
    }
}

/// Asks with the newest call there is.
fn capture_info(cuda: &Table, stream: CuStream, status: &mut u32, id: &mut u64) -> CuResult {
    let mut graph = CuGraph::default();
    let (mut dependencies, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    if let Some(ask) = cuda.stream_get_capture_info_v3 {
        // The dependencies are asked for and not looked at: without a place for edge data the call fails where there is
        // some (CUDA_ERROR_LOSSY_QUERY).
        // SAFETY: the caller holds the stream; everything pointed to lives through the call.
        unsafe { ask(stream, status, id, &mut graph, &mut dependencies, &mut edges, &mut count) }
    } else if let Some(ask) = cuda.stream_get_capture_info_v2 {
        // SAFETY: as above.
        unsafe { ask(stream, status, id, &mut graph, &mut dependencies, &mut count) }
    } else {
        CuResult::NOT_SUPPORTED
    }
}

fn mode_to_raw(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => capture_mode::GLOBAL,
        CaptureMode::ThreadLocal => capture_mode::THREAD_LOCAL,
        CaptureMode::Relaxed => capture_mode::RELAXED,
    }
}
