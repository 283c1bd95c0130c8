//! Graphs: captured work, launched again and again.
//!
//! A launch runs all nodes as one piece of work of its stream: none before what the stream was given earlier, all before
//! what it is given later. Between themselves only the captured order holds; two nodes without a path between
//! them are concurrent, and a race between them is found at every launch.
//!
//! One executable graph never runs twice at once: CUDA orders its launches, whatever their streams.

use std::sync::Arc;

use headwater_driver::{Call, DeviceId, Result};
use smallvec::SmallVec;

use super::{Machine, StreamKey};
use crate::refusal::Refusal;
use crate::vector_clock::{Actor, VectorClock};
use crate::work::Operation;

/// What a capture made.
#[derive(Debug)]
pub(crate) struct Template {
    /// In an order that respects `after`.
    pub(crate) nodes: Vec<Node>,
    pub(crate) branches: usize,
}

/// One captured piece of work.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) operation: Arc<Operation>,
    /// The nodes it comes after.
    pub(crate) after: SmallVec<[u32; 4]>,
    pub(crate) branch: u32,
}

/// An executable graph.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) device: DeviceId,
    pub(crate) made_at_ns: u64,
    template: Arc<Template>,
    /// One for each branch.
    actors: Vec<Actor>,
    /// What its last launch did, and when that ends.
    clock: VectorClock,
    end_ns: u64,
}

/// A node while a launch is laid out.
struct Laid {
    clock: VectorClock,
    end_ns: u64,
}

impl Machine {
    pub(crate) fn instantiate(&mut self, device: DeviceId, template: Arc<Template>) -> u64 {
        let mut clock = VectorClock::new();
        let mut actors = Vec::with_capacity(template.branches);
        for _ in 0..template.branches {
            let (actor, known) = self.detector.new_actor();
            clock.join(&known);
            actors.push(actor);
        }
        let made_at_ns = self.now_ns;
        self.execs.insert(Exec { device, made_at_ns, template, actors, clock, end_ns: 0 })
    }

    pub(crate) fn destroy_exec(&mut self, exec: Exec) {
        for actor in exec.actors {
            self.detector.retire_actor(actor, &exec.clock);
        }
    }

    /// Launches an executable graph into a stream. Not into a captured one (measured: refused, and the capture is lost).
    pub(crate) fn launch_graph(&mut self, call: Call, raw: u64, key: StreamKey) -> Result<()> {
        self.forbid_implicit(call, key)?;
        self.forbid_captured(call, key)?;
        let Some(exec) = self.execs.get(raw) else { return Err(Refusal::InvalidHandle.of(call)) };
        let template = Arc::clone(&exec.template);
        let actors = exec.actors.clone();
        let (mut before, mut start_ns) = (exec.clock.clone(), exec.end_ns);
        start_ns = start_ns.max(self.ready_ns(key));
        if let Some(stream) = self.streams.get(key) {
            before.join(&stream.clock);
        }
        let mut laid: Vec<Laid> = Vec::with_capacity(template.nodes.len());
        let mut all = Laid { clock: before.clone(), end_ns: start_ns };
        for node in &template.nodes {
            let mut clock = before.clone();
            let mut node_start_ns = start_ns;
            for earlier in node.after.iter().filter_map(|earlier| laid.get(*earlier as usize)) {
                clock.join(&earlier.clock);
                node_start_ns = node_start_ns.max(earlier.end_ns);
            }
            let end_ns = node_start_ns.saturating_add(node.operation.duration_ns);
            if let Some(actor) = actors.get(node.branch as usize) {
                self.start(Arc::clone(&node.operation), None, *actor, &mut clock, node_start_ns..end_ns);
            }
            all.clock.join(&clock);
            all.end_ns = all.end_ns.max(end_ns);
            laid.push(Laid { clock, end_ns });
        }
        if let Some(stream) = self.streams.get_mut(key) {
            stream.clock.join(&all.clock);
            stream.tail_ns = stream.tail_ns.max(all.end_ns);
        }
        if let Some(exec) = self.execs.get_mut(raw) {
            exec.clock = all.clock;
            exec.end_ns = all.end_ns;
        }
        Ok(())
    }
}
