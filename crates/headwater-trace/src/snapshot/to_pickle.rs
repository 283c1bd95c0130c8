//! From a [`Snapshot`] to the pickle that `torch` and PyTorch's viewer open.
//!
//! Keys and words, frames and stacks are written once and referred to after that, as PyTorch does it; this is what keeps
//! a snapshot of a million events with stacks at a hundred bytes an event.

use std::collections::HashMap;
use std::io::Write;

use serde_json::{Map, Value as Json};

use super::model::{
    Action, Block, BlockState, ExternalAnnotation, Segment, SegmentKind, Snapshot, TraceEntry,
};
use crate::error::Result;
use crate::names::{FrameId, Label, LabelId, Names};
use crate::pickle::{Memo, PickleWriter, op};

impl Snapshot {
    /// Writes the snapshot as a pickle of protocol 4, with PyTorch's keys, and gives the sink back.
    ///
    /// # Errors
    /// A sink that does not take the bytes.
    pub fn write<W: Write>(&self, sink: W) -> Result<W> {
        let mut out = Writer {
            to: PickleWriter::new(sink),
            names: &self.names,
            words: HashMap::new(),
            stacks: vec![None; self.names.label_count() + 1],
            frames: HashMap::new(),
            no_frames: None,
        };
        out.dict(|out| {
            out.word("segments")?;
            out.each(&self.segments, |out, segment| out.segment(segment))?;
            out.word("device_traces")?;
            out.each(&self.device_traces, |out, trace| out.each(trace, |out, entry| out.trace_entry(entry)))?;
            out.word("allocator_settings")?;
            out.settings(&self.allocator_settings)?;
            out.word("external_annotations")?;
            out.each(&self.external_annotations, |out, annotation| out.annotation(annotation))
        })?;
        out.to.finish()
    }
}

struct Writer<'a, W> {
    to: PickleWriter<W>,
    names: &'a Names,
    words: HashMap<String, Memo>,
    /// By label.
    stacks: Vec<Option<Memo>>,
    frames: HashMap<FrameId, Memo>,
    /// The one empty list.
    no_frames: Option<Memo>,
}

/// The most different texts that are remembered; keys and words are far fewer.
const WORDS_LIMIT: usize = 100_000;

impl<W: Write> Writer<'_, W> {
    /// A dictionary whose pairs `pairs` writes: fewer than a batch.
    fn dict(&mut self, pairs: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.to.op(op::EMPTY_DICT);
        self.to.op(op::MARK);
        pairs(self)?;
        self.to.op(op::SETITEMS);
        Ok(())
    }

    fn each<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T) -> Result<()>) -> Result<()> {
        self.to.op(op::EMPTY_LIST);
        for batch in items.chunks(crate::pickle::BATCH) {
            self.to.op(op::MARK);
            for item in batch {
                each(self, item)?;
                self.to.drain()?;
            }
            self.to.op(op::APPENDS);
        }
        Ok(())
    }

    /// A string that is written once.
    fn word(&mut self, word: &str) -> Result<()> {
        if let Some(&memo) = self.words.get(word) {
            self.to.get(memo);
            return Ok(());
        }
        self.to.string(word)?;
        if self.words.len() < WORDS_LIMIT {
            let memo = self.to.memoize();
            self.words.insert(word.to_owned(), memo);
        }
        Ok(())
    }

    fn number(&mut self, key: &str, number: u64) -> Result<()> {
        self.word(key)?;
        // PyTorch writes addresses and streams as signed 64-bit numbers, sizes are never that large.
        self.to.int(i128::from(number as i64));
        Ok(())
    }

    fn segment(&mut self, segment: &Segment) -> Result<()> {
        self.dict(|out| {
            out.number("device", u64::from(segment.device))?;
            out.number("address", segment.address)?;
            out.number("total_size", segment.bytes)?;
            out.number("allocated_size", segment.allocated_bytes)?;
            out.number("active_size", segment.active_bytes)?;
            out.number("requested_size", segment.requested_bytes)?;
            out.number("stream", segment.stream)?;
            out.word("segment_type")?;
            out.word(match segment.kind {
                SegmentKind::Small => "small",
                SegmentKind::Large => "large",
            })?;
            out.word("segment_pool_id")?;
            out.pool_id(segment.pool_id);
            out.word("is_expandable")?;
            out.to.bool(segment.is_expandable);
            out.word("frames")?;
            out.stack(segment.stack)?;
            out.word("blocks")?;
            out.each(&segment.blocks, |out, block| out.block(block))
        })
    }

    fn block(&mut self, block: &Block) -> Result<()> {
        self.dict(|out| {
            out.number("address", block.address)?;
            out.number("size", block.bytes)?;
            out.number("requested_size", block.requested_bytes)?;
            out.word("state")?;
            out.word(match block.state {
                BlockState::Allocated => "active_allocated",
                BlockState::PendingFree => "active_pending_free",
                BlockState::Inactive => "inactive",
            })?;
            out.word("frames")?;
            out.stack(block.stack)
        })
    }

    fn trace_entry(&mut self, entry: &TraceEntry) -> Result<()> {
        self.dict(|out| {
            out.word("action")?;
            out.word(entry.action.word())?;
            out.number(if entry.action == Action::Oom { "device_free" } else { "addr" }, entry.address)?;
            out.number("size", entry.bytes)?;
            out.number("stream", entry.stream)?;
            out.number("time_us", entry.t_us)?;
            out.word("compile_context")?;
            out.remark(entry.compile_context, "N/A")?;
            out.word("user_metadata")?;
            out.remark(entry.user_metadata, "")?;
            if let Some((owner, id)) = entry.pool_id {
                out.word("pool_id")?;
                out.pool_id((u64::from(owner), u64::from(id)));
            }
            if !entry.stack.is_none() {
                out.word("frames")?;
                out.stack(entry.stack)?;
            }
            Ok(())
        })
    }

    fn annotation(&mut self, annotation: &ExternalAnnotation) -> Result<()> {
        self.dict(|out| {
            for &(key, text) in &annotation.texts {
                out.remark(key, "")?;
                out.remark(text, "")?;
            }
            out.number("device", u64::from(annotation.device))?;
            out.number("time_us", annotation.t_us)
        })
    }

    fn pool_id(&mut self, (owner, id): (u64, u64)) {
        self.to.int(i128::from(owner));
        self.to.int(i128::from(id));
        self.to.op(op::TUPLE2);
    }

    fn remark(&mut self, label: LabelId, absent: &str) -> Result<()> {
        let names = self.names;
        match names.label(label) {
            Some(Label::Text(text)) => self.word(text),
            _ => self.word(absent),
        }
    }

    /// The frames of a label; a text becomes one frame, so that the viewer shows it.
    fn stack(&mut self, label: LabelId) -> Result<()> {
        let known = if label.is_none() {
            self.no_frames
        } else {
            self.stacks.get(label.0 as usize).copied().flatten()
        };
        if let Some(memo) = known {
            self.to.get(memo);
            return Ok(());
        }
        let names = self.names;
        match names.label(label) {
            None => self.to.op(op::EMPTY_LIST),
            Some(Label::Stack(frames)) => self.each(frames, |out, &frame| out.frame(frame))?,
            Some(Label::Text(text)) => self.each(&[text], |out, text| out.frame_dict(text, 0, ""))?,
        }
        let memo = self.to.memoize();
        match self.stacks.get_mut(label.0 as usize).filter(|_| !label.is_none()) {
            Some(slot) => *slot = Some(memo),
            None => self.no_frames = Some(memo),
        }
        Ok(())
    }

    fn frame(&mut self, frame: FrameId) -> Result<()> {
        if let Some(&memo) = self.frames.get(&frame) {
            self.to.get(memo);
            return Ok(());
        }
        let names = self.names;
        match names.frame_at(frame) {
            Some(parts) => self.frame_dict(parts.function, parts.line, parts.file)?,
            None => self.frame_dict("", 0, "")?,
        }
        let memo = self.to.memoize();
        self.frames.insert(frame, memo);
        Ok(())
    }

    fn frame_dict(&mut self, function: &str, line: u32, file: &str) -> Result<()> {
        self.dict(|out| {
            out.word("name")?;
            out.word(function)?;
            out.word("filename")?;
            out.word(file)?;
            out.number("line", u64::from(line))
        })
    }

    fn settings(&mut self, settings: &Map<String, Json>) -> Result<()> {
        self.dict(|out| {
            settings.iter().try_for_each(|(key, value)| {
                out.word(key)?;
                out.setting(value)
            })
        })
    }

    fn setting(&mut self, value: &Json) -> Result<()> {
        match value {
            Json::Null => self.to.op(op::NONE),
            Json::Bool(value) => self.to.bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => self.to.int(i128::from(number)),
                (_, Some(number)) => self.to.int(i128::from(number)),
                _ => self.to.float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => self.word(text)?,
            Json::Array(items) => self.each(items, |out, item| out.setting(item))?,
            Json::Object(map) => self.settings(map)?,
        }
        Ok(())
    }
}
