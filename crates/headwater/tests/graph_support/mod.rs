//! What the tests of graph memory stand on: a simulated device, an allocator around another, streams, and work in them.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of test binaries")]
#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

use std::sync::Arc;

use headwater::config::Config;
use headwater::graph::{CapturedGraph, GraphAllocator, PoolHandle, RunnableGraph};
use headwater::{Allocator, CachingAllocator, Request};
use headwater_driver::{CaptureMode, DeviceId, DevicePtr, Driver, Stream, StreamOptions, Streams};
use headwater_sim::{SimDriver, Work};

pub const DEVICE: DeviceId = DeviceId(0);
pub const MIB: u64 = 1 << 20;

pub struct Stage {
    pub sim: Arc<SimDriver>,
    pub caching: Arc<CachingAllocator>,
    pub allocator: Arc<GraphAllocator>,
    pub plain: bool,
}

impl Stage {
    pub fn new(plain: bool, settings: &str, memory_bytes: u64) -> Self {
        let sim = SimDriver::builder().memory_bytes(memory_bytes).report_unwritten_reads(false).build();
        let driver: Arc<dyn Driver> = sim.clone();
        let caching = CachingAllocator::new(driver, DEVICE, Config::parse(settings).unwrap()).unwrap();
        let builder = GraphAllocator::builder_over_caching(&caching).plain_memory(plain);
        Self { sim, caching, allocator: builder.build().unwrap(), plain }
    }

    pub fn stream(&self) -> Stream {
        self.sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap()
    }

    pub fn begin(&self, stream: Stream, pool: Option<&PoolHandle>) -> PoolHandle {
        self.allocator.begin_capture(stream, CaptureMode::Global, pool).unwrap()
    }

    pub fn end(&self, stream: Stream) -> CapturedGraph {
        self.allocator.end_capture(stream).unwrap()
    }

    pub fn allocate(&self, bytes: u64, stream: Stream) -> DevicePtr {
        let ptr = self.allocator.allocate(Request::new(bytes, stream)).unwrap();
        self.write(ptr, bytes, stream);
        ptr
    }

    pub fn give_back(&self, ptr: DevicePtr) {
        // SAFETY: tests hold what they give back.
        unsafe { self.allocator.give_back(ptr) }.unwrap();
    }

    pub fn write(&self, ptr: DevicePtr, bytes: u64, stream: Stream) {
        let work = Work::new("write", 20_000).writes(ptr.raw()..ptr.raw() + bytes);
        self.sim.submit(stream, work).unwrap();
    }

    pub fn read(&self, ptr: DevicePtr, bytes: u64, stream: Stream) {
        let work = Work::new("read", 20_000).reads(ptr.raw()..ptr.raw() + bytes);
        self.sim.submit(stream, work).unwrap();
    }

    pub fn pool_bytes(&self) -> u64 {
        self.allocator.pool_snapshots().iter().map(|pool| pool.reserved_bytes).sum()
    }

    /// Everything adds up, and the device saw nothing wrong.
    pub fn check(&self) {
        self.allocator.verify().unwrap();
        self.caching.verify().unwrap();
        self.allocator.reconcile().unwrap();
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{}", hazards[0]);
    }

    /// With everything given back, nothing is left.
    pub fn finish(self, streams: &[Stream]) {
        self.sim.wait_until_idle();
        self.check();
        self.allocator.empty_cache().unwrap();
        assert_eq!(self.allocator.private_bytes(), 0, "{:#?}", self.allocator.pool_snapshots());
        let Self { sim, caching, allocator, .. } = self;
        drop((allocator, caching));
        streams.iter().for_each(|stream| sim.stream_destroy(*stream).unwrap());
        assert!(sim.leaks().is_empty(), "{}", sim.leaks()[0]);
        assert!(sim.hazards().is_empty(), "{}", sim.hazards()[0]);
    }
}

/// Launches once and waits.
pub fn run(stage: &Stage, graph: &RunnableGraph, stream: Stream) {
    // SAFETY: graphs of these tests touch memory of their pool only, and run alone.
    unsafe { graph.launch(stream) }.unwrap();
    stage.sim.stream_synchronize(stream).unwrap();
}

/// What is behind the pools (plain memory or virtual), and behind everything else.
pub const GROUNDS: [(bool, &str); 3] =
    [(false, "backing:classic"), (true, "backing:classic"), (false, "backing:paged")];

/// Runs a test with virtual and with plain memory behind the pools, and beside either backing.
pub fn on_every_ground(test: impl Fn(Stage)) {
    for (plain, settings) in GROUNDS {
        println!("plain memory: {plain}, {settings}");
        test(Stage::new(plain, settings, 4 << 30));
    }
}
