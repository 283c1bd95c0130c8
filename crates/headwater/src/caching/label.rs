//! Labels: what a thread is doing, for the history.
//!
//! A program that names its phases finds them again in the history, beside every event. Scopes nest, the innermost counts.
//! Entering one costs an allocation on the host at most, and nothing at all is asked while no history is kept.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    static LABELS: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
}

/// A scope in which the calling thread's requests carry a label.
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct LabelScope {
    // A scope belongs to its thread: it must be neither sent nor shared.
    _thread: PhantomData<*const ()>,
}

/// Labels what the calling thread does until the scope is dropped.
///
/// ```
/// use headwater::caching::label;
/// let _forward = label::scope("forward");
/// assert_eq!(label::current().as_deref(), Some("forward"));
/// {
///     let _attention = label::scope("forward/attention");
///     assert_eq!(label::current().as_deref(), Some("forward/attention"));
/// }
/// assert_eq!(label::current().as_deref(), Some("forward"));
/// ```
pub fn scope(label: impl Into<Arc<str>>) -> LabelScope {
    // A thread that is ending has lost its labels, and what it still does carries none.
    let _ = LABELS.try_with(|labels| labels.borrow_mut().push(label.into()));
    LabelScope { _thread: PhantomData }
}

/// The calling thread's label.
pub fn current() -> Option<Arc<str>> {
    LABELS.try_with(|labels| labels.borrow().last().cloned()).ok().flatten()
}

impl Drop for LabelScope {
    fn drop(&mut self) {
        let _ = LABELS.try_with(|labels| labels.borrow_mut().pop());
    }
}
