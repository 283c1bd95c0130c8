//! What the tests share. Not every test uses all of it.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use headwater_driver::{
    CaptureMode, DeviceId, DevicePtr, ErrorClass, Event, EventOptions, Events, PlainMemory, Result, Stream,
    StreamOptions, Streams, VirtualMemory,
};
use headwater_sim::{SimDriver, Work};

pub const D: DeviceId = DeviceId(0);
pub const PAGE: u64 = 2 << 20;
pub const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// A machine with two non-blocking streams.
pub struct Bench {
    pub sim: Arc<SimDriver>,
    pub a: Stream,
    pub b: Stream,
}

pub fn bench() -> Bench {
    let sim = SimDriver::new();
    let (a, b) = (stream(&sim), stream(&sim));
    Bench { sim, a, b }
}

pub fn stream(sim: &SimDriver) -> Stream {
    sim.stream_create(D, StreamOptions { non_blocking: true, priority: 0 }).unwrap()
}

pub fn blocking_stream(sim: &SimDriver) -> Stream {
    sim.stream_create(D, StreamOptions::default()).unwrap()
}

pub fn event(sim: &SimDriver) -> Event {
    sim.event_create(D, EventOptions::default()).unwrap()
}

/// An event recorded at the end of `stream`.
pub fn mark(sim: &SimDriver, stream: Stream) -> Event {
    let event = event(sim);
    sim.event_record(event, stream).unwrap();
    event
}

pub fn alloc(sim: &SimDriver, bytes: u64) -> DevicePtr {
    sim.mem_alloc(D, bytes).unwrap()
}

/// A mapped page with access, at the start of a reserved range of eight.
pub fn mapped_page(sim: &SimDriver) -> (DevicePtr, headwater_driver::Handle) {
    let ptr = sim.address_reserve(D, 8 * PAGE, 0).unwrap();
    let handle = sim.handle_create(D, PAGE).unwrap();
    sim.handle_map(ptr, PAGE, handle).unwrap();
    sim.access_set(ptr, PAGE, &[D]).unwrap();
    (ptr, handle)
}

/// 100 us of work that writes 4 KiB.
pub fn writer(label: &'static str, ptr: DevicePtr) -> Work {
    Work::new(label, 100_000).writes(ptr.raw()..ptr.raw() + 4096)
}

/// 100 us of work that reads 4 KiB.
pub fn reader(label: &'static str, ptr: DevicePtr) -> Work {
    Work::new(label, 100_000).reads(ptr.raw()..ptr.raw() + 4096)
}

pub fn class<T: std::fmt::Debug>(result: Result<T>) -> ErrorClass {
    result.unwrap_err().class()
}

pub fn code<T: std::fmt::Debug>(result: Result<T>) -> u32 {
    result.unwrap_err().code()
}
