//! What a reservation and its allocations share: how much is promised and how much is in use.
//!
//! A promise takes the larger of the two from its space: a reservation is paid for as a whole when it is made, what is
//! allocated inside it costs nothing more, and what goes beyond it costs the excess. Every change replaces one charge by
//! another in one step, so nothing is ever counted twice or forgotten.
//!
//! Allocations hold the promise, not the stream or thread they were made on: whoever gives them back, the right
//! reservation is credited. When the reservation is given back first, nothing is promised any more, and every
//! byte in use goes back to the space with its allocation. When it is merged into another, the other takes over both
//! figures, and credits find their way there.
//!
//! The lock is the promise's own, held for a few instructions and never across a driver call. Lock order: promise, then
//! the book. Two promises are only locked together to merge them, lower address first.

use std::sync::Arc;

use parking_lot::Mutex;

use super::ledger::Ledger;
use super::policy::OverPolicy;
use crate::error::TierError;
use crate::waiting::{Ceiling, Charge};

#[derive(Debug)]
pub(crate) struct Promise {
    ledger: Arc<Ledger>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    promised_bytes: u64,
    in_use_bytes: u64,
    is_given_back: bool,
    /// Where both figures went; then they are zero here.
    merged_into: Option<Arc<Promise>>,
}

/// What a promise says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) promised_bytes: u64,
    pub(crate) in_use_bytes: u64,
}

impl State {
    fn charge(&self) -> Charge {
        Charge {
            reserved_bytes: self.promised_bytes,
            unreserved_bytes: self.in_use_bytes.saturating_sub(self.promised_bytes),
        }
    }

    fn unused_bytes(&self) -> u64 {
        self.promised_bytes.saturating_sub(self.in_use_bytes)
    }
}

impl Promise {
    /// The promise of bytes that the book has already granted.
    pub(crate) fn of_granted(ledger: Arc<Ledger>, bytes: u64) -> Arc<Self> {
        let state = State { promised_bytes: bytes, ..State::default() };
        Arc::new(Self { ledger, state: Mutex::new(state) })
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub(crate) fn figures(&self) -> Figures {
        let state = self.state.lock();
        Figures { promised_bytes: state.promised_bytes, in_use_bytes: state.in_use_bytes }
    }

    /// Puts `bytes` to use, by `policy` where they go beyond what is promised.
    pub(crate) fn put_to_use(&self, bytes: u64, policy: OverPolicy) -> Result<(), TierError> {
        let mut state = self.state.lock();
        if state.is_given_back || state.merged_into.is_some() {
            return Err(TierError::ReservationGivenBack { space: self.ledger.id, bytes });
        }
        let in_use_bytes = state.in_use_bytes.saturating_add(bytes);
        if in_use_bytes <= state.promised_bytes {
            state.in_use_bytes = in_use_bytes;
            return Ok(());
        }
        match policy {
            OverPolicy::Fail => {
                let remedy = "make the reservation larger, or allow more with OverPolicy::Ignore or Increase";
                return Err(TierError::OverReservation {
                    reservation_bytes: state.promised_bytes,
                    in_use_bytes: state.in_use_bytes,
                    shortage: Box::new(self.ledger.shortage(bytes, remedy)),
                });
            }
            OverPolicy::Ignore => {}
            OverPolicy::Increase(increase) => {
                let missing_bytes = in_use_bytes - state.promised_bytes;
                let ceiling = increase.ceiling();
                // With the padding if it fits, exactly otherwise: the padding saves later trips, it is not needed.
                let padded = self.raise(&mut state, increase.padded(missing_bytes), ceiling);
                padded.or_else(|_| self.raise(&mut state, missing_bytes, ceiling))?;
            }
        }
        let from = state.charge();
        let to = Charge {
            unreserved_bytes: in_use_bytes.saturating_sub(state.promised_bytes),
            ..Charge::reserved(state.promised_bytes)
        };
        if to != from {
            self.ledger.take_more(from, to, Ceiling::Capacity)?;
        }
        state.in_use_bytes = in_use_bytes;
        Ok(())
    }

    /// Takes `bytes` out of use.
    pub(crate) fn take_out_of_use(self: &Arc<Self>, bytes: u64) {
        let mut at = self.clone();
        loop {
            let next = {
                let mut state = at.state.lock();
                match &state.merged_into {
                    Some(next) => next.clone(),
                    None => {
                        let from = state.charge();
                        debug_assert!(state.in_use_bytes >= bytes, "{state:?} gives {bytes} back");
                        state.in_use_bytes = state.in_use_bytes.saturating_sub(bytes);
                        at.pay_back(from, &state);
                        return;
                    }
                }
            };
            // A chain of merges is followed once: the next give-back of this promise goes straight to its end.
            let end = next.end_of_merges();
            at.state.lock().merged_into = Some(end.clone());
            at = end;
        }
    }

    /// Promises `bytes` more, now, behind those who wait.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), TierError> {
        self.raise(&mut self.state.lock(), bytes, Ceiling::Limit)
    }

    /// Adds what the book has granted.
    pub(crate) fn add_granted(&self, bytes: u64) {
        let mut state = self.state.lock();
        let from = state.charge();
        state.promised_bytes = state.promised_bytes.saturating_add(bytes);
        // Where more was in use than promised, the grant now covers some of it: that was paid for twice.
        let paid = Charge { reserved_bytes: from.reserved_bytes.saturating_add(bytes), ..from };
        self.pay_back(paid, &state);
    }

    /// Gives back what is promised and not in use, and says how much that was.
    pub(crate) fn shrink_to_fit(&self) -> u64 {
        let mut state = self.state.lock();
        let from = state.charge();
        let granule_bytes = self.ledger.granule_bytes;
        let kept_bytes = state.in_use_bytes.checked_next_multiple_of(granule_bytes).unwrap_or(u64::MAX);
        let before = state.promised_bytes;
        state.promised_bytes = before.min(kept_bytes);
        self.pay_back(from, &state);
        before - state.promised_bytes
    }

    /// Gives back `bytes` of what is promised and not in use.
    pub(crate) fn shrink(&self, bytes: u64) -> Result<(), TierError> {
        let mut state = self.state.lock();
        self.check_unused(&state, bytes)?;
        let from = state.charge();
        state.promised_bytes -= bytes;
        self.pay_back(from, &state);
        Ok(())
    }

    /// Moves `bytes` that are promised and not in use into a promise of their own.
    pub(crate) fn split(&self, bytes: u64) -> Result<Arc<Self>, TierError> {
        let mut state = self.state.lock();
        self.check_unused(&state, bytes)?;
        // The space sees no change: what one gives the other has.
        state.promised_bytes -= bytes;
        Ok(Self::of_granted(self.ledger.clone(), bytes))
    }

    /// Takes over all that `other` promises and has in use.
    pub(crate) fn merge(self: &Arc<Self>, other: &Arc<Self>) {
        debug_assert!(!Arc::ptr_eq(self, other), "a reservation is owned once");
        let (mut mine, mut theirs);
        if Arc::as_ptr(self) < Arc::as_ptr(other) {
            mine = self.state.lock();
            theirs = other.state.lock();
        } else {
            theirs = other.state.lock();
            mine = self.state.lock();
        }
        let (one, two) = (mine.charge(), theirs.charge());
        mine.promised_bytes += theirs.promised_bytes;
        mine.in_use_bytes += theirs.in_use_bytes;
        *theirs = State { merged_into: Some(self.clone()), ..State::default() };
        drop(theirs);
        // One's unused bytes cover what the other had beyond its promise.
        let both = Charge {
            reserved_bytes: one.reserved_bytes + two.reserved_bytes,
            unreserved_bytes: one.unreserved_bytes + two.unreserved_bytes,
        };
        self.pay_back(both, &mine);
    }

    /// The reservation is gone: what is not in use goes back to the space, and what is counts as unreserved.
    pub(crate) fn give_back(&self) {
        let mut state = self.state.lock();
        if state.merged_into.is_some() {
            return;
        }
        let from = state.charge();
        state.is_given_back = true;
        state.promised_bytes = 0;
        self.pay_back(from, &state);
    }

    fn raise(&self, state: &mut State, bytes: u64, ceiling: Ceiling) -> Result<(), TierError> {
        let granule_bytes = self.ledger.granule_bytes;
        let bytes = bytes.checked_next_multiple_of(granule_bytes).unwrap_or(u64::MAX);
        let from = state.charge();
        let promised_bytes = state.promised_bytes.saturating_add(bytes);
        let to = Charge {
            reserved_bytes: promised_bytes,
            unreserved_bytes: state.in_use_bytes.saturating_sub(promised_bytes),
        };
        self.ledger.take_more(from, to, ceiling)?;
        state.promised_bytes = promised_bytes;
        Ok(())
    }

    fn pay_back(&self, from: Charge, state: &State) {
        let to = state.charge();
        if to != from {
            self.ledger.take_less(from, to);
        }
    }

    fn check_unused(&self, state: &State, bytes: u64) -> Result<(), TierError> {
        let unused_bytes = state.unused_bytes();
        if bytes <= unused_bytes {
            return Ok(());
        }
        let reservation_bytes = state.promised_bytes;
        Err(TierError::NotUnused { requested_bytes: bytes, unused_bytes, reservation_bytes })
    }

    fn end_of_merges(self: &Arc<Self>) -> Arc<Self> {
        let mut at = self.clone();
        loop {
            let Some(next) = at.state.lock().merged_into.clone() else { break };
            at = next;
        }
        at
    }
}

impl Drop for Promise {
    /// Takes a chain of merged promises apart one by one: dropped recursively, a long one would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.state.get_mut().merged_into.take();
        while let Some(promise) = next {
            next = Arc::into_inner(promise).and_then(|mut alone| alone.state.get_mut().merged_into.take());
        }
    }
}
