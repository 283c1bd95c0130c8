//! Reading `.hwt`, a block at a time, up to the last whole one.

use std::io::{BufRead, Read};

use super::layout::{self, Before, take_step, take_varint};
use crate::error::{Format, Result, TraceError};
use crate::limits::Limits;
use crate::model::{Event, Trace, TraceHeader};
use crate::names::{FrameId, LabelId, Names, StreamId};
use crate::unpack::read_error;

/// Reads a trace block by block, so that a file larger than memory can be looked through.
#[derive(Debug)]
pub struct HwtReader<R> {
    reader: R,
    offset: u64,
    header: TraceHeader,
    names: Names,
    defined: Defined,
    payload: Vec<u8>,
    events: u64,
    events_limit: u64,
    ended: bool,
}

/// What the file's numbers stand for. A file may define the same thing twice; the table has it once.
#[derive(Debug, Default)]
struct Defined {
    streams: Vec<StreamId>,
    strings: Vec<u32>,
    frames: Vec<FrameId>,
    labels: Vec<LabelId>,
}

fn malformed(offset: u64, problem: impl Into<String>) -> TraceError {
    TraceError::malformed(Format::Hwt, offset, problem)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl<R: BufRead> HwtReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// A file that does not begin as the format does, is of a later version, or ends within its header.
    pub fn new(reader: R, limits: &Limits) -> Result<Self> {
        let mut this = Self {
            reader,
            offset: 0,
            header: TraceHeader::default(),
            names: Names::default(),
            defined: Defined::default(),
            payload: Vec::new(),
            events: 0,
            events_limit: limits.events,
            ended: false,
        };
        let mut head = Vec::new();
        this.take(layout::FILE_HEAD_BYTES as u64, &mut head)?;
        if !head.starts_with(&layout::MAGIC) {
            return Err(malformed(0, "the file does not begin as .hwt does"));
        }
        this.whole(&head, layout::FILE_HEAD_BYTES as u64, "the file's head")?;
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != layout::VERSION || head[10..12] != [0; 2] {
            let known = layout::VERSION;
            return Err(malformed(
                8,
                format!("version {version} of the format; this program reads version {known}"),
            ));
        }
        let length = u64::from(u32_at(&head, 12));
        if length > layout::HEADER_LIMIT_BYTES {
            let (format, limit) = (Format::Hwt, layout::HEADER_LIMIT_BYTES);
            return Err(TraceError::Limit { format, offset: 12, what: "the length of the header", limit });
        }
        let mut json = Vec::new();
        this.take(length, &mut json)?;
        this.whole(&json, length, "the header")?;
        if layout::crc32(&json) != u32_at(&head, 16) {
            return Err(malformed(12, "the header is damaged (its checksum is wrong)"));
        }
        this.header = read_header(&json, layout::FILE_HEAD_BYTES as u64)?;
        Ok(this)
    }

    /// Adds the events of the next block to `events`. `false` at the end, or where the file was cut.
    ///
    /// # Errors
    /// A block that is whole and damaged.
    pub fn next_block(&mut self, events: &mut Vec<Event>) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        let start = self.offset;
        let mut head = Vec::with_capacity(layout::BLOCK_HEAD_BYTES);
        self.take(layout::BLOCK_HEAD_BYTES as u64, &mut head)?;
        if head.len() < layout::BLOCK_HEAD_BYTES {
            return Ok(self.cut(start));
        }
        if layout::crc32(&head[..16]) != u32_at(&head, 16) {
            return Err(malformed(start, "the head of a block is damaged (its checksum is wrong)"));
        }
        let (length, count) = (u64::from(u32_at(&head, 4)), u32_at(&head, 8));
        if length > layout::PAYLOAD_LIMIT_BYTES + 8 {
            let (format, limit) = (Format::Hwt, layout::PAYLOAD_LIMIT_BYTES);
            return Err(TraceError::Limit {
                format,
                offset: start + 4,
                what: "the length of a block",
                limit,
            });
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        self.take(length, &mut payload)?;
        if (payload.len() as u64) < length {
            return Ok(self.cut(start));
        }
        let payload_at = start + layout::BLOCK_HEAD_BYTES as u64;
        if layout::crc32(&payload) != u32_at(&head, 12) {
            return Err(malformed(payload_at, "a block is damaged (its checksum is wrong)"));
        }
        let more = match head[0..4] {
            [b'E', b'V', b'T', b'S'] => self.read_events(&payload, payload_at, count, events).map(|()| true),
            [b'T', b'A', b'I', b'L'] => self.read_tail(&payload, payload_at).map(|()| false),
            _ => Err(malformed(start, format!("an unknown kind of block \"{}\"", head[0..4].escape_ascii()))),
        };
        self.payload = payload;
        more
    }

    /// The header; after the last block it is the final one.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The names defined so far.
    pub fn names(&self) -> &Names {
        &self.names
    }

    fn cut(&mut self, at: u64) -> bool {
        self.header.cut_at = Some(at);
        self.ended = true;
        false
    }

    /// Up to `length` bytes; fewer only at the end of the file. Memory grows with what really comes.
    fn take(&mut self, length: u64, into: &mut Vec<u8>) -> Result<()> {
        let result = (&mut self.reader).take(length).read_to_end(into);
        self.offset += into.len() as u64;
        match result {
            Ok(_) => Ok(()),
            Err(error) => Err(read_error(Format::Hwt, self.offset, error)),
        }
    }

    fn whole(&self, bytes: &[u8], needed_bytes: u64, what: &'static str) -> Result<()> {
        let left_bytes = bytes.len() as u64;
        if left_bytes == needed_bytes {
            return Ok(());
        }
        Err(TraceError::Truncated {
            format: Format::Hwt,
            offset: self.offset - left_bytes,
            what,
            needed_bytes,
            left_bytes,
        })
    }

    fn read_events(
        &mut self,
        payload: &[u8],
        payload_at: u64,
        count: u32,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        let (mut rest, mut before) = (payload, Before::default());
        let first = events.len();
        while !rest.is_empty() {
            let at = payload_at + (payload.len() - rest.len()) as u64;
            let bad = || malformed(at, "a record that is cut, or names what is not defined");
            let tag = rest[0];
            rest = &rest[1..];
            if tag & layout::KIND_MASK >= layout::DEFINE_STRING {
                self.define(tag, &mut rest)?.ok_or_else(bad)?;
                continue;
            }
            if self.events >= self.events_limit {
                let (format, what) = (Format::Hwt, "the number of events");
                return Err(TraceError::Limit { format, offset: at, what, limit: self.events_limit });
            }
            events.push(self.event(tag, &mut rest, &mut before).ok_or_else(bad)?);
            self.events += 1;
        }
        if events.len() - first != count as usize {
            let problem = format!("a block says {count} events and has {}", events.len() - first);
            return Err(malformed(payload_at, problem));
        }
        Ok(())
    }

    fn event(&self, tag: u8, rest: &mut &[u8], before: &mut Before) -> Option<Event> {
        if tag & layout::UNUSED != 0 {
            return None;
        }
        if tag & layout::STREAM != 0 {
            before.stream = u16::try_from(take_varint(rest)?).ok()?;
        }
        if tag & layout::DEVICE != 0 {
            (before.device, *rest) = rest.split_first().map(|(&device, rest)| (device, rest))?;
        }
        let mut label = LabelId::NONE;
        if tag & layout::LABEL != 0 {
            let number = usize::try_from(take_varint(rest)?.checked_sub(1)?).ok()?;
            label = *self.defined.labels.get(number)?;
        }
        before.t_us = take_step(rest, before.t_us)?;
        let (t_us, device) = (before.t_us, before.device);
        let kind = tag & layout::KIND_MASK;
        // The two kinds without a stream may come before any is defined.
        match kind {
            layout::COMPLETE => {
                let id = before.alloc_id.wrapping_sub(take_step(rest, 0)?);
                return label.is_none().then_some(Event::Complete { id, t_us, device });
            }
            layout::ANNOTATION => return Some(Event::Annotation { label, t_us, device }),
            _ => {}
        }
        let stream = *self.defined.streams.get(usize::from(before.stream))?;
        let mut two = || Some((take_varint(rest)?, take_varint(rest)?));
        Some(match kind {
            layout::ALLOC => {
                let id = take_step(rest, before.alloc_id.wrapping_add(1))?;
                before.alloc_id = id;
                Event::Alloc { id, bytes: take_varint(rest)?, t_us, label, stream, device }
            }
            layout::FREE => {
                let id = before.alloc_id.wrapping_sub(take_step(rest, 0)?);
                Event::Free { id, t_us, label, stream, device }
            }
            layout::OOM => {
                let (bytes, free_bytes) = two()?;
                Event::Oom { bytes, free_bytes, t_us, label, stream, device }
            }
            layout::SEGMENT_ALLOC..=layout::SEGMENT_UNMAP => {
                let (address, bytes) = two()?;
                match kind {
                    layout::SEGMENT_ALLOC => {
                        Event::SegmentAlloc { address, bytes, t_us, label, stream, device }
                    }
                    layout::SEGMENT_FREE => {
                        Event::SegmentFree { address, bytes, t_us, label, stream, device }
                    }
                    layout::SEGMENT_MAP => Event::SegmentMap { address, bytes, t_us, label, stream, device },
                    _ => Event::SegmentUnmap { address, bytes, t_us, label, stream, device },
                }
            }
            _ => return None,
        })
    }

    /// Reads a definition; `None` where it is malformed.
    fn define(&mut self, tag: u8, rest: &mut &[u8]) -> Result<Option<()>> {
        let defined = &mut self.defined;
        let string = |defined: &Defined, rest: &mut &[u8]| {
            take_varint(rest).and_then(|n| defined.strings.get(usize::try_from(n).ok()?).copied())
        };
        match tag {
            layout::DEFINE_STRING => {
                let length = take_varint(rest).and_then(|length| usize::try_from(length).ok());
                let Some((text, after)) = length.and_then(|length| rest.split_at_checked(length)) else {
                    return Ok(None);
                };
                let Ok(text) = std::str::from_utf8(text) else { return Ok(None) };
                defined.strings.push(self.names.string(text)?);
                *rest = after;
            }
            layout::DEFINE_STREAM => {
                let Some(raw) = take_varint(rest) else { return Ok(None) };
                defined.streams.push(self.names.stream(raw)?);
            }
            layout::DEFINE_TEXT => {
                let Some(text) = string(defined, rest) else { return Ok(None) };
                defined.labels.push(self.names.text_of(text)?);
            }
            layout::DEFINE_FRAME => {
                let Some(file) = string(defined, rest) else { return Ok(None) };
                let Some(line) = take_varint(rest).and_then(|line| u32::try_from(line).ok()) else {
                    return Ok(None);
                };
                let Some(function) = string(defined, rest) else { return Ok(None) };
                defined.frames.push(self.names.frame_of(file, line, function)?);
            }
            layout::DEFINE_STACK => {
                // A frame takes a byte at least, so that the count cannot be more than the bytes left.
                let count = take_varint(rest).filter(|&count| 0 < count && count <= rest.len() as u64);
                let Some(count) = count else { return Ok(None) };
                let frame =
                    |_| take_varint(rest).and_then(|n| defined.frames.get(usize::try_from(n).ok()?).copied());
                let Some(frames) = (0..count).map(frame).collect::<Option<Vec<_>>>() else { return Ok(None) };
                defined.labels.push(self.names.stack(&frames)?);
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    fn read_tail(&mut self, payload: &[u8], payload_at: u64) -> Result<()> {
        let Some((count, json)) = payload.split_first_chunk::<8>() else {
            return Err(malformed(payload_at, "the last block is too short"));
        };
        let count = u64::from_le_bytes(*count);
        if count != self.events {
            let problem = format!("the last block says {count} events, and there were {}", self.events);
            return Err(malformed(payload_at, problem));
        }
        self.header = read_header(json, payload_at + 8)?;
        self.ended = true;
        let end = self.offset;
        match self.reader.fill_buf() {
            Ok([]) => Ok(()),
            Ok(_) => Err(malformed(end, "bytes after the last block")),
            Err(error) => Err(read_error(Format::Hwt, end, error)),
        }
    }
}

fn read_header(json: &[u8], at: u64) -> Result<TraceHeader> {
    let header: serde_json::Result<TraceHeader> = serde_json::from_slice(json);
    let header = header.map_err(|error| {
        malformed(at + error.column().saturating_sub(1) as u64, format!("the header's JSON: {error}"))
    })?;
    Ok(TraceHeader { source: Format::Hwt, ..header })
}

/// Reads a whole trace.
///
/// # Errors
/// As [`HwtReader::new`] and [`HwtReader::next_block`]. A file that was cut is no error, see
/// [`TraceHeader::cut_at`].
pub fn read(reader: impl BufRead, limits: &Limits) -> Result<Trace> {
    let mut reader = HwtReader::new(reader, limits)?;
    let mut events = Vec::new();
    while reader.next_block(&mut events)? {}
    let HwtReader { mut header, names, .. } = reader;
    header.initial_events = header.initial_events.min(events.len() as u64);
    Ok(Trace { header, names, events })
}
