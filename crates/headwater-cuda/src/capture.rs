//! Stream capture and graphs.

use std::collections::BTreeSet;
use std::ffi::c_void;

use headwater_driver::{
    Call, Capture, CaptureId, CaptureMode, CaptureNode, CaptureStatus, DeviceId, Graph, GraphExec, Result,
    Stream,
};
use parking_lot::Mutex;

use crate::CudaDriver;
use crate::abi::{CuGraph, CuGraphExec, CuGraphNode, CuResult, CuStream, capture_mode, capture_status};
use crate::call_site::CallSite;
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
        let mut info = CaptureInfo::default();
        site.run(stream.context, |cuda| info.ask(cuda, stream.raw))?;
        match info.status {
            capture_status::NONE => Ok(CaptureStatus::None),
            capture_status::ACTIVE => Ok(CaptureStatus::Active(CaptureId(info.id))),
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

    fn capture_frontier(&self, stream: Stream) -> Result<Vec<CaptureNode>> {
        let nodes = frontier(self.call(Call::CaptureStatus), stream)?;
        Ok(nodes.into_iter().map(|node| CaptureNode(node.0 as u64)).collect())
    }

    fn capture_is_after(&self, stream: Stream, nodes: &[CaptureNode]) -> Result<bool> {
        let site = self.call(Call::CaptureOrder);
        let Some(ask) = self.table.graph_node_get_dependencies else {
            return Err(site.too_old("cuGraphNodeGetDependencies", "10.0"));
        };
        // Backwards from where the stream is now. Only nodes that the driver just named are asked about: those of the caller
        // may be of a capture that has ended, and are compared, never followed.
        let mut left = frontier(site, stream)?;
        let mut missing: BTreeSet<u64> = nodes.iter().map(|node| node.0).collect();
        let mut seen = BTreeSet::new();
        while let Some(node) = left.pop() {
            if !seen.insert(node.0) {
                continue;
            }
            missing.remove(&(node.0 as u64));
            if missing.is_empty() {
                break;
            }
            match site.timed(|| dependencies_of(ask, node)) {
                Ok(before) => left.extend(before),
                // An edge that does not wait for the whole of a node.
                Err(CuResult::LOSSY_QUERY) => return Ok(false),
                Err(code) => return Err(site.failure(code, None)),
            }
        }
        Ok(missing.is_empty())
    }

    fn capture_mode_exchange(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let site = self.call(Call::CaptureModeExchange);
        let mut raw = mode_to_raw(mode);
        // The mode is the thread's, not a context's: none is entered.
        // SAFETY: `raw` lives through the call.
        let code = site.timed(|| unsafe { (self.table.thread_exchange_capture_mode)(&mut raw) });
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

/// What the driver says of a stream's capture.
struct CaptureInfo {
    status: u32,
    id: u64,
    /// The driver's own list, good until the stream gets its next work.
    dependencies: *const CuGraphNode,
    count: usize,
}

impl Default for CaptureInfo {
    fn default() -> Self {
        Self { status: capture_status::NONE, id: 0, dependencies: std::ptr::null(), count: 0 }
    }
}

impl CaptureInfo {
    /// Asks with the newest call there is.
    fn ask(&mut self, cuda: &Table, stream: CuStream) -> CuResult {
        let (mut graph, mut edges) = (CuGraph::default(), std::ptr::null());
        let list: *mut *const c_void = (&raw mut self.dependencies).cast();
        let Self { status, id, count, .. } = self;
        if let Some(ask) = cuda.stream_get_capture_info_v3 {
            // Without a place for edge data the call fails where there is some (CUDA_ERROR_LOSSY_QUERY).
            // SAFETY: the caller holds the stream; everything pointed to lives through the call.
            unsafe { ask(stream, status, id, &mut graph, list, &mut edges, count) }
        } else if let Some(ask) = cuda.stream_get_capture_info_v2 {
            // SAFETY: as above.
            unsafe { ask(stream, status, id, &mut graph, list, count) }
        } else {
            CuResult::NOT_SUPPORTED
        }
    }
}

/// The nodes that the stream's next work would come after.
fn frontier(site: CallSite<'_>, stream: Stream) -> Result<Vec<CuGraphNode>> {
    let held = site.stream(stream)?;
    let mut info = CaptureInfo::default();
    site.run(held.context, |cuda| info.ask(cuda, held.raw))?;
    if info.status != capture_status::ACTIVE {
        return Err(site.invalid(format!("{stream} is in no valid capture")));
    }
    if info.dependencies.is_null() || info.count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the driver's list has `count` nodes, and is good until the stream gets more work; who captures a stream does not
    // give it work from another thread at the same time.
    Ok(unsafe { std::slice::from_raw_parts(info.dependencies, info.count) }.to_vec())
}

type AskDependencies = unsafe extern "system" fn(CuGraphNode, *mut CuGraphNode, *mut usize) -> CuResult;

/// The nodes directly before one.
fn dependencies_of(
    ask: AskDependencies,
    node: CuGraphNode,
) -> std::result::Result<Vec<CuGraphNode>, CuResult> {
    let mut count = 0;
    // SAFETY: the driver named the node a moment ago; without a list it answers with the number alone.
    let code = unsafe { ask(node, std::ptr::null_mut(), &mut count) };
    if !code.is_success() {
        return Err(code);
    }
    let mut before = vec![CuGraphNode::default(); count];
    if count > 0 {
        // SAFETY: as above; the list has room for `count` nodes, which is what `count` says.
        let code = unsafe { ask(node, before.as_mut_ptr(), &mut count) };
        if !code.is_success() {
            return Err(code);
        }
        before.truncate(count);
    }
    Ok(before)
}

fn mode_to_raw(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => capture_mode::GLOBAL,
        CaptureMode::ThreadLocal => capture_mode::THREAD_LOCAL,
        CaptureMode::Relaxed => capture_mode::RELAXED,
    }
}
