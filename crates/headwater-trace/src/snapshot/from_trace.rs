//! From a [`Trace`] to a [`Snapshot`] that PyTorch's viewer can draw.
//!
//! A trace has no addresses, so they are made up (see `place.rs`): one segment for each stream of each device, there from
//! the beginning. What the trace says of the recording allocator's own segments is left out, for it would contradict
//! them. Initial allocations are not in the history: they show in its end state, or by being freed.
//!
//! The viewer goes backwards through the history and needs it complete: `free_completed` follows every
//! `free_requested`, at once or where the trace has a `Complete`.

use std::collections::BTreeMap;

use super::model::{
    Action, Block, BlockState, ExternalAnnotation, Segment, SegmentKind, Snapshot, TraceEntry,
};
use super::place::Placement;
use crate::alloctrace::LeftOut;
use crate::error::{Format, Result, TraceError};
use crate::ids::IdTable;
use crate::model::{Event, Trace};
use crate::names::{Label, LabelId, StreamId};

/// Where the segment of the n-th stream begins; they are 2^42 bytes apart.
const SEGMENT_BASE: u64 = 0x0100_0000_0000_0000;
const SEGMENT_STRIDE_BITS: u32 = 42;

impl Snapshot {
    /// The trace as a snapshot, and what of it had no place there.
    ///
    /// # Errors
    /// A trace that [`Trace::check`] refuses, or that is too large for 64-bit addresses.
    pub fn from_trace(trace: &Trace) -> Result<(Self, LeftOut)> {
        trace.check().map_err(|fault| unwritable(fault.to_string()))?;
        let devices = trace.summary().devices as usize;
        let mut out = Self { device_traces: vec![Vec::new(); devices.max(1)], ..Self::default() };
        out.names = trace.names.clone();
        let waits = trace.completed_frees();
        let mut layout =
            Layout { segments: BTreeMap::new(), placed: IdTable::new(None), live: BTreeMap::new() };
        let mut left_out = LeftOut::default();
        for (index, event) in trace.events.iter().enumerate() {
            let initial = (index as u64) < trace.header.initial_events;
            let entries = out.device_traces.get_mut(usize::from(event.device()));
            let entries = entries.ok_or_else(|| unwritable("a device beyond the last"))?;
            let raw = event.stream().and_then(|stream| trace.names.stream_raw(stream)).unwrap_or(0);
            let entry = |action, address, bytes| entry(&out.names, event, action, address, bytes, raw);
            match *event {
                Event::Alloc { id, bytes, stream, device, label, .. } => {
                    let address = layout.alloc(id, bytes, stream, device, label)?;
                    if !initial {
                        entries.push(entry(Action::Alloc, address, bytes));
                    }
                }
                Event::Free { id, .. } => {
                    let waits = waits.get(index).copied().unwrap_or(false);
                    let placed = layout.free(id, !waits)?;
                    if !initial {
                        entries.push(entry(Action::FreeRequested, placed.address, placed.bytes));
                        if !waits {
                            entries.push(entry(Action::FreeCompleted, placed.address, placed.bytes));
                        }
                    }
                }
                Event::Complete { id, .. } => {
                    let placed = layout.complete(id)?;
                    let raw = trace.names.stream_raw(placed.stream).unwrap_or(0);
                    let done = TraceEntry {
                        stream: raw,
                        ..entry(Action::FreeCompleted, placed.address, placed.bytes)
                    };
                    entries.push(done);
                }
                Event::Oom { bytes, free_bytes, .. } => entries.push(entry(Action::Oom, free_bytes, bytes)),
                Event::Annotation { label, t_us, device } => {
                    let name = out.names.text("name")?;
                    let texts = vec![(name, label)];
                    out.external_annotations.push(ExternalAnnotation { device, t_us, texts });
                }
                _ => left_out.events += 1,
            }
        }
        out.segments = layout.segments(trace);
        Ok((out, left_out))
    }
}

fn unwritable(problem: impl Into<String>) -> TraceError {
    TraceError::Unwritable { format: Format::TorchSnapshot, problem: problem.into() }
}

fn entry(
    names: &crate::names::Names,
    event: &Event,
    action: Action,
    address: u64,
    bytes: u64,
    stream: u64,
) -> TraceEntry {
    // A text is a remark of the caller, a stack is where it was.
    let is_text = matches!(names.label(event.label()), Some(Label::Text(_)));
    let (stack, user_metadata) =
        if is_text { (LabelId::NONE, event.label()) } else { (event.label(), LabelId::NONE) };
    let (t_us, compile_context, pool_id) = (event.t_us(), LabelId::NONE, None);
    TraceEntry { action, address, bytes, stream, t_us, stack, compile_context, user_metadata, pool_id }
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    address: u64,
    bytes: u64,
    stream: StreamId,
    device: u8,
    label: LabelId,
}

struct Layout {
    /// By device and stream: the segment's address, and its blocks.
    segments: BTreeMap<(u8, StreamId), (u64, Placement)>,
    placed: IdTable<Option<Placed>>,
    /// By address: blocks that are given out, or given back and still used.
    live: BTreeMap<u64, (Placed, BlockState)>,
}

impl Layout {
    fn alloc(&mut self, id: u64, bytes: u64, stream: StreamId, device: u8, label: LabelId) -> Result<u64> {
        let count = self.segments.len() as u64;
        let too_large = || unwritable(format!("no addresses left for {bytes} bytes"));
        let (base, placement) = self
            .segments
            .entry((device, stream))
            .or_insert_with(|| (SEGMENT_BASE + (count << SEGMENT_STRIDE_BITS), Placement::default()));
        let rounded = Placement::rounded(bytes).ok_or_else(too_large)?;
        let offset = placement
            .place(rounded)
            .filter(|&offset| offset.checked_add(rounded).is_some_and(|end| end <= 1 << SEGMENT_STRIDE_BITS));
        let address = *base + offset.ok_or_else(too_large)?;
        let placed = Placed { address, bytes, stream, device, label };
        self.placed.set(id, Some(placed));
        self.live.insert(address, (placed, BlockState::Allocated));
        Ok(address)
    }

    fn free(&mut self, id: u64, at_once: bool) -> Result<Placed> {
        let placed = self.placed.get(id).ok_or_else(|| unwritable(format!("id {id} was never allocated")))?;
        if at_once {
            return self.complete(id);
        }
        self.live.insert(placed.address, (placed, BlockState::PendingFree));
        Ok(placed)
    }

    fn complete(&mut self, id: u64) -> Result<Placed> {
        let placed = self.placed.get(id).ok_or_else(|| unwritable(format!("id {id} was never allocated")))?;
        self.live.remove(&placed.address);
        if let Some((base, placement)) = self.segments.get_mut(&(placed.device, placed.stream))
            && let Some(rounded) = Placement::rounded(placed.bytes)
        {
            placement.release(placed.address - *base, rounded);
        }
        Ok(placed)
    }

    /// The state at the end: every segment full of blocks side by side.
    fn segments(&self, trace: &Trace) -> Vec<Segment> {
        let mut segments = Vec::new();
        for (&(device, stream), (base, placement)) in &self.segments {
            let mut segment = Segment {
                device,
                address: *base,
                bytes: placement.peak_bytes(),
                stream: trace.names.stream_raw(stream).unwrap_or(0),
                kind: SegmentKind::Large,
                ..Segment::default()
            };
            let end = base + segment.bytes;
            let mut next = *base;
            let hole = |from: u64, to: u64| Block {
                address: from,
                bytes: to - from,
                requested_bytes: 0,
                state: BlockState::Inactive,
                stack: LabelId::NONE,
            };
            for (&address, &(placed, state)) in self.live.range(*base..end) {
                if address > next {
                    segment.blocks.push(hole(next, address));
                }
                let bytes = Placement::rounded(placed.bytes).unwrap_or(placed.bytes);
                let (requested_bytes, stack) = (placed.bytes, placed.label);
                segment.blocks.push(Block { address, bytes, requested_bytes, state, stack });
                segment.active_bytes += bytes;
                if state == BlockState::Allocated {
                    segment.allocated_bytes += bytes;
                    segment.requested_bytes += requested_bytes;
                }
                next = address + bytes;
            }
            if next < end {
                segment.blocks.push(hole(next, end));
            }
            segments.push(segment);
        }
        segments.sort_by_key(|segment| segment.address);
        segments
    }
}
