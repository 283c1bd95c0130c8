//! Data as the page reads it: a small JSON text that names columns, and the columns.
//!
//! Blocks and spans are sorted by birth, ends are stored as lengths of life (0: to the end), and sums that hardly differ
//! as differences: what is regular becomes small numbers. `assets/model.js` undoes all of this.

use serde::Serialize;

use super::columns::Columns;
use super::data::{Block, Mark, PolicyFigures, PolicyReport, ReportData, Span};

#[derive(Serialize)]
struct Meta<'a> {
    trace: &'a str,
    events: usize,
    times_us: usize,
    marks: &'a [Mark],
    streams: &'a [String],
    frames: &'a [String],
    label_lengths: usize,
    label_frames: usize,
    policies: Vec<PolicyMeta<'a>>,
}

#[derive(Serialize)]
struct PolicyMeta<'a> {
    figures: &'a PolicyFigures,
    oom_events: usize,
    timeline: TimelineColumns,
    spans: SpanColumns,
    blocks: BlockColumns,
}

#[derive(Serialize)]
struct TimelineColumns {
    event: usize,
    live: usize,
    allocated_less_live: usize,
    active_less_allocated: usize,
    reserved: usize,
}

#[derive(Serialize)]
struct SpanColumns {
    address: usize,
    bytes: usize,
    arena: usize,
    born: usize,
    life: usize,
}

#[derive(Serialize)]
struct BlockColumns {
    address: usize,
    bytes: usize,
    requested_bytes: usize,
    stream: usize,
    label: usize,
    born: usize,
    life: usize,
    wait: usize,
}

/// The JSON text and the columns it names. `data` has passed `check`, so every number fits 53 bits.
pub(super) fn embed(data: &ReportData) -> serde_json::Result<(String, Columns)> {
    let mut columns = Columns::default();
    let meta = Meta {
        trace: &data.trace,
        events: data.events(),
        times_us: columns.add(data.event_times_us.iter().map(|&t| t as i64)),
        marks: &data.marks,
        streams: &data.streams,
        frames: &data.frames,
        label_lengths: columns.add(data.labels.iter().map(|path| path.len() as i64)),
        label_frames: columns.add(data.labels.iter().flatten().map(|&frame| i64::from(frame))),
        policies: data.policies.iter().map(|policy| policy_meta(policy, &mut columns)).collect(),
    };
    Ok((serde_json::to_string(&meta)?, columns))
}

fn policy_meta<'a>(policy: &'a PolicyReport, columns: &mut Columns) -> PolicyMeta<'a> {
    let timeline = &policy.timeline;
    let less = |a: u64, b: u64| a as i64 - b as i64;
    PolicyMeta {
        figures: &policy.figures,
        oom_events: columns.add(policy.oom_events.iter().map(|&event| i64::from(event))),
        timeline: TimelineColumns {
            event: columns.add(timeline.iter().map(|s| i64::from(s.event))),
            live: columns.add(timeline.iter().map(|s| s.live as i64)),
            allocated_less_live: columns.add(timeline.iter().map(|s| less(s.allocated, s.live))),
            active_less_allocated: columns.add(timeline.iter().map(|s| less(s.active, s.allocated))),
            reserved: columns.add(timeline.iter().map(|s| s.reserved as i64)),
        },
        spans: span_columns(&policy.spans, columns),
        blocks: block_columns(&policy.blocks, columns),
    }
}

fn span_columns(spans: &[Span], columns: &mut Columns) -> SpanColumns {
    let mut spans: Vec<&Span> = spans.iter().collect();
    spans.sort_by_key(|span| span.born);
    SpanColumns {
        address: columns.add(spans.iter().map(|s| s.address as i64)),
        bytes: columns.add(spans.iter().map(|s| s.bytes as i64)),
        arena: columns.add(spans.iter().map(|s| i64::from(s.arena))),
        born: columns.add(spans.iter().map(|s| i64::from(s.born))),
        life: columns.add(spans.iter().map(|s| length(s.born, s.died))),
    }
}

fn block_columns(blocks: &[Block], columns: &mut Columns) -> BlockColumns {
    let mut blocks: Vec<&Block> = blocks.iter().collect();
    blocks.sort_by_key(|block| block.born);
    let wait = |block: &Block| block.died.map_or(0, |died| length(died, block.completed));
    BlockColumns {
        address: columns.add(blocks.iter().map(|b| b.address as i64)),
        bytes: columns.add(blocks.iter().map(|b| b.bytes as i64)),
        requested_bytes: columns.add(blocks.iter().map(|b| b.requested_bytes as i64)),
        stream: columns.add(blocks.iter().map(|b| i64::from(b.stream))),
        label: columns.add(blocks.iter().map(|b| i64::from(b.label))),
        born: columns.add(blocks.iter().map(|b| i64::from(b.born))),
        life: columns.add(blocks.iter().map(|b| length(b.born, b.died))),
        wait: columns.add(blocks.iter().map(|b| wait(b))),
    }
}

/// One more than the events between two moments; zero for an end that never comes.
fn length(from: u32, to: Option<u32>) -> i64 {
    to.map_or(0, |to| i64::from(to) - i64::from(from) + 1)
}
