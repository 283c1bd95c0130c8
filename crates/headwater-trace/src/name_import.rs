//! Carrying names from one table into another, so that a part of a trace has a table of its own.

use crate::error::{Result, TraceError};
use crate::names::{FrameId, Label, LabelId, Names, StreamId};

/// Carries names from one table into another, each once.
#[derive(Debug)]
pub(crate) struct NameImport<'a> {
    from: &'a Names,
    /// By old id; `LabelId::NONE` where not carried yet.
    labels: Vec<LabelId>,
    frames: Vec<Option<FrameId>>,
    streams: Vec<Option<StreamId>>,
}

impl<'a> NameImport<'a> {
    pub(crate) fn new(from: &'a Names) -> Self {
        Self {
            from,
            labels: vec![LabelId::NONE; from.label_count() + 1],
            frames: vec![None; from.frame_count()],
            streams: vec![None; from.streams().len()],
        }
    }

    pub(crate) fn stream(&mut self, to: &mut Names, stream: StreamId) -> Result<StreamId> {
        let known = self.streams.len() as u64;
        let unknown = TraceError::UnknownName { what: "stream", id: u64::from(stream.0), known };
        let Some(slot) = self.streams.get_mut(usize::from(stream.0)) else { return Err(unknown) };
        if let Some(carried) = *slot {
            return Ok(carried);
        }
        let carried = to.stream(self.from.stream_raw(stream).ok_or(unknown)?)?;
        *slot = Some(carried);
        Ok(carried)
    }

    pub(crate) fn label(&mut self, to: &mut Names, label: LabelId) -> Result<LabelId> {
        if label.is_none() {
            return Ok(label);
        }
        let known = self.from.label_count() as u64;
        let unknown = TraceError::UnknownName { what: "label", id: u64::from(label.0), known };
        let Some(&carried) = self.labels.get(label.0 as usize) else { return Err(unknown) };
        if !carried.is_none() {
            return Ok(carried);
        }
        let carried = match self.from.label(label).ok_or(unknown)? {
            Label::Text(text) => to.text(text)?,
            Label::Stack(frames) => {
                let frames: Result<Vec<_>> = frames.iter().map(|&frame| self.frame(to, frame)).collect();
                to.stack(&frames?)?
            }
        };
        self.labels[label.0 as usize] = carried;
        Ok(carried)
    }

    fn frame(&mut self, to: &mut Names, frame: FrameId) -> Result<FrameId> {
        let known = self.frames.len() as u64;
        let unknown = TraceError::UnknownName { what: "frame", id: u64::from(frame.0), known };
        let Some(slot) = self.frames.get_mut(frame.0 as usize) else { return Err(unknown) };
        if let Some(carried) = *slot {
            return Ok(carried);
        }
        let what = self.from.frame_at(frame).ok_or(unknown)?;
        let carried = to.frame(what.file, what.line, what.function)?;
        *slot = Some(carried);
        Ok(carried)
    }
}
