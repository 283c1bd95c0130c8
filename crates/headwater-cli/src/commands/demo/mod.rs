//! `headwater demo`: the main job in one minute.
//!
//! A real trace is replayed with every policy and shown on a page; then memory is used on the chosen device: buffers, several
//! streams, a captured graph. Every byte that comes back is compared. With `--tiers` it is about spill instead.

mod buffers;
mod clock;
mod graph;
mod streams;
mod tiers;
mod trace;

use anyhow::{Result, bail};
use headwater::Opened;
use headwater_conformance::kernels::TestKernels;

use crate::args::DemoOptions;
use clock::Clock;

/// The device that the demo uses, and what it needs on it.
struct Stage<'o> {
    opened: &'o Opened,
    kernels: TestKernels,
    clock: Clock<'o>,
    json: bool,
}

pub(crate) fn run(options: &DemoOptions) -> Result<()> {
    let opened = headwater::open(options.common.device)?;
    let json = options.common.json;
    if options.tiers.tiers {
        tiers::run(options, &opened)?;
        return report_hazards(&opened);
    }
    trace::run(options, &opened)?;
    if !json {
        let properties = opened.driver.device_properties(opened.device)?;
        println!("\nUsing memory: {} on {} ({})\n", opened.driver.backend(), properties.name, opened.why);
    }
    let kernels = TestKernels::load(&opened.driver, opened.device)?;
    let stage = Stage { opened: &opened, kernels, clock: Clock::of(&opened), json };
    buffers::run(&stage)?;
    streams::run(&stage)?;
    graph::run(&stage)?;
    stage.kernels.unload()?;
    report_hazards(&opened)
}

/// The simulated device knows of mistakes that the values do not show.
fn report_hazards(opened: &Opened) -> Result<()> {
    let Some(sim) = &opened.sim else { return Ok(()) };
    match sim.hazards().first() {
        None => Ok(()),
        Some(hazard) => bail!("the simulated device found a hazard: {hazard}"),
    }
}
