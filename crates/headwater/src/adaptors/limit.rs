//! A limit on what the callers of an allocator hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_driver::{DevicePtr, Stream};

use super::pass_on_to_inner;
use crate::allocator::{Allocator, Request};
use crate::error::{AllocError, OutOfMemoryReport};

/// Refuses requests that would make its callers hold more than a limit, from any number of threads.
///
/// It counts what was asked for and not given back. What the allocator inside holds for its own reasons, rounding and
/// cached memory, is not counted: to limit that, limit the allocator. Several limits around one allocator share it
/// out.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Allocator>,
    limit_bytes: u64,
    held_bytes: AtomicU64,
}

impl Limited {
    /// At most `limit_bytes` of `inner`.
    pub fn new(inner: Arc<dyn Allocator>, limit_bytes: u64) -> Self {
        Self { inner, limit_bytes, held_bytes: AtomicU64::new(0) }
    }

    /// The limit.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What callers hold now.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    fn hold(&self, bytes: u64) -> Result<(), AllocError> {
        // Relaxed: the count publishes nothing. An update sees the latest value in any order, which is all a limit
        // needs.
        let held = self.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|wanted| *wanted <= self.limit_bytes)
        });
        held.map(|_| ()).map_err(|held| {
            let mut report = OutOfMemoryReport::new(self.inner.device(), bytes);
            report.live_bytes = held;
            report.limit_bytes = Some(self.limit_bytes);
            report.over_limit = true;
            report.remedy = "raise the limit, or give memory back";
            report.into()
        })
    }

    fn let_go(&self, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How much less is held once the block at `ptr` is given back.
    fn bytes_at(&self, ptr: DevicePtr) -> u64 {
        self.inner.block_at(ptr).map_or(0, |facts| facts.requested_bytes)
    }
}

impl Allocator for Limited {
    pass_on_to_inner!();

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        // First: a bad request is bad, whatever the limit.
        request.check(self.inner.device())?;
        self.hold(request.bytes)?;
        self.inner.allocate(request).inspect_err(|_| self.let_go(request.bytes))
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        let bytes = self.bytes_at(ptr);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.give_back(ptr) }.inspect(|()| self.let_go(bytes))
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        let bytes = self.bytes_at(ptr);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.give_back_or_owe(ptr) }.inspect(|()| self.let_go(bytes))
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        self.inner.record_stream(ptr, stream)
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.inner.empty_cache()
    }
}
