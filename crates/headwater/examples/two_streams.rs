//! Two streams and `record_stream`: one brings data to the device, the other computes with it.
//!
//! Each batch is uploaded into a fresh block by the `transfer` stream. An event makes the `compute` stream wait for the upload
//! and no longer; it then works on the block for a while. The host does not wait for any of that: it says that `compute` uses
//! the block too (`record_stream`), gives the block back at once, and goes on to the next batch. The allocator hands the memory
//! out again when `compute` has finished with it, and not before.
//!
//! `--forget` leaves `record_stream` out. The next upload then overwrites what is still being read: the simulated device
//! names the race, and on a real one results are wrong, sometimes.
//!
//! `cargo run --release -p headwater --example two_streams -- [--device auto|sim|cuda] [--json] [--forget]`

mod shared;

use std::io::Write;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Parser;
use headwater::{Allocator, DeviceVec, HumanBytes, Opened, Policy};
use headwater_conformance::kernels::TestKernels;
use headwater_driver::{DevicePtr, Driver, EventOptions, Stream, StreamOptions};
use serde_json::json;
use shared::{Clock, Common, fail_on_hazards, write_table};

const BATCHES: u32 = 32;
/// Of each batch: 256 KiB.
const WORDS: u32 = 64 << 10;
/// What `compute` does with a word: it adds this, after a while.
const ADDED: u32 = 7;
const WHILE_US: u64 = 50;

/// Uploads in one stream and computes in another, with blocks that are given back at once
#[derive(Debug, Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,

    /// Leaves record_stream out, to see what it is for
    #[arg(long)]
    forget: bool,
}

/// Everything but the allocator.
struct Stage<'s> {
    opened: &'s Opened,
    kernels: TestKernels,
    transfer: Stream,
    compute: Stream,
    forget: bool,
}

fn main() -> Result<()> {
    run(&Options::parse(), &mut std::io::stdout().lock())
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let opened = options.common.open(out)?;
    let (driver, device) = (&opened.driver, opened.device);
    let stream = || driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 });
    let stage = Stage {
        opened: &opened,
        kernels: TestKernels::load(driver, device)?,
        transfer: stream()?,
        compute: stream()?,
        forget: options.forget,
    };
    let clock = Clock::of(&opened);
    let mut rows = Vec::new();
    for policy in Policy::ALL {
        let allocator = policy.build(Arc::clone(driver), device, None)?;
        let start_us = clock.us();
        let results = pipeline(&stage, &allocator)?;
        let us = clock.us() - start_us;
        let stats = allocator.stats();
        // Before the results: the simulated device knows the cause where they are wrong.
        fail_on_hazards(&opened)?;
        let wrong = results.iter().zip(0..).filter(|(result, place)| **result != expected(*place)).count();
        ensure!(wrong == 0, "{policy}: {wrong} of {} words are wrong", results.len());
        if options.common.json {
            let row = json!({
                "example": "two_streams",
                "device": driver.backend(),
                "clock": clock.name(),
                "policy": policy.name(),
                "batches": BATCHES,
                "batch_bytes": 4 * WORDS,
                "verified_words": results.len(),
                "us": us,
                "hits": stats.hits,
                "misses": stats.misses,
                "peak_live_bytes": stats.requested_bytes.all.peak,
                "peak_active_bytes": stats.active_bytes.all.peak,
                "peak_reserved_bytes": stats.reserved_bytes.all.peak,
            });
            writeln!(out, "{row}")?;
        }
        rows.push(vec![
            policy.name().to_owned(),
            format!("{us:.0} us"),
            stats.hits.to_string(),
            stats.misses.to_string(),
            HumanBytes(stats.active_bytes.all.peak).to_string(),
            HumanBytes(stats.reserved_bytes.all.peak).to_string(),
        ]);
    }
    if !options.common.json {
        let bytes = HumanBytes(4 * u64::from(WORDS));
        writeln!(
            out,
            "{BATCHES} batches of {bytes} uploaded in one stream and used in another for {WHILE_US} us, given back \
             meanwhile; every word verified; time is {}",
            clock.name()
        )?;
        write_table(out, &["policy", "time", "hits", "misses", "peak active", "peak reserved"], &rows)?;
    }
    for stream in [stage.transfer, stage.compute] {
        driver.stream_destroy(stream)?;
    }
    Ok(stage.kernels.unload()?)
}

/// The n-th word of the input, all batches together.
fn input(place: u32) -> u32 {
    place.wrapping_mul(0x9E37_79B9)
}

fn expected(place: u32) -> u32 {
    input(place).wrapping_add(ADDED)
}

/// Sends all batches through both streams; what `compute` made of them.
fn pipeline(stage: &Stage<'_>, allocator: &Arc<dyn Allocator>) -> Result<Vec<u32>> {
    let driver = &stage.opened.driver;
    let words = (BATCHES * WORDS) as usize;
    let inputs: Vec<u32> = (0..words as u32).map(input).collect();
    let results = DeviceVec::<u32>::uninit(Arc::clone(allocator), words, stage.compute)?;
    for (batch, values) in inputs.chunks_exact(WORDS as usize).enumerate() {
        let mut block = DeviceVec::<u32>::uninit(Arc::clone(allocator), values.len(), stage.transfer)?;
        // SAFETY: `inputs` stays as it is until `results` have been waited for, which are made of it. The block was asked
        // for in this stream.
        unsafe { block.copy_from_host_async(values, stage.transfer)? };
        order_after(driver, stage.compute, stage.transfer)?;
        let result = DevicePtr::new(results.ptr().raw() + batch as u64 * block.bytes());
        stage.kernels.spin(WHILE_US, stage.compute)?;
        // SAFETY: both have `WORDS` words and do not overlap. `results` outlive the work; so does the block, because
        // `compute` is recorded on it below, unless that is to be forgotten to see what happens.
        unsafe {
            stage.kernels.copy(result, block.ptr(), u64::from(WORDS), stage.compute)?;
            stage.kernels.add(result, u64::from(WORDS), ADDED, stage.compute)?;
        }
        if !stage.forget {
            block.record_stream(stage.compute)?;
        }
        // The block is given back here, while both streams still have all of their work before them.
    }
    Ok(results.to_vec(stage.compute)?)
}

/// Makes later work in `stream` wait for what `earlier` has been given by now.
fn order_after(driver: &Arc<dyn Driver>, stream: Stream, earlier: Stream) -> Result<()> {
    let event = driver.event_create(earlier.device(), EventOptions::default())?;
    driver.event_record(event, earlier)?;
    driver.stream_wait_event(stream, event)?;
    // A wait that is queued outlives its event.
    Ok(driver.event_destroy(event)?)
}
