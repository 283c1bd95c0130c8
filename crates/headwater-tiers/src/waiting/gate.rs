//! The lock and the sleeping around the book.
//!
//! Each waiter sleeps on a condition variable of its own, and is woken when its fate is decided, not to try its luck:
//! the book has already moved the room to its name. A sleeper that wakes for nothing finds no outcome and sleeps on.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::book::Book;
use super::request::{Answer, Ask, Decided, Grant, Outcome, Refused, Ticket};
use super::wait::{Cancellable, Wait};
use crate::clock::Clock;
use crate::sync::{Condvar, Guard, Mutex};

/// The book, shared by threads.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    /// Itself, for tokens that call waits off.
    this: Weak<Self>,
    /// Told, with no lock held, when somebody begins to wait: room is wanted that is not there.
    when_somebody_waits: OnceLock<Told>,
}

/// A function, and so nothing to show.
struct Told(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Told")
    }
}

#[derive(Debug)]
struct State {
    book: Book,
    sleepers: BTreeMap<Ticket, Arc<Condvar>>,
}

/// A wait that ended without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitRefused {
    AtOnce(Refused),
    TimedOut { waited: Duration },
    Cancelled,
}

impl Gate {
    pub(crate) fn new(book: Book, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State { book, sleepers: BTreeMap::new() };
        Arc::new_cyclic(|this| Self {
            state: Mutex::new(state),
            clock,
            this: this.clone(),
            when_somebody_waits: OnceLock::new(),
        })
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Has `told` called when somebody begins to wait; says whether it is the first of its kind, and so was taken.
    pub(crate) fn when_somebody_waits(&self, told: impl Fn() + Send + Sync + 'static) -> bool {
        self.when_somebody_waits.set(Told(Box::new(told))).is_ok()
    }

    /// Looks into the book.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Book) -> T) -> T {
        look(&self.state.lock().book)
    }

    /// Writes into the book what cannot make room for anyone.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        change(&mut self.state.lock().book)
    }

    /// Writes into the book, and wakes those whose fate that decided.
    pub(crate) fn settle<E>(&self, change: impl FnOnce(&mut Book) -> Result<Decided, E>) -> Result<(), E> {
        let mut state = self.state.lock();
        let decided = change(&mut state.book)?;
        state.wake(&decided);
        Ok(())
    }

    /// Ends the waits whose deadline has come by the clock.
    pub(crate) fn expire(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let decided = state.book.expire(now);
        state.wake(&decided);
    }

    /// Ends all waits and refuses all later requests.
    pub(crate) fn shut_down(&self) {
        let mut state = self.state.lock();
        let decided = state.book.shut_down();
        state.wake(&decided);
    }

    /// Waits for room. Returns with it, or with the reason why not; a request that gives up leaves nothing behind.
    pub(crate) fn wait_for(&self, ask: Ask, wait: &Wait) -> Result<Grant, WaitRefused> {
        let wait = &*wait.known();
        if wait.is_cancelled() {
            return Err(WaitRefused::Cancelled);
        }
        let begun = self.clock.now();
        let deadline = wait.deadline(begun);
        let (ticket, bell) = {
            let mut state = self.state.lock();
            match state.book.ask(ask, deadline).map_err(WaitRefused::AtOnce)? {
                Answer::Granted(grant) => return Ok(grant),
                Answer::Waiting(ticket) => {
                    let bell = Arc::new(Condvar::new());
                    state.sleepers.insert(ticket, bell.clone());
                    (ticket, bell)
                }
            }
        };
        // After queueing and outside of the lock: whoever cancels from here on finds the ticket.
        let this: Weak<dyn Cancellable> = self.this.clone();
        let registrations = wait.register(&this, ticket.number());
        if registrations.iter().any(|registration| registration.was_cancelled()) {
            self.call_off(ticket.number());
        }
        let _sleeping = wait.sleeping("room");
        if let Some(told) = self.when_somebody_waits.get() {
            (told.0)();
        }
        match self.sleep_until_decided(ticket, &bell, deadline) {
            Outcome::Granted(grant) => Ok(grant),
            Outcome::TimedOut => {
                Err(WaitRefused::TimedOut { waited: self.clock.now().saturating_duration_since(begun) })
            }
            Outcome::Cancelled => Err(WaitRefused::Cancelled),
            Outcome::NeverFits => Err(WaitRefused::AtOnce(Refused::NeverFits)),
            Outcome::ShutDown => Err(WaitRefused::AtOnce(Refused::ShutDown)),
        }
    }

    fn sleep_until_decided(&self, ticket: Ticket, bell: &Condvar, deadline: Option<Instant>) -> Outcome {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.book.take_outcome(ticket) {
                state.sleepers.remove(&ticket);
                return outcome;
            }
            state = self.sleep(state, bell, deadline);
        }
    }

    fn sleep<'a>(
        &self,
        state: Guard<'a, State>,
        bell: &Condvar,
        deadline: Option<Instant>,
    ) -> Guard<'a, State> {
        let at_most = deadline.and_then(|deadline| self.clock.sleep_until(deadline));
        if at_most != Some(Duration::ZERO) {
            return bell.wait(state, at_most);
        }
        // The deadline is here, for this waiter and perhaps for others.
        let mut state = state;
        let decided = state.book.expire(self.clock.now());
        state.wake(&decided);
        state
    }
}

impl Cancellable for Gate {
    fn call_off(&self, key: u64) {
        let mut state = self.state.lock();
        let decided = state.book.cancel(Ticket::from_number(key));
        state.wake(&decided);
    }
}

impl State {
    fn wake(&self, decided: &Decided) {
        for ticket in decided {
            if let Some(bell) = self.sleepers.get(ticket) {
                bell.notify_all();
            }
        }
    }
}
