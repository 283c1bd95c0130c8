//! How long a caller is willing to wait, and how a wait is called off.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::current::current;
use crate::error::TierError;
use crate::sync::Mutex;

/// How a wait ends if what it waits for does not come: by a deadline, by cancellation, or by both. There is no wait
/// without either.
///
/// ```
/// use std::time::Duration;
/// use headwater_tiers::{CancelToken, Wait};
/// let token = CancelToken::new();
/// let patient = Wait::at_most(Duration::from_secs(5)).or_cancelled_by(&token);
/// # let _ = patient;
/// ```
#[derive(Clone, Debug)]
pub struct Wait {
    end: End,
    tokens: Vec<CancelToken>,
    /// The task that waits, where it is one that the manager knows.
    observer: Option<Arc<dyn WaitObserver>>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    At(Instant),
    After(Duration),
    WhenCancelled,
}

impl Wait {
    /// Waits for at most `time` from the moment the wait begins.
    pub const fn at_most(time: Duration) -> Self {
        Self { end: End::After(time), tokens: Vec::new(), observer: None }
    }

    /// Waits until `deadline` at the latest.
    pub const fn until(deadline: Instant) -> Self {
        Self { end: End::At(deadline), tokens: Vec::new(), observer: None }
    }

    /// Waits until `token` is cancelled.
    pub fn until_cancelled_by(token: &CancelToken) -> Self {
        Self { end: End::WhenCancelled, tokens: vec![token.clone()], observer: None }
    }

    /// The same wait, called off also when `token` is cancelled.
    #[must_use]
    pub fn or_cancelled_by(mut self, token: &CancelToken) -> Self {
        self.tokens.push(token.clone());
        self
    }

    /// The same wait, with somebody told when it sleeps.
    pub(crate) fn observed_by(mut self, observer: Arc<dyn WaitObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The same wait, known to the task that this thread works for: one that names no task does not escape it.
    pub(crate) fn known(&self) -> Cow<'_, Self> {
        let task = if self.observer.is_none() { current() } else { None };
        match task {
            None => Cow::Borrowed(self),
            Some(task) => Cow::Owned(self.clone().or_cancelled_by(&task.token()).observed_by(task)),
        }
    }

    /// The same wait with a deadline that stands still, for waits in several steps.
    pub(crate) fn begun_at(&self, now: Instant) -> Self {
        let end = self.deadline(now).map_or(End::WhenCancelled, End::At);
        Self { end, ..self.clone() }
    }

    /// Tells the observer, if there is one, that its task sleeps for as long as the guard lives.
    pub(crate) fn sleeping(&self, what: &'static str) -> Option<Sleeping<'_>> {
        self.observer.as_deref().map(|observer| {
            observer.begins(what);
            Sleeping(observer)
        })
    }

    /// The reason behind a cancellation, where the manager was the one who called the wait off.
    pub(crate) fn explain(&self, error: TierError) -> TierError {
        match (&error, self.observer.clone().or_else(current)) {
            (TierError::Cancelled, Some(observer)) => observer.verdict().unwrap_or(error),
            _ => error,
        }
    }

    /// The deadline of a wait that begins now. A time beyond what a clock can show never comes.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        match self.end {
            End::At(deadline) => Some(deadline),
            End::After(time) => now.checked_add(time),
            End::WhenCancelled => None,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.tokens.iter().any(CancelToken::is_cancelled)
    }

    /// Has `target` told when a token is cancelled, for as long as the registrations live.
    pub(crate) fn register(&self, target: &Weak<dyn Cancellable>, key: u64) -> SmallVec<[Registration; 2]> {
        self.tokens.iter().map(|token| token.register(target.clone(), key)).collect()
    }
}

/// Somebody who knows a task by its waits: the spill engine, which must see when all tasks wait.
pub(crate) trait WaitObserver: fmt::Debug + Send + Sync {
    /// The task sleeps from now on.
    fn begins(&self, what: &'static str);
    /// It sleeps no more.
    fn ends(&self);
    /// What calls its waits off.
    fn token(&self) -> CancelToken;
    /// What a task is told whose wait was called off.
    fn verdict(&self) -> Option<TierError>;
}

/// A task that sleeps.
#[derive(Debug)]
pub(crate) struct Sleeping<'a>(&'a dyn WaitObserver);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.ends();
    }
}

/// Something that can be told that one of its waits is called off.
pub(crate) trait Cancellable: Send + Sync {
    fn call_off(&self, key: u64);
}

/// Calls off every wait that was given a clone of it, now and later. Cheap to clone.
#[derive(Clone)]
pub struct CancelToken {
    state: Arc<Mutex<TokenState>>,
}

#[derive(Default)]
struct TokenState {
    is_cancelled: bool,
    next: u64,
    /// The waits under way, by registration: as many as threads wait.
    waits: BTreeMap<u64, (Weak<dyn Cancellable>, u64)>,
}

impl Default for CancelToken {
    fn default() -> Self {
        Self { state: Arc::new(Mutex::new(TokenState::default())) }
    }
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls off the waits. Doing it twice is the same as once.
    pub fn cancel(&self) {
        let waits = {
            let mut state = self.state.lock();
            state.is_cancelled = true;
            std::mem::take(&mut state.waits)
        };
        // Outside of the lock: a target takes its own, and a waiter takes that one before this.
        for (target, key) in waits.into_values() {
            if let Some(target) = target.upgrade() {
                target.call_off(key);
            }
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.state.lock().is_cancelled
    }

    fn register(&self, target: Weak<dyn Cancellable>, key: u64) -> Registration {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let was_cancelled = state.is_cancelled;
        if !was_cancelled {
            state.waits.insert(number, (target, key));
        }
        drop(state);
        Registration { token: self.clone(), number, was_cancelled }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

/// A wait's place with its token.
#[derive(Debug)]
pub(crate) struct Registration {
    token: CancelToken,
    number: u64,
    was_cancelled: bool,
}

impl Registration {
    /// Whether the token had been cancelled before: then nobody will tell.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.was_cancelled
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.token.state.lock().waits.remove(&self.number);
    }
}
