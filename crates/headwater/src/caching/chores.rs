//! The driver calls that pending blocks need: events recorded and asked, memory overwritten. None is made under the lock.
//!
//! Each chore has the same shape: take something out of the state, let the lock go, call the driver, put the outcome back.
//! Two threads may do the same chore at once; the state takes the first outcome and ignores the second.
//!
//! **During capture.** Recording an event on a captured stream would mark a point of the graph, and asking such an event
//! destroys the capture. So a stream is asked for its capture status before an event is recorded on it and again afterwards,
//! and while it is captured, its blocks wait without an event. Asking and waiting are made in the thread's relaxed mode, which
//! makes them legal for events outside of captures whoever captures (docs/cuda-facts.md).

use headwater_driver::{CaptureStatus, DriverError, ErrorClass, Event, EventOptions, Stream};

use super::CachingAllocator;
use super::classic::Tag;
use super::state::{Fill, State};
use super::uses::Head;
use crate::AllocError;
use crate::capture_guard;

/// How many streams one ordinary call asks. At 0.4 us a question (measured), 26 us at the very most, and only where that
/// many streams are waited for.
pub(super) const QUESTIONS_A_CALL: usize = 64;
/// How many blocks one ordinary call overwrites.
pub(super) const FILLS_A_CALL: usize = 16;

/// What came of recording an event.
pub(super) enum Recorded {
    Event(Event),
    /// The stream is being captured.
    Captured,
}

/// While it lives, no event is recorded anew: a thread has one in hand and asks it without the lock.
pub(super) struct Asking<'a>(&'a CachingAllocator);

impl<'a> Asking<'a> {
    /// Chooses what to ask, if there is anything.
    pub(super) fn about<T>(
        allocator: &'a CachingAllocator,
        choose: impl FnOnce(&mut State) -> Option<T>,
    ) -> Option<(Self, T)> {
        let mut state = allocator.state.lock();
        let chosen = choose(&mut state)?;
        state.uses.begin_asking();
        Some((Self(allocator), chosen))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.state.lock().uses.end_asking();
    }
}

impl CachingAllocator {
    /// Looks after pending blocks: records the events that are due, asks those on the way, overwrites what is to be. At most
    /// `questions` events are asked that have not been reached. Says how many waits ended.
    ///
    /// # Errors
    /// Only where the device is lost. Everything else concerns blocks that nobody waits for at this moment: they stay pending,
    /// and are looked after again by the next call.
    pub(super) fn do_chores(&self, questions: usize, fills: usize) -> Result<usize, AllocError> {
        self.record_due_events()?;
        let is_patient = questions != usize::MAX && self.state.lock().is_patient();
        let ended = if is_patient { 0 } else { self.ask_events(questions)? };
        if !is_patient {
            self.state.lock().marks.answered(ended > 0);
        }
        self.fill_blocks(fills)?;
        Ok(ended)
    }

    fn record_due_events(&self) -> Result<(), AllocError> {
        let due: Vec<Tag> = self.state.lock().uses.unsealed().collect();
        due.into_iter().try_for_each(|tag| only_fatal(self.record_event_for(tag)))
    }

    /// Records an event for the blocks that wait for a stream.
    pub(super) fn record_event_for(&self, tag: Tag) -> Result<(), DriverError> {
        let Some((sealing, stream)) = self.state.lock().begin_sealing(tag) else { return Ok(()) };
        match self.record(stream) {
            Ok(Recorded::Event(event)) => {
                self.state.lock().seal(sealing, event, false);
                Ok(())
            }
            Ok(Recorded::Captured) => {
                self.state.lock().reopen(sealing);
                Ok(())
            }
            Err(error) if error.class() == ErrorClass::InvalidHandle => {
                self.state.lock().lose_waits(sealing);
                Ok(())
            }
            Err(error) => {
                self.state.lock().reopen(sealing);
                Err(error)
            }
        }
    }

    /// Records the last event of a stream whose owner is about to destroy it.
    pub(super) fn record_farewell(&self, stream: Stream) -> Result<(), AllocError> {
        let sealing = {
            let mut state = self.state.lock();
            let Some(tag) = state.core.tags().find(stream) else { return Ok(()) };
            // The mark of the last event, which is also the time of death: no earlier mark may cover it.
            state.core.tick();
            match state.begin_sealing(tag) {
                Some((sealing, _)) => sealing,
                None => return Ok(()),
            }
        };
        match self.record(stream) {
            Ok(Recorded::Event(event)) => {
                self.state.lock().seal(sealing, event, true);
                Ok(())
            }
            Ok(Recorded::Captured) => {
                self.state.lock().reopen(sealing);
                Err(AllocError::StreamCapturing { stream })
            }
            Err(error) if error.class() == ErrorClass::InvalidHandle => {
                self.state.lock().lose_dead_stream(sealing);
                Ok(())
            }
            Err(error) => {
                self.state.lock().reopen(sealing);
                Err(error.into())
            }
        }
    }

    pub(super) fn record(&self, stream: Stream) -> Result<Recorded, DriverError> {
        if self.is_captured(stream)? {
            return Ok(Recorded::Captured);
        }
        // Its own statement: the lock must be gone when the driver is called.
        let spare = self.state.lock().uses.spare_event();
        let event = match spare {
            Some(event) => event,
            None => self.driver.event_create(self.device, EventOptions::default())?,
        };
        let captured = self.driver.event_record(event, stream).and_then(|()| self.is_captured(stream));
        match captured {
            Ok(false) => Ok(Recorded::Event(event)),
            answer => {
                // It may be a point of somebody's capture by now, and must never be asked.
                let _ = self.destroy_event(event);
                answer.map(|_| Recorded::Captured)
            }
        }
    }

    /// Destroys an event. Where the driver refuses it is kept: recorded again, it is as good as any other.
    pub(super) fn destroy_event(&self, event: Event) -> Result<(), DriverError> {
        let answer = self.driver.event_destroy(event);
        if answer.as_ref().is_err_and(|error| error.class() != ErrorClass::InvalidHandle) {
            self.state.lock().uses.keep_event(event);
        }
        answer
    }

    /// Whether work given to `stream` would go into a graph, or destroy somebody's capture.
    pub(super) fn is_captured(&self, stream: Stream) -> Result<bool, DriverError> {
        match self.driver.capture_status(stream) {
            Ok(status) => Ok(status != CaptureStatus::None),
            Err(error) => match error.class() {
                // The default stream, while a stream that is ordered with it is captured.
                ErrorClass::IllegalInCapture => Ok(true),
                // A driver without capture.
                ErrorClass::Unavailable | ErrorClass::NotSupported => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Asks the oldest event of every stream, and the next where it was reached.
    fn ask_events(&self, questions: usize) -> Result<usize, AllocError> {
        let mut ended = 0;
        let mut left = questions;
        loop {
            let choose = |state: &mut State| Some(state.uses.heads(left)).filter(|heads| !heads.is_empty());
            let Some((_asking, heads)) = Asking::about(self, choose) else { return Ok(ended) };
            let asked = capture_guard::relaxed(&*self.driver, || {
                Ok(heads.iter().map(|head| self.driver.event_query(head.event)).collect::<Vec<_>>())
            });
            let Some(answers) = only_fatal(asked.map(Some))? else { return Ok(ended) };
            let mut reached = 0;
            for (head, answer) in heads.iter().zip(answers) {
                match answer {
                    Ok(true) => {
                        ended += self.state.lock().reached(head);
                        reached += 1;
                    }
                    Ok(false) => {}
                    Err(error) => self.answer_failed(head, error)?,
                }
            }
            left -= heads.len() - reached;
            if reached == 0 || left == 0 {
                return Ok(ended);
            }
        }
    }

    fn answer_failed(&self, head: &Head, error: DriverError) -> Result<(), AllocError> {
        match error.class() {
            // The event belongs to a capture after all, or no longer exists: another one will do.
            ErrorClass::IllegalInCapture
            | ErrorClass::CaptureInvalidated
            | ErrorClass::InvalidValue
            | ErrorClass::InvalidHandle => {
                let useless = self.state.lock().unseal(head);
                if let Some(event) = useless {
                    let _ = self.destroy_event(event);
                }
                Ok(())
            }
            _ => only_fatal(Err(error)),
        }
    }

    /// Waits for the event that was recorded first. Says whether there was one.
    pub(super) fn wait_for_oldest(&self) -> Result<bool, AllocError> {
        let Some((_asking, head)) = Asking::about(self, |state| state.uses.oldest()) else {
            return Ok(false);
        };
        let waited = capture_guard::relaxed(&*self.driver, || self.driver.event_synchronize(head.event));
        match waited {
            Ok(()) => {
                self.state.lock().reached(&head);
            }
            Err(error) => {
                self.answer_failed(&head, error.clone())?;
                return Err(error.into());
            }
        }
        Ok(true)
    }

    /// Overwrites blocks that nobody uses any more, so that they can become free.
    pub(super) fn fill_blocks(&self, most: usize) -> Result<(), AllocError> {
        let Some(byte) = self.fill else { return Ok(()) };
        let waiting = self.state.lock().unfilled_blocks();
        for _ in 0..waiting.min(most) {
            let Some(fill) = self.state.lock().next_fill() else { break };
            if let Err(error) = self.fill_block(&fill, byte) {
                self.state.lock().not_filled(fill.block);
                only_fatal::<()>(Err(error))?;
            }
        }
        Ok(())
    }

    /// Overwrites one block in its own stream, where later uses come after it. Where that stream is gone and finished, or is
    /// another thread's, in the default stream, and the block waits for it.
    fn fill_block(&self, fill: &Fill, byte: u8) -> Result<(), DriverError> {
        let Some(stream) = fill.stream else { return self.fill_elsewhere(fill, byte) };
        match self.fill_in(stream, fill, byte) {
            Ok(true) => self.state.lock().filled(fill.block),
            Ok(false) => self.state.lock().not_filled(fill.block),
            Err(error) if error.class() == ErrorClass::InvalidHandle => {
                self.state.lock().own_stream_is_lost(fill.block);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn fill_elsewhere(&self, fill: &Fill, byte: u8) -> Result<(), DriverError> {
        let stream = Stream::legacy_default(self.device);
        if !self.fill_in(stream, fill, byte)? {
            self.state.lock().not_filled(fill.block);
            return Ok(());
        }
        let due = self.state.lock().filled_elsewhere(fill.block, stream);
        match due {
            // Where it cannot be recorded now it is due at the next call.
            Some(tag) => self.record_event_for(tag).or(Ok(())),
            None => Ok(()),
        }
    }

    /// Says no where the stream is being captured.
    fn fill_in(&self, stream: Stream, fill: &Fill, byte: u8) -> Result<bool, DriverError> {
        if self.is_captured(stream)? {
            return Ok(false);
        }
        // SAFETY: the range is a block of ours that no caller holds and no stream uses, or only `stream` in order; it stays
        // allocated, because its segment cannot go while the block is pending, and a plain free waits for the fill.
        unsafe { self.driver.fill_bytes(fill.ptr, byte, fill.bytes, stream)? };
        Ok(true)
    }
}

/// Lets only a lost device stop a call that has other things to do.
pub(super) fn only_fatal<T: Default>(answer: Result<T, DriverError>) -> Result<T, AllocError> {
    match answer {
        Err(error) if error.class() == ErrorClass::DeviceLost => Err(error.into()),
        Err(_) => Ok(T::default()),
        Ok(value) => Ok(value),
    }
}
