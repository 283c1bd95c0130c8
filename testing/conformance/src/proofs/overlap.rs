//! Two independent streams under memory pressure still run side by side.
//!
//! Each stream asks for a block, runs a kernel of known length on it, checks it and gives it back, holding a few at a time. In turn
//! one stream is *heavy* (large blocks) and the other *light*; the limit has room for one heavy and one light stream, so at
//! every change of roles the memory of the one has to go to the other, while its kernels still run. The host is a few steps
//! ahead of the device, as a program that looks at its loss now and then is.
//!
//! Each stream's program is first run alone, then both at once, on the same limit. Streams that an allocator makes wait for each
//! other all the time need as long as both alone together; streams that run side by side need as long as one.

use std::collections::VecDeque;
use std::sync::Arc;

use headwater::{Allocator, Block, DeviceVec, Request};
use headwater_driver::{Call, DeviceId, Driver, Event, EventOptions, Stream};

use super::{Stage, failed, read};
use crate::case::Failure;

const MIB: u64 = 1 << 20;
const HEAVY_BYTES: u64 = 48 * MIB;
const LIGHT_BYTES: u64 = 8 * MIB;
/// Blocks that a stream holds at a time.
const WINDOW: usize = 3;
/// Room for a heavy and a light stream, and a sixth more: light blocks may keep parts of large handles.
const LIMIT_BYTES: u64 = WINDOW as u64 * (HEAVY_BYTES + LIGHT_BYTES) + 4 * LIGHT_BYTES;
/// Steps after which the roles change.
const PHASE_STEPS: u64 = 40;
/// How far the host is ahead.
const AHEAD: usize = 6;
/// Enough words to see who else writes there, few enough that the kernel takes the time it is told to.
const WORDS: u64 = 16_384;

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OverlapReport {
    /// Steps of each stream.
    pub steps: u64,
    /// Device time of each stream's program, run alone.
    pub alone_us: [f64; 2],
    /// Device time of both at once.
    pub both_us: f64,
    /// Waits of one stream for another that the allocator queued meanwhile.
    pub waits: u64,
    /// Handles that went from one place to another meanwhile, and handles made.
    pub handles_moved: u64,
    /// Handles that were made meanwhile.
    pub handles_made: u64,
    /// What was reserved at most, and what may be.
    pub reserved_peak_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// Words checked on the device, and those that were not what they had to be.
    pub words_checked: u64,
    /// Words that somebody else had written.
    pub words_wrong: u64,
}

impl OverlapReport {
    /// Both at once, as a multiple of the longer one alone: 1 is side by side, 2 one after the other.
    pub fn ratio(&self) -> f64 {
        self.both_us / self.alone_us[0].max(self.alone_us[1]).max(1e-9)
    }
}

/// Runs `phases` changes of roles with kernels of `kernel_us`.
///
/// # Errors
/// What did not work. Wrong words and a poor ratio are reported, not errors.
pub fn run(
    driver: &Arc<dyn Driver>,
    device: DeviceId,
    phases: u64,
    kernel_us: u64,
) -> Result<OverlapReport, Failure> {
    let steps = phases * PHASE_STEPS;
    let mut report = OverlapReport { steps, limit_bytes: LIMIT_BYTES, ..OverlapReport::default() };
    for alone in 0..2 {
        let stage = Stage::new(driver, device, 2)?;
        let mut program = Program::new(&stage, kernel_us)?;
        report.alone_us[alone] = program.run(steps, &[alone])?;
        program.close(&mut report)?;
    }
    let stage = Stage::new(driver, device, 2)?;
    let mut program = Program::new(&stage, kernel_us)?;
    let before = driver.call_counts();
    report.both_us = program.run(steps, &[0, 1])?;
    let calls = driver.call_counts().since(&before);
    report.waits = calls.of(Call::StreamWaitEvent) - program.own_waits;
    report.handles_made = calls.of(Call::HandleCreate);
    report.handles_moved = calls.of(Call::HandleMap) - report.handles_made.min(calls.of(Call::HandleMap));
    report.reserved_peak_bytes = stage.allocator.stats().reserved_bytes.all.peak;
    program.close(&mut report)?;
    Ok(report)
}

fn is_heavy(lane: usize, step: u64) -> bool {
    (step / PHASE_STEPS) % 2 == lane as u64
}

struct Lane {
    stream: Stream,
    held: VecDeque<(Block, u32)>,
    /// One event a step that the host has not waited for.
    ahead: VecDeque<Event>,
    wrong: DeviceVec<u32>,
    ended: Event,
}

struct Program<'a> {
    stage: &'a Stage,
    lanes: Vec<Lane>,
    began: Event,
    spare: Vec<Event>,
    kernel_us: u64,
    own_waits: u64,
    checked: u64,
}

impl<'a> Program<'a> {
    fn new(stage: &'a Stage, kernel_us: u64) -> Result<Self, Failure> {
        stage.allocator.set_limit_bytes(Some(LIMIT_BYTES));
        let timed = || stage.driver.event_create(stage.device, EventOptions { timing: true }).map_err(failed);
        let mut lanes = Vec::new();
        for stream in &stage.streams {
            let wrong = stage.counter(*stream)?;
            lanes.push(Lane {
                stream: *stream,
                held: VecDeque::new(),
                ahead: VecDeque::new(),
                wrong,
                ended: timed()?,
            });
        }
        Ok(Self { stage, lanes, began: timed()?, spare: Vec::new(), kernel_us, own_waits: 0, checked: 0 })
    }

    /// Runs the program of these lanes and says how long the device took.
    fn run(&mut self, steps: u64, which: &[usize]) -> Result<f64, Failure> {
        let driver = &self.stage.driver;
        let first = self.lanes[which[0]].stream;
        driver.event_record(self.began, first).map_err(failed)?;
        for lane in &which[1..] {
            driver.stream_wait_event(self.lanes[*lane].stream, self.began).map_err(failed)?;
            self.own_waits += 1;
        }
        for step in 0..steps {
            // The light one first: when roles change, it gives back before the other one asks.
            let (light, heavy): (Vec<usize>, _) = which.iter().partition(|lane| !is_heavy(**lane, step));
            for lane in light.into_iter().chain(heavy) {
                self.step(lane, step)?;
            }
        }
        for lane in which {
            while !self.lanes[*lane].held.is_empty() {
                self.give_back(*lane)?;
            }
            driver.event_record(self.lanes[*lane].ended, self.lanes[*lane].stream).map_err(failed)?;
        }
        let mut elapsed_us = 0.0_f64;
        for lane in which {
            let ended = self.lanes[*lane].ended;
            driver.event_synchronize(ended).map_err(failed)?;
            elapsed_us = elapsed_us.max(driver.event_elapsed_us(self.began, ended).map_err(failed)?);
        }
        Ok(elapsed_us)
    }

    fn step(&mut self, lane: usize, step: u64) -> Result<(), Failure> {
        if self.lanes[lane].held.len() == WINDOW {
            self.give_back(lane)?;
        }
        let bytes = if is_heavy(lane, step) { HEAVY_BYTES } else { LIGHT_BYTES };
        let (stage, stream) = (self.stage, self.lanes[lane].stream);
        let block = Block::allocate(stage.shared(), Request::new(bytes, stream)).map_err(failed)?;
        let word = (step as u32) << 1 | lane as u32;
        // SAFETY: the block is this stream's, and stays until it is given back in the stream's order.
        unsafe { stage.kernels.fill_late(block.ptr(), WORDS, word, self.kernel_us, stream) }
            .map_err(failed)?;
        let driver = &stage.driver;
        let event = match self.spare.pop() {
            Some(event) => event,
            None => driver.event_create(stage.device, EventOptions::default()).map_err(failed)?,
        };
        driver.event_record(event, stream).map_err(failed)?;
        let lane = &mut self.lanes[lane];
        lane.held.push_back((block, word));
        lane.ahead.push_back(event);
        if lane.ahead.len() > AHEAD
            && let Some(oldest) = lane.ahead.pop_front()
        {
            driver.event_synchronize(oldest).map_err(failed)?;
            self.spare.push(oldest);
        }
        Ok(())
    }

    fn give_back(&mut self, lane: usize) -> Result<(), Failure> {
        let lane = &mut self.lanes[lane];
        let Some((block, word)) = lane.held.pop_front() else { return Ok(()) };
        // SAFETY: as for the fill; the counter is this stream's alone.
        unsafe { self.stage.kernels.check(block.ptr(), WORDS, word, lane.wrong.ptr(), lane.stream) }
            .map_err(failed)?;
        self.checked += WORDS;
        block.give_back().map_err(|(_, error)| failed(error))
    }

    fn close(self, report: &mut OverlapReport) -> Result<(), Failure> {
        let driver = &self.stage.driver;
        report.words_checked += self.checked;
        let mut events = self.spare;
        events.push(self.began);
        for lane in self.lanes {
            report.words_wrong += read(&lane.wrong, lane.stream)?;
            events.extend(lane.ahead);
            events.push(lane.ended);
        }
        for event in events {
            driver.event_destroy(event).map_err(failed)?;
        }
        Ok(())
    }
}
