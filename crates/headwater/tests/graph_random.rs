//! Random programs with captures, on the simulated device.
//!
//! A program begins, ends, abandons and loses captures on several streams at once, into fresh pools, shared ones and pools of a
//! group; allocates, uses and gives back inside and outside; joins streams; launches graphs in one stream, as the order of a pool
//! asks; drops graphs while they run; takes and restores checkpoints. After every step: no two live blocks overlap, none has moved, all
//! tables are whole and add up, and the device saw no race, no use after free and no access to unmapped memory.
//!
//! The seed is printed. `HEADWATER_SEED=n` starts from another one, `HEADWATER_STEPS=1000000` runs longer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may end it")]

mod graph_support;

use std::collections::BTreeMap;
use std::sync::Arc;

use graph_support::{DEVICE, GROUNDS, Stage};
use headwater::graph::{GraphError, PoolHandle, RunnableGraph, SharedPhysical};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{Call, Capture, CaptureMode, CaptureStatus, DevicePtr, Stream, Streams};
use headwater_sim::FaultPlan;

const STEPS_A_PROGRAM: u64 = 400;
const STREAMS: usize = 5;

/// What the allocator calls, and a fault plan may fail. Those of the program itself stay whole.
const ALLOCATOR_CALLS: [Call; 12] = [
    Call::MemAlloc,
    Call::MemFree,
    Call::HandleCreate,
    Call::HandleMap,
    Call::HandleUnmap,
    Call::HandleRelease,
    Call::AccessSet,
    Call::AddressReserve,
    Call::AddressFree,
    Call::EventQuery,
    Call::MemoryInfo,
    Call::Granularity,
];

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

    fn size(&mut self) -> u64 {
        let bits = self.below(25);
        1 + self.below(1 << bits) + (1 << bits) / 2
    }
}

#[derive(Clone, Copy)]
struct Held {
    bytes: u64,
    stream: usize,
    /// The capture in which it was allocated, where it was.
    capture: Option<u64>,
}

/// A capture under way, and the streams in it.
struct Under {
    number: u64,
    origin: usize,
    members: Vec<usize>,
    lost: bool,
}

struct Program {
    random: Random,
    stage: Stage,
    faults: bool,
    group: Option<Arc<SharedPhysical>>,
    streams: Vec<Stream>,
    held: BTreeMap<DevicePtr, Held>,
    captures: Vec<Under>,
    pools: Vec<PoolHandle>,
    graphs: Vec<RunnableGraph>,
    next_capture: u64,
    launches: u64,
    captured_blocks: u64,
}

impl Program {
    fn new(seed: u64, (plain, settings): (bool, &str), faults: bool) -> Self {
        let stage = Stage::new(plain, settings, 2 << 30);
        let streams = (0..STREAMS).map(|_| stage.stream()).collect();
        let group = (!plain).then(|| SharedPhysical::new(stage.sim.clone(), DEVICE).unwrap());
        Self {
            random: Random(seed | 1),
            stage,
            faults,
            group,
            streams,
            held: BTreeMap::new(),
            captures: Vec::new(),
            pools: Vec::new(),
            graphs: Vec::new(),
            next_capture: 0,
            launches: 0,
            captured_blocks: 0,
        }
    }

    fn faulty<T>(&mut self, call: impl FnOnce(&Stage) -> T) -> T {
        let fails = self.faults && self.random.one_in(3);
        if fails {
            let plan = FaultPlan::none().fail_share(0.15, self.random.next()).only(&ALLOCATOR_CALLS);
            self.stage.sim.set_faults(plan);
        }
        let answer = call(&self.stage);
        self.stage.sim.set_faults(FaultPlan::none());
        answer
    }

    fn capture_of(&self, stream: usize) -> Option<&Under> {
        self.captures.iter().find(|under| under.members.contains(&stream))
    }

    fn begin(&mut self) {
        let stream = self.random.below(STREAMS as u64) as usize;
        if self.capture_of(stream).is_some() {
            return;
        }
        let pool = match self.random.below(4) {
            0 => None,
            1 if self.group.is_some() => {
                let pool = self.stage.allocator.new_pool_in(self.group.as_ref().unwrap()).unwrap();
                Some(pool)
            }
            _ if self.pools.is_empty() => None,
            _ => {
                let place = self.random.below(self.pools.len() as u64) as usize;
                Some(self.pools[place].clone())
            }
        };
        let raw = self.streams[stream];
        let begun = self.stage.allocator.begin_capture(raw, CaptureMode::Global, pool.as_ref()).unwrap();
        if self.random.one_in(2) && self.pools.len() < 6 {
            self.pools.push(begun);
        }
        self.next_capture += 1;
        self.captures.push(Under {
            number: self.next_capture,
            origin: stream,
            members: vec![stream],
            lost: false,
        });
    }

    fn join(&mut self) {
        let stream = self.random.below(STREAMS as u64) as usize;
        if self.captures.is_empty() || self.capture_of(stream).is_some() {
            return;
        }
        let place = self.random.below(self.captures.len() as u64) as usize;
        let under = &mut self.captures[place];
        if !under.lost {
            let origin = self.streams[under.origin];
            self.stage.allocator.order_streams(origin, self.streams[stream]).unwrap();
            under.members.push(stream);
        }
    }

    fn end(&mut self) {
        if self.captures.is_empty() {
            return;
        }
        let place = self.random.below(self.captures.len() as u64) as usize;
        let under = self.captures.swap_remove(place);
        let origin = self.streams[under.origin];
        if !under.lost {
            for member in under.members.iter().filter(|member| **member != under.origin) {
                self.stage.allocator.order_streams(self.streams[*member], origin).unwrap();
            }
        }
        if self.random.one_in(6) {
            self.stage.allocator.abandon_capture(origin).unwrap();
            return;
        }
        match self.stage.allocator.end_capture(origin) {
            Ok(graph) => {
                assert!(!under.lost);
                self.graphs.push(graph.instantiate().unwrap());
            }
            Err(error) => assert!(under.lost, "{error}"),
        }
    }

    /// An illegal call: captures are lost.
    fn lose(&mut self) {
        if !self.captures.is_empty() {
            assert!(self.stage.sim.stream_synchronize(self.streams[self.captures[0].origin]).is_err());
            for under in &mut self.captures {
                let status = self.stage.sim.capture_status(self.streams[under.origin]).unwrap();
                under.lost = status == CaptureStatus::Invalidated;
            }
        }
    }

    fn allocate(&mut self) {
        let stream = self.random.below(STREAMS as u64) as usize;
        let (bytes, raw) = (self.random.size(), self.streams[stream]);
        let alignment_bytes = 256 << if self.random.one_in(8) { self.random.below(14) } else { 0 };
        let request = Request::new(bytes, raw).aligned_to(alignment_bytes);
        let answer = self.faulty(|stage| stage.allocator.allocate(request));
        let ptr = match answer {
            Ok(ptr) => ptr,
            Err(AllocError::OutOfMemory(_) | AllocError::Driver(_)) if self.faults => return,
            Err(error) => panic!("{error}"),
        };
        assert!(ptr.is_aligned_to(alignment_bytes));
        let before = self.held.range(..=ptr).next_back();
        assert!(before.is_none_or(|(at, held)| at.raw() + held.bytes <= ptr.raw()), "overlap at {ptr}");
        let after = self.held.range(ptr..).next();
        assert!(after.is_none_or(|(at, _)| ptr.raw() + bytes <= at.raw()), "overlap at {ptr}");
        let under = self.capture_of(stream);
        let (lost, capture) = (under.is_some_and(|under| under.lost), under.map(|under| under.number));
        let private = self.stage.caching.block_at(ptr).is_none();
        // A stream that joined is in no capture any more once that is lost; the origin is, until the end.
        let is_origin = under.is_some_and(|under| under.origin == stream);
        assert_eq!(private, capture.is_some() && (!lost || is_origin), "{ptr} for {capture:?}");
        if !lost {
            self.stage.write(ptr, bytes, raw);
        }
        self.captured_blocks += u64::from(private);
        self.held.insert(ptr, Held { bytes, stream, capture });
    }

    fn give_back(&mut self) {
        let count = self.held.len() as u64;
        if count == 0 {
            return;
        }
        let place = self.random.below(count) as usize;
        let (ptr, held) = self.held.iter().nth(place).map(|(ptr, held)| (*ptr, *held)).unwrap();
        assert_eq!(self.stage.allocator.block_at(ptr).unwrap().requested_bytes, held.bytes);
        // Last used where it was allocated, unless that stream is now in another capture, or the capture is lost.
        let now = self.capture_of(held.stream);
        if now.map(|under| under.number) == held.capture && now.is_none_or(|under| !under.lost) {
            self.stage.read(ptr, held.bytes, self.streams[held.stream]);
        }
        self.held.remove(&ptr);
        // SAFETY: held by this program, and forgotten.
        self.faulty(|stage| unsafe { stage.allocator.give_back(ptr) }).unwrap();
    }

    /// All graphs run in one stream, which is in no capture: no two at once.
    fn launch(&mut self) {
        if self.graphs.is_empty() || self.capture_of(STREAMS - 1).is_some() {
            return;
        }
        let place = self.random.below(self.graphs.len() as u64) as usize;
        let (stream, graph) = (self.streams[STREAMS - 1], self.graphs.swap_remove(place));
        // SAFETY: the graphs touch memory of their pools, and run one after the other.
        let launched = self.faulty(|_| unsafe { graph.launch(stream) });
        self.graphs.push(graph);
        match launched {
            Ok(()) => self.launches += 1,
            Err(GraphError::Alloc(_)) if self.faults => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn drop_graph(&mut self) {
        if !self.graphs.is_empty() {
            let place = self.random.below(self.graphs.len() as u64) as usize;
            let graph = self.graphs.swap_remove(place);
            self.faulty(|_| drop(graph));
        }
    }

    fn rewind(&mut self) {
        if self.pools.is_empty() {
            return;
        }
        let place = self.random.below(self.pools.len() as u64) as usize;
        let pool = self.pools[place].clone();
        let allocator = self.stage.allocator.clone();
        let checkpoint = allocator.checkpoint(&pool).unwrap();
        // SAFETY: nothing changed in between.
        let restored = unsafe { allocator.restore(&pool, &checkpoint) };
        match restored {
            Ok(restored) => assert_eq!(restored, Default::default()),
            Err(GraphError::CannotRestore { busy: true, .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..=2 => self.begin(),
            3..=4 => self.join(),
            5..=6 => self.end(),
            7..=18 => self.allocate(),
            19..=29 => self.give_back(),
            30..=33 => self.launch(),
            34 => self.drop_graph(),
            35 => self.stage.sim.advance_ns(30_000),
            36 if self.random.one_in(4) => self.lose(),
            37 if !self.pools.is_empty() => {
                let place = self.random.below(self.pools.len() as u64) as usize;
                let pool = self.pools.swap_remove(place);
                self.faulty(|_| drop(pool));
            }
            38 => self.rewind(),
            39 => {
                let emptied = self.faulty(|stage| stage.allocator.empty_cache());
                assert!(emptied.is_ok() || self.faults);
            }
            _ => {}
        }
        self.stage.check();
    }

    fn finish(mut self) -> (u64, u64) {
        while !self.captures.is_empty() {
            self.end();
        }
        self.stage.sim.wait_until_idle();
        while !self.held.is_empty() {
            self.faults = false;
            self.give_back();
        }
        self.graphs.clear();
        self.pools.clear();
        let Self { stage, streams, group, launches, captured_blocks, .. } = self;
        stage.sim.wait_until_idle();
        stage.allocator.empty_cache().unwrap();
        if let Some(group) = group {
            group.trim();
            assert_eq!(group.physical_bytes(), 0);
        }
        stage.finish(&streams);
        (launches, captured_blocks)
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn programs(ground: (bool, &str), faults: bool) {
    let steps = number("HEADWATER_STEPS", 8_000);
    let first = number("HEADWATER_SEED", 1);
    let (mut launches, mut blocks) = (0, 0);
    for seed in first..first + steps.div_ceil(STEPS_A_PROGRAM) {
        println!("seed {seed}, plain memory and backing {ground:?}, faults {faults}");
        let mut program = Program::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), ground, faults);
        for _ in 0..STEPS_A_PROGRAM {
            program.step();
        }
        let done = program.finish();
        launches += done.0;
        blocks += done.1;
    }
    println!("{launches} launches, {blocks} blocks in captures");
    assert!(launches > 0 && blocks > 0);
}

#[test]
fn random_programs_over_virtual_memory() {
    programs(GROUNDS[0], false);
}

#[test]
fn random_programs_over_plain_memory() {
    programs(GROUNDS[1], false);
}

#[test]
fn random_programs_beside_the_paged_backing() {
    programs(GROUNDS[2], false);
}

#[test]
fn random_programs_with_failing_calls() {
    GROUNDS.into_iter().for_each(|ground| programs(ground, true));
}
