//! The simulator: batches of paths, and the ten buffers that each batch needs.
//!
//! A batch starts all paths at today's price, moves them through the four quarters, takes each quarter's payoffs and adds them up:
//! one buffer of start prices, four of prices, four of payoffs, one of sums. Random numbers depend on the seed, the batch, the
//! path and the step alone, so what comes out does not depend on where the buffers lie, to the bit.
//!
//! All buffers of a batch are asked for before its work and given back when its sums are on the host and the device is at rest:
//! a plain `cuMemFree` waits for running work, and that wait is not to be counted as time spent in allocation.

use std::sync::Arc;

use anyhow::Result;
use headwater::{Allocator, DeviceVec};
use headwater_driver::{DevicePtr, Stream};

use super::kernels::{McKernels, SUM_BLOCKS, Steps};
use super::market::{Estimate, Market, QUARTERS};
use super::shared::Clock;

/// How many buffers a batch has.
pub(crate) const BUFFERS: u64 = 1 + 2 * QUARTERS as u64 + 1;

/// Where sums and sums of squares of one quarter go.
const SUMS: usize = 2 * SUM_BLOCKS;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) market: Market,
    pub(crate) batches: u32,
    pub(crate) paths: u64,
    /// A multiple of four, at least one of them.
    pub(crate) steps_a_quarter: u32,
    pub(crate) seed: u64,
}

/// Whether buffers live for a batch, or for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Batch,
    Simulation,
}

/// What came out, and what it took.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    pub(crate) estimates: [Estimate; QUARTERS],
    pub(crate) total_us: f64,
    /// Of that, inside of the allocator: requests and give-backs.
    pub(crate) allocation_us: f64,
    pub(crate) allocations: u64,
}

/// The buffers of a batch.
struct Buffers {
    start: DeviceVec<f32>,
    prices: [DeviceVec<f32>; QUARTERS],
    payoffs: [DeviceVec<f32>; QUARTERS],
    sums: DeviceVec<f64>,
}

impl Buffers {
    fn allocate(allocator: &Arc<dyn Allocator>, paths: u64, stream: Stream) -> Result<Self> {
        let floats = || DeviceVec::<f32>::uninit(Arc::clone(allocator), paths as usize, stream);
        Ok(Self {
            start: floats()?,
            prices: [floats()?, floats()?, floats()?, floats()?],
            payoffs: [floats()?, floats()?, floats()?, floats()?],
            sums: DeviceVec::uninit(Arc::clone(allocator), QUARTERS * SUMS, stream)?,
        })
    }
}

/// Simulates on one allocator.
pub(crate) struct Simulator<'s> {
    pub(crate) allocator: &'s Arc<dyn Allocator>,
    pub(crate) kernels: &'s McKernels,
    pub(crate) stream: Stream,
    pub(crate) clock: &'s Clock,
}

impl Simulator<'_> {
    pub(crate) fn run(&self, job: &Job, lifetime: Lifetime) -> Result<Simulated> {
        let start_us = self.clock.us();
        let mut simulated = Simulated {
            estimates: [Estimate::default(); QUARTERS],
            total_us: 0.0,
            allocation_us: 0.0,
            allocations: 0,
        };
        let mut kept = None;
        for batch in 0..job.batches {
            let buffers = match kept.take() {
                Some(buffers) => buffers,
                None => self.allocate(job, &mut simulated)?,
            };
            self.queue(job, batch, &buffers)?;
            // Waits: from here on nothing on the device uses the buffers.
            let sums = buffers.sums.to_vec(self.stream)?;
            for (estimate, sums) in simulated.estimates.iter_mut().zip(sums.chunks_exact(SUMS)) {
                estimate.paths += job.paths;
                estimate.sum += sums.iter().step_by(2).sum::<f64>();
                estimate.squares += sums.iter().skip(1).step_by(2).sum::<f64>();
            }
            match lifetime {
                Lifetime::Batch => self.give_back(buffers, &mut simulated),
                Lifetime::Simulation => kept = Some(buffers),
            }
        }
        if let Some(buffers) = kept {
            self.give_back(buffers, &mut simulated);
        }
        simulated.total_us = self.clock.us() - start_us;
        Ok(simulated)
    }

    fn allocate(&self, job: &Job, simulated: &mut Simulated) -> Result<Buffers> {
        let start_us = self.clock.us();
        let buffers = Buffers::allocate(self.allocator, job.paths, self.stream)?;
        simulated.allocation_us += self.clock.us() - start_us;
        simulated.allocations += BUFFERS;
        Ok(buffers)
    }

    fn give_back(&self, buffers: Buffers, simulated: &mut Simulated) {
        let start_us = self.clock.us();
        drop(buffers);
        simulated.allocation_us += self.clock.us() - start_us;
    }

    /// Queues the work of one batch.
    fn queue(&self, job: &Job, batch: u32, buffers: &Buffers) -> Result<()> {
        let (driver, stream, paths) = (self.allocator.driver(), self.stream, job.paths);
        let (drift, volatility) = job.market.log2_step(job.steps_a_quarter);
        let draws = job.steps_a_quarter / 4;
        let spot = (job.market.spot as f32).to_bits();
        // SAFETY: the buffer has `paths` 32-bit floats, and is not given back before the stream was waited for; only this
        // stream touches it. The same holds for all launches below.
        unsafe { driver.fill_words(buffers.start.ptr(), spot, paths, stream)? };
        let mut from = &buffers.start;
        for (quarter, (prices, payoffs)) in buffers.prices.iter().zip(&buffers.payoffs).enumerate() {
            let steps = Steps {
                draws,
                first_draw: quarter as u32 * draws,
                batch,
                seed: job.seed,
                drift: drift as f32,
                volatility: volatility as f32,
            };
            let (strike, discount) = (job.market.strike as f32, job.market.discount(quarter) as f32);
            let sums = buffers.sums.ptr().raw() + (quarter * SUMS * size_of::<f64>()) as u64;
            // SAFETY: as above; each quarter has its own part of the sums, `SUMS` doubles long.
            unsafe {
                self.kernels.evolve(prices.ptr(), from.ptr(), paths, &steps, stream)?;
                self.kernels.payoff(payoffs.ptr(), prices.ptr(), paths, strike, discount, stream)?;
                self.kernels.sum(DevicePtr::new(sums), payoffs.ptr(), paths, stream)?;
            }
            from = prices;
        }
        Ok(())
    }
}
