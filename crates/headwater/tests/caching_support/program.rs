//! A random program on an allocator, and the plain model it is compared with.
use std::collections::BTreeMap;
use std::sync::Arc;

use headwater::caching::CachingAllocator;
use headwater::config::Config;
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{
    Call, Capture, CaptureMode, DeviceId, DevicePtr, Driver, EventOptions, Events, Stream, StreamOptions,
    Streams,
};
use headwater_sim::{FaultPlan, SimDriver, Work};

const DEVICE: DeviceId = DeviceId(0);
const DEVICE_BYTES: u64 = 384 << 20;
const STEPS_A_PROGRAM: u64 = 1000;
const LIVE_MAX: usize = 80;

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Small sizes as likely as large ones.
    fn size(&mut self) -> u64 {
        let bits = self.below(26);
        1 + self.below(1 << bits) + (1 << bits) / 2
    }
}

#[derive(Clone, Copy)]
struct Held {
    bytes: u64,
    stream: Stream,
    /// Once other streams read it, nobody writes it any more: those uses would race by the program's own fault.
    shared: bool,
}

pub struct Program {
    random: Random,
    sim: Arc<SimDriver>,
    allocator: Arc<CachingAllocator>,
    limit_bytes: u64,
    faults: bool,
    fallible: &'static [Call],
    streams: Vec<Stream>,
    blocking: Vec<Stream>,
    held: BTreeMap<DevicePtr, Held>,
    captured: Option<(Stream, bool)>,
    ooms: u64,
    failures: u64,
}

impl Program {
    fn new(seed: u64, settings: &str, fallible: &'static [Call], faults: bool) -> Self {
        let sim = SimDriver::builder().memory_bytes(DEVICE_BYTES).report_unwritten_reads(false).build();
        let driver: Arc<dyn Driver> = sim.clone();
        let config = Config::parse(settings).unwrap();
        let limit_bytes = config.limit_bytes(DEVICE_BYTES).unwrap_or(DEVICE_BYTES);
        let allocator = CachingAllocator::new(driver, DEVICE, config).unwrap();
        let mut program = Self {
            random: Random(seed | 1),
            sim,
            allocator,
            limit_bytes,
            faults,
            fallible,
            streams: vec![Stream::legacy_default(DEVICE), Stream::per_thread_default(DEVICE)],
            blocking: vec![Stream::per_thread_default(DEVICE)],
            held: BTreeMap::new(),
            captured: None,
            ooms: 0,
            failures: 0,
        };
        for _ in 0..4 {
            program.add_stream();
        }
        program
    }

    fn add_stream(&mut self) {
        let non_blocking = !self.random.one_in(3);
        let stream = self.sim.stream_create(DEVICE, StreamOptions { non_blocking, priority: 0 }).unwrap();
        self.streams.push(stream);
        if !non_blocking {
            self.blocking.push(stream);
        }
    }

    /// Runs a call of the allocator, with driver calls failing where this program has faults.
    fn call<T>(&mut self, call: impl FnOnce(&CachingAllocator) -> T) -> T {
        let faulty = self.faults && self.random.one_in(2);
        if faulty {
            let plan = FaultPlan::none().fail_share(0.1, self.random.next()).only(self.fallible);
            self.sim.set_faults(plan);
        }
        let answer = call(&self.allocator);
        if faulty {
            self.sim.set_faults(FaultPlan::none());
        }
        answer
    }

    /// A stream in which work may be queued now: there, not captured, and not ordered with what is.
    fn can_work_in(&self, stream: Stream) -> bool {
        let free = match self.captured {
            None => true,
            Some((captured, blocking)) => stream != captured && !(blocking && stream.is_legacy_default()),
        };
        free && self.streams.contains(&stream)
    }

    fn any_stream(&mut self) -> Stream {
        let place = self.random.below(self.streams.len() as u64) as usize;
        self.streams[place]
    }

    fn any_held(&mut self) -> Option<(DevicePtr, Held)> {
        let place = self.random.below(self.held.len() as u64) as usize;
        self.held.iter().nth(place).map(|(ptr, held)| (*ptr, *held))
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..40 => self.allocate(),
            40..68 => self.give_back(),
            68..80 => self.share(),
            80..90 => self.write(),
            90..94 => self.sim.advance_ns(1 << (8 + (self.sim.now_ns() % 11))),
            94..96 => self.capture(),
            96 => self.replace_stream(),
            97 => self.empty_cache(),
            98 => self.misuse(),
            _ => {
                let answer = self.call(|allocator| allocator.poll());
                self.expect_only_faults(answer.map(|_| ()));
            }
        }
        self.check();
    }

    fn allocate(&mut self) {
        if self.held.len() >= LIVE_MAX {
            return self.give_back();
        }
        let (bytes, stream) = (self.random.size(), self.any_stream());
        let alignment_bytes = if self.random.one_in(8) { 1 << self.random.below(22) } else { 256 };
        let request = Request::new(bytes, stream).aligned_to(alignment_bytes);
        match self.call(|allocator| allocator.allocate(request)) {
            Ok(ptr) => {
                assert!(ptr.is_aligned_to(alignment_bytes), "{ptr} for {request:?}");
                let before = self.held.range(..=ptr).next_back();
                assert!(before.is_none_or(|(start, held)| start.raw() + held.bytes <= ptr.raw()), "{ptr}");
                let after = self.held.range(ptr..).next();
                assert!(after.is_none_or(|(start, _)| ptr.raw() + bytes <= start.raw()), "{ptr}");
                self.held.insert(ptr, Held { bytes, stream, shared: false });
                self.use_block(ptr, stream, true);
            }
            Err(AllocError::OutOfMemory(report)) => {
                assert_eq!(report.requested_bytes, bytes);
                assert!(!report.remedy.is_empty());
                self.ooms += 1;
                // Do not press on at the edge for ever.
                for _ in 0..self.held.len() / 2 {
                    self.give_back();
                }
            }
            Err(error) => self.expect_only_faults(Err(error)),
        }
    }

    fn use_block(&mut self, ptr: DevicePtr, stream: Stream, write: bool) {
        if !self.can_work_in(stream) {
            return;
        }
        let Some(held) = self.held.get(&ptr) else { return };
        let range = ptr.raw()..ptr.raw() + held.bytes;
        let work = Work::new(if write { "write" } else { "read" }, 500 << self.random.below(9));
        let work = if write { work.writes(range) } else { work.reads(range) };
        self.sim.submit(stream, work).unwrap();
    }

    fn write(&mut self) {
        if let Some((ptr, held)) = self.any_held() {
            self.use_block(ptr, held.stream, !held.shared);
        }
    }

    fn give_back(&mut self) {
        let Some((ptr, _)) = self.any_held() else { return };
        self.held.remove(&ptr);
        // SAFETY: the model holds the block, and forgets it here.
        self.call(|allocator| unsafe { allocator.give_back(ptr) }).unwrap();
    }

    /// Another stream reads a block, after what its own stream did so far.
    fn share(&mut self) {
        let (Some((ptr, held)), other) = (self.any_held(), self.any_stream()) else { return };
        let own = held.stream;
        if self.can_work_in(own) && self.can_work_in(other) {
            let event = self.sim.event_create(DEVICE, EventOptions::default()).unwrap();
            self.sim.event_record(event, own).unwrap();
            self.sim.stream_wait_event(other, event).unwrap();
            self.sim.event_destroy(event).unwrap();
            self.use_block(ptr, other, false);
            self.allocator.record_stream(ptr, other).unwrap();
            if other != own {
                self.held.insert(ptr, Held { shared: true, ..held });
            }
        } else {
            // An announcement without a use is harmless.
            self.allocator.record_stream(ptr, other).unwrap();
        }
    }

    fn capture(&mut self) {
        if let Some((stream, _)) = self.captured.take() {
            // Would say so if the allocator had called anything illegal meanwhile.
            let graph = self.sim.capture_end(stream).unwrap();
            self.sim.graph_destroy(graph).unwrap();
            return;
        }
        let stream = self.any_stream();
        if stream.is_legacy_default() {
            return;
        }
        let modes = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
        let mode = modes[self.random.below(3) as usize];
        self.sim.capture_begin(stream, mode).unwrap();
        self.captured = Some((stream, self.blocking.contains(&stream)));
    }

    fn replace_stream(&mut self) {
        let stream = self.any_stream();
        let captured = self.captured.is_some_and(|(captured, _)| captured == stream);
        if stream.is_legacy_default() || stream.is_per_thread_default() || captured {
            return;
        }
        if self.random.one_in(2) {
            let answer = self.call(|allocator| allocator.forget_stream(stream));
            self.expect_only_faults(answer);
        }
        self.sim.stream_destroy(stream).unwrap();
        self.streams.retain(|other| *other != stream);
        // Nothing uses a block through a stream that is gone.
        for held in self.held.values_mut().filter(|held| held.stream == stream) {
            held.shared = true;
        }
        self.add_stream();
    }

    fn empty_cache(&mut self) {
        let answer = self.call(|allocator| allocator.empty_cache());
        self.expect_only_faults(answer.map(|_| ()));
    }

    /// Bad input: an error, and nothing changes.
    fn misuse(&mut self) {
        let before = self.allocator.stats();
        let foreign = DevicePtr::new(0x10);
        // SAFETY: none of these names a block.
        unsafe {
            assert_eq!(self.allocator.give_back(foreign), Err(AllocError::ForeignPointer { ptr: foreign }));
        }
        if let Some((block, held)) = self.any_held()
            && held.bytes > 1
        {
            let ptr = DevicePtr::new(block.raw() + 1);
            // SAFETY: as above.
            let answer = unsafe { self.allocator.give_back(ptr) };
            assert_eq!(answer, Err(AllocError::InsideBlock { ptr, block }));
        }
        assert_eq!(self.allocator.stats(), before);
    }

    fn expect_only_faults(&mut self, answer: Result<(), AllocError>) {
        if let Err(error) = answer {
            assert!(self.faults, "{error}");
            assert!(matches!(error, AllocError::Driver(_)), "{error}");
            self.failures += 1;
        }
    }

    fn check(&self) {
        self.allocator.verify().unwrap();
        let stats = self.allocator.stats();
        assert_eq!(stats.allocation.all.current, self.held.len() as u64);
        assert_eq!(stats.requested_bytes.all.current, self.held.values().map(|held| held.bytes).sum::<u64>());
        assert!(stats.reserved_bytes.all.peak <= self.limit_bytes, "the limit was passed");
        let hazards = self.sim.take_hazards();
        assert!(hazards.is_empty(), "{}", hazards[0]);
    }

    /// Everything is given back, and the device is as it was.
    fn finish(mut self) -> (u64, u64) {
        if self.captured.is_some() {
            self.capture();
        }
        self.faults = false;
        while !self.held.is_empty() {
            self.give_back();
        }
        // What only a returned segment proves finished becomes free the second time, and where it is overwritten first, the
        // fourth time: overwriting and waiting for it come in between.
        for _ in 0..4 {
            self.sim.wait_until_idle();
            self.allocator.empty_cache().unwrap();
        }
        self.check();
        let stats = self.allocator.stats();
        assert_eq!(stats.reserved_bytes.all.current, 0, "{:#?}", self.allocator.snapshot().segments);
        assert_eq!(stats.num_device_alloc, stats.num_device_free);
        let (ooms, failures, sim) = (self.ooms, self.failures, Arc::clone(&self.sim));
        for stream in self.streams.drain(..).filter(|stream| stream.raw() > 2) {
            sim.stream_destroy(stream).unwrap();
        }
        drop(self);
        assert!(sim.leaks().is_empty(), "{}", sim.leaks()[0]);
        (ooms, failures)
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs programs with these settings in turn; driver calls of these kinds fail where `faults`.
pub fn run(settings: &[&str], fallible: &'static [Call], steps: u64, faults: bool) {
    let all = settings;
    let seed = number("HEADWATER_SEED", 0x5EED_CAFE);
    let steps = number("HEADWATER_STEPS", steps);
    let (mut ooms, mut failures) = (0, 0);
    for program in 0..steps.div_ceil(STEPS_A_PROGRAM) {
        let settings = all[program as usize % all.len()];
        let seed = seed.wrapping_add(program.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        println!("HEADWATER_SEED={seed} {settings}, faults: {faults}");
        let mut running = Program::new(seed, settings, fallible, faults);
        for _ in 0..STEPS_A_PROGRAM {
            running.step();
        }
        let (more_ooms, more_failures) = running.finish();
        ooms += more_ooms;
        failures += more_failures;
    }
    println!("{ooms} requests ran out of memory, {failures} calls failed");
    assert!(ooms > 0, "the programs are too tame");
    assert_eq!(failures > 0, faults);
}
