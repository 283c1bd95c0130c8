//! News of a space: a channel that says that room was given back.
//!
//! For those who watch a space rather than wait for bytes in it, such as a mover that looks again after every change.
//! (Reservations do not wait here: they wait in the queue, which hands them their room.) The channel counts its signals and
//! every listener remembers the last count it saw, so signals may merge for one listener but one listener never takes a
//! signal away from another.

use std::sync::{Arc, Weak};

use crate::clock::Clock;
use crate::sync::{Condvar, Mutex};
use crate::waiting::{Cancellable, Wait};

/// Why a wait for news ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Something was given back since this listener last looked.
    Notified,
    /// Nobody is left who could notify.
    Idle,
    /// The tiers are shutting down.
    ShutDown,
    /// The deadline came.
    TimedOut,
    /// The wait was called off.
    Cancelled,
}

/// The channel of one space.
#[derive(Debug)]
pub struct NotificationChannel {
    state: Mutex<ChannelState>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
    this: Weak<Self>,
}

#[derive(Debug, Default)]
struct ChannelState {
    signals: u64,
    notifiers: usize,
    is_shut_down: bool,
}

impl NotificationChannel {
    /// A channel with no signals and no notifiers.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = Mutex::new(ChannelState::default());
        Arc::new_cyclic(|this| Self { state, changed: Condvar::new(), clock, this: this.clone() })
    }

    /// Another channel with the same clock.
    pub(crate) fn sibling(&self) -> Arc<Self> {
        Self::new(self.clock.clone())
    }

    /// A notifier: as long as it lives the channel is not idle, and when it is dropped it signals.
    pub fn notifier(self: &Arc<Self>) -> Notifier {
        self.state.lock().notifiers += 1;
        Notifier { channel: self.clone() }
    }

    /// A listener that has seen everything up to now.
    pub fn listen(self: &Arc<Self>) -> Listener {
        let seen = self.state.lock().signals;
        Listener { channel: self.clone(), seen }
    }

    /// Signals without dropping a notifier.
    pub fn signal(&self) {
        self.state.lock().signals += 1;
        self.changed.notify_all();
    }

    /// Has all listeners look at the clock, which was moved by hand.
    pub(crate) fn look_at_clock(&self) {
        // Under the lock, so that no listener is between its look at the clock and its sleep.
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Ends all waits, now and later.
    pub fn shut_down(&self) {
        self.state.lock().is_shut_down = true;
        self.changed.notify_all();
    }
}

impl Cancellable for NotificationChannel {
    fn call_off(&self, _key: u64) {
        // Under the lock, so that no listener is between its look at the token and its sleep.
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}

/// Signals its channel when dropped.
#[derive(Debug)]
pub struct Notifier {
    channel: Arc<NotificationChannel>,
}

impl Drop for Notifier {
    fn drop(&mut self) {
        let mut state = self.channel.state.lock();
        state.notifiers -= 1;
        state.signals += 1;
        drop(state);
        self.channel.changed.notify_all();
    }
}

/// Waits for news of a channel.
#[derive(Debug)]
pub struct Listener {
    channel: Arc<NotificationChannel>,
    seen: u64,
}

impl Listener {
    /// Waits until there is news. Signals since the last look count: a wait that begins after them ends at once.
    pub fn wait(&mut self, wait: &Wait) -> News {
        let wait = &*wait.known();
        let channel = &self.channel;
        let deadline = wait.deadline(channel.clock.now());
        let this: Weak<dyn Cancellable> = channel.this.clone();
        let _registrations = wait.register(&this, 0);
        let mut sleeping = None;
        let mut state = channel.state.lock();
        loop {
            if state.is_shut_down {
                return News::ShutDown;
            }
            if state.signals != self.seen {
                self.seen = state.signals;
                return News::Notified;
            }
            if state.notifiers == 0 {
                return News::Idle;
            }
            if wait.is_cancelled() {
                return News::Cancelled;
            }
            if deadline.is_some_and(|deadline| deadline <= channel.clock.now()) {
                return News::TimedOut;
            }
            if sleeping.is_none() {
                sleeping = wait.sleeping("a change");
            }
            let at_most = deadline.and_then(|deadline| channel.clock.sleep_until(deadline));
            state = channel.changed.wait(state, at_most);
        }
    }

    /// What there is to say without waiting; `None` where a wait would sleep.
    pub fn poll(&mut self) -> Option<News> {
        let state = self.channel.state.lock();
        if state.is_shut_down {
            return Some(News::ShutDown);
        }
        if state.signals != self.seen {
            self.seen = state.signals;
            return Some(News::Notified);
        }
        (state.notifiers == 0).then_some(News::Idle)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::CancelToken;
    use crate::clock::{ManualClock, SystemClock};

    #[test]
    fn notified_idle_and_shut_down_are_told_apart() {
        let channel = NotificationChannel::new(Arc::new(ManualClock::default()));
        let mut listener = channel.listen();
        assert_eq!(listener.poll(), Some(News::Idle));
        let (first, second) = (channel.notifier(), channel.notifier());
        assert_eq!(listener.poll(), None);
        drop(first);
        assert_eq!(listener.poll(), Some(News::Notified));
        assert_eq!(listener.poll(), None);
        drop(second);
        assert_eq!(listener.poll(), Some(News::Notified), "the last signal comes before the silence");
        assert_eq!(listener.poll(), Some(News::Idle));
        channel.shut_down();
        assert_eq!(listener.poll(), Some(News::ShutDown));
    }

    #[test]
    fn one_listener_does_not_take_a_signal_from_another() {
        let channel = NotificationChannel::new(Arc::new(ManualClock::default()));
        let _alive = channel.notifier();
        let (mut one, mut other) = (channel.listen(), channel.listen());
        channel.signal();
        assert_eq!((one.poll(), other.poll()), (Some(News::Notified), Some(News::Notified)));
        assert_eq!((one.poll(), other.poll()), (None, None));
    }

    #[test]
    fn sleeping_listeners_all_wake_at_shutdown_and_on_cancellation() {
        let channel = NotificationChannel::new(Arc::new(SystemClock));
        let _alive = channel.notifier();
        let token = CancelToken::new();
        let news = std::thread::scope(|scope| {
            let wait = Wait::until_cancelled_by(&token);
            let sleepers: Vec<_> = (0..3)
                .map(|_| {
                    let (mut listener, wait) = (channel.listen(), wait.clone());
                    scope.spawn(move || listener.wait(&wait))
                })
                .collect();
            token.cancel();
            sleepers.into_iter().map(|sleeper| sleeper.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(news, [News::Cancelled; 3]);
        channel.shut_down();
        let wait = Wait::at_most(Duration::from_secs(3600));
        assert_eq!(channel.listen().wait(&wait), News::ShutDown);
    }

    #[test]
    fn a_deadline_that_has_come_ends_the_wait() {
        let channel = NotificationChannel::new(Arc::new(ManualClock::default()));
        let _alive = channel.notifier();
        assert_eq!(channel.listen().wait(&Wait::at_most(Duration::ZERO)), News::TimedOut);
    }
}
