//! Stream capture and graphs.

use std::sync::Arc;

use headwater_driver::{
    Call, Capture, CaptureMode, CaptureNode, CaptureStatus, DeviceId, Graph, GraphExec, Result, Stream,
};

use crate::machine::{GraphState, this_thread};
use crate::refusal::Refusal;
use crate::sim_driver::SimDriver;

impl Capture for SimDriver {
    fn capture_begin(&self, stream: Stream, mode: CaptureMode) -> Result<()> {
        let call = Call::CaptureBegin;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        if !machine.device(call, stream.device())?.properties.capabilities.capture {
            return Err(Refusal::NotSupported.of(call).with_detail("no stream capture"));
        }
        machine.forbid_implicit(call, key)?;
        if stream.is_legacy_default() {
            return Err(Refusal::CaptureUnsupported.of(call).with_detail("the legacy default stream"));
        }
        if machine.capture_status(key) != CaptureStatus::None {
            return Err(Refusal::IllegalState.of(call).with_detail("the stream is being captured already"));
        }
        machine.begin_capture(key, mode);
        Ok(())
    }

    fn capture_status(&self, stream: Stream) -> Result<CaptureStatus> {
        let call = Call::CaptureStatus;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        // CUDA cannot answer then, but the capture stays valid.
        if !machine.implicit_captures(key).is_empty() {
            return Err(Refusal::CaptureImplicit.of(call));
        }
        Ok(machine.capture_status(key))
    }

    fn capture_end(&self, stream: Stream) -> Result<Graph> {
        let call = Call::CaptureEnd;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        let template = Arc::new(machine.end_capture(call, key)?);
        let (device, made_at_ns) = (stream.device(), machine.now_ns);
        Ok(Graph::from_raw(device, machine.graphs.insert(GraphState { device, template, made_at_ns })))
    }

    fn capture_frontier(&self, stream: Stream) -> Result<Vec<CaptureNode>> {
        let call = Call::CaptureStatus;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        machine.frontier(call, key)
    }

    fn capture_is_after(&self, stream: Stream, nodes: &[CaptureNode]) -> Result<bool> {
        let call = Call::CaptureOrder;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        machine.is_after(call, key, nodes)
    }

    fn capture_mode_exchange(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut machine = self.enter(Call::CaptureModeExchange, 0)?;
        let thread = this_thread();
        Ok(machine.thread_modes.insert(thread, mode).unwrap_or_default())
    }

    fn graph_instantiate(&self, device: DeviceId, graph: Graph) -> Result<GraphExec> {
        let call = Call::GraphInstantiate;
        let mut machine = self.enter_on(call, device, 0)?;
        machine.forbid_unsafe(call)?;
        let template = match machine.graphs.get(graph.raw()) {
            Some(state) if state.device == graph.device() => Arc::clone(&state.template),
            _ => return Err(Refusal::InvalidHandle.of(call).with_detail(format!("{graph} does not exist"))),
        };
        Ok(GraphExec::from_raw(device, machine.instantiate(device, template)))
    }

    unsafe fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        let call = Call::GraphLaunch;
        let mut machine = self.enter(call, 0)?;
        let key = machine.stream_key(call, self.view(), stream)?;
        if machine.execs.get(exec.raw()).is_none_or(|state| state.device != exec.device()) {
            return Err(Refusal::InvalidHandle.of(call).with_detail(format!("{exec} does not exist")));
        }
        machine.launch_graph(call, exec.raw(), key)
    }

    fn graph_destroy(&self, graph: Graph) -> Result<()> {
        let mut machine = self.enter(Call::GraphDestroy, 0)?;
        match machine.graphs.remove(graph.raw()) {
            Some(_) => Ok(()),
            None => {
                let why = format!("{graph} does not exist");
                Err(Refusal::InvalidHandle.of(Call::GraphDestroy).with_detail(why))
            }
        }
    }

    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        let mut machine = self.enter(Call::GraphExecDestroy, 0)?;
        match machine.execs.remove(exec.raw()) {
            Some(state) => {
                machine.destroy_exec(state);
                Ok(())
            }
            None => {
                let why = format!("{exec} does not exist");
                Err(Refusal::InvalidHandle.of(Call::GraphExecDestroy).with_detail(why))
            }
        }
    }
}

impl SimDriver {
    /// The nodes directly before one of a capture that goes on; none where it is no such node. For whoever puts the simulator
    /// behind CUDA's own call, which is asked node by node.
    pub fn capture_node_dependencies(&self, node: CaptureNode) -> Option<Vec<CaptureNode>> {
        self.machine().dependencies_of(node)
    }
}
