//! A bounded record of the latest calls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;

use headwater_driver::{DevicePtr, Stream};
use parking_lot::Mutex;

use super::pass_on_to_inner;
use crate::allocator::{Allocator, Request};
use crate::error::AllocError;

/// One call and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number, from zero, in the order in which calls ended. Gaps at the front are what the log has dropped.
    pub number: u64,
    /// Who called.
    pub thread: ThreadId,
    /// What happened.
    pub event: LogEvent,
}

/// What happened in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEvent {
    /// Memory was asked for.
    Allocate(Request, Result<DevicePtr, AllocError>),
    /// A block was given back; where that was allowed to fail silently, `Ok` includes that the block is owed.
    GiveBack(DevicePtr, Result<(), AllocError>),
    /// Another stream was announced.
    RecordStream(DevicePtr, Stream, Result<(), AllocError>),
    /// The cache was emptied.
    EmptyCache(Result<u64, AllocError>),
}

/// Keeps the latest calls, in memory: the oldest make room for new ones.
///
/// For looking into a misbehaving program, not for the hit path: every call takes one lock that all threads share.
#[derive(Debug)]
pub struct Logged {
    inner: Arc<dyn Allocator>,
    capacity: usize,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    entries: VecDeque<LogEntry>,
    next_number: u64,
}

impl Logged {
    /// Records the latest `capacity` calls to `inner`.
    pub fn new(inner: Arc<dyn Allocator>, capacity: usize) -> Self {
        Self { inner, capacity, log: Mutex::default() }
    }

    /// What is in the log, oldest first.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.log.lock().entries.iter().cloned().collect()
    }

    fn note(&self, event: LogEvent) {
        let thread = std::thread::current().id();
        let mut log = self.log.lock();
        let number = log.next_number;
        log.next_number += 1;
        if log.entries.len() >= self.capacity {
            log.entries.pop_front();
        }
        if self.capacity > 0 {
            log.entries.push_back(LogEntry { number, thread, event });
        }
    }
}

impl Allocator for Logged {
    pass_on_to_inner!();

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        let answer = self.inner.allocate(request);
        self.note(LogEvent::Allocate(request, answer.clone()));
        answer
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        let answer = unsafe { self.inner.give_back(ptr) };
        self.note(LogEvent::GiveBack(ptr, answer.clone()));
        answer
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        let answer = unsafe { self.inner.give_back_or_owe(ptr) };
        self.note(LogEvent::GiveBack(ptr, answer.clone()));
        answer
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        let answer = self.inner.record_stream(ptr, stream);
        self.note(LogEvent::RecordStream(ptr, stream, answer.clone()));
        answer
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        let answer = self.inner.empty_cache();
        self.note(LogEvent::EmptyCache(answer.clone()));
        answer
    }
}
