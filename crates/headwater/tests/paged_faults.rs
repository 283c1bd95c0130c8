//! Every driver call of a scripted program made to fail on the paged backing, one position at a time, and then runs of them.
//!
//! The script is that of `caching_faults.rs`. Whatever fails: the error is typed, the accounts are exact page by page, nothing
//! leaks, nothing races, and the next request works.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

use std::sync::Arc;

use headwater::caching::CachingAllocator;
use headwater::config::Config;
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{
    Call, Capture, CaptureMode, DeviceId, DevicePtr, Devices, Driver, ErrorClass, Stream, StreamOptions,
    Streams,
};
use headwater_sim::{FaultPlan, SimDriver, Work};

const DEVICE: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;
const OOM: ErrorClass = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };

/// What the allocator calls. The script itself uses none of these.
const ALLOCATOR_CALLS: [Call; 18] = [
    Call::AddressReserve,
    Call::HandleCreate,
    Call::HandleRelease,
    Call::HandleMap,
    Call::HandleUnmap,
    Call::AccessSet,
    Call::HostAlloc,
    Call::HostFree,
    Call::StreamWaitEvent,
    Call::EventCreate,
    Call::EventDestroy,
    Call::EventRecord,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::CaptureStatus,
    Call::CaptureModeExchange,
    Call::FillBytes,
    Call::MemoryInfo,
];

/// Those that name a stream. (`InvalidHandle` for an event means that it is gone, and ours are not.)
const CALLS_WITH_A_STREAM: [Call; 3] = [Call::CaptureStatus, Call::EventRecord, Call::FillBytes];

struct Stage {
    sim: Arc<SimDriver>,
    allocator: Arc<CachingAllocator>,
    streams: [Stream; 3],
    held: Vec<DevicePtr>,
    errors: Vec<AllocError>,
}

impl Stage {
    fn new(settings: &str, plan: FaultPlan) -> Self {
        let sim = SimDriver::builder().memory_bytes(128 * MIB).report_unwritten_reads(false).build();
        let driver: Arc<dyn Driver> = sim.clone();
        let allocator = CachingAllocator::new(driver, DEVICE, Config::parse(settings).unwrap()).unwrap();
        let stream = || sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap();
        let streams = [stream(), stream(), stream()];
        sim.set_faults(plan);
        Self { sim, allocator, streams, held: Vec::new(), errors: Vec::new() }
    }

    fn call<T>(&mut self, call: impl FnOnce(&CachingAllocator) -> Result<T, AllocError>) -> Option<T> {
        let answer = call(&self.allocator);
        self.allocator.verify().unwrap();
        assert!(self.sim.hazards().is_empty(), "{}", self.sim.hazards()[0]);
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    fn allocate(&mut self, bytes: u64, stream: usize) -> Option<DevicePtr> {
        let stream = self.streams[stream];
        let ptr = self.call(|allocator| allocator.allocate(Request::new(bytes, stream)))?;
        self.sim.submit(stream, Work::new("write", 20_000).writes(ptr.raw()..ptr.raw() + bytes)).unwrap();
        self.held.push(ptr);
        Some(ptr)
    }

    fn give_back(&mut self, ptr: Option<DevicePtr>) {
        if let Some(ptr) = ptr {
            self.held.retain(|held| *held != ptr);
            // SAFETY: the script holds the block, and forgets it here.
            self.call(|allocator| unsafe { allocator.give_back(ptr) });
        }
    }

    fn share(&mut self, ptr: Option<DevicePtr>, other: usize) {
        let other = self.streams[other];
        if let Some(ptr) = ptr {
            self.sim.submit(other, Work::new("other use", 50_000)).unwrap();
            self.call(|allocator| allocator.record_stream(ptr, other));
        }
    }

    fn play(&mut self) {
        let a = self.allocate(MIB, 0);
        let b = self.allocate(30 * MIB, 0);
        let c = self.allocate(12 * MIB, 1);
        self.share(a, 1);
        self.share(b, 2);
        self.share(b, 1);
        self.give_back(a);
        self.give_back(b);
        self.give_back(c);
        let d = self.allocate(11 * MIB, 2);
        self.sim.advance_ns(200_000);
        let e = self.allocate(25 * MIB, 0);
        self.share(e, 1);
        // A capture of stream 1: what waits for it waits without an event.
        let stream = self.streams[1];
        self.sim.capture_begin(stream, CaptureMode::Global).unwrap();
        self.give_back(e);
        let f = self.allocate(3 * MIB, 1);
        let graph = self.sim.capture_end(stream).expect("the allocator harmed the capture");
        self.sim.graph_destroy(graph).unwrap();
        self.give_back(d);
        // More than there is: everything cached goes, and streams are waited for.
        let g = self.allocate(100 * MIB, 0);
        self.allocate(1000 * MIB, 0);
        self.give_back(f);
        self.give_back(g);
        let gone = self.streams[2];
        self.call(|allocator| allocator.forget_stream(gone));
        self.call(|allocator| allocator.poll());
        self.call(|allocator| allocator.empty_cache());
        self.allocate(MIB, 0);
    }

    /// After whatever happened, everything works, and everything can be given back.
    fn finish(mut self) -> Vec<AllocError> {
        self.sim.set_faults(FaultPlan::none());
        let errors = std::mem::take(&mut self.errors);
        let next = self.allocate(MIB, 0);
        assert!(next.is_some(), "{:?}", self.errors);
        for ptr in self.held.clone() {
            self.give_back(Some(ptr));
        }
        self.sim.wait_until_idle();
        for _ in 0..2 {
            self.call(|allocator| allocator.empty_cache());
        }
        assert!(self.errors.is_empty(), "{:?}", self.errors);
        let stats = self.allocator.stats();
        assert_eq!((stats.reserved_bytes.all.current, stats.active_bytes.all.current), (0, 0));
        let Self { sim, allocator, streams, .. } = self;
        drop(allocator);
        streams.into_iter().for_each(|stream| sim.stream_destroy(stream).unwrap());
        assert!(sim.leaks().is_empty(), "{}", sim.leaks()[0]);
        errors
    }
}

fn every_position_fails_once(settings: &str, fallible: &[Call], class: ErrorClass) {
    let mut stage = Stage::new(settings, FaultPlan::none());
    let count = |stage: &Stage| fallible.iter().map(|call| stage.sim.call_counts().of(*call)).sum::<u64>();
    let before = count(&stage);
    stage.play();
    let calls = count(&stage) - before;
    let usual_errors = stage.finish().len();
    assert!(calls > 10, "the script makes only {calls} calls");
    let mut noticed = 0;
    for position in 1..=calls {
        let mut stage =
            Stage::new(settings, FaultPlan::none().fail_nth_of_any(position, class).only(fallible));
        stage.play();
        let errors = stage.finish();
        for error in &errors {
            assert!(
                matches!(error, AllocError::Driver(_) | AllocError::OutOfMemory(_)),
                "{position}: {error}"
            );
        }
        noticed += usize::from(errors.len() > usual_errors);
    }
    println!("{settings}: {calls} positions, {noticed} of them seen by the caller");
}

#[test]
fn a_call_that_fails_harms_nothing() {
    every_position_fails_once("backing:paged", &ALLOCATOR_CALLS, ErrorClass::Other);
}

#[test]
fn a_call_that_finds_no_memory_harms_nothing() {
    every_position_fails_once("backing:paged", &ALLOCATOR_CALLS, OOM);
}

#[test]
fn a_call_on_a_stream_that_is_gone_harms_nothing() {
    every_position_fails_once("backing:paged", &CALLS_WITH_A_STREAM, ErrorClass::InvalidHandle);
}

#[test]
fn a_call_that_fails_while_memory_is_overwritten_harms_nothing() {
    every_position_fails_once("backing:paged,fill_on_free:zero", &ALLOCATOR_CALLS, ErrorClass::Other);
}

#[test]
fn a_call_that_fails_without_reuse_across_streams_and_under_a_limit_harms_nothing() {
    let settings = "backing:paged,cross_stream_reuse:False,memory_limit:120M";
    every_position_fails_once(settings, &ALLOCATOR_CALLS, ErrorClass::Other);
}

/// Two calls in a row fail: the second is the first one's undoing.
#[test]
fn a_call_whose_undoing_fails_too_harms_nothing() {
    let mut stage = Stage::new("backing:paged", FaultPlan::none());
    let count =
        |stage: &Stage| ALLOCATOR_CALLS.iter().map(|call| stage.sim.call_counts().of(*call)).sum::<u64>();
    let before = count(&stage);
    stage.play();
    let calls = count(&stage) - before;
    stage.finish();
    for position in 1..=calls {
        for more in 1..=3 {
            let plan = (0..=more).fold(FaultPlan::none(), |plan, step| {
                plan.fail_nth_of_any(position + step, ErrorClass::Other)
            });
            let mut stage = Stage::new("backing:paged", plan.only(&ALLOCATOR_CALLS));
            stage.play();
            stage.finish();
        }
    }
}
