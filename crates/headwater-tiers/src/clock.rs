//! Where the time comes from: the machine, or a test.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of time for deadlines.
pub trait Clock: Debug + Send + Sync {
    /// The present moment. Never goes back.
    fn now(&self) -> Instant;

    /// How long a thread may sleep so as not to miss `deadline`; `None` where sleeping does not make this clock go on,
    /// and whoever moves it wakes the sleepers.
    fn sleep_until(&self, deadline: Instant) -> Option<Duration>;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, deadline: Instant) -> Option<Duration> {
        Some(deadline.saturating_duration_since(Instant::now()))
    }
}

/// A clock that stands still until it is moved, for tests that must not depend on time. After moving it, call
/// [`Tiers::expire_waits`](crate::Tiers::expire_waits).
#[derive(Debug)]
pub struct ManualClock {
    start: Instant,
    passed_ns: AtomicU64,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self { start: Instant::now(), passed_ns: AtomicU64::new(0) }
    }
}

impl ManualClock {
    /// Lets `time` pass.
    pub fn advance(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.passed_ns.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.passed_ns.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, _deadline: Instant) -> Option<Duration> {
        None
    }
}
