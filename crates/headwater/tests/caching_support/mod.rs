//! A simulated device with a caching allocator on it, and short words for what tests do.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]

pub mod program;

use std::sync::Arc;

use headwater::caching::CachingAllocator;
use headwater::config::Config;
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{
    Call, DeviceId, DevicePtr, Devices, Driver, EventOptions, Events, Stream, StreamOptions, Streams,
};
use headwater_sim::{SimDriver, Work};

pub const DEVICE: DeviceId = DeviceId(0);
pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

pub struct Bench {
    pub sim: Arc<SimDriver>,
    pub allocator: Arc<CachingAllocator>,
}

impl Bench {
    /// An allocator with these settings, on a device with 1 GiB.
    pub fn new(settings: &str) -> Self {
        Self::with_memory(settings, 1 << 30)
    }

    pub fn with_memory(settings: &str, bytes: u64) -> Self {
        let sim = SimDriver::builder().memory_bytes(bytes).report_unwritten_reads(false).build();
        let driver: Arc<dyn Driver> = sim.clone();
        let allocator = CachingAllocator::new(driver, DEVICE, Config::parse(settings).unwrap()).unwrap();
        Self { sim, allocator }
    }

    pub fn stream(&self) -> Stream {
        self.sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap()
    }

    pub fn allocate(&self, bytes: u64, stream: Stream) -> DevicePtr {
        self.try_allocate(bytes, stream).unwrap()
    }

    pub fn try_allocate(&self, bytes: u64, stream: Stream) -> Result<DevicePtr, AllocError> {
        self.allocator.allocate(Request::new(bytes, stream))
    }

    pub fn give_back(&self, ptr: DevicePtr) {
        // SAFETY: tests give back what they allocated, once, and own it nowhere else.
        unsafe { self.allocator.give_back(ptr).unwrap() };
        self.check();
    }

    /// Queues work in `stream` that writes the range.
    pub fn write(&self, ptr: DevicePtr, bytes: u64, stream: Stream, duration_ns: u64) {
        let work = Work::new("write", duration_ns).writes(ptr.raw()..ptr.raw() + bytes);
        self.sim.submit(stream, work).unwrap();
    }

    /// Makes `stream` busy for so long.
    pub fn busy(&self, stream: Stream, duration_ns: u64) {
        self.sim.submit(stream, Work::new("busy", duration_ns)).unwrap();
    }

    /// What comes in `after` waits for what is in `before`.
    pub fn order(&self, before: Stream, after: Stream) {
        let event = self.sim.event_create(DEVICE, EventOptions::default()).unwrap();
        self.sim.event_record(event, before).unwrap();
        self.sim.stream_wait_event(after, event).unwrap();
        self.sim.event_destroy(event).unwrap();
    }

    /// How often `call` was made while `what` ran.
    pub fn calls(&self, call: Call, what: impl FnOnce()) -> u64 {
        let before = self.sim.call_counts();
        what();
        self.sim.call_counts().since(&before).of(call)
    }

    /// How many driver calls were made while `what` ran.
    pub fn all_calls(&self, what: impl FnOnce()) -> u64 {
        let before = self.sim.call_counts();
        what();
        self.sim.call_counts().since(&before).total()
    }

    /// Everything adds up, and the device saw nothing wrong.
    pub fn check(&self) {
        self.allocator.verify().unwrap();
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{}", hazards[0]);
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.allocator.stats().reserved_bytes.all.current
    }

    pub fn pending_bytes(&self) -> u64 {
        self.allocator.stats().pending_bytes()
    }
}
