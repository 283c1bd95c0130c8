//! Streams that the driver was told of.
//!
//! C programs name streams by CUDA's value. One that somebody else made is adopted when it is first seen. To know that without a
//! lock, the latest streams are kept in a small table of their values.

use std::sync::atomic::{AtomicU64, Ordering};

use headwater_driver::{DeviceId, Driver, ErrorClass, Stream};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::status::Failure;

/// Enough that the streams of a program (PyTorch makes up to 64 a device) seldom push each other out.
const ENTRIES: usize = 256;

/// How many neighbours of its entry a stream may be in.
const WAYS: usize = 4;

/// The streams of one device.
#[derive(Debug)]
pub(crate) struct KnownStreams {
    device: DeviceId,
    /// Streams that were adopted or made here; zero is none. A value here is in `all` too.
    recent: [AtomicU64; ENTRIES],
    all: Mutex<FxHashSet<u64>>,
}

impl KnownStreams {
    pub(crate) fn new(device: DeviceId) -> Self {
        Self { device, recent: [const { AtomicU64::new(0) }; ENTRIES], all: Mutex::default() }
    }

    /// The stream with CUDA's value `raw`, adopted if need be.
    ///
    /// # Safety
    /// `raw` is zero, a default stream, or a live stream of the device until it is forgotten.
    #[inline]
    pub(crate) unsafe fn stream(&self, driver: &dyn Driver, raw: u64) -> Result<Stream, Failure> {
        let stream = Stream::from_raw(self.device, raw);
        if stream.is_legacy_default() || stream.is_per_thread_default() || self.is_recent(raw) {
            return Ok(stream);
        }
        // SAFETY: passed on.
        unsafe { self.adopt(driver, raw) }
    }

    #[inline]
    fn is_recent(&self, raw: u64) -> bool {
        let first = place(raw);
        // Relaxed: a value that is there was known before, and says no more than that.
        (0..WAYS).any(|way| self.recent[(first + way) % ENTRIES].load(Ordering::Relaxed) == raw)
    }

    #[cold]
    unsafe fn adopt(&self, driver: &dyn Driver, raw: u64) -> Result<Stream, Failure> {
        if !self.all.lock().contains(&raw) {
            // SAFETY: passed on.
            unsafe { driver.stream_adopt(self.device, raw) }?;
        }
        self.add(raw);
        Ok(Stream::from_raw(self.device, raw))
    }

    /// Adds a stream that the driver knows.
    pub(crate) fn add(&self, raw: u64) {
        let mut all = self.all.lock();
        all.insert(raw);
        let first = place(raw);
        let empty = (0..WAYS).find(|way| self.recent[(first + way) % ENTRIES].load(Ordering::Relaxed) == 0);
        // Where all are taken, the one that goes depends on the stream, so that two do not push each other out for ever.
        let way = empty.unwrap_or(all.len() % WAYS);
        self.recent[(first + way) % ENTRIES].store(raw, Ordering::Relaxed);
    }

    /// Takes a stream out: its owner is about to destroy it, or has.
    pub(crate) fn remove(&self, raw: u64) {
        let mut all = self.all.lock();
        all.remove(&raw);
        for entry in &self.recent {
            if entry.load(Ordering::Relaxed) == raw {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Takes an adopted stream out here and of the driver's table. One that was not adopted is no error.
    pub(crate) fn forget(&self, driver: &dyn Driver, stream: Stream) -> Result<(), Failure> {
        self.remove(stream.raw());
        match driver.stream_forget(stream) {
            Err(error) if error.class() == ErrorClass::InvalidHandle => Ok(()),
            answer => Ok(answer?),
        }
    }
}

/// Streams are heap objects of the driver: their lowest bits are alike, and a multiplication spreads the rest.
#[inline]
fn place(raw: u64) -> usize {
    (raw.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}
