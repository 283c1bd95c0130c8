//! Learning what streams have finished.
//!
//! One event on a stream answers for everything given back on it before (`classic/tags.rs`). Events are recorded and asked on
//! misses only, so that a program that hits makes no call: by a stream that took memory which it may still be using, for
//! the old mapping to be removed; and on other streams that have free memory, by one that runs short. A stream whose memory
//! another one wanted and could not have marks its progress at give-backs too, for a while: its next give-backs are then known to
//! be finished earlier than by an event recorded when they are needed.
//!
//! Here are the books; the calls are made without the lock, in `impl CachingAllocator` below.

use std::collections::{BTreeMap, VecDeque};

use headwater_driver::{DriverError, ErrorClass, Event};

use super::policy::{
    INTEREST_GIVE_BACKS, MARK_BYTES, MARK_GIVE_BACKS, MARKS_MAX, PATIENCE_CALLS_MAX, SMALL_MAX_BYTES,
};
use crate::AllocError;
use crate::caching::CachingAllocator;
use crate::caching::chores::{Asking, Recorded, only_fatal};
use crate::caching::classic::Tag;
use crate::caching::state::State;
use crate::caching::threads::ThreadMark;
use crate::capture_guard;

/// An event on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    tag: Tag,
    mark: u64,
    event: Event,
}

/// What a stream whose memory others want has given back since its last event.
#[derive(Clone, Copy, Debug, Default)]
struct Interest {
    left: u32,
    give_backs: u32,
    bytes: u64,
}

/// Events on their way, and who is watched.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pending: VecDeque<Mark>,
    watched: BTreeMap<Tag, Interest>,
    patience: Patience,
}

/// How long ordinary calls leave blocks that wait for other streams alone, after having asked in vain: twice as long each
/// time, up to a bound. A stream that is busy for long would otherwise be asked by every call, 1.2 us each with the change of
/// the capture mode around it; and what is missing is asked for anyway before anything is mapped.
#[derive(Clone, Copy, Debug, Default)]
struct Patience {
    /// Calls that pass before the next question.
    left: u32,
    /// How many passed before the last one.
    last: u32,
}

impl Marks {
    /// Whether anything still refers to the stream.
    pub(crate) fn refers_to(&self, tag: Tag) -> bool {
        self.watched.contains_key(&tag) || self.pending.iter().any(|mark| mark.tag == tag)
    }

    /// Whether an ordinary call asks nothing this time.
    pub(crate) fn is_patient(&mut self) -> bool {
        let is_patient = self.patience.left > 0;
        self.patience.left = self.patience.left.saturating_sub(1);
        is_patient
    }

    /// Blocks that wait were asked about. `any`: a wait has ended.
    pub(crate) fn answered(&mut self, any: bool) {
        let last = if any { 0 } else { (2 * self.patience.last + 1).min(PATIENCE_CALLS_MAX) };
        self.patience = Patience { left: last, last };
    }

    /// Another stream wanted the memory of this one.
    pub(crate) fn watch(&mut self, tag: Tag) {
        self.watched.entry(tag).or_default().left = INTEREST_GIVE_BACKS;
    }

    /// A block was given back on a stream. Says whether an event should be recorded on it.
    #[must_use]
    pub(crate) fn given_back(&mut self, tag: Tag, bytes: u64) -> bool {
        if self.watched.is_empty() || bytes <= SMALL_MAX_BYTES {
            return false;
        }
        let Some(interest) = self.watched.get_mut(&tag) else { return false };
        interest.left -= 1;
        interest.give_backs += 1;
        interest.bytes += bytes;
        let due = interest.give_backs >= MARK_GIVE_BACKS || interest.bytes >= MARK_BYTES;
        if due {
            (interest.give_backs, interest.bytes) = (0, 0);
        }
        if interest.left == 0 {
            self.watched.remove(&tag);
        }
        due
    }

    /// Whether an event that covers `mark` is on its way.
    fn covers(&self, tag: Tag, mark: u64) -> bool {
        self.pending.iter().any(|pending| pending.tag == tag && pending.mark >= mark)
    }

    /// The oldest event of each stream.
    fn heads(&self) -> Vec<Mark> {
        let mut seen = std::collections::BTreeSet::new();
        self.pending.iter().filter(|mark| seen.insert(mark.tag)).copied().collect()
    }

    fn oldest(&self) -> Option<Mark> {
        self.pending.front().copied()
    }

    /// Takes an event out; says no where another thread was quicker.
    fn remove(&mut self, mark: &Mark) -> bool {
        let place = self.pending.iter().position(|pending| pending == mark);
        place.is_some_and(|place| self.pending.remove(place).is_some())
    }

    /// Every event, to be destroyed.
    pub(crate) fn take_all(&mut self) -> Vec<Event> {
        self.pending.drain(..).map(|mark| mark.event).collect()
    }
}

impl CachingAllocator {
    /// Records an event on a stream, unless one on its way covers all it has given back. Says whether one is on its way.
    ///
    /// # Errors
    /// Only where the device is lost: without an event the stream counts as busy, which is always safe.
    pub(in crate::caching) fn mark_stream(&self, tag: Tag) -> Result<bool, AllocError> {
        let (stream, mark) = {
            let state = self.state.lock();
            let mark = state.core.now();
            if state.marks.covers(tag, mark) {
                return Ok(true);
            }
            let here = ThreadMark::current().number;
            let entry =
                state.core.tags().get(tag).filter(|entry| entry.is_within_reach(here) && !entry.is_lost);
            match entry {
                Some(entry) if state.marks.pending.len() < MARKS_MAX => (entry.stream, mark),
                _ => return Ok(false),
            }
        };
        match self.record(stream) {
            Ok(Recorded::Event(event)) => {
                self.state.lock().marks.pending.push_back(Mark { tag, mark, event });
                Ok(true)
            }
            Ok(Recorded::Captured) => Ok(false),
            Err(error) => {
                if error.class() == ErrorClass::InvalidHandle {
                    self.state.lock().core.tags_mut().set_lost(tag, true);
                }
                only_fatal(Err(error))
            }
        }
    }

    /// Asks the events that are on their way. Says whether one was reached.
    ///
    /// # Errors
    /// Only where the device is lost.
    pub(in crate::caching) fn ask_marks(&self) -> Result<bool, AllocError> {
        let mut any = false;
        loop {
            let choose = |state: &mut State| Some(state.marks.heads()).filter(|heads| !heads.is_empty());
            let Some((_asking, heads)) = Asking::about(self, choose) else { return Ok(any) };
            let asked = capture_guard::relaxed(&*self.driver, || {
                Ok(heads.iter().map(|mark| self.driver.event_query(mark.event)).collect::<Vec<_>>())
            });
            let mut again = false;
            for (mark, answer) in heads.iter().zip(only_fatal(asked)?) {
                again |= self.mark_answered(mark, answer)?;
            }
            any |= again;
            if !again {
                return Ok(any);
            }
        }
    }

    /// Waits for the event that was recorded first. Says whether there was one.
    ///
    /// # Errors
    /// Where waiting failed.
    pub(super) fn wait_for_mark(&self) -> Result<bool, AllocError> {
        let Some((_asking, mark)) = Asking::about(self, |state| state.marks.oldest()) else {
            return Ok(false);
        };
        let waited = capture_guard::relaxed(&*self.driver, || self.driver.event_synchronize(mark.event));
        let failed = waited.as_ref().err().cloned();
        self.mark_answered(&mark, waited.map(|()| true))?;
        failed.map_or(Ok(true), |error| Err(error.into()))
    }

    fn mark_answered(&self, mark: &Mark, answer: Result<bool, DriverError>) -> Result<bool, AllocError> {
        match answer {
            Ok(false) => Ok(false),
            Ok(true) => {
                let mut state = self.state.lock();
                let is_first = state.marks.remove(mark);
                if is_first {
                    state.uses.keep_event(mark.event);
                    state.core.tags_mut().reached(mark.tag, mark.mark);
                    state.core.disown(mark.tag);
                }
                Ok(is_first)
            }
            Err(error) => match error.class() {
                // Somebody's capture has it after all, or it is gone: the stream counts as busy until another is recorded.
                ErrorClass::IllegalInCapture
                | ErrorClass::CaptureInvalidated
                | ErrorClass::InvalidValue
                | ErrorClass::InvalidHandle => {
                    let is_first = self.state.lock().marks.remove(mark);
                    if is_first {
                        let _ = self.destroy_event(mark.event);
                    }
                    Ok(false)
                }
                _ => only_fatal(Err(error)),
            },
        }
    }
}
