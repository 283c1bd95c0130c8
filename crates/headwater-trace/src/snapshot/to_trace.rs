//! From a [`Snapshot`] to a [`Trace`].
//!
//! Every device's history becomes events on its own; then they are merged by time, each device keeping its order.
//! Blocks get ids in the order they then appear. What was there before the history comes first (see `initial.rs`).
//!
//! PyTorch records every give-back twice, `free_requested` and `free_completed`, under one lock: adjacent entries. Only
//! where another stream still used the block do other entries lie between, and only then is there a
//! [`Event::Complete`].
//!
//! A history with gaps (recording switched off and on) is repaired, and counted in the header's `extra`:
//! `implied_frees` where a block is allocated at an address that is still live, `implied_allocs` where one is freed
//! that the history freed before, `unmatched_completes` where a give-back completes that was never made.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde_json::Value as Json;

use super::initial;
use super::model::{Action, ExternalAnnotation, Snapshot, TraceEntry};
use crate::error::{Format, Result, TraceError};
use crate::ids::IdTable;
use crate::model::{Event, Trace, TraceHeader};
use crate::names::{Label, LabelId, Names, StreamId};

impl Snapshot {
    /// The history as a trace called `name`.
    ///
    /// The reported peak of reserved bytes is that of the history; a peak from before it is not in the file.
    ///
    /// # Errors
    /// More than 256 devices or 65,536 streams.
    pub fn to_trace(&self, name: impl Into<String>) -> Result<Trace> {
        let mut build = Build { names: self.names.clone(), ..Build::default() };
        let mut histories = Vec::new();
        for (device, entries) in self.device_traces.iter().enumerate() {
            let device = u8::try_from(device).map_err(|_| {
                let problem = format!("a history for device {device}; 256 devices fit");
                TraceError::malformed(Format::TorchSnapshot, 0, problem)
            })?;
            build.start(device, entries);
            histories.push(build.history(device, entries)?);
            build.before(self, device, entries)?;
        }
        histories.push(build.annotations(&self.external_annotations)?);

        let header = TraceHeader {
            name: name.into(),
            source: Format::TorchSnapshot,
            initial_events: build.initial.len() as u64,
            extra: build.extra(self),
            ..TraceHeader::default()
        };
        let mut trace = Trace { header, names: build.names, events: build.initial };
        merge_by_time(histories, &mut trace.events);
        number_by_first_use(&mut trace.events);
        trace.header.reported.peak_reserved = peak_reserved(&trace.events);
        trace.header.reported.seconds = seconds(&trace.events);
        Ok(trace)
    }
}

#[derive(Debug, Default)]
struct Build {
    names: Names,
    next_id: u64,
    /// What was there before, of all devices so far.
    initial: Vec<Event>,
    /// When the history at hand begins.
    start_us: u64,
    device: u8,
    /// What the history at hand did last at each address it touched.
    blocks: HashMap<u64, Block>,
    last_stream: Option<(u64, StreamId)>,
    implied_frees: u64,
    implied_allocs: u64,
    unmatched_completes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    id: u64,
    stream: StreamId,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Pending,
    Gone,
}

impl Build {
    fn start(&mut self, device: u8, entries: &[TraceEntry]) {
        self.blocks.clear();
        self.start_us = entries.first().map_or(0, |entry| entry.t_us);
        self.device = device;
    }

    /// Puts what the history at hand never mentioned among what was there before.
    fn before(&mut self, snapshot: &Snapshot, device: u8, entries: &[TraceEntry]) -> Result<()> {
        let (t_us, label) = (self.start_us, LabelId::NONE);
        for range in initial::segments(snapshot, device, entries) {
            let stream = self.stream(range.stream)?;
            let (address, bytes) = (range.address, range.bytes);
            self.initial.push(Event::SegmentAlloc { address, bytes, t_us, label, stream, device });
        }
        let blocks = std::mem::take(&mut self.blocks);
        for block in initial::untouched_blocks(snapshot, device, entries, |at| blocks.contains_key(&at)) {
            let stream = self.stream(block.stream)?;
            self.was_there(block.bytes, stream, block.stack, block.pending);
        }
        self.blocks = blocks;
        Ok(())
    }

    /// A block that was there before the history at hand; its id.
    fn was_there(&mut self, bytes: u64, stream: StreamId, label: LabelId, pending: bool) -> u64 {
        let (id, t_us, device) = (self.new_id(), self.start_us, self.device);
        self.initial.push(Event::Alloc { id, bytes, t_us, label, stream, device });
        if pending {
            self.initial.push(Event::Free { id, t_us, label: LabelId::NONE, stream, device });
        }
        id
    }

    fn history(&mut self, device: u8, entries: &[TraceEntry]) -> Result<Vec<Event>> {
        let mut events = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let &TraceEntry { address, bytes, t_us, .. } = entry;
            let stream = self.stream(entry.stream)?;
            let label = if entry.stack.is_none() { entry.user_metadata } else { entry.stack };
            match entry.action {
                Action::Alloc => {
                    let id = self.new_id();
                    let old = self.blocks.insert(address, Block { id, stream, state: State::Live });
                    events.extend(old.and_then(|old| self.end_of_life(old, t_us, device)));
                    events.push(Event::Alloc { id, bytes, t_us, label, stream, device });
                }
                Action::FreeRequested => {
                    let id = match self.blocks.get(&address) {
                        Some(block) if block.state == State::Live => block.id,
                        None => self.was_there(bytes, stream, LabelId::NONE, false),
                        Some(_) => {
                            self.implied_allocs += 1;
                            let id = self.new_id();
                            let label = LabelId::NONE;
                            events.push(Event::Alloc { id, bytes, t_us, label, stream, device });
                            id
                        }
                    };
                    self.blocks.insert(address, Block { id, stream, state: State::Pending });
                    events.push(Event::Free { id, t_us, label, stream, device });
                }
                Action::FreeCompleted => {
                    let before = index.checked_sub(1).and_then(|before| entries.get(before));
                    let at_once =
                        before.is_some_and(|b| b.action == Action::FreeRequested && b.address == address);
                    let id = match self.blocks.get(&address) {
                        Some(block) if block.state == State::Pending => block.id,
                        None => self.was_there(bytes, stream, LabelId::NONE, true),
                        Some(_) => {
                            self.unmatched_completes += 1;
                            continue;
                        }
                    };
                    self.blocks.insert(address, Block { id, stream, state: State::Gone });
                    if !at_once {
                        events.push(Event::Complete { id, t_us, device });
                    }
                }
                Action::SegmentAlloc => {
                    events.push(Event::SegmentAlloc { address, bytes, t_us, label, stream, device });
                }
                Action::SegmentFree => {
                    events.push(Event::SegmentFree { address, bytes, t_us, label, stream, device });
                }
                Action::SegmentMap => {
                    events.push(Event::SegmentMap { address, bytes, t_us, label, stream, device })
                }
                Action::SegmentUnmap => {
                    events.push(Event::SegmentUnmap { address, bytes, t_us, label, stream, device });
                }
                Action::Oom => {
                    events.push(Event::Oom { bytes, free_bytes: address, t_us, label, stream, device });
                }
                Action::Snapshot => {
                    let label = self.names.text("snapshot")?;
                    events.push(Event::Annotation { label, t_us, device });
                }
                Action::Annotate => {
                    let label = if entry.user_metadata.is_none() { label } else { entry.user_metadata };
                    events.push(Event::Annotation { label, t_us, device });
                }
            }
        }
        Ok(events)
    }

    /// What must have happened to a block for another to be allocated in its place.
    fn end_of_life(&mut self, old: Block, t_us: u64, device: u8) -> Option<Event> {
        match old.state {
            State::Gone => None,
            State::Pending => Some(Event::Complete { id: old.id, t_us, device }),
            State::Live => {
                self.implied_frees += 1;
                Some(Event::Free { id: old.id, t_us, label: LabelId::NONE, stream: old.stream, device })
            }
        }
    }

    fn annotations(&mut self, annotations: &[ExternalAnnotation]) -> Result<Vec<Event>> {
        let mut events = Vec::with_capacity(annotations.len());
        for annotation in annotations {
            let &ExternalAnnotation { device, t_us, .. } = annotation;
            let label = self.annotation_label(annotation)?;
            events.push(Event::Annotation { label, t_us, device });
        }
        events.sort_by_key(Event::t_us);
        Ok(events)
    }

    /// `name` alone is the label; with more beside it, all are joined.
    fn annotation_label(&mut self, annotation: &ExternalAnnotation) -> Result<LabelId> {
        let text = |names: &Names, label| match names.label(label) {
            Some(Label::Text(text)) => text.chars().take(200).collect(),
            _ => String::new(),
        };
        if let [(key, only)] = annotation.texts[..]
            && text(&self.names, key) == "name"
        {
            return Ok(only);
        }
        let part = |&(key, value)| format!("{}={}", text(&self.names, key), text(&self.names, value));
        let joined = annotation.texts.iter().take(16).map(part).collect::<Vec<_>>().join(" ");
        self.names.text(&joined)
    }

    fn extra(&self, snapshot: &Snapshot) -> serde_json::Map<String, Json> {
        let mut extra = serde_json::Map::new();
        let repairs = [
            ("implied_frees", self.implied_frees),
            ("implied_allocs", self.implied_allocs),
            ("unmatched_completes", self.unmatched_completes),
        ];
        for (key, count) in repairs.into_iter().filter(|&(_, count)| count > 0) {
            extra.insert(key.into(), count.into());
        }
        if !snapshot.allocator_settings.is_empty() {
            extra.insert("allocator_settings".into(), snapshot.allocator_settings.clone().into());
        }
        if !snapshot.ignored_keys.is_empty() {
            extra.insert("ignored_keys".into(), snapshot.ignored_keys.clone().into());
        }
        extra
    }

    fn stream(&mut self, raw: u64) -> Result<StreamId> {
        match self.last_stream {
            Some((last, stream)) if last == raw => Ok(stream),
            _ => {
                let stream = self.names.stream(raw)?;
                self.last_stream = Some((raw, stream));
                Ok(stream)
            }
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

/// Puts the histories after `events`, always the one whose next event is earliest; the first of equals.
fn merge_by_time(histories: Vec<Vec<Event>>, events: &mut Vec<Event>) {
    events.reserve_exact(histories.iter().map(Vec::len).sum());
    let mut rest: Vec<_> = histories.into_iter().map(|history| history.into_iter().peekable()).collect();
    let mut heads: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for (index, history) in rest.iter_mut().enumerate() {
        heads.extend(history.peek().map(|event| Reverse((event.t_us(), index))));
    }
    while let Some(Reverse((_, index))) = heads.pop() {
        let Some(history) = rest.get_mut(index) else { continue };
        events.extend(history.next());
        // While this history is alone or still earliest, the heap is not needed.
        while let Some(event) = history.peek() {
            let head = Reverse((event.t_us(), index));
            if heads.peek().is_some_and(|&other| other > head) {
                heads.push(head);
                break;
            }
            events.extend(history.next());
        }
    }
}

/// Ids were given as blocks were found, device after device; now they are to rise with the events.
fn number_by_first_use(events: &mut [Event]) {
    let mut numbers = IdTable::new(0);
    let mut next_id = 0;
    for event in events {
        match event {
            Event::Alloc { id, .. } => {
                numbers.set(*id, next_id);
                *id = next_id;
                next_id += 1;
            }
            Event::Free { id, .. } | Event::Complete { id, .. } => *id = numbers.get(*id),
            _ => {}
        }
    }
}

/// From the earliest to the latest event; `None` where that is no time.
fn seconds(events: &[Event]) -> Option<f64> {
    let (first, last) = (events.iter().map(Event::t_us).min()?, events.iter().map(Event::t_us).max()?);
    Some((last - first) as f64 / 1e6).filter(|&seconds| seconds > 0.0)
}

/// The most bytes that segments took together; `None` where the file knows no segments.
fn peak_reserved(events: &[Event]) -> Option<u64> {
    let (mut reserved, mut peak) = (0u64, None);
    for event in events {
        match *event {
            Event::SegmentAlloc { bytes, .. } | Event::SegmentMap { bytes, .. } => {
                reserved = reserved.saturating_add(bytes);
                peak = peak.max(Some(reserved));
            }
            Event::SegmentFree { bytes, .. } | Event::SegmentUnmap { bytes, .. } => {
                reserved = reserved.saturating_sub(bytes);
            }
            _ => {}
        }
    }
    peak
}
