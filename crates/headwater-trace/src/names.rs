//! The table of names a trace's events refer to: streams, texts, frames of call stacks, and labels.
//!
//! A stream is a raw handle (CUDA's `CUstream`, or the small number a format uses). A label is a text or a call stack.
//! A stack is a list of frames, innermost first; a frame is a file, a line and a function. Everything is kept once.
//!
//! The maps are keyed by what a file says, so they use the standard library's seeded hash: a hostile file must not be
//! able to choose keys that collide.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use crate::error::{Result, TraceError};

/// A stream, by its place in [`Names`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u16);

/// A text or call stack, by its place in [`Names`]; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

impl LabelId {
    /// No label.
    pub const NONE: Self = Self(0);

    /// Whether there is no label.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A frame of a call stack, by its place in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// One call: where it was made, and in what function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// The source file.
    pub file: &'a str,
    /// The line in it.
    pub line: u32,
    /// The function.
    pub function: &'a str,
}

/// What a label is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label<'a> {
    /// A text the caller gave.
    Text(&'a str),
    /// A call stack, innermost frame first.
    Stack(&'a [FrameId]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StoredFrame {
    file: u32,
    line: u32,
    function: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum StoredLabel {
    Text(u32),
    Stack(Arc<[FrameId]>),
}

/// The streams, frames and labels of a trace.
///
/// ```
/// use headwater_trace::{Label, Names};
///
/// let mut names = Names::default();
/// let frame = names.frame("train.py", 12, "step")?;
/// let stack = names.stack(&[frame])?;
/// assert_eq!(names.stack(&[frame])?, stack);
/// assert_eq!(names.label(stack), Some(Label::Stack(&[frame])));
/// assert_eq!(names.describe(stack), "step (train.py:12)");
/// # Ok::<(), headwater_trace::TraceError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Names {
    streams: Vec<u64>,
    strings: Vec<Arc<str>>,
    frames: Vec<StoredFrame>,
    labels: Vec<StoredLabel>,
    stream_ids: HashMap<u64, u16>,
    string_ids: HashMap<Arc<str>, u32>,
    frame_ids: HashMap<StoredFrame, u32>,
    label_ids: HashMap<StoredLabel, u32>,
}

/// Two tables are equal when they give every id the same meaning.
impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.streams == other.streams
            && self.strings == other.strings
            && self.frames == other.frames
            && self.labels == other.labels
    }
}

/// The id of `key`, new or known. `limit` ids fit.
fn intern<K: Clone + Eq + Hash>(
    list: &mut Vec<K>,
    ids: &mut HashMap<K, u32>,
    key: K,
    what: &'static str,
) -> Result<u32> {
    const LIMIT: u64 = u32::MAX as u64 - 1;
    match ids.entry(key) {
        Entry::Occupied(known) => Ok(*known.get()),
        Entry::Vacant(new) => {
            let id = u32::try_from(list.len()).ok().filter(|&id| u64::from(id) < LIMIT);
            let id = id.ok_or(TraceError::TooManyNames { what, limit: LIMIT })?;
            list.push(new.key().clone());
            new.insert(id);
            Ok(id)
        }
    }
}

impl Names {
    /// The id of the stream with this raw handle.
    ///
    /// # Errors
    /// [`TraceError::TooManyNames`] beyond 65,536 streams.
    pub fn stream(&mut self, raw: u64) -> Result<StreamId> {
        match self.stream_ids.entry(raw) {
            Entry::Occupied(known) => Ok(StreamId(*known.get())),
            Entry::Vacant(new) => {
                let full = |_| TraceError::TooManyNames { what: "streams", limit: 1 << 16 };
                let id = u16::try_from(self.streams.len()).map_err(full)?;
                self.streams.push(raw);
                new.insert(id);
                Ok(StreamId(id))
            }
        }
    }

    /// The raw handle of a stream.
    pub fn stream_raw(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(usize::from(stream.0)).copied()
    }

    /// The raw handles of all streams, in the order of their ids.
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// The label that is this text.
    ///
    /// # Errors
    /// [`TraceError::TooManyNames`] beyond four billion of them.
    pub fn text(&mut self, text: &str) -> Result<LabelId> {
        let text = self.string(text)?;
        self.text_of(text)
    }

    /// The frame with this file, line and function.
    ///
    /// # Errors
    /// [`TraceError::TooManyNames`] beyond four billion of them.
    pub fn frame(&mut self, file: &str, line: u32, function: &str) -> Result<FrameId> {
        let (file, function) = (self.string(file)?, self.string(function)?);
        self.frame_of(file, line, function)
    }

    /// The label that is this call stack, innermost frame first. An empty stack is no label.
    ///
    /// # Errors
    /// [`TraceError::UnknownName`] for a frame the table does not have, [`TraceError::TooManyNames`] beyond four
    /// billion stacks.
    pub fn stack(&mut self, frames: &[FrameId]) -> Result<LabelId> {
        let known = self.frames.len() as u64;
        if let Some(unknown) = frames.iter().find(|frame| u64::from(frame.0) >= known) {
            return Err(TraceError::UnknownName { what: "frame", id: u64::from(unknown.0), known });
        }
        if frames.is_empty() {
            return Ok(LabelId::NONE);
        }
        self.intern_label(StoredLabel::Stack(frames.into()))
    }

    /// What a label is; `None` for no label and for one the table does not have.
    pub fn label(&self, label: LabelId) -> Option<Label<'_>> {
        match self.labels.get(usize::try_from(label.0).ok()?.checked_sub(1)?)? {
            StoredLabel::Text(text) => self.strings.get(*text as usize).map(|text| Label::Text(text)),
            StoredLabel::Stack(frames) => Some(Label::Stack(frames)),
        }
    }

    /// What a frame is.
    pub fn frame_at(&self, frame: FrameId) -> Option<Frame<'_>> {
        let stored = self.frames.get(frame.0 as usize)?;
        let string = |id: u32| self.strings.get(id as usize).map(|s| &**s);
        Some(Frame { file: string(stored.file)?, line: stored.line, function: string(stored.function)? })
    }

    /// How many labels there are; their ids are 1 to this.
    pub fn label_count(&self) -> usize {
        self.labels.len()
    }

    /// How many frames there are.
    pub(crate) fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// A label in one line for people: the text, or the innermost frame. Empty for no label.
    pub fn describe(&self, label: LabelId) -> String {
        match self.label(label) {
            None => String::new(),
            Some(Label::Text(text)) => text.to_owned(),
            Some(Label::Stack(frames)) => frames
                .first()
                .and_then(|&frame| self.frame_at(frame))
                .map_or_else(String::new, |f| format!("{} ({}:{})", f.function, f.file, f.line)),
        }
    }

    /// The string a text label is, by its place in the table.
    pub(crate) fn label_text(&self, label: LabelId) -> Option<u32> {
        match self.labels.get((label.0 as usize).checked_sub(1)?)? {
            StoredLabel::Text(text) => Some(*text),
            StoredLabel::Stack(_) => None,
        }
    }

    /// The file, line and function of a frame, strings by their place in the table.
    pub(crate) fn frame_parts(&self, frame: FrameId) -> Option<(u32, u32, u32)> {
        self.frames.get(frame.0 as usize).map(|stored| (stored.file, stored.line, stored.function))
    }

    /// A string by its place in the table.
    pub(crate) fn string_at(&self, string: u32) -> Option<&str> {
        self.strings.get(string as usize).map(|text| &**text)
    }

    /// As [`Names::text`], for a string that is in the table.
    pub(crate) fn text_of(&mut self, string: u32) -> Result<LabelId> {
        self.intern_label(StoredLabel::Text(string))
    }

    /// As [`Names::frame`], for strings that are in the table.
    pub(crate) fn frame_of(&mut self, file: u32, line: u32, function: u32) -> Result<FrameId> {
        let frame = StoredFrame { file, line, function };
        intern(&mut self.frames, &mut self.frame_ids, frame, "frames").map(FrameId)
    }

    pub(crate) fn string(&mut self, text: &str) -> Result<u32> {
        match self.string_ids.get(text) {
            Some(&id) => Ok(id),
            None => intern(&mut self.strings, &mut self.string_ids, text.into(), "strings"),
        }
    }

    fn intern_label(&mut self, label: StoredLabel) -> Result<LabelId> {
        intern(&mut self.labels, &mut self.label_ids, label, "labels").map(|id| LabelId(id + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_beyond_65536_is_an_error_that_says_so() {
        let mut names = Names::default();
        for raw in 0..1u64 << 16 {
            names.stream(raw * 3).unwrap();
        }
        assert_eq!(names.stream(0).unwrap(), StreamId(0));
        let error = names.stream(1).unwrap_err();
        assert_eq!(error.to_string(), "more than 65536 different streams in one trace");
    }

    #[test]
    fn a_stack_of_unknown_frames_is_refused() {
        let error = Names::default().stack(&[FrameId(0)]).unwrap_err();
        assert!(matches!(error, TraceError::UnknownName { what: "frame", id: 0, known: 0 }));
    }

    #[test]
    fn a_text_and_a_stack_are_never_the_same_label() {
        let mut names = Names::default();
        let frame = names.frame("f", 1, "g").unwrap();
        let stack = names.stack(&[frame]).unwrap();
        let text = names.text("f").unwrap();
        assert_ne!(stack, text);
        assert_eq!(names.label(text), Some(Label::Text("f")));
        assert_eq!(names.label(LabelId(3)), None);
        assert_eq!(names.stack(&[]).unwrap(), LabelId::NONE);
    }
}
