//! The task that this thread works for.
//!
//! A wait may name its task, by being made from the task's own. One that does not is known to it all the same, as long as it is in a
//! thread that works for the task: it is seen by whoever looks for tasks that wait for each other, and can be called off by them.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::wait::WaitObserver;

thread_local! {
    /// The innermost is last.
    static TASKS: RefCell<Vec<Weak<dyn WaitObserver>>> = const { RefCell::new(Vec::new()) };
}

/// Does `act` in this thread for `task`.
pub(crate) fn work_for<T>(task: Weak<dyn WaitObserver>, act: impl FnOnce() -> T) -> T {
    TASKS.with_borrow_mut(|tasks| tasks.push(task));
    let _ends = Ends;
    act()
}

/// Also where `act` panics.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        TASKS.with_borrow_mut(Vec::pop);
    }
}

/// The task that this thread works for, where there is one.
pub(super) fn current() -> Option<Arc<dyn WaitObserver>> {
    // A thread that is ending has none.
    TASKS.try_with(|tasks| tasks.borrow().last().and_then(Weak::upgrade)).ok().flatten()
}
