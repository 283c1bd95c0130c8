//! What a report is made of: plain data that a replay fills in.
//!
//! A *moment* is an event index: the state after that event. A block is in the picture at moment `e` when
//! `born <= e < completed`, a span when `born <= e < died`. The page rebuilds every moment from these lists, so
//! nothing is stored twice: the timeline is what the policy counted, blocks and spans are where it put things.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Event, Label, LabelId, Reported, Trace};

/// Everything one page shows.
///
/// ```
/// use headwater_trace::Trace;
/// use headwater_trace::report::{self, Block, PolicyReport, ReportData, Sample, Span};
///
/// let mut data = ReportData::of_trace(&Trace::new("two blocks"));
/// data.event_times_us = vec![0, 5];
/// let mut policy = PolicyReport::new("classic");
/// policy.figures.peak_reserved_bytes = 2 << 20;
/// policy.spans.push(Span { address: 0x7000_0000, bytes: 2 << 20, arena: 0, born: 0, died: None });
/// policy.blocks.push(Block { address: 0x7000_0000, bytes: 512, requested_bytes: 500, ..Block::default() });
/// policy.timeline.push(Sample { event: 0, live: 500, allocated: 512, active: 512, reserved: 2 << 20 });
/// data.policies.push(policy);
/// assert!(report::render(&data)?.contains("two blocks"));
/// # Ok::<(), report::ReportError>(())
/// ```
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReportData {
    /// What the trace is called.
    pub trace: String,
    /// What the recording allocator said of itself, where the trace has it.
    pub reported: Reported,
    /// The time of every event, in microseconds. Its length is the number of events.
    pub event_times_us: Vec<u64>,
    /// Moments the program marked, in the order of events.
    pub marks: Vec<Mark>,
    /// The name of each stream, by the number that blocks use.
    pub streams: Vec<String>,
    /// One line for each frame (or text) that labels are made of.
    pub frames: Vec<String>,
    /// For each label the frames that it is, outermost first. Label 0 is "none" and must be empty.
    pub labels: Vec<Vec<u32>>,
    /// One for each policy, in the order they are shown.
    pub policies: Vec<PolicyReport>,
}

/// A moment the program marked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// The event.
    pub event: u32,
    /// What the program called it.
    pub text: String,
}

/// What one policy did with the trace.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PolicyReport {
    /// The figures of `replay --json`.
    pub figures: PolicyFigures,
    /// What the policy counted, by rising event. Between two samples nothing changed, so unchanged events may be
    /// left out.
    pub timeline: Vec<Sample>,
    /// What the driver gave, in any order. Two that exist at once must not overlap.
    pub spans: Vec<Span>,
    /// What the policy gave out, in any order. Two that exist at once must not overlap.
    pub blocks: Vec<Block>,
    /// The events whose requests failed, rising.
    pub oom_events: Vec<u32>,
}

/// The figures of one policy, under the keys of `replay --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicyFigures {
    /// The policy.
    pub policy: String,
    /// The device it ran on: `sim`, `cuda:0`.
    pub device: String,
    /// The most bytes that were live at once.
    pub peak_live_bytes: u64,
    /// The most bytes that were allocated (live, rounded) at once.
    pub peak_allocated_bytes: u64,
    /// The most bytes that were active (allocated, or given back but in use by a stream) at once.
    pub peak_active_bytes: u64,
    /// The most bytes that the driver had given at once.
    pub peak_reserved_bytes: u64,
    /// 1 - peak live / peak reserved.
    pub fragmentation: f64,
    /// How often each driver call was made.
    pub driver_calls: BTreeMap<String, u64>,
    /// What those calls cost by the model of the simulated device.
    pub modelled_driver_us: f64,
    /// Host time for each event; `None` where it was not measured.
    pub host_ns_per_event: Option<f64>,
    /// Requests that failed.
    pub ooms: u64,
}

/// What a policy counted after one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The event.
    pub event: u32,
    /// Bytes that callers asked for and hold.
    pub live: u64,
    /// Live, rounded.
    pub allocated: u64,
    /// Allocated, and given back but still used by a stream.
    pub active: u64,
    /// What the driver gave.
    pub reserved: u64,
}

/// A range of addresses with memory behind it: a segment of `classic`, a mapped handle of `paged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Span {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// The segment or arena it belongs to. Neighbours in one arena are one run of memory, in two arenas they are not.
    pub arena: u32,
    /// The event that brought it.
    pub born: u32,
    /// The event that took it away; `None` where it stays to the end.
    pub died: Option<u32>,
}

/// A piece of a span that the program held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// What it took, rounded.
    pub bytes: u64,
    /// What the caller asked for.
    pub requested_bytes: u64,
    /// Its stream, an index into [`ReportData::streams`].
    pub stream: u16,
    /// Its label, an index into [`ReportData::labels`]; 0 is none.
    pub label: u32,
    /// The event that asked for it.
    pub born: u32,
    /// The event that gave it back; `None` where it was held to the end.
    pub died: Option<u32>,
    /// The event from which its bytes could be used again: `died`, or later where other streams still used it;
    /// `None` where that never came.
    pub completed: Option<u32>,
}

impl PolicyReport {
    /// An empty report of the policy called `policy`.
    pub fn new(policy: impl Into<String>) -> Self {
        let figures = PolicyFigures { policy: policy.into(), ..PolicyFigures::default() };
        Self { figures, ..Self::default() }
    }
}

impl ReportData {
    /// What a page says of the trace itself: name, times, marks, streams and labels. `LabelId` and `StreamId` of
    /// the trace's events are then the `label` and `stream` of a [`Block`]. Policies are to be added.
    pub fn of_trace(trace: &Trace) -> Self {
        let mut data = Self {
            trace: trace.header.name.clone(),
            reported: trace.header.reported.clone(),
            event_times_us: trace.events.iter().map(Event::t_us).collect(),
            streams: trace.names.streams().iter().map(|raw| stream_name(*raw)).collect(),
            ..Self::default()
        };
        for (event, what) in (0u32..).zip(&trace.events) {
            if let Event::Annotation { label, .. } = *what {
                data.marks.push(Mark { event, text: trace.names.describe(label) });
            }
        }
        data.add_labels(trace);
        data
    }

    /// How many events the trace has.
    pub fn events(&self) -> usize {
        self.event_times_us.len()
    }

    fn add_labels(&mut self, trace: &Trace) {
        let names = &trace.names;
        let mut frame_of = BTreeMap::new();
        self.labels.push(Vec::new());
        for id in 1u32.. {
            let Some(label) = names.label(LabelId(id)) else { break };
            let path = match label {
                Label::Text(text) => vec![push_line(&mut self.frames, text.to_owned())],
                // A trace keeps the innermost call first; a tree grows from the outermost.
                Label::Stack(stack) => stack
                    .iter()
                    .rev()
                    .filter_map(|&frame| match frame_of.get(&frame) {
                        Some(&line) => Some(line),
                        None => {
                            let at = names.frame_at(frame)?;
                            let text = format!("{} ({}:{})", at.function, at.file, at.line);
                            let line = push_line(&mut self.frames, text);
                            frame_of.insert(frame, line);
                            Some(line)
                        }
                    })
                    .collect(),
            };
            self.labels.push(path);
        }
    }
}

fn push_line(lines: &mut Vec<String>, line: String) -> u32 {
    lines.push(line);
    // `Names` counts labels and frames in 32 bits each, and refuses more.
    u32::try_from(lines.len() - 1).unwrap_or(u32::MAX)
}

/// Small numbers are a format's own; a large one is a handle, which reads better in hexadecimal.
fn stream_name(raw: u64) -> String {
    if raw < 1 << 16 { format!("stream {raw}") } else { format!("stream {raw:#x}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_turned_so_that_the_outermost_frame_is_first() {
        let mut trace = Trace::new("t");
        let inner = trace.names.frame("a.py", 1, "inner").unwrap();
        let outer = trace.names.frame("a.py", 9, "outer").unwrap();
        let stack = trace.names.stack(&[inner, outer]).unwrap();
        let text = trace.names.text("weights").unwrap();
        let data = ReportData::of_trace(&trace);
        let lines = |label: LabelId| {
            let path = &data.labels[label.0 as usize];
            path.iter().map(|&f| data.frames[f as usize].as_str()).collect::<Vec<_>>()
        };
        assert_eq!(lines(stack), ["outer (a.py:9)", "inner (a.py:1)"]);
        assert_eq!(lines(text), ["weights"]);
        assert!(lines(LabelId::NONE).is_empty());
    }
}
