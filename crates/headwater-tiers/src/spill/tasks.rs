//! Tasks, and what happens when all of them wait for each other.
//!
//! A task is one thread of work that holds some things and waits for others. Every wait that was begun with [`Task::wait`] is known
//! here, whatever it is for. A watcher looks now and then: where every task waits, no mover has anything to do, and nothing has
//! happened since its last look, then nothing will. It breaks the knot in steps:
//!
//! 1. The task lowest in priority (the youngest of them) is asked to *roll back*: its wait ends with
//!    [`TierError::RollBack`], it drops everything it holds and is *out* until its turn comes: two come back for every task that ends
//!    (so that the crowd recovers, but not all at once), and the first of them when nobody is at work.
//! 2. When all others have been rolled back and the last one still waits, its work does not fit even alone: it is asked to *split*
//!    it ([`TierError::SplitWork`]).
//! 3. A task that was asked too often is told to give up ([`TierError::GaveUp`]).
//!
//! Each step shrinks what is held or ends a task, so the whole ends. [`Task::run`] does a task's part of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::metrics::SpillFigures;
use crate::error::TierError;
use crate::space::{News, NotificationChannel, Notifier};
use crate::waiting::{CancelToken, Wait, WaitObserver};

/// How many of those who are out come back for every task that ends.
const TURNS_EACH: usize = 2;

/// All tasks of an engine.
pub(crate) struct Tasks {
    state: Mutex<State>,
    /// Moves on whenever something happens that could help a task on.
    progress: AtomicU64,
    /// Signalled when a task ends or has done its work.
    turns: Arc<NotificationChannel>,
    _turns_alive: Notifier,
    rollbacks_max: u32,
    splits_max: u32,
    wait: Duration,
}

#[derive(Debug, Default)]
struct State {
    tasks: BTreeMap<u64, Entry>,
    next: u64,
    rollbacks: u64,
    splits: u64,
    waits: u64,
    wait_time: Duration,
}

#[derive(Debug)]
struct Entry {
    priority: i32,
    /// What it waits for and since when.
    waiting: Option<(&'static str, Instant)>,
    /// It waits for something that the engine does not know, and cannot be called off.
    is_blocked: bool,
    /// It was rolled back and waits for its turn, holding nothing.
    is_out: bool,
    asked: Option<Asked>,
    token: CancelToken,
    rollbacks: u32,
    splits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    RollBack { tasks: usize },
    Split,
    GiveUp,
    Cancel,
}

/// A look at all tasks at which they all waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    progress: u64,
}

impl Tasks {
    pub(crate) fn new(
        rollbacks_max: u32,
        splits_max: u32,
        wait: Duration,
        like: Arc<NotificationChannel>,
    ) -> Arc<Self> {
        let turns = like.sibling();
        Arc::new(Self {
            state: Mutex::default(),
            progress: AtomicU64::new(0),
            _turns_alive: turns.notifier(),
            turns,
            rollbacks_max,
            splits_max,
            wait,
        })
    }

    /// Takes note that something happened.
    pub(crate) fn progress(&self) {
        self.progress.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn begin(self: &Arc<Self>, priority: i32) -> Task {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        let entry = Entry {
            priority,
            waiting: None,
            is_blocked: false,
            is_out: false,
            asked: None,
            token: CancelToken::new(),
            rollbacks: 0,
            splits: 0,
        };
        state.tasks.insert(id, entry);
        drop(state);
        Task { known: Arc::new(Known { tasks: self.clone(), id }) }
    }

    /// Looks whether all tasks wait for each other, and asks one of them to give way if that was so at the last look too.
    pub(crate) fn look(&self, last: Option<Look>, is_quiet: bool) -> Option<Look> {
        let progress = self.progress.load(Ordering::SeqCst);
        let token = {
            let mut state = self.state.lock();
            let all_wait = !state.tasks.is_empty() && state.tasks.values().all(Entry::is_stuck);
            if !all_wait || !is_quiet {
                return None;
            }
            if last != Some(Look { progress }) {
                return Some(Look { progress });
            }
            state.break_knot(self.rollbacks_max, self.splits_max)
        };
        self.progress();
        // Outside of the lock: cancelling takes the locks of whatever is waited for.
        match token {
            Some(token) => token.cancel(),
            None => self.turns.signal(),
        }
        None
    }

    /// A task has ended or done its work: others get their turn.
    fn give_turns(&self) {
        self.state.lock().call_in(TURNS_EACH);
        self.progress();
        self.turns.signal();
    }

    pub(crate) fn fill(&self, figures: &mut SpillFigures) {
        let state = self.state.lock();
        figures.tasks = state.tasks.len() as u64;
        (figures.rollbacks, figures.splits) = (state.rollbacks, state.splits);
        (figures.waits, figures.wait_time) = (state.waits, state.wait_time);
    }
}

impl Entry {
    fn is_stuck(&self) -> bool {
        // Who has been asked has not answered yet.
        self.waiting.is_some() && self.asked.is_none()
    }

    /// Whether it holds something and can be asked to give it up.
    fn can_give_way(&self) -> bool {
        !self.is_out && !self.is_blocked
    }
}

impl State {
    /// Calls the first `count` of those who are out back in: highest priority first, the oldest among equals.
    fn call_in(&mut self, count: usize) {
        for _ in 0..count {
            let out = self.tasks.iter_mut().filter(|(_, entry)| entry.is_out);
            let Some((_, entry)) = out.min_by_key(|(id, entry)| (Reverse(entry.priority), **id)) else {
                return;
            };
            entry.is_out = false;
        }
    }

    /// Chooses who gives way, and returns the token to cancel; none where all are out and the first has been called in.
    fn break_knot(&mut self, rollbacks_max: u32, splits_max: u32) -> Option<CancelToken> {
        let tasks = self.tasks.len();
        let at_work = self.tasks.values().filter(|entry| entry.can_give_way()).count();
        let some_are_out = self.tasks.values().any(|entry| entry.is_out);
        // Lowest priority first; among equals the youngest, which has done the least.
        let lowest = self.tasks.iter_mut().filter(|(_, entry)| entry.can_give_way());
        let Some((_, entry)) = lowest.min_by_key(|(id, entry)| (entry.priority, Reverse(**id))) else {
            self.call_in(1);
            return None;
        };
        let is_alone = at_work == 1 && (some_are_out || entry.rollbacks > 0);
        let asked = if !is_alone && entry.rollbacks < rollbacks_max {
            entry.rollbacks += 1;
            self.rollbacks += 1;
            Asked::RollBack { tasks }
        } else if is_alone && entry.splits < splits_max {
            entry.splits += 1;
            self.splits += 1;
            Asked::Split
        } else {
            Asked::GiveUp
        };
        entry.asked = Some(asked);
        Some(entry.token.clone())
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("state", &self.state).finish_non_exhaustive()
    }
}

/// A task as its waits know it.
#[derive(Debug)]
struct Known {
    tasks: Arc<Tasks>,
    id: u64,
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
/// While a task waits for something that the engine does not know, such as another task's result, it says so with
/// [`blocked`](Self::blocked); otherwise it counts as at work, and a knot that it is part of is broken by deadlines only.
#[derive(Debug)]
pub struct Task {
    known: Arc<Known>,
}

impl Task {
    /// The patience to be used for everything this task waits for.
    pub fn wait(&self) -> Wait {
        let token = self.known.with(|_, entry| entry.token.clone()).unwrap_or_default();
        Wait::at_most(self.known.tasks.wait).or_cancelled_by(&token).observed_by(self.known.clone())
    }

    /// Its priority; lower ones give way first.
    pub fn priority(&self) -> i32 {
        self.known.with(|_, entry| entry.priority).unwrap_or_default()
    }

    /// A handle by which others can call the task off.
    pub fn canceller(&self) -> TaskCanceller {
        TaskCanceller { known: self.known.clone() }
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
            match work(attempt) {
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
