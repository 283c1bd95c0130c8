//! The writing thread: entries become events of a file.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::entry::{Entry, What};
use super::queue::Queue;
use crate::error::Result;
use crate::hwt::HwtWriter;
use crate::model::{Event, TraceHeader};
use crate::names::{LabelId, Names, StreamId};

/// Turns entries into events, and writes them.
pub(super) struct Scribe {
    writer: HwtWriter<Box<dyn Write + Send>>,
    names: Names,
    /// The latest stream and label, because the next event most often has the same: a table takes longer to ask.
    last_stream: Option<(u64, StreamId)>,
    last_label: Option<(Arc<str>, LabelId)>,
    device: u8,
    start: Instant,
    next_id: u64,
    /// Blocks that callers hold.
    live: FxHashMap<u64, Live>,
    /// Shared blocks that were given back, by address.
    waiting: FxHashMap<u64, u64>,
}

#[derive(Clone, Copy)]
struct Live {
    id: u64,
    stream: StreamId,
}

impl Scribe {
    /// Times are counted from `start`.
    pub(super) fn new(
        sink: Box<dyn Write + Send>,
        header: &TraceHeader,
        device: u8,
        start: Instant,
    ) -> Result<Self> {
        Ok(Self {
            writer: HwtWriter::new(sink, header)?,
            names: Names::default(),
            last_stream: None,
            last_label: None,
            device,
            start,
            next_id: 0,
            live: FxHashMap::default(),
            waiting: FxHashMap::default(),
        })
    }

    /// Writes entries until the queue is closed. Where the sink fails, callers are let go.
    pub(super) fn write_all(mut self, queue: &Queue) -> Result<Self> {
        let mut buffer = Vec::new();
        while let Some(entries) = queue.take(buffer) {
            let written = entries.iter().try_for_each(|entry| self.write(entry));
            if let Err(error) = written.and_then(|()| self.writer.flush()) {
                queue.abandon();
                return Err(error);
            }
            buffer = entries;
        }
        Ok(self)
    }

    /// Closes the file and says how many events it has.
    pub(super) fn finish(self, header: &TraceHeader) -> Result<u64> {
        let events = self.writer.events();
        self.writer.finish(header)?;
        Ok(events)
    }

    fn write(&mut self, entry: &Entry) -> Result<()> {
        let since_start = entry.at.saturating_duration_since(self.start);
        let t_us = u64::try_from(since_start.as_micros()).unwrap_or(u64::MAX);
        let device = self.device;
        let label = self.label(entry.label.as_ref())?;
        match entry.what {
            What::Alloc { ptr, bytes, stream } => {
                let stream = self.stream(stream)?;
                self.forget(ptr, t_us)?;
                let id = self.next_id;
                self.next_id += 1;
                self.live.insert(ptr, Live { id, stream });
                self.push(&Event::Alloc { id, bytes, t_us, label, stream, device })
            }
            What::Free { ptr, shared } => {
                // Not recorded: left out by sampling, or older than the recorder.
                let Some(Live { id, stream }) = self.live.remove(&ptr) else { return Ok(()) };
                if shared {
                    self.waiting.insert(ptr, id);
                }
                self.push(&Event::Free { id, t_us, label, stream, device })
            }
            What::Complete { ptr } => self.complete(ptr, t_us),
            What::Oom { bytes, free_bytes, stream } => {
                let stream = self.stream(stream)?;
                self.push(&Event::Oom { bytes, free_bytes, t_us, label, stream, device })
            }
            What::Mark => self.push(&Event::Annotation { label, t_us, device }),
        }
    }

    /// The address is given out anew, so whatever was there is over: a wait that nobody looked at, or a block that was
    /// given back behind the recorder's back.
    fn forget(&mut self, ptr: u64, t_us: u64) -> Result<()> {
        self.complete(ptr, t_us)?;
        let Some(Live { id, stream }) = self.live.remove(&ptr) else { return Ok(()) };
        self.push(&Event::Free { id, t_us, label: LabelId::NONE, stream, device: self.device })
    }

    fn complete(&mut self, ptr: u64, t_us: u64) -> Result<()> {
        match self.waiting.remove(&ptr) {
            Some(id) => self.push(&Event::Complete { id, t_us, device: self.device }),
            None => Ok(()),
        }
    }

    fn stream(&mut self, raw: u64) -> Result<StreamId> {
        if let Some((known, id)) = self.last_stream
            && known == raw
        {
            return Ok(id);
        }
        let id = self.names.stream(raw)?;
        self.last_stream = Some((raw, id));
        Ok(id)
    }

    fn label(&mut self, label: Option<&Arc<str>>) -> Result<LabelId> {
        let Some(text) = label else { return Ok(LabelId::NONE) };
        if let Some((known, id)) = &self.last_label
            && Arc::ptr_eq(known, text)
        {
            return Ok(*id);
        }
        let id = self.names.text(text)?;
        self.last_label = Some((Arc::clone(text), id));
        Ok(id)
    }

    fn push(&mut self, event: &Event) -> Result<()> {
        self.writer.push(event, &self.names)
    }
}
