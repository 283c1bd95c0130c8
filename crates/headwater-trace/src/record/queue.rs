//! From callers to the writing thread: in order, bounded, and cheap to push to.
//!
//! One buffer is filled by callers, one is on its way to the thread, one is being written. Only a push that fills a buffer
//! while the one before it still waits has to wait itself.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::entry::Entry;

/// Entries in a buffer: 256 KiB, and at 10 million events a second a hand-over every 0.4 ms. A quarter of that was slower:
/// 140 to 200 ns an event added without a pause, against 85 to 140.
pub(super) const BUFFER_ENTRIES: usize = 4096;

/// Entries wait no longer than this before they are written.
const PATIENCE: Duration = Duration::from_millis(200);

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// A buffer is ready, or the queue was closed.
    ready: Condvar,
    /// There is room for a full buffer, or nobody takes any more.
    room: Condvar,
}

#[derive(Debug)]
struct State {
    filling: Vec<Entry>,
    full: Option<Vec<Entry>>,
    /// An empty buffer that was written and can be filled again.
    spare: Option<Vec<Entry>>,
    closed: bool,
    /// Nobody takes any more: what comes is dropped.
    abandoned: bool,
}

impl State {
    fn hand_over(&mut self) {
        let empty = self.spare.take().unwrap_or_else(|| Vec::with_capacity(BUFFER_ENTRIES));
        self.full = Some(std::mem::replace(&mut self.filling, empty));
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        let buffer = || Vec::with_capacity(BUFFER_ENTRIES);
        Self {
            state: Mutex::new(State {
                filling: buffer(),
                full: None,
                spare: Some(buffer()),
                closed: false,
                abandoned: false,
            }),
            ready: Condvar::new(),
            room: Condvar::new(),
        }
    }

    /// Adds an entry. After the queue was closed, nothing happens.
    #[inline]
    pub(super) fn push(&self, entry: Entry) {
        let mut state = self.state.lock();
        if state.filling.len() == BUFFER_ENTRIES {
            state = self.wait_for_room(state);
        }
        if state.closed || state.abandoned {
            return;
        }
        state.filling.push(entry);
        if state.filling.len() == BUFFER_ENTRIES && state.full.is_none() {
            state.hand_over();
            drop(state);
            self.ready.notify_one();
        }
    }

    #[cold]
    fn wait_for_room<'q>(&self, mut state: MutexGuard<'q, State>) -> MutexGuard<'q, State> {
        while state.filling.len() == BUFFER_ENTRIES && !state.closed && !state.abandoned {
            if state.full.is_none() {
                state.hand_over();
                self.ready.notify_one();
            } else {
                self.room.wait(&mut state);
            }
        }
        state
    }

    /// The next entries in order, for the one thread that takes them; `None` at the end. `written` is the buffer taken
    /// before, to be filled again.
    pub(super) fn take(&self, mut written: Vec<Entry>) -> Option<Vec<Entry>> {
        written.clear();
        let mut state = self.state.lock();
        state.spare = Some(written);
        if state.full.is_none() && !state.closed {
            // A timeout is no different from a wake-up: what there is, is taken.
            self.ready.wait_for(&mut state, PATIENCE);
        }
        if let Some(full) = state.full.take() {
            drop(state);
            self.room.notify_all();
            return Some(full);
        }
        if state.filling.is_empty() && state.closed {
            return None;
        }
        let empty = state.spare.take().unwrap_or_default();
        Some(std::mem::replace(&mut state.filling, empty))
    }

    /// No entry comes after this.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_one();
        self.room.notify_all();
    }

    /// Nobody takes entries any more: callers must not wait for it.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.abandoned = true;
        (state.full, state.filling) = (None, Vec::new());
        drop(state);
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::super::entry::What;
    use super::*;

    fn entry(ptr: u64) -> Entry {
        Entry { at: Instant::now(), label: None, what: What::Complete { ptr } }
    }

    fn number(entry: &Entry) -> u64 {
        let What::Complete { ptr } = entry.what else { unreachable!("only those are pushed") };
        ptr
    }

    #[test]
    fn entries_of_many_threads_all_arrive_and_each_threads_own_in_order() {
        let queue = Arc::new(Queue::new());
        let pushers: Vec<_> = (0..4u64)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || (0..20_000).for_each(|n| queue.push(entry(n * 4 + thread))))
            })
            .collect();
        let taker = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || {
                let mut got: Vec<u64> = Vec::new();
                let mut buffer = Vec::new();
                while let Some(taken) = queue.take(buffer) {
                    assert!(taken.len() <= BUFFER_ENTRIES);
                    got.extend(taken.iter().map(number));
                    buffer = taken;
                }
                got
            })
        };
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        queue.close();
        let got = taker.join().unwrap();
        assert_eq!(got.len(), 80_000);
        for thread in 0..4 {
            let own: Vec<u64> = got.iter().copied().filter(|n| n % 4 == thread).collect();
            assert!(own.is_sorted());
        }
    }

    #[test]
    fn nobody_waits_for_a_taker_that_is_gone() {
        let queue = Queue::new();
        queue.abandon();
        (0..4 * BUFFER_ENTRIES as u64).for_each(|n| queue.push(entry(n)));
        queue.close();
        assert!(queue.take(Vec::new()).is_none());
    }
}
