//! A financial simulator with reused buffers: Monte Carlo prices of options, and the share of time spent in allocation.
//!
//! Paths of an asset's price are simulated by a real kernel (`kernels.ptx`, and its twin for the simulated device in
//! `host_kernels.rs`), in batches that need ten buffers each. The same simulation runs with every policy, asking for its buffers
//! anew for every batch, and once more with buffers that live as long as the simulation. The prices are compared with
//! Black and Scholes: more than four standard errors away is a failure, and so is a bit of difference between policies.
//!
//! `cargo run --release -p headwater --example monte_carlo -- [--device auto|sim|cuda] [--json]`
//!
//! | file | what |
//! |---|---|
//! | `market.rs` | the asset, the options, the closed formula |
//! | `simulator.rs` | batches and their buffers |
//! | `kernels.rs`, `kernels.ptx` | the device's part |
//! | `host_kernels.rs` | the same for the simulated device |
//! | `table.rs` | what is printed |

mod host_kernels;
mod kernels;
mod market;
#[path = "../shared/mod.rs"]
mod shared;
mod simulator;
mod table;

use std::io::Write;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Parser;
use headwater::{Opened, Policy};
use headwater_driver::{Stream, StreamOptions};
use kernels::McKernels;
use market::{Market, QUARTERS};
use shared::{Clock, Common, fail_on_hazards};
use simulator::{Job, Lifetime, Simulator};
use table::Row;

/// How far an estimate may be from the truth. By chance it is further once in 16,000 estimates.
const ERRORS_MAX: f64 = 4.0;

/// Prices options by Monte Carlo, and measures the share of time spent in allocation
#[derive(Debug, Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,

    /// Batches of paths [default: 1000 on a GPU, 100 on the simulated device]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batches: Option<u32>,

    /// Paths a batch [default: 1048576 on a GPU, 16384 on the simulated device]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    paths: Option<u64>,

    /// Steps a quarter of a year, rounded up to a multiple of four [default: 64 on a GPU, 4 on the simulated device]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    steps: Option<u32>,

    /// Of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Options {
    /// The simulated device computes on the host: its defaults are done in seconds.
    fn job(&self, opened: &Opened) -> Job {
        let (batches, paths, steps) =
            if opened.sim.is_some() { (100, 1 << 14, 4) } else { (1000, 1 << 20, 64) };
        Job {
            market: Market::EXAMPLE,
            batches: self.batches.unwrap_or(batches),
            paths: self.paths.unwrap_or(paths),
            steps_a_quarter: self.steps.unwrap_or(steps).next_multiple_of(4),
            seed: self.seed,
        }
    }
}

fn main() -> Result<()> {
    run(&Options::parse(), &mut std::io::stdout().lock())
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let opened = options.common.open(out)?;
    let job = options.job(&opened);
    let clock = Clock::of(&opened);
    let kernels = McKernels::load(&opened)?;
    let stream =
        opened.driver.stream_create(opened.device, StreamOptions { non_blocking: true, priority: 0 })?;
    // A device loads a kernel when it is first launched: that is nobody's share.
    measure(&opened, &kernels, stream, &clock, &Job { batches: 1, ..job }, Policy::Direct, Lifetime::Batch)?;
    let mut rows = Vec::new();
    for policy in [Policy::Direct, Policy::Classic, Policy::Paged, Policy::Binned] {
        rows.push(measure(&opened, &kernels, stream, &clock, &job, policy, Lifetime::Batch)?);
    }
    rows.push(measure(&opened, &kernels, stream, &clock, &job, Policy::Paged, Lifetime::Simulation)?);
    opened.driver.stream_destroy(stream)?;
    kernels.unload()?;
    table::write(out, &options.common, &opened, &clock, &job, &rows)?;
    check(&job, &rows)?;
    fail_on_hazards(&opened)
}

/// One simulation, with an allocator of its own.
fn measure(
    opened: &Opened,
    kernels: &McKernels,
    stream: Stream,
    clock: &Clock,
    job: &Job,
    policy: Policy,
    lifetime: Lifetime,
) -> Result<Row> {
    let allocator = policy.build(Arc::clone(&opened.driver), opened.device, None)?;
    let simulator = Simulator { allocator: &allocator, kernels, stream, clock };
    let simulated = simulator.run(job, lifetime)?;
    let stats = allocator.stats();
    allocator.empty_cache()?;
    Ok(Row { policy, lifetime, simulated, stats })
}

/// The prices are right, and the same with every policy.
fn check(job: &Job, rows: &[Row]) -> Result<()> {
    for row in rows {
        ensure!(
            row.simulated.estimates == rows[0].simulated.estimates,
            "{} and {} disagree: {:?}, {:?}",
            row.policy,
            rows[0].policy,
            row.simulated.estimates,
            rows[0].simulated.estimates
        );
    }
    for quarter in 0..QUARTERS {
        let (estimate, truth) = (&rows[0].simulated.estimates[quarter], job.market.black_scholes(quarter));
        ensure!(
            estimate.errors_away(truth) <= ERRORS_MAX,
            "quarter {}: {:.5} is {:.1} standard errors away from Black and Scholes' {truth:.5}",
            quarter + 1,
            estimate.price(),
            estimate.errors_away(truth)
        );
    }
    Ok(())
}
