//! What a trace is, whatever file it came from: a header, a table of names, and events in host order.
//!
//! An [`Event`] is 32 bytes, because a trace has millions: stream handles, texts and call stacks are kept once in
//! [`Names`] and named by small ids. Allocations are known by an id, not by an address: where an allocation lay is
//! what a replay decides anew. (A [`Snapshot`](crate::snapshot::Snapshot) keeps the addresses PyTorch chose.)

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Format, Result};
use crate::name_import::NameImport;
use crate::names::{LabelId, Names, StreamId};

/// A program's requests for memory, in the order the host made them.
///
/// ```
/// use headwater_trace::{Event, LabelId, Trace};
///
/// let mut trace = Trace::new("two blocks");
/// let stream = trace.names.stream(0)?;
/// let (device, label) = (0, LabelId::NONE);
/// trace.events.push(Event::Alloc { id: 0, bytes: 4096, t_us: 0, label, stream, device });
/// trace.events.push(Event::Alloc { id: 1, bytes: 100, t_us: 3, label, stream, device });
/// trace.events.push(Event::Free { id: 0, t_us: 9, label, stream, device });
/// trace.check()?;
/// assert_eq!(trace.summary().peak_live_bytes, 4196);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// What is known about the trace as a whole.
    pub header: TraceHeader,
    /// The streams, texts and call stacks the events refer to.
    pub names: Names,
    /// What happened, in host order. This order is the truth: times are remarks, see [`Trace::check`].
    pub events: Vec<Event>,
}

/// What is known about a trace as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceHeader {
    /// What the program is called.
    pub name: String,
    /// The kind of file the trace was read from.
    pub source: Format,
    /// So many events at the front describe what was already there when recording began. Their times are that of the
    /// first recorded event. Zero where a trace begins with the program.
    #[serde(skip_serializing_if = "is_zero")]
    pub initial_events: u64,
    /// Set where the file ended before its writer closed it (a crash): events after this byte are lost.
    #[serde(skip)]
    pub cut_at: Option<u64>,
    /// What the recording allocator said of itself.
    pub reported: Reported,
    /// Everything else the file's header holds.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// Figures the recording allocator reported, where the file has them. Sizes in bytes; the keys are those of
/// `alloctrace 1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reported {
    /// Peak of allocated bytes (live, rounded).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_allocated: Option<u64>,
    /// Peak of live bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_requested: Option<u64>,
    /// Peak of active bytes (allocated, and given back but still used by a stream).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_active: Option<u64>,
    /// Peak of bytes taken from the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_reserved: Option<u64>,
    /// How long the program ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Times the allocator flushed its cache and tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Driver allocations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_alloc: Option<u64>,
    /// Driver frees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_free: Option<u64>,
    /// Allocations as the allocator counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocs: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// One thing that happened. `t_us` is in microseconds since an origin the format chose; `device` is an ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are said once, in the words above and of each variant")]
pub enum Event {
    /// Memory was asked for, and given, under an id that nothing live has.
    Alloc { id: u64, bytes: u64, t_us: u64, label: LabelId, stream: StreamId, device: u8 },
    /// It was given back. Unless a `Complete` follows, its stream may use the bytes again at once.
    Free { id: u64, t_us: u64, label: LabelId, stream: StreamId, device: u8 },
    /// Other streams still used the memory when it was given back: only now could it be reused.
    Complete { id: u64, t_us: u64, device: u8 },
    /// The recording allocator took a segment from the driver.
    SegmentAlloc { address: u64, bytes: u64, t_us: u64, label: LabelId, stream: StreamId, device: u8 },
    /// It gave a segment back to the driver.
    SegmentFree { address: u64, bytes: u64, t_us: u64, label: LabelId, stream: StreamId, device: u8 },
    /// It mapped physical memory into a range of an expandable segment.
    SegmentMap { address: u64, bytes: u64, t_us: u64, label: LabelId, stream: StreamId, device: u8 },
    /// It unmapped such a range.
    SegmentUnmap { address: u64, bytes: u64, t_us: u64, label: LabelId, stream: StreamId, device: u8 },
    /// A request for `bytes` failed; the device then had `free_bytes` free (zero where not recorded).
    Oom { bytes: u64, free_bytes: u64, t_us: u64, label: LabelId, stream: StreamId, device: u8 },
    /// The program marked this moment; the label is its text.
    Annotation { label: LabelId, t_us: u64, device: u8 },
}

impl Event {
    /// When it happened, in microseconds.
    pub const fn t_us(&self) -> u64 {
        match *self {
            Self::Alloc { t_us, .. }
            | Self::Free { t_us, .. }
            | Self::Complete { t_us, .. }
            | Self::SegmentAlloc { t_us, .. }
            | Self::SegmentFree { t_us, .. }
            | Self::SegmentMap { t_us, .. }
            | Self::SegmentUnmap { t_us, .. }
            | Self::Oom { t_us, .. }
            | Self::Annotation { t_us, .. } => t_us,
        }
    }

    /// The device it is about.
    pub const fn device(&self) -> u8 {
        match *self {
            Self::Alloc { device, .. }
            | Self::Free { device, .. }
            | Self::Complete { device, .. }
            | Self::SegmentAlloc { device, .. }
            | Self::SegmentFree { device, .. }
            | Self::SegmentMap { device, .. }
            | Self::SegmentUnmap { device, .. }
            | Self::Oom { device, .. }
            | Self::Annotation { device, .. } => device,
        }
    }

    /// Its label, [`LabelId::NONE`] where it has none.
    pub const fn label(&self) -> LabelId {
        match *self {
            Self::Complete { .. } => LabelId::NONE,
            Self::Alloc { label, .. }
            | Self::Free { label, .. }
            | Self::SegmentAlloc { label, .. }
            | Self::SegmentFree { label, .. }
            | Self::SegmentMap { label, .. }
            | Self::SegmentUnmap { label, .. }
            | Self::Oom { label, .. }
            | Self::Annotation { label, .. } => label,
        }
    }

    /// Its stream; a `Complete` and an `Annotation` have none.
    pub const fn stream(&self) -> Option<StreamId> {
        match *self {
            Self::Complete { .. } | Self::Annotation { .. } => None,
            Self::Alloc { stream, .. }
            | Self::Free { stream, .. }
            | Self::SegmentAlloc { stream, .. }
            | Self::SegmentFree { stream, .. }
            | Self::SegmentMap { stream, .. }
            | Self::SegmentUnmap { stream, .. }
            | Self::Oom { stream, .. } => Some(stream),
        }
    }

    /// The same event under other names.
    fn renamed(mut self, to_label: LabelId, to_stream: StreamId) -> Self {
        match &mut self {
            Self::Complete { .. } => {}
            Self::Annotation { label, .. } => *label = to_label,
            Self::Alloc { label, stream, .. }
            | Self::Free { label, stream, .. }
            | Self::SegmentAlloc { label, stream, .. }
            | Self::SegmentFree { label, stream, .. }
            | Self::SegmentMap { label, stream, .. }
            | Self::SegmentUnmap { label, stream, .. }
            | Self::Oom { label, stream, .. } => (*label, *stream) = (to_label, to_stream),
        }
        self
    }
}

impl Trace {
    /// An empty trace called `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { header: TraceHeader { name: name.into(), ..TraceHeader::default() }, ..Self::default() }
    }

    /// The same trace with its names numbered by first use, so that two traces that say the same are equal.
    ///
    /// # Errors
    /// An event that names what the table does not have.
    pub fn canonical(&self) -> Result<Self> {
        self.filtered(|_| true)
    }

    /// What happened on one device alone, with names numbered by first use.
    ///
    /// # Errors
    /// An event that names what the table does not have.
    pub fn on_device(&self, device: u8) -> Result<Self> {
        self.filtered(|event| event.device() == device)
    }

    fn filtered(&self, keep: impl Fn(&Event) -> bool) -> Result<Self> {
        let mut out = Self { header: self.header.clone(), ..Self::default() };
        out.header.initial_events = 0;
        let mut import = NameImport::new(&self.names);
        for (index, event) in self.events.iter().enumerate().filter(|(_, event)| keep(event)) {
            let label = import.label(&mut out.names, event.label())?;
            let stream = match event.stream() {
                Some(stream) => import.stream(&mut out.names, stream)?,
                None => StreamId::default(),
            };
            out.events.push(event.renamed(label, stream));
            out.header.initial_events += u64::from((index as u64) < self.header.initial_events);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_takes_32_bytes() {
        assert_eq!(size_of::<Event>(), 32);
    }

    #[test]
    fn one_device_keeps_its_own_events_and_count_of_initial_ones() {
        let mut trace = Trace::new("two devices");
        let stream = trace.names.stream(7).unwrap();
        let label = trace.names.text("seen on device 1 only").unwrap();
        for (id, device) in [(0, 0), (1, 1), (2, 0)] {
            trace.events.push(Event::Alloc { id, bytes: 1, t_us: 0, label, stream, device });
        }
        trace.header.initial_events = 2;
        let one = trace.on_device(1).unwrap();
        assert_eq!((one.events.len(), one.header.initial_events), (1, 1));
        assert_eq!(trace.on_device(2).unwrap().names, Names::default());
    }
}
