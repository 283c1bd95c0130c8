//! Captures: streams whose work becomes nodes, and what must not be called meanwhile.
//!
//! A node comes after its stream's *frontier*: the stream's last node, and the nodes of events it waited for since. Every
//! node also gets a *branch*, a chain of nodes that all come after each other: the branches are what the race detector
//! sees as actors when the graph is launched.
//!
//! An illegal call invalidates the captures concerned. Their streams stay captured, and refuse all work, until the capture is
//! ended; that is when CUDA lets go as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headwater_driver::{Call, CaptureMode, CaptureNode, CaptureStatus, DeviceId, DriverError, Result};
use smallvec::SmallVec;

use super::graphs::{Node, Template};
use super::streams::Membership;
use super::{EventPoint, Machine, StreamKey, StreamState, this_thread};
use crate::refusal::Refusal;
use crate::work::Operation;

/// All captures that have not been ended, by number.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    last: u64,
    open: BTreeMap<u64, CaptureState>,
}

/// One capture.
#[derive(Debug)]
pub(crate) struct CaptureState {
    mode: CaptureMode,
    thread: u64,
    origin: StreamKey,
    pub(crate) device: DeviceId,
    pub(crate) made_at_ns: u64,
    invalid: bool,
    /// All streams in it, the origin included.
    members: BTreeSet<StreamKey>,
    nodes: Vec<Node>,
    /// The last node of each branch.
    branch_ends: Vec<u32>,
}

impl CaptureState {
    fn add(&mut self, operation: Arc<Operation>, after: SmallVec<[u32; 4]>) -> u32 {
        let number = self.nodes.len() as u32;
        let continued = after.iter().find_map(|node| {
            let branch = self.nodes[*node as usize].branch;
            (self.branch_ends[branch as usize] == *node).then_some(branch)
        });
        let branch = continued.unwrap_or_else(|| {
            self.branch_ends.push(number);
            (self.branch_ends.len() - 1) as u32
        });
        self.branch_ends[branch as usize] = number;
        self.nodes.push(Node { operation, after, branch });
        number
    }

    /// Whether every one of `nodes` is, or comes before, one of `ends`.
    fn are_joined(&self, nodes: &[u32], ends: &[u32]) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        let mut left: Vec<u32> = ends.to_vec();
        while let Some(node) = left.pop() {
            if !std::mem::replace(&mut reached[node as usize], true) {
                left.extend(&self.nodes[node as usize].after);
            }
        }
        nodes.iter().all(|node| reached[*node as usize])
    }
}

/// A node's name outside: its capture's number, and its own, counted from one.
fn named(capture: u64, node: u32) -> CaptureNode {
    CaptureNode(capture << 32 | (u64::from(node) + 1))
}

fn not_captured(call: Call) -> DriverError {
    Refusal::InvalidValue.of(call).with_detail("the stream is in no valid capture")
}

impl Captures {
    /// The node that a name means, where it is one of this capture.
    fn node(&self, capture: u64, name: CaptureNode) -> Option<u32> {
        let place = u32::try_from(name.0 & u64::from(u32::MAX)).ok()?.checked_sub(1)?;
        let nodes = self.open.get(&capture)?.nodes.len();
        (name.0 >> 32 == capture && (place as usize) < nodes).then_some(place)
    }

    /// The captures that have not been ended, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &CaptureState)> {
        self.open.iter().map(|(id, capture)| (*id, capture))
    }

    fn invalidate(&mut self, concerned: impl Fn(&CaptureState) -> bool) -> bool {
        let mut any = false;
        for capture in self.open.values_mut().filter(|capture| concerned(capture)) {
            capture.invalid = true;
            any = true;
        }
        any
    }
}

impl Machine {
    /// Refuses a potentially unsafe call where a capture forbids it, and invalidates that capture.
    pub(crate) fn forbid_unsafe(&mut self, call: Call) -> Result<()> {
        if self.captures.open.is_empty() {
            return Ok(());
        }
        let thread = this_thread();
        let mode = self.thread_mode(thread);
        let forbids = |capture: &CaptureState| match (mode, capture.mode) {
            (CaptureMode::Relaxed, _) | (_, CaptureMode::Relaxed) => false,
            (CaptureMode::Global, CaptureMode::Global) => true,
            _ => capture.thread == thread,
        };
        if self.captures.invalidate(forbids) {
            return Err(Refusal::CaptureUnsupported.of(call));
        }
        Ok(())
    }

    /// Refuses use of the legacy default stream while a blocking stream of its device is captured: it would be ordered
    /// with the captured work.
    pub(crate) fn forbid_implicit(&mut self, call: Call, key: StreamKey) -> Result<()> {
        let concerned = self.implicit_captures(key);
        if concerned.is_empty() {
            return Ok(());
        }
        for id in concerned {
            self.invalidate_capture(id);
        }
        Err(Refusal::CaptureImplicit.of(call))
    }

    /// The captures that a use of stream `key` would be ordered with unasked.
    pub(crate) fn implicit_captures(&self, key: StreamKey) -> SmallVec<[u64; 1]> {
        if self.captures.open.is_empty() {
            return SmallVec::new();
        }
        let Some(device) = self.devices.iter().find(|device| device.legacy == key) else {
            return SmallVec::new();
        };
        let captures = device.blocking.iter().filter_map(|other| self.streams.get(*other)?.capture.as_ref());
        captures.map(|member| member.capture).collect()
    }

    /// Makes a capture invalid; false where it has been ended already.
    pub(crate) fn invalidate_capture(&mut self, id: u64) -> bool {
        self.captures.open.get_mut(&id).map(|capture| capture.invalid = true).is_some()
    }

    /// Refuses to ask or wait for a stream where a capture forbids it: asking is potentially unsafe, and of the captured
    /// stream itself always illegal.
    pub(crate) fn forbid_asking(&mut self, call: Call, key: StreamKey) -> Result<()> {
        self.forbid_implicit(call, key)?;
        self.forbid_captured(call, key)?;
        self.forbid_unsafe(call)
    }

    /// Refuses `call` on a stream that is being captured, and invalidates the capture.
    pub(crate) fn forbid_captured(&mut self, call: Call, key: StreamKey) -> Result<()> {
        if self.is_captured(call, key)?
            && let Some(member) = self.streams.get(key).and_then(|stream| stream.capture.as_ref())
        {
            self.invalidate_capture(member.capture);
            return Err(Refusal::CaptureUnsupported.of(call));
        }
        Ok(())
    }

    /// Whether the stream is captured; an error where its capture is invalid.
    pub(crate) fn is_captured(&self, call: Call, key: StreamKey) -> Result<bool> {
        match self.capture_status(key) {
            CaptureStatus::None => Ok(false),
            CaptureStatus::Active(_) => Ok(true),
            CaptureStatus::Invalidated => Err(Refusal::CaptureInvalidated.of(call)),
        }
    }

    pub(crate) fn capture_status(&self, key: StreamKey) -> CaptureStatus {
        let Some(member) = self.streams.get(key).and_then(|stream| stream.capture.as_ref()) else {
            return CaptureStatus::None;
        };
        match self.captures.open.get(&member.capture) {
            Some(capture) if !capture.invalid => {
                CaptureStatus::Active(headwater_driver::CaptureId(member.capture))
            }
            _ => CaptureStatus::Invalidated,
        }
    }

    /// Where a captured stream's work ends.
    pub(crate) fn frontier(&self, call: Call, key: StreamKey) -> Result<Vec<CaptureNode>> {
        let CaptureStatus::Active(id) = self.capture_status(key) else { return Err(not_captured(call)) };
        let member = self.streams.get(key).and_then(|stream| stream.capture.as_ref());
        let ends = member.into_iter().flat_map(|member| member.frontier.iter());
        Ok(ends.map(|node| named(id.0, *node)).collect())
    }

    /// Whether a captured stream's next work comes after all of `nodes`.
    pub(crate) fn is_after(&self, call: Call, key: StreamKey, nodes: &[CaptureNode]) -> Result<bool> {
        let CaptureStatus::Active(id) = self.capture_status(key) else { return Err(not_captured(call)) };
        let places = nodes.iter().map(|name| self.captures.node(id.0, *name));
        let Some(places) = places.collect::<Option<Vec<u32>>>() else { return Ok(false) };
        let member = self.streams.get(key).and_then(|stream| stream.capture.as_ref());
        let joined = member.zip(self.captures.open.get(&id.0));
        Ok(joined.is_some_and(|(member, capture)| capture.are_joined(&places, &member.frontier)))
    }

    /// The nodes directly before one.
    pub(crate) fn dependencies_of(&self, name: CaptureNode) -> Option<Vec<CaptureNode>> {
        let capture = name.0 >> 32;
        let place = self.captures.node(capture, name)?;
        let after = &self.captures.open.get(&capture)?.nodes.get(place as usize)?.after;
        Some(after.iter().map(|node| named(capture, *node)).collect())
    }

    pub(crate) fn thread_mode(&self, thread: u64) -> CaptureMode {
        self.thread_modes.get(&thread).copied().unwrap_or_default()
    }

    /// Starts a capture on a stream that is not captured.
    pub(crate) fn begin_capture(&mut self, key: StreamKey, mode: CaptureMode) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        self.captures.last += 1;
        let id = self.captures.last;
        stream.capture = Some(Membership { capture: id, frontier: SmallVec::new() });
        let capture = CaptureState {
            mode,
            thread: this_thread(),
            origin: key,
            device: stream.device,
            made_at_ns: self.now_ns,
            invalid: false,
            members: BTreeSet::from([key]),
            nodes: Vec::new(),
            branch_ends: Vec::new(),
        };
        self.captures.open.insert(id, capture);
    }

    /// Ends the capture that began on stream `key`.
    pub(crate) fn end_capture(&mut self, call: Call, key: StreamKey) -> Result<Template> {
        let member = self.streams.get(key).and_then(|stream| stream.capture.clone());
        let Some(Membership { capture: id, frontier }) = member else {
            return Err(Refusal::IllegalState.of(call).with_detail("the stream is not being captured"));
        };
        let Some(capture) = self.captures.open.get_mut(&id) else {
            return Err(Refusal::CaptureInvalidated.of(call));
        };
        if capture.origin != key {
            capture.invalid = true;
            return Err(Refusal::CaptureUnmatched.of(call));
        }
        let wrong_thread = capture.mode != CaptureMode::Relaxed && capture.thread != this_thread();
        let Some(capture) = self.captures.open.remove(&id) else {
            return Err(Refusal::CaptureInvalidated.of(call));
        };
        let mut joined = true;
        for other in &capture.members {
            if let Some(stream) = self.streams.get_mut(*other)
                && let Some(member) = stream.capture.take()
            {
                joined &= capture.are_joined(&member.frontier, &frontier);
            }
        }
        // Measured: whatever is wrong, the capture is over for all of its streams.
        if wrong_thread {
            Err(Refusal::CaptureWrongThread.of(call))
        } else if capture.invalid {
            Err(Refusal::CaptureInvalidated.of(call))
        } else if !joined {
            Err(Refusal::CaptureUnjoined.of(call))
        } else {
            Ok(Template { nodes: capture.nodes, branches: capture.branch_ends.len() })
        }
    }

    /// Turns work of a captured stream into a node.
    pub(super) fn add_node(&mut self, key: StreamKey, operation: Arc<Operation>) {
        let Some(member) = self.streams.get_mut(key).and_then(|stream| stream.capture.as_mut()) else {
            return;
        };
        let Some(capture) = self.captures.open.get_mut(&member.capture) else { return };
        let node = capture.add(operation, std::mem::take(&mut member.frontier));
        member.frontier.push(node);
    }

    /// The present end of a captured stream, as an event sees it.
    pub(crate) fn captured_point(&self, key: StreamKey) -> Option<EventPoint> {
        let member = self.streams.get(key)?.capture.as_ref()?;
        Some(EventPoint::Captured { capture: member.capture, frontier: member.frontier.clone() })
    }

    /// Makes a stream wait for a point of a capture: it joins the capture, or gets one more thing to come after.
    pub(crate) fn wait_for_captured(
        &mut self,
        call: Call,
        key: StreamKey,
        capture: u64,
        frontier: &[u32],
    ) -> Result<()> {
        match self.captures.open.get(&capture) {
            None => return Err(Refusal::InvalidValue.of(call).with_detail("the event's capture has ended")),
            Some(state) if state.invalid => return Err(Refusal::CaptureInvalidated.of(call)),
            Some(_) => {}
        }
        if self.devices.iter().any(|device| device.legacy == key) {
            self.invalidate_capture(capture);
            return Err(Refusal::CaptureImplicit.of(call));
        }
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        match &mut stream.capture {
            Some(member) if member.capture != capture => {
                let other = member.capture;
                self.invalidate_capture(capture);
                self.invalidate_capture(other);
                return Err(Refusal::CaptureMerge.of(call));
            }
            Some(member) => {
                member.frontier.extend_from_slice(frontier);
                member.frontier.sort_unstable();
                member.frontier.dedup();
            }
            None => {
                stream.capture = Some(Membership { capture, frontier: SmallVec::from_slice(frontier) });
                if let Some(state) = self.captures.open.get_mut(&capture) {
                    state.members.insert(key);
                }
            }
        }
        Ok(())
    }

    /// A stream is destroyed: a capture it takes part in cannot become a graph any more.
    pub(super) fn leave_capture(&mut self, key: StreamKey, state: &StreamState) {
        let Some(member) = &state.capture else { return };
        let Some(capture) = self.captures.open.get_mut(&member.capture) else { return };
        capture.invalid = true;
        capture.members.remove(&key);
        if capture.origin == key
            && let Some(capture) = self.captures.open.remove(&member.capture)
        {
            // Nobody can end it any more.
            for other in capture.members {
                if let Some(stream) = self.streams.get_mut(other) {
                    stream.capture = None;
                }
            }
        }
    }
}
