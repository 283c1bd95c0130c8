//! The lock and the condition variable that waiting is built on: parking_lot's, or the model checker's.
//!
//! Under `--cfg loom` the same code runs in every order that threads can take (see `waiting/loom_tests.rs`).

use std::time::Duration;

#[cfg(loom)]
use loom::sync as imp;
#[cfg(not(loom))]
use parking_lot as imp;

#[derive(Debug)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

pub(crate) type Guard<'a, T> = imp::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    #[cfg(not(loom))]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }

    #[cfg(loom)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().expect("a model run ends at its first panic, so no lock is poisoned")
    }
}

#[derive(Debug)]
pub(crate) struct Condvar(imp::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(imp::Condvar::new())
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Sleeps until notified or, where there is a limit, until it is over. May wake for nothing.
    #[cfg(not(loom))]
    pub(crate) fn wait<'a, T>(&self, mut guard: Guard<'a, T>, at_most: Option<Duration>) -> Guard<'a, T> {
        match at_most {
            Some(at_most) => {
                self.0.wait_for(&mut guard, at_most);
            }
            None => self.0.wait(&mut guard),
        }
        guard
    }

    /// The model checker knows no time: a sleeper that nobody wakes is a deadlock, and that is what it looks for.
    #[cfg(loom)]
    pub(crate) fn wait<'a, T>(&self, guard: Guard<'a, T>, _at_most: Option<Duration>) -> Guard<'a, T> {
        self.0.wait(guard).expect("a model run ends at its first panic, so no lock is poisoned")
    }
}
