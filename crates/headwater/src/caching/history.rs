//! The latest events of an allocator, in a ring of fixed length.
//!
//! Off by default, and then one comparison an event. The kinds and their names are those of PyTorch's memory history, so that
//! its viewer understands them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use headwater_driver::{DevicePtr, Stream};

use super::label;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// A block was given out.
    Alloc,
    /// A caller gave a block back.
    FreeRequested,
    /// The block could be used again.
    FreeCompleted,
    /// The driver gave a segment.
    SegmentAlloc,
    /// The driver took a segment back.
    SegmentFree,
    /// A handle was mapped at an address.
    SegmentMap,
    /// A handle was taken away from an address.
    SegmentUnmap,
    /// A request failed for want of memory.
    Oom,
}

impl Action {
    /// PyTorch's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Oom => "oom",
        }
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryEvent {
    /// What happened.
    pub action: Action,
    /// The block or segment; of an [`Action::Oom`], nothing.
    pub ptr: DevicePtr,
    /// Its size; of an alloc and its give-back, what was asked for; of an out-of-memory, what could not be had.
    pub bytes: u64,
    /// The stream it belongs to.
    pub stream: Stream,
    /// Microseconds since the allocator was made.
    pub time_us: u64,
    /// What the thread was doing, where it said so.
    pub label: Option<Arc<str>>,
}

/// The ring.
#[derive(Debug)]
pub(crate) struct History {
    events: VecDeque<HistoryEvent>,
    most: usize,
    dropped: u64,
    start: Instant,
}

impl History {
    /// Keeps the latest `most` events; 0 is off.
    pub(crate) fn new(most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { events: VecDeque::new(), most, dropped: 0, start: Instant::now() }
    }

    #[inline]
    pub(crate) fn note(&mut self, action: Action, ptr: DevicePtr, bytes: u64, stream: Stream) {
        if self.most > 0 {
            self.push(action, ptr, bytes, stream);
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.most > 0
    }

    #[cold]
    fn push(&mut self, action: Action, ptr: DevicePtr, bytes: u64, stream: Stream) {
        if self.events.len() == self.most {
            self.events.pop_front();
            self.dropped += 1;
        }
        let time_us = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let label = label::current();
        self.events.push_back(HistoryEvent { action, ptr, bytes, stream, time_us, label });
    }

    /// The events kept, oldest first, and how many older ones were dropped.
    pub(crate) fn read(&self) -> (Vec<HistoryEvent>, u64) {
        (self.events.iter().cloned().collect(), self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use headwater_driver::DeviceId;

    use super::*;

    const STREAM: Stream = Stream::legacy_default(DeviceId(0));

    #[test]
    fn the_ring_keeps_the_latest_events_and_counts_the_rest() {
        let mut history = History::new(2);
        for bytes in 1..=5 {
            history.note(Action::Alloc, DevicePtr::new(bytes), bytes, STREAM);
        }
        let (events, dropped) = history.read();
        assert_eq!(events.iter().map(|event| event.bytes).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(dropped, 3);
    }

    #[test]
    fn nothing_is_kept_where_it_is_off_and_labels_come_along_where_it_is_on() {
        let mut off = History::new(0);
        off.note(Action::Oom, DevicePtr::NULL, 1, STREAM);
        assert_eq!(off.read(), (Vec::new(), 0));
        let mut on = History::new(1);
        let _scope = label::scope("step 3");
        on.note(Action::Oom, DevicePtr::NULL, 1, STREAM);
        assert_eq!(on.read().0[0].label.as_deref(), Some("step 3"));
    }
}
