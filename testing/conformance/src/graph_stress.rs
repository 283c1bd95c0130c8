//! Graphs launched again and again with real kernels, while other memory comes and goes.
//!
//! Three parts, each of which checks every word on the device:
//! - *by capture*: graphs that share one private pool, one of them over two streams, are launched in turn on changing input, while other
//!   threads allocate, fill, check and give back through the same allocator;
//! - *by hand*: a graph over blocks of a `GraphPool`, which is reset between iterations and must give out the same blocks;
//! - *figures*: ten graphs of different sizes captured into one pool, and into ten.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use headwater::config::Config;
use headwater::graph::{GraphAllocator, GraphPool, PoolHandle, RunnableGraph};
use headwater::{Allocator, Block, CachingAllocator, DeviceVec, Request};
use headwater_driver::{CaptureMode, DeviceId, DevicePtr, Driver, Stream, StreamOptions};

use crate::case::Failure;
use crate::kernels::TestKernels;

/// Words of every buffer. Enough for several blocks of threads, small enough for a simulated device.
const WORDS: u64 = 16_384;
const BYTES: u64 = 4 * WORDS;
/// Graphs that share a pool in the first part.
const GRAPHS: u32 = 3;
/// Threads that allocate outside of the graphs meanwhile.
const CHURNING_THREADS: usize = 2;
/// The sizes of the third part, in MiB.
const TEN_MIB: [u64; 10] = [40, 120, 64, 200, 96, 24, 160, 72, 480, 300];

/// What was done and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphStressReport {
    /// Launches of captured graphs, and of the one made by hand.
    pub launches: u64,
    /// Words checked on the device.
    pub words_checked: u64,
    /// Words that were not what they had to be.
    pub words_wrong: u64,
    /// Requests that other threads made meanwhile.
    pub churn_requests: u64,
    /// Of the ten graphs, what the largest needs.
    pub ten_largest_bytes: u64,
    /// What all ten need together.
    pub ten_sum_bytes: u64,
    /// What one pool reserved for all of them.
    pub ten_in_one_pool_bytes: u64,
    /// What ten pools reserved.
    pub ten_in_ten_pools_bytes: u64,
}

/// Runs all parts, `launches` launches in each of the first two.
///
/// # Errors
/// What did not work, or the first address that moved. Wrong words are counted, not errors.
pub fn run(driver: &Arc<dyn Driver>, device: DeviceId, launches: u64) -> Result<GraphStressReport, Failure> {
    let config = Config::parse("").map_err(failed)?;
    let caching = CachingAllocator::new(Arc::clone(driver), device, config).map_err(failed)?;
    let allocator = GraphAllocator::over_caching(&caching).map_err(failed)?;
    let stress = Stress {
        driver,
        device,
        kernels: TestKernels::load(driver, device).map_err(failed)?,
        streams: Streams::new(driver, device)?,
        allocator,
        wrong: AtomicU64::new(0),
        checked: AtomicU64::new(0),
        churned: AtomicU64::new(0),
    };
    let mut report = GraphStressReport::default();
    stress.churning(|| stress.by_capture(launches))?;
    stress.churning(|| stress.by_hand(launches))?;
    stress.figures(&mut report)?;
    report.launches = 2 * launches;
    report.words_checked = stress.checked.load(Ordering::Relaxed);
    report.words_wrong = stress.wrong.load(Ordering::Relaxed);
    report.churn_requests = stress.churned.load(Ordering::Relaxed);
    Ok(report)
}

#[track_caller]
fn failed(error: impl Display) -> Failure {
    Failure::new(format!("expected the graph stress to run, got: {error}"))
}

/// Two streams for the graphs and one for each churning thread, destroyed in the end.
struct Streams<'a> {
    driver: &'a Arc<dyn Driver>,
    all: Vec<Stream>,
}

impl<'a> Streams<'a> {
    fn new(driver: &'a Arc<dyn Driver>, device: DeviceId) -> Result<Self, Failure> {
        let mut streams = Self { driver, all: Vec::new() };
        for _ in 0..2 + CHURNING_THREADS {
            let options = StreamOptions { non_blocking: true, priority: 0 };
            streams.all.push(driver.stream_create(device, options).map_err(failed)?);
        }
        Ok(streams)
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for stream in &self.all {
            // A failure that ended the run is told already, and a stream that is left over does no harm.
            let _ = self.driver.stream_destroy(*stream);
        }
    }
}

struct Stress<'a> {
    driver: &'a Arc<dyn Driver>,
    device: DeviceId,
    kernels: TestKernels,
    allocator: Arc<GraphAllocator>,
    streams: Streams<'a>,
    wrong: AtomicU64,
    checked: AtomicU64,
    churned: AtomicU64,
}

impl Stress<'_> {
    fn shared(&self) -> Arc<dyn Allocator> {
        Arc::clone(&self.allocator) as Arc<dyn Allocator>
    }

    /// Runs `work` while other threads allocate.
    fn churning(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let threads: Vec<_> = self.streams.all[2..]
                .iter()
                .map(|stream| {
                    let stop = &stop;
                    scope.spawn(move || self.churn(*stream, stop))
                })
                .collect();
            let worked = work();
            stop.store(true, Ordering::Relaxed);
            let churned = threads.into_iter().map(|thread| match thread.join() {
                Ok(churned) => churned,
                Err(_) => Err(Failure::new("a churning thread panicked")),
            });
            let churned: Vec<_> = churned.collect();
            worked.and(churned.into_iter().collect())
        })
    }

    /// Allocates, fills, checks and gives back, in stream order.
    fn churn(&self, stream: Stream, stop: &AtomicBool) -> Result<(), Failure> {
        let allocator = self.shared();
        let counter = DeviceVec::<u32>::zeroed(Arc::clone(&allocator), 1, stream).map_err(failed)?;
        let mut round = 0_u32;
        while !stop.load(Ordering::Relaxed) || round < 8 {
            round += 1;
            let words = 256 + u64::from(round % 61) * 512;
            let block =
                Block::allocate(Arc::clone(&allocator), Request::new(4 * words, stream)).map_err(failed)?;
            // SAFETY: the block and the counter are used in their own stream, and freed in its order.
            unsafe {
                self.kernels.fill(block.ptr(), words, round, stream).map_err(failed)?;
                self.kernels.check(block.ptr(), words, round, counter.ptr(), stream).map_err(failed)?;
            }
            self.checked.fetch_add(words, Ordering::Relaxed);
            self.churned.fetch_add(1, Ordering::Relaxed);
            block.give_back().map_err(|(_, error)| failed(error))?;
            // Let the others have a turn, and keep the stream from running away.
            if round.is_multiple_of(16) {
                self.wait(stream)?;
            }
        }
        self.count(&counter, stream)
    }

    /// Waits for a stream. Other threads capture in thread-local mode, so this is legal here.
    fn wait(&self, stream: Stream) -> Result<(), Failure> {
        self.driver.stream_synchronize(stream).map_err(failed)
    }

    fn count(&self, counter: &DeviceVec<u32>, stream: Stream) -> Result<(), Failure> {
        let wrong = counter.to_vec(stream).map_err(failed)?;
        self.wrong.fetch_add(wrong.iter().map(|words| u64::from(*words)).sum(), Ordering::Relaxed);
        Ok(())
    }

    /// The first part.
    fn by_capture(&self, launches: u64) -> Result<(), Failure> {
        let stream = self.streams.all[0];
        let buffers = Buffers::new(&self.shared(), stream)?;
        let pool = self.allocator.new_pool().map_err(failed)?;
        let graphs: Vec<RunnableGraph> =
            (1..=GRAPHS).map(|number| self.capture(&pool, &buffers, number)).collect::<Result<_, _>>()?;
        let places = self.places();
        for launch in 0..launches {
            let number = (launch % u64::from(GRAPHS)) as u32;
            let input = launch as u32;
            // SAFETY: the buffers live until the wait below; the graphs of the pool run in one stream, one after the other.
            unsafe {
                self.kernels.fill(buffers.input.ptr(), WORDS, input, stream).map_err(failed)?;
                graphs[number as usize].launch(stream).map_err(failed)?;
                let (output, counter) = (buffers.output.ptr(), buffers.counter.ptr());
                let expected = input.wrapping_add(3 * (number + 1));
                self.kernels.check(output, WORDS, expected, counter, stream).map_err(failed)?;
            }
            // What the graph checks itself, and what is checked after it.
            self.checked.fetch_add(2 * WORDS, Ordering::Relaxed);
            if launch % 64 == 0 {
                self.wait(stream)?;
                if self.places() != places {
                    return Err(Failure::new("memory of a graph has moved"));
                }
            }
        }
        self.wait(stream)?;
        self.count(&buffers.counter, stream)?;
        drop(graphs);
        match pool.reserved_bytes() {
            0 => Ok(()),
            left => Err(Failure::new(format!("{left} bytes are left in a pool without graphs"))),
        }
    }

    /// Where the pools' memory is.
    fn places(&self) -> Vec<DevicePtr> {
        let pools = self.allocator.pool_snapshots();
        pools.iter().flat_map(|pool| pool.blocks.iter().map(|block| block.ptr)).collect()
    }

    /// output = input + 3 * number, by way of scratch memory that is given back and used again inside of the capture, and of a second
    /// stream. The scratch memory is checked inside of the graph as well.
    fn capture(&self, pool: &PoolHandle, buffers: &Buffers, number: u32) -> Result<RunnableGraph, Failure> {
        let (stream, side) = (self.streams.all[0], self.streams.all[1]);
        let allocator = &self.allocator;
        allocator.begin_capture(stream, CaptureMode::ThreadLocal, Some(pool)).map_err(failed)?;
        let recorded = self.record(buffers, number, stream, side);
        let ended = allocator.end_capture(stream).map_err(failed);
        recorded?;
        ended?.instantiate().map_err(failed)
    }

    fn record(&self, buffers: &Buffers, number: u32, stream: Stream, side: Stream) -> Result<(), Failure> {
        let allocator = self.shared();
        let block = |stream| Block::allocate(Arc::clone(&allocator), Request::new(BYTES, stream));
        let first = block(stream).map_err(failed)?;
        let kernels = &self.kernels;
        // SAFETY: nothing runs now. When the graph runs, its pool's memory is held by it, and the buffers by the caller.
        unsafe {
            kernels.copy(first.ptr(), buffers.input.ptr(), WORDS, stream).map_err(failed)?;
            kernels.add(first.ptr(), WORDS, number, stream).map_err(failed)?;
        }
        self.allocator.order_streams(stream, side).map_err(failed)?;
        let second = block(side).map_err(failed)?;
        first.record_stream(side).map_err(failed)?;
        // SAFETY: as above.
        unsafe {
            kernels.copy(second.ptr(), first.ptr(), WORDS, side).map_err(failed)?;
            kernels.add(second.ptr(), WORDS, number, side).map_err(failed)?;
        }
        self.allocator.order_streams(side, stream).map_err(failed)?;
        second.record_stream(stream).map_err(failed)?;
        first.give_back().map_err(|(_, error)| failed(error))?;
        // Where the order is known, this is the first block's memory.
        let third = block(stream).map_err(failed)?;
        // SAFETY: as above.
        unsafe {
            kernels.fill(third.ptr(), WORDS, 0xF00D, stream).map_err(failed)?;
            kernels.add(second.ptr(), WORDS, number, stream).map_err(failed)?;
            kernels.copy(buffers.output.ptr(), second.ptr(), WORDS, stream).map_err(failed)?;
            kernels.check(third.ptr(), WORDS, 0xF00D, buffers.counter.ptr(), stream).map_err(failed)?;
        }
        Ok(())
    }

    /// The second part.
    fn by_hand(&self, launches: u64) -> Result<(), Failure> {
        let stream = self.streams.all[0];
        let buffers = Buffers::new(&self.shared(), stream)?;
        let builder = GraphPool::builder(Arc::clone(self.driver), self.device);
        let pool = builder.initial_capacity_bytes(32 << 20).build().map_err(failed)?;
        let ask = || -> Result<[DevicePtr; 2], Failure> {
            let first = pool.allocate(BYTES).map_err(failed)?;
            let second = pool.allocate_aligned(BYTES, 1 << 16).map_err(failed)?;
            Ok([first.ptr, second.ptr])
        };
        let [first, second] = ask()?;
        self.driver.capture_begin(stream, CaptureMode::ThreadLocal).map_err(failed)?;
        let kernels = &self.kernels;
        // SAFETY: the pool keeps its blocks until it is closed below, after the last launch.
        let recorded = unsafe {
            kernels
                .copy(first, buffers.input.ptr(), WORDS, stream)
                .and_then(|()| kernels.add(first, WORDS, 5, stream))
                .and_then(|()| kernels.copy(second, first, WORDS, stream))
                .and_then(|()| kernels.copy(buffers.output.ptr(), second, WORDS, stream))
        };
        let graph = self.driver.capture_end(stream).map_err(failed)?;
        recorded.map_err(failed)?;
        let exec = self.driver.graph_instantiate(self.device, graph).map_err(failed)?;
        for launch in 0..launches {
            let input = launch as u32 ^ 0x5555;
            // SAFETY: as above.
            unsafe {
                kernels.fill(buffers.input.ptr(), WORDS, input, stream).map_err(failed)?;
                self.driver.graph_launch(exec, stream).map_err(failed)?;
                let (output, counter) = (buffers.output.ptr(), buffers.counter.ptr());
                kernels.check(output, WORDS, input.wrapping_add(5), counter, stream).map_err(failed)?;
            }
            self.checked.fetch_add(WORDS, Ordering::Relaxed);
            pool.reset().map_err(failed)?;
            if ask()? != [first, second] {
                return Err(Failure::new("a block has another address after a reset"));
            }
        }
        self.wait(stream)?;
        self.count(&buffers.counter, stream)?;
        self.driver.graph_exec_destroy(exec).map_err(failed)?;
        self.driver.graph_destroy(graph).map_err(failed)?;
        pool.close().map_err(failed)
    }

    /// The third part.
    fn figures(&self, report: &mut GraphStressReport) -> Result<(), Failure> {
        let sizes = TEN_MIB.map(|mib| mib << 20);
        report.ten_largest_bytes = sizes.into_iter().max().unwrap_or(0);
        report.ten_sum_bytes = sizes.into_iter().sum();
        let before = self.allocator.private_bytes();
        let reserved = |pool: Option<&PoolHandle>| -> Result<u64, Failure> {
            let graphs: Vec<_> =
                sizes.iter().map(|bytes| self.capture_of_size(*bytes, pool)).collect::<Result<_, _>>()?;
            let reserved_bytes = self.allocator.private_bytes() - before;
            for graph in &graphs {
                // SAFETY: the graph touches memory of its pool only, and all run in one stream.
                unsafe { graph.launch(self.streams.all[0]) }.map_err(failed)?;
            }
            self.wait(self.streams.all[0])?;
            Ok(reserved_bytes)
        };
        report.ten_in_ten_pools_bytes = reserved(None)?;
        let pool = self.allocator.new_pool().map_err(failed)?;
        report.ten_in_one_pool_bytes = reserved(Some(&pool))?;
        Ok(())
    }

    /// A graph that needs `bytes`, in four tensors.
    fn capture_of_size(&self, bytes: u64, pool: Option<&PoolHandle>) -> Result<RunnableGraph, Failure> {
        let stream = self.streams.all[0];
        self.allocator.begin_capture(stream, CaptureMode::ThreadLocal, pool).map_err(failed)?;
        let tensors: Result<Vec<Block>, _> =
            (0..4).map(|_| Block::allocate(self.shared(), Request::new(bytes / 4, stream))).collect();
        let filled = tensors.map_err(failed).and_then(|tensors| {
            tensors.iter().try_for_each(|tensor| {
                // SAFETY: the graph keeps the memory. The first words are enough to see that it is there.
                unsafe { self.kernels.fill(tensor.ptr(), 1024, 1, stream) }.map_err(failed)
            })
        });
        let graph = self.allocator.end_capture(stream).map_err(failed)?;
        filled?;
        graph.instantiate().map_err(failed)
    }
}

/// What is outside of the pools.
struct Buffers {
    input: DeviceVec<u32>,
    output: DeviceVec<u32>,
    counter: DeviceVec<u32>,
}

impl Buffers {
    fn new(allocator: &Arc<dyn Allocator>, stream: Stream) -> Result<Self, Failure> {
        let zeroed =
            |words: u64| DeviceVec::zeroed(Arc::clone(allocator), words as usize, stream).map_err(failed);
        Ok(Self { input: zeroed(WORDS)?, output: zeroed(WORDS)?, counter: zeroed(1)? })
    }
}
