//! Which thread this is, and whether it still runs.
//!
//! The per-thread default stream has one name in all threads but is another stream in each. Memory of it is therefore kept
//! apart by thread, and has to be recovered when the thread is gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A thread, by a number that is never used again.
#[derive(Clone, Debug)]
pub(crate) struct ThreadMark {
    pub(crate) number: u64,
    life: Weak<()>,
}

impl ThreadMark {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let next = || NEXT.fetch_add(1, Ordering::Relaxed);
        thread_local! {
            static THIS: (u64, Arc<()>) = (NEXT.fetch_add(1, Ordering::Relaxed), Arc::new(()));
        }
        THIS.try_with(|(number, life)| Self { number: *number, life: Arc::downgrade(life) })
            // A thread on its way out has no number any more. A fresh one that is already gone shares memory with nobody.
            .unwrap_or_else(|_| Self { number: next(), life: Weak::new() })
    }

    /// Whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.life.strong_count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_one_number_and_its_end_is_seen() {
        let here = ThreadMark::current();
        assert_eq!(here.number, ThreadMark::current().number);
        assert!(!here.has_ended());
        let there = std::thread::spawn(ThreadMark::current).join().unwrap();
        assert_ne!(there.number, here.number);
        assert!(there.has_ended());
    }
}
