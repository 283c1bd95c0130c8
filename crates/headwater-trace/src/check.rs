//! Whether a trace makes sense, and what it adds up to.
//!
//! The order of events is the truth; times are remarks. Threads take the time before they take the allocator's lock, so
//! real logs (RMM's above all) step back by microseconds: [`Trace::check`] allows that and [`Summary`] counts it.
//!
//! What makes a trace impossible to replay is refused: an id given out while it is live, given back while it is not, or
//! completed when no give-back of it waits.

use crate::ids::IdTable;
use crate::model::{Event, Trace};

/// Why a trace cannot have happened. `event` is the index of the event that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are said in the words above and in the messages")]
pub enum Fault {
    /// An id that was never given out is given back or completed.
    #[error("event {event}: id {id} was never allocated")]
    UnknownId { event: usize, id: u64 },
    /// An id is given back twice.
    #[error("event {event}: id {id} is freed twice")]
    DoubleFree { event: usize, id: u64 },
    /// An id is given out while it is live.
    #[error("event {event}: id {id} is allocated while it is live")]
    IdInUse { event: usize, id: u64 },
    /// A give-back is completed that was not made, or twice.
    #[error("event {event}: id {id} is completed, and no give-back of it waits")]
    NothingToComplete { event: usize, id: u64 },
    /// Something is given back on another device than it lies on.
    #[error("event {event}: id {id} lies on device {device}, not on {named}")]
    WrongDevice { event: usize, id: u64, device: u8, named: u8 },
    /// The live bytes do not fit 64 bits.
    #[error("event {event}: more than 2^64 live bytes")]
    TooManyBytes { event: usize },
    /// An event names a stream or label that the table does not have.
    #[error("event {event}: a stream or label that the table does not have")]
    UnknownName { event: usize },
}

/// What a trace adds up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// All events.
    pub events: u64,
    /// Allocations, the initial ones included.
    pub allocs: u64,
    /// Give-backs.
    pub frees: u64,
    /// Give-backs that had to wait for other streams.
    pub completes: u64,
    /// Failed requests.
    pub ooms: u64,
    /// Segments taken, given back, mapped and unmapped.
    pub segment_events: u64,
    /// Marks of the program.
    pub annotations: u64,
    /// Different streams that allocate.
    pub streams: u64,
    /// One more than the highest device.
    pub devices: u64,
    /// The most bytes that were live at once, over all devices.
    pub peak_live_bytes: u64,
    /// The event after which they were.
    pub peak_live_event: usize,
    /// The most bytes that were live, or given back and not completed.
    pub peak_held_bytes: u64,
    /// Bytes live at the end.
    pub final_live_bytes: u64,
    /// Allocations live at the end.
    pub final_live: u64,
    /// The largest request.
    pub largest_bytes: u64,
    /// Times at which an event is earlier than the one before it.
    pub time_steps_back: u64,
    /// From the earliest to the latest time.
    pub duration_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Unknown,
    Live { bytes: u64, device: u8 },
    Freed { bytes: u64, device: u8 },
    Done,
}

impl Trace {
    /// Whether the trace can have happened, to be called before a replay. Times may go backwards.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn check(&self) -> Result<(), Fault> {
        let mut lives = IdTable::new(Life::Unknown);
        let mut live_bytes = 0u64;
        for (event, what) in self.events.iter().enumerate() {
            self.check_names(event, what)?;
            match *what {
                Event::Alloc { id, bytes, device, .. } => {
                    if let Life::Live { .. } = lives.get(id) {
                        return Err(Fault::IdInUse { event, id });
                    }
                    live_bytes = live_bytes.checked_add(bytes).ok_or(Fault::TooManyBytes { event })?;
                    lives.set(id, Life::Live { bytes, device });
                }
                Event::Free { id, device: named, .. } => match lives.get(id) {
                    Life::Live { bytes, device } if device == named => {
                        live_bytes -= bytes;
                        lives.set(id, Life::Freed { bytes, device });
                    }
                    Life::Live { device, .. } => return Err(Fault::WrongDevice { event, id, device, named }),
                    Life::Freed { .. } | Life::Done => return Err(Fault::DoubleFree { event, id }),
                    Life::Unknown => return Err(Fault::UnknownId { event, id }),
                },
                Event::Complete { id, device: named, .. } => match lives.get(id) {
                    Life::Freed { device, .. } if device == named => lives.set(id, Life::Done),
                    Life::Freed { device, .. } => {
                        return Err(Fault::WrongDevice { event, id, device, named });
                    }
                    Life::Live { .. } | Life::Done => return Err(Fault::NothingToComplete { event, id }),
                    Life::Unknown => return Err(Fault::UnknownId { event, id }),
                },
                _ => {}
            }
        }
        Ok(())
    }

    fn check_names(&self, event: usize, what: &Event) -> Result<(), Fault> {
        let label = what.label();
        let label_known = label.is_none() || label.0 as usize <= self.names.label_count();
        let stream_known = what.stream().is_none_or(|stream| self.names.stream_raw(stream).is_some());
        if label_known && stream_known { Ok(()) } else { Err(Fault::UnknownName { event }) }
    }

    /// What the trace adds up to. Of a trace that [`Trace::check`] refuses, impossible events count and change nothing
    /// else.
    pub fn summary(&self) -> Summary {
        let completed = self.completed_frees();
        let mut sum = Summary { events: self.events.len() as u64, ..Summary::default() };
        let mut lives = IdTable::new(Life::Unknown);
        let mut seen_streams = vec![false; 1 << 16];
        let (mut live, mut held) = (0u64, 0u64);
        let (mut first_us, mut last_us, mut before_us) = (u64::MAX, 0, 0);
        for (index, event) in self.events.iter().enumerate() {
            let t_us = event.t_us();
            sum.time_steps_back += u64::from(t_us < before_us);
            (first_us, last_us, before_us) = (first_us.min(t_us), last_us.max(t_us), t_us);
            sum.devices = sum.devices.max(u64::from(event.device()) + 1);
            match *event {
                Event::Alloc { id, bytes, stream, device, .. } => {
                    sum.allocs += 1;
                    sum.largest_bytes = sum.largest_bytes.max(bytes);
                    sum.streams +=
                        u64::from(!std::mem::replace(&mut seen_streams[usize::from(stream.0)], true));
                    if matches!(lives.get(id), Life::Live { .. }) {
                        continue;
                    }
                    lives.set(id, Life::Live { bytes, device });
                    sum.final_live += 1;
                    live = live.saturating_add(bytes);
                    held = held.saturating_add(bytes);
                    if live > sum.peak_live_bytes {
                        (sum.peak_live_bytes, sum.peak_live_event) = (live, index);
                    }
                    sum.peak_held_bytes = sum.peak_held_bytes.max(held);
                }
                Event::Free { id, .. } => {
                    sum.frees += 1;
                    if let Life::Live { bytes, device } = lives.get(id) {
                        let waits = completed.get(index).copied().unwrap_or(false);
                        lives.set(id, if waits { Life::Freed { bytes, device } } else { Life::Done });
                        sum.final_live -= 1;
                        live = live.saturating_sub(bytes);
                        held = if waits { held } else { held.saturating_sub(bytes) };
                    }
                }
                Event::Complete { id, .. } => {
                    sum.completes += 1;
                    if let Life::Freed { bytes, .. } = lives.get(id) {
                        lives.set(id, Life::Done);
                        held = held.saturating_sub(bytes);
                    }
                }
                Event::Oom { .. } => sum.ooms += 1,
                Event::Annotation { .. } => sum.annotations += 1,
                Event::SegmentAlloc { .. }
                | Event::SegmentFree { .. }
                | Event::SegmentMap { .. }
                | Event::SegmentUnmap { .. } => sum.segment_events += 1,
            }
        }
        sum.final_live_bytes = live;
        sum.duration_us = last_us.saturating_sub(first_us);
        sum
    }

    /// For each event, whether it is a `Free` that a later `Complete` finishes. A replay needs this to know, at the
    /// `Free`, that the bytes are not reusable yet.
    pub fn completed_frees(&self) -> Vec<bool> {
        let mut freed_at = IdTable::new(usize::MAX);
        let mut completed = vec![false; self.events.len()];
        for (index, event) in self.events.iter().enumerate() {
            match *event {
                Event::Alloc { id, .. } => freed_at.set(id, usize::MAX),
                Event::Free { id, .. } => freed_at.set(id, index),
                Event::Complete { id, .. } => {
                    if let Some(free) = completed.get_mut(freed_at.get(id)) {
                        *free = true;
                    }
                }
                _ => {}
            }
        }
        completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{LabelId, StreamId};

    const L: LabelId = LabelId::NONE;
    const S: StreamId = StreamId(0);

    fn trace(events: &[Event]) -> Trace {
        let mut trace = Trace::new("test");
        trace.names.stream(0).unwrap();
        trace.events = events.to_vec();
        trace
    }

    fn alloc(id: u64, bytes: u64, t_us: u64) -> Event {
        Event::Alloc { id, bytes, t_us, label: L, stream: S, device: 0 }
    }

    fn free(id: u64, t_us: u64) -> Event {
        Event::Free { id, t_us, label: L, stream: S, device: 0 }
    }

    fn complete(id: u64, t_us: u64) -> Event {
        Event::Complete { id, t_us, device: 0 }
    }

    #[test]
    fn what_cannot_have_happened_is_named() {
        let fault = |events: &[Event]| trace(events).check().unwrap_err();
        assert_eq!(fault(&[free(4, 0)]), Fault::UnknownId { event: 0, id: 4 });
        assert_eq!(fault(&[alloc(1, 8, 0), free(1, 1), free(1, 2)]), Fault::DoubleFree { event: 2, id: 1 });
        assert_eq!(fault(&[alloc(1, 8, 0), alloc(1, 8, 1)]), Fault::IdInUse { event: 1, id: 1 });
        assert_eq!(fault(&[alloc(1, 8, 0), complete(1, 1)]), Fault::NothingToComplete { event: 1, id: 1 });
        assert_eq!(fault(&[alloc(1, u64::MAX, 0), alloc(2, 1, 0)]), Fault::TooManyBytes { event: 1 });
        let elsewhere = Event::Free { id: 1, t_us: 1, label: L, stream: S, device: 3 };
        let wrong = Fault::WrongDevice { event: 1, id: 1, device: 0, named: 3 };
        assert_eq!(fault(&[alloc(1, 8, 0), elsewhere]), wrong);
        let nameless = Event::Annotation { label: LabelId(1), t_us: 0, device: 0 };
        assert_eq!(fault(&[nameless]), Fault::UnknownName { event: 0 });
    }

    #[test]
    fn ids_may_be_reused_after_a_free_and_time_may_step_back() {
        let trace = trace(&[alloc(1, 8, 5), free(1, 3), complete(1, 4), alloc(1, 16, 9), free(1, 9)]);
        trace.check().unwrap();
        let sum = trace.summary();
        assert_eq!((sum.time_steps_back, sum.duration_us), (1, 6));
    }

    #[test]
    fn bytes_that_wait_for_another_stream_are_held_but_not_live() {
        let trace = trace(&[alloc(1, 100, 0), free(1, 1), alloc(2, 50, 2), complete(1, 3), alloc(3, 60, 4)]);
        let sum = trace.summary();
        assert_eq!((sum.peak_live_bytes, sum.peak_held_bytes, sum.peak_live_event), (110, 150, 4));
        assert_eq!((sum.final_live_bytes, sum.final_live, sum.streams, sum.devices), (110, 2, 1, 1));
        assert_eq!(trace.completed_frees(), [false, true, false, false, false]);
    }
}
