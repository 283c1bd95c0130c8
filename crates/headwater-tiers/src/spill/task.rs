//! One task: what it is asked and how it answers.

use std::sync::Arc;
use std::time::Instant;

use super::tasks::{Asked, Entry, State, Tasks};
use crate::error::TierError;
use crate::space::News;
use crate::waiting::{CancelToken, Wait, WaitObserver, work_for};

/// A task as its waits know it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) tasks: Arc<Tasks>,
    pub(super) id: u64,
}

impl Known {
    fn with<T>(&self, act: impl FnOnce(&mut State, &mut Entry) -> T) -> Option<T> {
        let mut state = self.tasks.state.lock();
        let mut entry = state.tasks.remove(&self.id)?;
        let answer = act(&mut state, &mut entry);
        state.tasks.insert(self.id, entry);
        Some(answer)
    }
}

impl WaitObserver for Known {
    fn begins(&self, what: &'static str) {
        self.with(|_, entry| entry.waiting = Some((what, Instant::now())));
        // A mover that looked before does not know that room is wanted.
        self.tasks.progress();
    }

    fn ends(&self) {
        self.tasks.progress();
        self.with(|state, entry| {
            if let Some((_, since)) = entry.waiting.take() {
                state.waits += 1;
                state.wait_time += since.elapsed();
            }
        });
    }

    fn token(&self) -> CancelToken {
        self.with(|_, entry| entry.token.clone()).unwrap_or_default()
    }

    fn verdict(&self) -> Option<TierError> {
        self.with(|_, entry| {
            let asked = entry.asked?;
            let (rollbacks, splits) = (entry.rollbacks, entry.splits);
            if asked != Asked::Cancel {
                // Heard: its next waits are not called off by this.
                entry.asked = None;
                entry.token = CancelToken::new();
            }
            Some(match asked {
                Asked::RollBack { tasks } => TierError::RollBack { tasks, rollbacks },
                Asked::Split => TierError::SplitWork { splits },
                Asked::GiveUp => TierError::GaveUp { rollbacks, splits },
                Asked::Cancel => TierError::Cancelled,
            })
        })?
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.tasks.state.lock().tasks.remove(&self.id);
        self.tasks.give_turns();
    }
}

/// One try of a task at its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Counted from one.
    pub number: u32,
    /// Into how many pieces the work is to be split, one after the other; a power of two.
    pub pieces: u32,
}

/// One thread of work that the engine knows: what it waits for is seen, and where all wait for each other it may be asked to give
/// way. Ends when dropped.
///
/// Every wait for room, data or streams in a thread that works for the task ([`run`](Self::run),
/// [`on_this_thread`](Self::on_this_thread)) is known, and so is every one with the patience of [`wait`](Self::wait) elsewhere. While a
/// task waits for something that the tiers do not know, such as another task's result, it says so with
/// [`blocked`](Self::blocked); otherwise it counts as at work, and a knot that it is part of is broken by deadlines only.
#[derive(Debug)]
pub struct Task {
    known: Arc<Known>,
}

impl Task {
    pub(super) fn new(known: Arc<Known>) -> Self {
        Self { known }
    }

    /// The patience to be used for everything this task waits for.
    pub fn wait(&self) -> Wait {
        let wait = Wait::at_most(self.known.tasks.wait).or_cancelled_by(&self.known.token());
        wait.observed_by(self.known.clone())
    }

    /// Its priority; lower ones give way first.
    pub fn priority(&self) -> i32 {
        self.known.with(|_, entry| entry.priority).unwrap_or_default()
    }

    /// A handle by which others can call the task off.
    pub fn canceller(&self) -> TaskCanceller {
        TaskCanceller { known: self.known.clone() }
    }

    /// Does something in this thread for the task: whatever it waits for in the tiers is known, with whatever patience it waits.
    /// [`run`](Self::run) does its work that way.
    pub fn on_this_thread<T>(&self, act: impl FnOnce() -> T) -> T {
        let known: Arc<dyn WaitObserver> = self.known.clone();
        work_for(Arc::downgrade(&known), act)
    }

    /// Does something that waits for what the engine does not know.
    pub fn blocked<T>(&self, act: impl FnOnce() -> T) -> T {
        self.known.begins("something else");
        self.known.with(|_, entry| entry.is_blocked = true);
        let answer = act();
        self.known.with(|_, entry| entry.is_blocked = false);
        self.known.ends();
        answer
    }

    /// Does the task's work, and again as often as it is asked to roll back or split. `work` holds nothing when it returns an error:
    /// everything it took is in its own variables.
    ///
    /// # Errors
    /// Those of `work`; [`TierError::GaveUp`], [`TierError::Cancelled`].
    pub fn run<T>(&self, mut work: impl FnMut(Attempt) -> Result<T, TierError>) -> Result<T, TierError> {
        let mut attempt = Attempt { number: 1, pieces: 1 };
        loop {
            match self.on_this_thread(|| work(attempt)) {
                Err(TierError::RollBack { .. }) => self.wait_for_turn()?,
                Err(TierError::SplitWork { .. }) => attempt.pieces = attempt.pieces.saturating_mul(2),
                answer => {
                    // Whether well or badly: what it held is free.
                    self.known.tasks.give_turns();
                    return answer;
                }
            }
            attempt.number += 1;
        }
    }

    /// Waits, holding nothing, until it is called in.
    fn wait_for_turn(&self) -> Result<(), TierError> {
        let wait = self.wait();
        let mut listener = self.known.tasks.turns.listen();
        self.known.with(|_, entry| entry.is_out = true);
        let answer = loop {
            if self.known.with(|_, entry| !entry.is_out).unwrap_or(true) {
                break Ok(());
            }
            match listener.wait(&wait) {
                News::Notified => {}
                News::Idle | News::TimedOut => break Ok(()),
                News::ShutDown => break Err(TierError::ShutDown),
                News::Cancelled => break Err(wait.explain(TierError::Cancelled)),
            }
        };
        self.known.with(|_, entry| entry.is_out = false);
        answer
    }
}

/// Calls a task off.
#[derive(Clone, Debug)]
pub struct TaskCanceller {
    known: Arc<Known>,
}

impl TaskCanceller {
    /// Ends the task's present wait and all later ones with [`TierError::Cancelled`].
    pub fn cancel(&self) {
        let token = self.known.with(|_, entry| {
            entry.asked = Some(Asked::Cancel);
            entry.token.clone()
        });
        if let Some(token) = token {
            token.cancel();
        }
    }
}
