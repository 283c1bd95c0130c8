//! Programs recorded and read back: nothing is lost, nothing is invented, and a replay finds the same peaks.

use std::io;
use std::sync::Arc;

use headwater::caching::{CachingAllocator, label};
use headwater::config::Config;
use headwater::{Allocator, Direct, Request};
use headwater_driver::{Call, DeviceId, DevicePtr, ErrorClass, Stream, StreamOptions, Streams};
use headwater_sim::{FaultPlan, SimDriver, Work};
use parking_lot::Mutex;

use super::queue::BUFFER_ENTRIES;
use super::*;
use crate::model::{Event, Trace};
use crate::replay::{Policy, Replay};

const DEVICE: DeviceId = DeviceId(0);
const STREAM: Stream = Stream::legacy_default(DEVICE);

/// A file that a test can look into while it is written.
#[derive(Clone, Debug, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn read(&self) -> Trace {
        let trace = crate::hwt::read(&self.0.lock()[..], &Default::default()).unwrap();
        trace.check().unwrap();
        trace
    }
}

fn classic(sim: &Arc<SimDriver>) -> Arc<CachingAllocator> {
    CachingAllocator::new(sim.clone(), DEVICE, Config::pytorch_rules()).unwrap()
}

fn give_back(allocator: &dyn Allocator, ptr: DevicePtr) {
    // SAFETY: each test gives back what it was given, once.
    unsafe { allocator.give_back(ptr) }.unwrap();
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Asks for and gives back blocks of all sizes on two streams; some are used by a third for a while.
fn run_program(sim: &SimDriver, allocator: &dyn Allocator, seed: u64) {
    let options = StreamOptions { non_blocking: true, priority: 0 };
    let streams: Vec<Stream> = (0..3).map(|_| sim.stream_create(DEVICE, options).unwrap()).collect();
    let mut dice = Dice(seed);
    let mut live: Vec<DevicePtr> = Vec::new();
    for _ in 0..5000 {
        sim.advance_ns(10_000);
        if live.len() < 40 && dice.roll(5) < 3 {
            let most = 16 << dice.roll(22);
            let bytes = 1 + dice.roll(most);
            let stream = streams[dice.roll(2) as usize];
            live.push(allocator.allocate(Request::new(bytes, stream)).unwrap());
        } else if !live.is_empty() {
            let ptr = live.swap_remove(dice.roll(live.len() as u64) as usize);
            if dice.roll(8) == 0 {
                sim.submit(streams[2], Work::new("other use", 1000 * (1 + dice.roll(50)))).unwrap();
                allocator.record_stream(ptr, streams[2]).unwrap();
            }
            give_back(allocator, ptr);
        }
    }
}

#[test]
fn a_recorded_program_replays_to_the_same_peaks() {
    for seed in 0..8 {
        let sim = SimDriver::new();
        let (inner, sink) = (classic(&sim), Sink::default());
        let recorder = Recorder::new(inner.clone(), sink.clone()).unwrap();
        run_program(&sim, &recorder, seed);
        let recorded = recorder.finish().unwrap();
        let (trace, stats) = (sink.read(), inner.stats());
        assert_eq!(trace.events.len() as u64, recorded.events);
        assert!(trace.summary().completes > 0);
        assert_eq!(trace.summary().allocs, stats.allocation.all.allocated);
        assert_eq!(trace.header.reported.peak_reserved, Some(stats.reserved_bytes.all.peak));
        let on = headwater::open(headwater::DeviceChoice::Sim).unwrap();
        let replayed = Replay::new(Policy::Classic).run(&trace, &on).unwrap();
        assert_eq!(replayed.figures.peak_live_bytes, stats.requested_bytes.all.peak, "seed {seed}");
        assert_eq!(replayed.figures.peak_reserved_bytes, stats.reserved_bytes.all.peak, "seed {seed}");
    }
}

#[test]
fn threads_are_recorded_in_an_order_that_can_have_happened() {
    let sim = SimDriver::new();
    let (inner, sink) = (classic(&sim), Sink::default());
    let recorder = Recorder::new(inner.clone(), sink.clone()).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (sim, recorder) = (&sim, &recorder);
            scope.spawn(move || run_program(sim, recorder, seed));
        }
    });
    recorder.finish().unwrap();
    let summary = sink.read().summary();
    assert_eq!(summary.allocs, inner.stats().allocation.all.allocated);
    assert_eq!(summary.frees, inner.stats().allocation.all.freed);
}

#[test]
fn labels_marks_and_failed_requests_are_in_the_trace() {
    let sim = SimDriver::builder().memory_bytes(64 << 20).build();
    let sink = Sink::default();
    let options = RecordOptions { name: "labelled".to_owned(), ..Default::default() };
    let recorder = Recorder::with_options(classic(&sim), sink.clone(), options).unwrap();
    recorder.mark("step 1");
    {
        let _forward = label::scope("forward");
        let ptr = recorder.allocate(Request::new(100, STREAM)).unwrap();
        give_back(&recorder, ptr);
    }
    recorder.allocate(Request::new(0, STREAM)).unwrap();
    recorder.allocate(Request::new(1 << 30, STREAM)).unwrap_err();
    recorder.finish().unwrap();
    let trace = sink.read();
    assert_eq!(trace.header.name, "labelled");
    let described: Vec<String> =
        trace.events.iter().map(|event| trace.names.describe(event.label())).collect();
    assert_eq!(described, ["step 1", "forward", "forward", ""]);
    let Event::Oom { bytes, free_bytes, .. } = trace.events[3] else { panic!("{:?}", trace.events[3]) };
    assert_eq!(bytes, 1 << 30);
    assert!(free_bytes > 0);
}

#[test]
fn a_crash_loses_only_what_was_not_flushed() {
    let sim = SimDriver::new();
    let sink = Sink::default();
    let recorder = Recorder::new(classic(&sim), sink.clone()).unwrap();
    let before = sink.0.lock().len();
    for _ in 0..BUFFER_ENTRIES {
        let ptr = recorder.allocate(Request::new(512, STREAM)).unwrap();
        give_back(&recorder, ptr);
    }
    while sink.0.lock().len() == before {
        std::thread::yield_now();
    }
    // What a crash would leave behind now.
    let left = sink.read();
    assert!(left.header.cut_at.is_some());
    assert!(!left.events.is_empty());
    drop(recorder);
    let whole = sink.read();
    assert_eq!((whole.header.cut_at, whole.events.len()), (None, 2 * BUFFER_ENTRIES));
    assert!(whole.events.starts_with(&left.events));
}

#[test]
fn a_sink_that_fails_stops_the_recording_and_not_the_program() {
    struct Full(usize);
    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let sim = SimDriver::new();
    let inner = classic(&sim);
    let recorder = Recorder::new(inner.clone(), Full(1000)).unwrap();
    for _ in 0..10 * BUFFER_ENTRIES {
        let ptr = recorder.allocate(Request::new(512, STREAM)).unwrap();
        give_back(&recorder, ptr);
    }
    let error = recorder.finish().unwrap_err();
    assert!(error.to_string().starts_with("cannot write"), "{error}");
    assert!(recorder.finish().unwrap_err().to_string().contains("finished before"));
    assert_eq!(inner.stats().allocation.all.current, 0);
}

#[test]
fn a_give_back_that_fails_leaves_the_block_with_its_holder() {
    let sim = SimDriver::new();
    let sink = Sink::default();
    let direct = Arc::new(Direct::new(sim.clone(), DEVICE).unwrap());
    let recorder = Recorder::new(direct, sink.clone()).unwrap();
    let ptr = recorder.allocate(Request::new(4096, STREAM)).unwrap();
    sim.set_faults(FaultPlan::none().fail_nth(Call::MemFree, 1, ErrorClass::Other));
    // SAFETY: the block is this test's own.
    unsafe { recorder.give_back(ptr) }.unwrap_err();
    give_back(&recorder, ptr);
    // SAFETY: an address that names no block is an error, and nothing else.
    unsafe { recorder.give_back(ptr) }.unwrap_err();
    recorder.finish().unwrap();
    let summary = sink.read().summary();
    assert_eq!((summary.allocs, summary.frees, summary.final_live), (2, 2, 0));
}

#[test]
fn a_sampled_trace_says_so_and_is_whole_in_what_it_has() {
    let sim = SimDriver::new();
    let sink = Sink::default();
    let options = RecordOptions { sampling: Sampling::EveryNth(10), ..Default::default() };
    let recorder = Recorder::with_options(classic(&sim), sink.clone(), options).unwrap();
    run_program(&sim, &recorder, 3);
    recorder.finish().unwrap();
    let trace = sink.read();
    assert_eq!(trace.header.extra["sampling"], "every 10th request");
    let (allocs, all) = (trace.summary().allocs, trace.header.reported.allocs.unwrap());
    assert_eq!(allocs, all.div_ceil(10));
}
