//! Streams of a space, lent one user at a time.
//!
//! A pool is an account of streams: it has as many as were made, and a borrower reserves one. So it waits in the same
//! queue as everything else, with the same order, deadlines, cancellation and shutdown. A stream is back on the shelf before its
//! place in the account is free, so whoever is granted one finds one.

use std::sync::Arc;

use headwater_driver::{DeviceId, Driver, Stream, StreamOptions};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::error::TierError;
use crate::waiting::{Account, Ask, Book, Ceiling, Charge, Gate, Refused, Wait, WaitRefused};

/// How many streams a pool has at first.
pub const STREAMS_DEFAULT: u64 = 16;

/// How many streams a pool may grow to. Devices run far fewer at once; beyond this a leak is likelier than a need.
pub const STREAMS_MAX_DEFAULT: u64 = 256;

/// What to do when all streams are lent.
#[derive(Clone, Debug)]
pub enum StreamPolicy {
    /// Wait for one to come back.
    Block(Wait),
    /// Make another, up to the pool's most.
    Grow,
}

/// A pool of non-blocking streams of one device.
#[derive(Clone, Debug)]
pub struct StreamPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    gate: Arc<Gate>,
    streams_max: u64,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    /// Last back, first out: its context is warm.
    idle: Vec<Stream>,
    /// Made or being made; what bounds growth.
    made: u64,
}

/// How many borrowers can wait: one thread each, so more is a mistake.
const WAITERS_MAX: usize = 4096;

/// The pool's one account.
const ALL: usize = 0;

impl StreamPool {
    /// Makes `streams` streams of `device`, to grow to `streams_max` at most.
    ///
    /// # Errors
    /// [`TierError::BadSetting`] for more at first than at most, or none; [`TierError::Driver`], and then no stream is left.
    pub fn new(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        streams: u64,
        streams_max: u64,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TierError> {
        if streams == 0 || streams > streams_max {
            let why = format!("{streams} is not between 1 and streams_max ({streams_max})");
            return Err(TierError::bad_setting("streams", why));
        }
        // Strict order: all borrowers want exactly one, so nobody could pass anyway.
        let mut book = Book::new(0, WAITERS_MAX);
        book.open_account(Account::new(streams, streams, 1));
        let gate = Gate::new(book, clock);
        let inner = Inner { driver, device, gate, streams_max, shelf: Mutex::default() };
        for _ in 0..streams {
            // An error drops `inner`, which destroys what was made.
            let stream = inner.make()?;
            let mut shelf = inner.shelf.lock();
            shelf.idle.push(stream);
            shelf.made += 1;
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Borrows a stream. It may still have work of its last user in it: order is kept, as in any stream.
    ///
    /// # Errors
    /// [`TierError::NoStream`] where the pool may not grow further; [`TierError::TimedOut`]'s kin for a wait that ended;
    /// [`TierError::Driver`].
    pub fn acquire(&self, policy: &StreamPolicy) -> Result<BorrowedStream, TierError> {
        let inner = &self.inner;
        match policy {
            StreamPolicy::Block(wait) => match inner.gate.wait_for(Ask::of(ALL, 1), wait) {
                Ok(_) => self.lend(),
                Err(WaitRefused::Cancelled) => Err(wait.explain(TierError::Cancelled)),
                Err(WaitRefused::AtOnce(Refused::ShutDown)) => Err(TierError::ShutDown),
                Err(WaitRefused::AtOnce(_) | WaitRefused::TimedOut { .. }) => Err(self.all_lent()),
            },
            StreamPolicy::Grow => match inner.gate.write(|book| book.try_ask(&Ask::of(ALL, 1))) {
                Ok(_) => self.lend(),
                Err(Refused::ShutDown) => Err(TierError::ShutDown),
                Err(_) => self.grow(),
            },
        }
    }

    /// How many streams there are, and how many of them are lent.
    pub fn counts(&self) -> (u64, u64) {
        self.inner.gate.read(|book| (book.account(ALL).capacity_bytes, book.account(ALL).used_bytes()))
    }

    /// Ends all waits, and lends nothing any more.
    pub fn shut_down(&self) {
        self.inner.gate.shut_down();
    }

    pub(crate) fn expire_waits(&self) {
        self.inner.gate.expire();
    }

    fn all_lent(&self) -> TierError {
        TierError::NoStream { streams_max: self.counts().0 }
    }

    fn lend(&self) -> Result<BorrowedStream, TierError> {
        match self.inner.shelf.lock().idle.pop() {
            Some(stream) => Ok(BorrowedStream { pool: self.inner.clone(), stream }),
            None => {
                debug_assert!(false, "a granted stream is on the shelf");
                Err(self.all_lent())
            }
        }
    }

    fn grow(&self) -> Result<BorrowedStream, TierError> {
        let inner = &self.inner;
        {
            let mut shelf = inner.shelf.lock();
            if shelf.made >= inner.streams_max {
                return Err(TierError::NoStream { streams_max: inner.streams_max });
            }
            shelf.made += 1;
        }
        let stream = inner.make().inspect_err(|_| inner.shelf.lock().made -= 1)?;
        // Lent from the start, so nobody who waits is passed: there is one stream more than they knew of.
        inner.gate.write(|book| book.enlarge_taken(ALL, 1));
        Ok(BorrowedStream { pool: inner.clone(), stream })
    }
}

impl Inner {
    fn make(&self) -> Result<Stream, TierError> {
        let options = StreamOptions { non_blocking: true, priority: 0 };
        Ok(self.driver.stream_create(self.device, options)?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nothing is lent any more: a borrowed stream keeps the pool alive.
        for stream in self.shelf.get_mut().idle.drain(..) {
            // A lost device refuses, and then there is nothing left to destroy.
            let _ = self.driver.stream_destroy(stream);
        }
    }
}

/// A stream with one user, who gives it back by dropping this.
#[derive(Debug)]
pub struct BorrowedStream {
    pool: Arc<Inner>,
    stream: Stream,
}

impl BorrowedStream {
    /// The stream.
    pub fn stream(&self) -> Stream {
        self.stream
    }
}

impl Drop for BorrowedStream {
    fn drop(&mut self) {
        self.pool.shelf.lock().idle.push(self.stream);
        let back = self
            .pool
            .gate
            .settle(|book| book.recharge(ALL, Charge::reserved(1), Charge::NONE, Ceiling::Capacity));
        debug_assert!(back.is_ok(), "giving back is never refused: {back:?}");
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::Duration;

    use headwater_driver::{Call, ErrorClass};
    use headwater_sim::{FaultPlan, SimDriver};

    use super::*;
    use crate::CancelToken;
    use crate::clock::SystemClock;

    fn pool(streams: u64, streams_max: u64) -> (Arc<SimDriver>, StreamPool) {
        let sim = SimDriver::new();
        let pool =
            StreamPool::new(sim.clone(), DeviceId(0), streams, streams_max, Arc::new(SystemClock)).unwrap();
        (sim, pool)
    }

    fn now() -> StreamPolicy {
        StreamPolicy::Block(Wait::at_most(Duration::ZERO))
    }

    #[test]
    fn a_stream_has_one_user_at_a_time_and_comes_back() {
        let (sim, pool) = pool(2, 2);
        let (one, other) = (pool.acquire(&now()).unwrap(), pool.acquire(&now()).unwrap());
        assert_ne!(one.stream(), other.stream());
        assert!(matches!(pool.acquire(&now()), Err(TierError::NoStream { .. })));
        let back = one.stream();
        drop(one);
        assert_eq!(pool.acquire(&now()).unwrap().stream(), back);
        drop((other, pool));
        assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    }

    #[test]
    fn a_blocked_borrower_is_served_when_a_stream_comes_back() {
        let (_sim, pool) = pool(1, 1);
        let lent = pool.acquire(&now()).unwrap();
        let policy = StreamPolicy::Block(Wait::until_cancelled_by(&CancelToken::new()));
        std::thread::scope(|scope| {
            let borrower = scope.spawn(|| pool.acquire(&policy).map(|lent| lent.stream()));
            let stream = lent.stream();
            drop(lent);
            assert_eq!(borrower.join().unwrap(), Ok(stream));
        });
        assert_eq!(pool.counts(), (1, 0));
    }

    #[test]
    fn growing_is_bounded_and_a_failed_growth_costs_nothing() {
        let (sim, pool) = pool(1, 2);
        let _first = pool.acquire(&StreamPolicy::Grow).unwrap();
        sim.set_faults(FaultPlan::none().fail_nth(Call::StreamCreate, 1, ErrorClass::Other));
        assert!(matches!(pool.acquire(&StreamPolicy::Grow), Err(TierError::Driver(_))));
        let second = pool.acquire(&StreamPolicy::Grow).unwrap();
        assert_eq!(pool.counts(), (2, 2));
        assert!(matches!(pool.acquire(&StreamPolicy::Grow), Err(TierError::NoStream { streams_max: 2 })));
        drop(second);
        assert_eq!(pool.counts(), (2, 1));
        pool.shut_down();
        assert!(matches!(pool.acquire(&StreamPolicy::Grow), Err(TierError::ShutDown)));
    }

    #[test]
    fn a_pool_that_cannot_be_made_leaves_no_stream() {
        let sim = SimDriver::new();
        sim.set_faults(FaultPlan::none().fail_nth(Call::StreamCreate, 3, ErrorClass::Other));
        assert!(StreamPool::new(sim.clone(), DeviceId(0), 4, 4, Arc::new(SystemClock)).is_err());
        assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    }
}
