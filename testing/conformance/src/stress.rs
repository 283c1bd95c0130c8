//! A random program on several streams, with real kernels: whoever hands memory out too early is found by its bytes.
//!
//! Every block is filled with a word of its own by a kernel that writes *late*, and checked by a kernel in the same stream
//! just before it is given back. Some blocks are also read in a second stream, announced with `record_stream` and ordered with an
//! event. A block that is reused while any of this still runs is overwritten, and a check counts the wrong words on the device.
//! The host waits only at the end, so the streams stay busy all the time.

use std::sync::Arc;

use headwater::{AllocError, Allocator, Block, DeviceVec, Request};
use headwater_driver::{DeviceId, Driver, Event, EventOptions, Stream, StreamOptions};

use crate::case::Failure;
use crate::kernels::TestKernels;

/// How the program is made.
#[derive(Clone, Copy, Debug)]
pub struct StressOptions {
    /// How many requests it makes.
    pub steps: u64,
    /// On how many streams.
    pub streams: usize,
    /// How many blocks it holds at a time, at most.
    pub held_max: usize,
    /// The largest request.
    pub bytes_max: u64,
    /// How late the kernels write.
    pub late_us: u64,
    /// Where the program comes from: the same seed, the same program.
    pub seed: u64,
}

impl Default for StressOptions {
    fn default() -> Self {
        Self { steps: 2_000, streams: 4, held_max: 24, bytes_max: 8 << 20, late_us: 20, seed: 1 }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StressReport {
    /// Blocks asked for.
    pub requests: u64,
    /// Blocks that a second stream used too.
    pub shared: u64,
    /// Words checked on the device.
    pub words_checked: u64,
    /// Words that were not what their block had been filled with.
    pub words_wrong: u64,
}

/// Runs the program on `allocator`.
///
/// # Errors
/// Where the driver or the allocator refuses something.
pub fn run(allocator: &Arc<dyn Allocator>, options: &StressOptions) -> Result<StressReport, Failure> {
    let mut program = Program::new(allocator, options).map_err(failed)?;
    let outcome = program.run(options);
    // Wait in any case: the kernels use blocks that are given back below.
    let waited = program.wait();
    let report = outcome.and(waited).and_then(|()| program.read_report());
    let closed = program.close();
    match (report, closed) {
        (Ok(report), Ok(())) => Ok(report),
        (Err(error), _) | (_, Err(error)) => Err(failed(error)),
    }
}

#[track_caller]
fn failed(error: AllocError) -> Failure {
    Failure::new(format!("expected the stress program to run, got: {error}"))
}

struct Held {
    block: Block,
    word: u32,
}

struct Program<'a> {
    allocator: &'a Arc<dyn Allocator>,
    driver: &'a Arc<dyn Driver>,
    kernels: TestKernels,
    streams: Vec<Stream>,
    /// One event a stream, recorded again and again: a queued wait keeps the point it saw.
    events: Vec<Event>,
    held: Vec<Held>,
    /// How many wrong words each stream's checks have found, so that no two streams share a counter.
    wrong: Vec<DeviceVec<u32>>,
    report: StressReport,
    random: u64,
}

impl<'a> Program<'a> {
    fn new(allocator: &'a Arc<dyn Allocator>, options: &StressOptions) -> Result<Self, AllocError> {
        let (driver, device) = (allocator.driver(), allocator.device());
        let mut program = Self {
            allocator,
            driver,
            kernels: TestKernels::load(driver, device)?,
            streams: Vec::new(),
            events: Vec::new(),
            held: Vec::new(),
            wrong: Vec::new(),
            report: StressReport::default(),
            random: options.seed | 1,
        };
        for _ in 0..options.streams.max(2) {
            program.add_stream(device)?;
        }
        Ok(program)
    }

    fn add_stream(&mut self, device: DeviceId) -> Result<(), AllocError> {
        let stream = self.driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
        self.streams.push(stream);
        self.events.push(self.driver.event_create(device, EventOptions::default())?);
        self.wrong.push(DeviceVec::zeroed(Arc::clone(self.allocator), 1, stream)?);
        Ok(())
    }

    fn run(&mut self, options: &StressOptions) -> Result<(), AllocError> {
        for step in 0..options.steps {
            if self.held.len() >= options.held_max {
                let place = self.below(self.held.len() as u64) as usize;
                self.give_back(place)?;
            }
            self.ask(step as u32, options)?;
        }
        while !self.held.is_empty() {
            self.give_back(0)?;
        }
        Ok(())
    }

    fn ask(&mut self, step: u32, options: &StressOptions) -> Result<(), AllocError> {
        let home = self.below(self.streams.len() as u64) as usize;
        // Small and large ones alike: an even share for every doubling.
        let doublings = u64::from(options.bytes_max.max(1024).ilog2() - 9);
        let bytes = (512 << self.below(doublings)) + 4 * self.below(128);
        let stream = self.streams[home];
        let block = Block::allocate(Arc::clone(self.allocator), Request::new(bytes, stream))?;
        let (words, word) = (bytes / 4, step.wrapping_mul(0x9E37_79B9) | 1);
        self.report.requests += 1;
        // SAFETY: the block has `words` words, and the allocator keeps it until its streams have finished: whether it does
        // is what is tested, and a failure shows as wrong words.
        unsafe { self.kernels.fill_late(block.ptr(), words, word, options.late_us, stream)? };
        if self.below(3) == 0 {
            self.share(&block, words, word, home)?;
        }
        self.held.push(Held { block, word });
        Ok(())
    }

    /// Checks the block in a second stream, which first waits for the fill.
    fn share(&mut self, block: &Block, words: u64, word: u32, home: usize) -> Result<(), AllocError> {
        let guest = (home + 1 + self.below(self.streams.len() as u64 - 1) as usize) % self.streams.len();
        self.driver.event_record(self.events[home], self.streams[home])?;
        self.driver.stream_wait_event(self.streams[guest], self.events[home])?;
        self.check(block, words, word, guest)?;
        block.record_stream(self.streams[guest])?;
        self.report.shared += 1;
        Ok(())
    }

    fn give_back(&mut self, place: usize) -> Result<(), AllocError> {
        let Held { block, word } = self.held.swap_remove(place);
        let home = self.streams.iter().position(|stream| *stream == block.stream()).unwrap_or(0);
        self.check(&block, block.bytes() / 4, word, home)?;
        block.give_back().map_err(|(_, error)| error)
    }

    fn check(&mut self, block: &Block, words: u64, word: u32, stream: usize) -> Result<(), AllocError> {
        self.report.words_checked += words;
        let counter = self.wrong[stream].ptr();
        // SAFETY: as for the fill; the counter is used by this stream alone.
        unsafe { self.kernels.check(block.ptr(), words, word, counter, self.streams[stream])? };
        Ok(())
    }

    fn wait(&self) -> Result<(), AllocError> {
        for stream in &self.streams {
            self.driver.stream_synchronize(*stream)?;
        }
        Ok(())
    }

    fn read_report(&mut self) -> Result<StressReport, AllocError> {
        for (counter, stream) in self.wrong.iter().zip(&self.streams) {
            self.report.words_wrong +=
                u64::from(counter.to_vec(*stream)?.first().copied().unwrap_or(u32::MAX));
        }
        Ok(self.report)
    }

    /// Gives everything back; the first error is told.
    fn close(mut self) -> Result<(), AllocError> {
        self.held.clear();
        self.wrong.clear();
        let events = self.events.iter().map(|event| self.driver.event_destroy(*event));
        let streams = self.streams.iter().map(|stream| self.driver.stream_destroy(*stream));
        let ended = events.chain(streams).collect::<Vec<_>>().into_iter().collect::<Result<(), _>>();
        self.kernels.unload()?;
        self.allocator.empty_cache()?;
        Ok(ended?)
    }

    /// A number below `bound`: xorshift64*, good enough to mix sizes and streams, and the same everywhere.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound.max(1)
    }
}
