//! Tasks, and what happens when all of them wait for each other.
//!
//! A task is one thread of work that holds some things and waits for others. Every wait in a thread that works for it, and
//! every one that was begun with [`Task::wait`], is known here, whatever it is for. A watcher looks now and then: where every task waits, no mover has anything to do, and nothing has
//! happened since its last look, then nothing will. It breaks the knot in steps:
//!
//! 1. The task lowest in priority (the youngest of them) is asked to *roll back*: its wait ends with
//!    [`TierError::RollBack`](crate::TierError::RollBack), it drops everything it holds and is *out* until its turn comes: two come back for every task that ends
//!    (so that the crowd recovers, but not all at once), and the first of them when nobody is at work.
//! 2. When all others have been rolled back and the last one still waits, its work does not fit even alone: it is asked to *split*
//!    it ([`TierError::SplitWork`](crate::TierError::SplitWork)).
//! 3. A task that was asked too often is told to give up ([`TierError::GaveUp`](crate::TierError::GaveUp)).
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
use super::task::{Known, Task};
use crate::space::{NotificationChannel, Notifier};
use crate::waiting::CancelToken;

/// How many of those who are out come back for every task that ends.
const TURNS_EACH: usize = 2;

/// All tasks of an engine.
pub(crate) struct Tasks {
    pub(super) state: Mutex<State>,
    /// Moves on whenever something happens that could help a task on.
    progress: AtomicU64,
    /// Signalled when a task ends or has done its work.
    pub(super) turns: Arc<NotificationChannel>,
    _turns_alive: Notifier,
    rollbacks_max: u32,
    splits_max: u32,
    pub(super) wait: Duration,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) tasks: BTreeMap<u64, Entry>,
    next: u64,
    rollbacks: u64,
    splits: u64,
    pub(super) waits: u64,
    pub(super) wait_time: Duration,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) priority: i32,
    /// What it waits for and since when.
    pub(super) waiting: Option<(&'static str, Instant)>,
    /// It waits for something that the engine does not know, and cannot be called off.
    pub(super) is_blocked: bool,
    /// It was rolled back and waits for its turn, holding nothing.
    pub(super) is_out: bool,
    pub(super) asked: Option<Asked>,
    pub(super) token: CancelToken,
    pub(super) rollbacks: u32,
    pub(super) splits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
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

    /// How often something has happened so far.
    pub(crate) fn changes(&self) -> u64 {
        self.progress.load(Ordering::SeqCst)
    }

    /// Whether there are tasks and all of them wait.
    pub(crate) fn all_wait(&self) -> bool {
        self.state.lock().all_wait()
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
        Task::new(Arc::new(Known { tasks: self.clone(), id }))
    }

    /// Looks whether all tasks wait for each other, and asks one of them to give way if that was so at the last look too.
    pub(crate) fn look(&self, last: Option<Look>, is_quiet: bool) -> Option<Look> {
        let progress = self.progress.load(Ordering::SeqCst);
        let token = {
            let mut state = self.state.lock();
            if !state.all_wait() || !is_quiet {
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
    pub(super) fn give_turns(&self) {
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
    fn all_wait(&self) -> bool {
        !self.tasks.is_empty() && self.tasks.values().all(Entry::is_stuck)
    }

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
