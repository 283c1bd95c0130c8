//! Writing `.hwt`: events go into a block in memory, a block goes to the sink in one write.

use std::io::Write;

use super::layout::{self, Before, put_step, put_varint};
use crate::error::{Format, Result, TraceError};
use crate::model::{Event, Trace, TraceHeader};
use crate::names::{FrameId, Label, LabelId, Names, StreamId};

/// Writes a trace as it happens.
///
/// A block is written when it is full (64 KiB) and at [`flush`](Self::flush); what was flushed survives a crash of the
/// program. [`finish`](Self::finish) closes the file; a writer that is dropped without it leaves a file that reads as
/// cut, without the events since the last flush.
///
/// ```
/// use headwater_trace::{Event, LabelId, Names, TraceHeader, hwt};
///
/// let mut names = Names::default();
/// let (stream, label) = (names.stream(0)?, names.text("weights")?);
/// let mut writer = hwt::HwtWriter::new(Vec::new(), &TraceHeader::default())?;
/// writer.push(&Event::Alloc { id: 0, bytes: 4096, t_us: 10, label, stream, device: 0 }, &names)?;
/// let file = writer.finish(&TraceHeader::default())?;
///
/// let trace = hwt::read(&file[..], &Default::default())?;
/// assert_eq!(trace.names.describe(trace.events[0].label()), "weights");
/// # Ok::<(), headwater_trace::TraceError>(())
/// ```
#[derive(Debug)]
pub struct HwtWriter<W> {
    pub(super) sink: W,
    /// The head's room, then the payload.
    block: Vec<u8>,
    events_in_block: u32,
    events: u64,
    before: Before,
    defined: Defined,
    /// After a failed write the sink may end in half a block: nothing may follow it.
    failed: bool,
}

/// The file's number for each of the caller's ids, plus one; zero where it is not defined yet.
#[derive(Debug, Default)]
struct Defined {
    streams: Numbers,
    strings: Numbers,
    frames: Numbers,
    labels: Numbers,
}

#[derive(Debug, Default)]
struct Numbers {
    by_id: Vec<u32>,
    count: u32,
}

impl Numbers {
    fn get(&self, id: usize) -> Option<u32> {
        self.by_id.get(id).copied().filter(|&number| number > 0).map(|number| number - 1)
    }

    fn define(&mut self, id: usize) -> u32 {
        if self.by_id.len() <= id {
            self.by_id.resize(id + 1, 0);
        }
        self.count += 1;
        self.by_id[id] = self.count;
        self.count - 1
    }
}

fn unwritable(problem: impl Into<String>) -> TraceError {
    TraceError::Unwritable { format: Format::Hwt, problem: problem.into() }
}

impl<W: Write> HwtWriter<W> {
    /// Starts a file. Figures of `header` that are not known yet can be given to [`finish`](Self::finish).
    ///
    /// # Errors
    /// A sink that does not take the bytes, or a header of more than 4 MiB.
    pub fn new(mut sink: W, header: &TraceHeader) -> Result<Self> {
        let json = header_json(header)?;
        let mut head = Vec::with_capacity(layout::FILE_HEAD_BYTES + json.len());
        head.extend_from_slice(&layout::MAGIC);
        head.extend_from_slice(&layout::VERSION.to_le_bytes());
        head.extend_from_slice(&[0; 2]);
        head.extend_from_slice(&(json.len() as u32).to_le_bytes());
        head.extend_from_slice(&layout::crc32(&json).to_le_bytes());
        head.extend_from_slice(&json);
        sink.write_all(&head).and_then(|()| sink.flush()).map_err(TraceError::Write)?;
        let mut block = Vec::with_capacity(layout::BLOCK_TARGET_BYTES + 1024);
        block.resize(layout::BLOCK_HEAD_BYTES, 0);
        Ok(Self {
            sink,
            block,
            events_in_block: 0,
            events: 0,
            before: Before::default(),
            defined: Defined::default(),
            failed: false,
        })
    }

    /// Adds an event. `names` is the table its ids are from: the same one, perhaps grown, at every call.
    ///
    /// # Errors
    /// A name that the table does not have or that is too long, or a sink that does not take a full block; after the
    /// latter every call fails.
    pub fn push(&mut self, event: &Event, names: &Names) -> Result<()> {
        if self.failed {
            return Err(unwritable("an earlier write failed"));
        }
        let stream = match event.stream() {
            Some(stream) => Some(self.stream_number(names, stream)?),
            None => None,
        };
        let label = match event.label() {
            LabelId::NONE => 0,
            label => self.label_number(names, label)? + 1,
        };
        self.put_event(event, stream, label);
        self.events_in_block += 1;
        self.events += 1;
        self.write_block_if_full()
    }

    /// Writes what is in memory: after this it survives a crash of the program.
    ///
    /// # Errors
    /// A sink that does not take the bytes.
    pub fn flush(&mut self) -> Result<()> {
        if self.block.len() > layout::BLOCK_HEAD_BYTES {
            self.write_block(layout::KIND_EVENTS)?;
        }
        self.sink.flush().map_err(TraceError::Write)
    }

    /// Events pushed so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Writes the rest and the final header, and gives the sink back.
    ///
    /// # Errors
    /// A sink that does not take the bytes, or a header of more than 4 MiB.
    pub fn finish(mut self, header: &TraceHeader) -> Result<W> {
        self.flush()?;
        let json = header_json(header)?;
        self.block.extend_from_slice(&self.events.to_le_bytes());
        self.block.extend_from_slice(&json);
        self.write_block(layout::KIND_TAIL)?;
        self.sink.flush().map_err(TraceError::Write)?;
        Ok(self.sink)
    }

    fn write_block_if_full(&mut self) -> Result<()> {
        if self.block.len() >= layout::BLOCK_TARGET_BYTES {
            self.write_block(layout::KIND_EVENTS)
        } else {
            Ok(())
        }
    }

    fn write_block(&mut self, kind: [u8; 4]) -> Result<()> {
        if self.failed {
            return Err(unwritable("an earlier write failed"));
        }
        let (head, payload) = self.block.split_at_mut(layout::BLOCK_HEAD_BYTES);
        head[0..4].copy_from_slice(&kind);
        head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[8..12].copy_from_slice(&self.events_in_block.to_le_bytes());
        head[12..16].copy_from_slice(&layout::crc32(payload).to_le_bytes());
        let head_crc = layout::crc32(&head[..16]);
        head[16..20].copy_from_slice(&head_crc.to_le_bytes());
        self.failed = true;
        self.sink.write_all(&self.block).map_err(TraceError::Write)?;
        self.failed = false;
        self.block.truncate(layout::BLOCK_HEAD_BYTES);
        self.events_in_block = 0;
        self.before = Before::default();
        Ok(())
    }

    fn put_event(&mut self, event: &Event, stream: Option<u16>, label: u32) {
        use layout::{
            ALLOC, ANNOTATION, COMPLETE, FREE, OOM, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP,
        };
        let (out, before) = (&mut self.block, &mut self.before);
        let kind = match event {
            Event::Alloc { .. } => ALLOC,
            Event::Free { .. } => FREE,
            Event::Complete { .. } => COMPLETE,
            Event::SegmentAlloc { .. } => SEGMENT_ALLOC,
            Event::SegmentFree { .. } => SEGMENT_FREE,
            Event::SegmentMap { .. } => SEGMENT_MAP,
            Event::SegmentUnmap { .. } => SEGMENT_UNMAP,
            Event::Oom { .. } => OOM,
            Event::Annotation { .. } => ANNOTATION,
        };
        let (stream, device) = (stream.unwrap_or(before.stream), event.device());
        let tag_at = out.len();
        out.push(kind);
        if stream != before.stream {
            out[tag_at] |= layout::STREAM;
            put_varint(out, u64::from(stream));
        }
        if device != before.device {
            out[tag_at] |= layout::DEVICE;
            out.push(device);
        }
        if label != 0 {
            out[tag_at] |= layout::LABEL;
            put_varint(out, u64::from(label));
        }
        put_step(out, before.t_us, event.t_us());
        match *event {
            Event::Alloc { id, bytes, .. } => {
                put_step(out, before.alloc_id.wrapping_add(1), id);
                put_varint(out, bytes);
                before.alloc_id = id;
            }
            Event::Free { id, .. } | Event::Complete { id, .. } => put_step(out, id, before.alloc_id),
            Event::SegmentAlloc { address, bytes, .. }
            | Event::SegmentFree { address, bytes, .. }
            | Event::SegmentMap { address, bytes, .. }
            | Event::SegmentUnmap { address, bytes, .. } => {
                put_varint(out, address);
                put_varint(out, bytes);
            }
            Event::Oom { bytes, free_bytes, .. } => {
                put_varint(out, bytes);
                put_varint(out, free_bytes);
            }
            Event::Annotation { .. } => {}
        }
        (before.t_us, before.stream, before.device) = (event.t_us(), stream, device);
    }

    fn stream_number(&mut self, names: &Names, stream: StreamId) -> Result<u16> {
        let id = usize::from(stream.0);
        let number = match self.defined.streams.get(id) {
            Some(number) => number,
            None => {
                let known = names.streams().len() as u64;
                let unknown = TraceError::UnknownName { what: "stream", id: id as u64, known };
                let raw = names.stream_raw(stream).ok_or(unknown)?;
                self.block.push(layout::DEFINE_STREAM);
                put_varint(&mut self.block, raw);
                self.defined.streams.define(id)
            }
        };
        u16::try_from(number).map_err(|_| TraceError::TooManyNames { what: "streams", limit: 1 << 16 })
    }

    fn label_number(&mut self, names: &Names, label: LabelId) -> Result<u32> {
        let id = label.0 as usize;
        if let Some(number) = self.defined.labels.get(id) {
            return Ok(number);
        }
        let known = names.label_count() as u64;
        let unknown = TraceError::UnknownName { what: "label", id: u64::from(label.0), known };
        match names.label(label).ok_or(unknown)? {
            Label::Text(_) => {
                let string = self.string_number(names, names.label_text(label))?;
                self.block.push(layout::DEFINE_TEXT);
                put_varint(&mut self.block, u64::from(string));
            }
            Label::Stack(frames) if frames.len() > layout::STACK_LIMIT => {
                return Err(unwritable(format!(
                    "a stack of {} frames, {} fit",
                    frames.len(),
                    layout::STACK_LIMIT
                )));
            }
            Label::Stack(frames) => {
                let numbers: Result<Vec<u32>> =
                    frames.iter().map(|&frame| self.frame_number(names, frame)).collect();
                let numbers = numbers?;
                self.block.push(layout::DEFINE_STACK);
                put_varint(&mut self.block, numbers.len() as u64);
                for number in numbers {
                    put_varint(&mut self.block, u64::from(number));
                }
            }
        }
        self.write_block_if_full()?;
        Ok(self.defined.labels.define(id))
    }

    fn frame_number(&mut self, names: &Names, frame: FrameId) -> Result<u32> {
        if let Some(number) = self.defined.frames.get(frame.0 as usize) {
            return Ok(number);
        }
        let unknown = TraceError::UnknownName { what: "frame", id: u64::from(frame.0), known: 0 };
        let (file, line, function) = names.frame_parts(frame).ok_or(unknown)?;
        let (file, function) =
            (self.string_number(names, Some(file))?, self.string_number(names, Some(function))?);
        self.block.push(layout::DEFINE_FRAME);
        for number in [file, line, function] {
            put_varint(&mut self.block, u64::from(number));
        }
        self.write_block_if_full()?;
        Ok(self.defined.frames.define(frame.0 as usize))
    }

    fn string_number(&mut self, names: &Names, string: Option<u32>) -> Result<u32> {
        let unknown =
            TraceError::UnknownName { what: "string", id: u64::from(string.unwrap_or(u32::MAX)), known: 0 };
        let Some(string) = string else { return Err(unknown) };
        if let Some(number) = self.defined.strings.get(string as usize) {
            return Ok(number);
        }
        let text = names.string_at(string).ok_or(unknown)?;
        if text.len() > layout::STRING_LIMIT_BYTES {
            let (bytes, limit) = (text.len(), layout::STRING_LIMIT_BYTES);
            return Err(unwritable(format!("a text of {bytes} bytes, {limit} fit")));
        }
        self.block.push(layout::DEFINE_STRING);
        put_varint(&mut self.block, text.len() as u64);
        self.block.extend_from_slice(text.as_bytes());
        self.write_block_if_full()?;
        Ok(self.defined.strings.define(string as usize))
    }
}

fn header_json(header: &TraceHeader) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(header).map_err(|error| TraceError::Write(error.into()))?;
    if json.len() as u64 > layout::HEADER_LIMIT_BYTES - 8 {
        return Err(unwritable(format!(
            "a header of {} bytes, {} fit",
            json.len(),
            layout::HEADER_LIMIT_BYTES - 8
        )));
    }
    Ok(json)
}

/// Writes a whole trace.
///
/// # Errors
/// As [`HwtWriter::push`] and [`HwtWriter::finish`].
pub fn write<W: Write>(trace: &Trace, sink: W) -> Result<W> {
    let mut writer = HwtWriter::new(sink, &trace.header)?;
    for event in &trace.events {
        writer.push(event, &trace.names)?;
    }
    writer.finish(&trace.header)
}
