//! Monitoring: what is in use, what it peaked at, where it lies, and a page that shows it over time.
//!
//! A small program with labelled phases runs on a caching allocator that keeps a history. Then it is looked at in four ways: a few
//! statistics by name, the summary for people, a snapshot of every segment and block, and the report page made of that
//! snapshot, which also shows what the other policies would have done with the same requests.
//!
//! `cargo run --release -p headwater --example monitoring -- [--device auto|sim|cuda] [--json] [--page FILE]`

mod shared;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use headwater::caching::snapshot::Snapshot;
use headwater::caching::{CachingAllocator, label};
use headwater::config::Config;
use headwater::{Allocator, DeviceChoice, DeviceVec, HumanBytes, Policy};
use headwater_driver::{Stream, StreamOptions};
use headwater_trace::replay::{Replay, report_on};
use headwater_trace::report::{describe_report, write_html};
use headwater_trace::snapshot::Snapshot as TorchSnapshot;
use serde_json::json;
use shared::{Common, fail_on_hazards, write_table};

/// 1000 x 1000 floats, ten of them.
const MATRIX_LEN: usize = 1000 * 1000;
const MATRICES: usize = 10;
const STEPS: usize = 8;

/// Runs a small program and shows where its memory went
#[derive(Debug, Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,

    /// Where the page goes [default: headwater-monitoring.html in the folder for temporary files]
    #[arg(long)]
    page: Option<PathBuf>,
}

fn main() -> Result<()> {
    run(&Options::parse(), &mut std::io::stdout().lock())
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let opened = options.common.open(out)?;
    let (driver, device) = (&opened.driver, opened.device);
    let stream = driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
    let config = Config::parse("history_events:65536")?;
    let caching = CachingAllocator::new(Arc::clone(driver), device, config)?;
    let allocator: Arc<dyn Allocator> = caching.clone();

    caching.reset_peaks();
    let matrices = compute(&allocator, stream)?;
    let stats = caching.stats();
    let snapshot = caching.snapshot();
    // Stops the allocator, walks everything and compares it with what is counted.
    caching.reconcile().context("the figures do not add up")?;

    let page = options.page.clone().unwrap_or_else(|| std::env::temp_dir().join("headwater-monitoring.html"));
    let described = write_page(&snapshot, &page)?;

    drop(matrices);
    // What a stream still works on cannot be returned to the driver: the last fills may not have run yet.
    driver.stream_synchronize(stream)?;
    let released_bytes = caching.empty_cache()?;
    caching.reset_peaks();
    let after = caching.stats();
    ensure!(
        after.reserved_bytes.all.current == 0 && after.reserved_bytes.all.peak == 0,
        "{} bytes are still reserved",
        after.reserved_bytes.all.current
    );

    if options.common.json {
        let line = json!({
            "example": "monitoring",
            "device": driver.backend(),
            "policy": caching.name(),
            "stats": stats.flatten(),
            "fragmentation": stats.fragmentation(),
            "segments": snapshot.segments.len(),
            "history_events": snapshot.trace.len(),
            "page": page,
            "released_bytes": released_bytes,
        });
        writeln!(out, "{line}")?;
    } else {
        let flat = stats.flatten();
        for name in ["allocated_bytes.all.current", "reserved_bytes.all.current", "allocated_bytes.all.peak"]
        {
            writeln!(out, "{name:<28} {}", HumanBytes(flat[name].unsigned_abs()))?;
        }
        let overhead =
            1.0 - flat["allocated_bytes.all.current"] as f64 / flat["reserved_bytes.all.current"] as f64;
        writeln!(out, "{:<28} {:.1} %\n", "reserved, not allocated", 100.0 * overhead)?;
        writeln!(out, "{}", stats.summary())?;
        write_segments(out, &snapshot)?;
        writeln!(out, "\n{described}\nThe page is {}: open it in a browser.", page.display())?;
        writeln!(out, "Emptying the cache gave {} back to the driver.", HumanBytes(released_bytes))?;
    }
    caching.forget_stream(stream)?;
    driver.stream_destroy(stream)?;
    fail_on_hazards(&opened)
}

/// The program that is watched: matrices that stay, and steps with temporaries of changing sizes that do not.
fn compute(allocator: &Arc<dyn Allocator>, stream: Stream) -> Result<Vec<DeviceVec<f32>>> {
    let matrices = {
        let _phase = label::scope("matrices");
        let matrix = |_| DeviceVec::zeroed(Arc::clone(allocator), MATRIX_LEN, stream);
        (0..MATRICES).map(matrix).collect::<Result<Vec<_>, _>>()?
    };
    for step in 0..STEPS {
        let _phase = label::scope(format!("step {step}"));
        let product = DeviceVec::<f32>::zeroed(Arc::clone(allocator), MATRIX_LEN * (1 + step % 3), stream)?;
        let norms = DeviceVec::<f32>::zeroed(Arc::clone(allocator), 1000 + 500 * step, stream)?;
        // Both are given back here, in the middle of the history.
        drop((product, norms));
    }
    Ok(matrices)
}

/// Every segment, and what its blocks are doing.
fn write_segments(out: &mut dyn Write, snapshot: &Snapshot) -> Result<()> {
    let rows = snapshot.segments.iter().map(|segment| {
        let free = segment.blocks.iter().filter(|block| block.state.name() == "inactive").count();
        vec![
            segment.address.to_string(),
            HumanBytes(segment.total_bytes).to_string(),
            HumanBytes(segment.allocated_bytes).to_string(),
            (segment.blocks.len() - free).to_string(),
            free.to_string(),
        ]
    });
    let header = ["segment", "bytes", "allocated", "blocks in use", "free blocks"];
    write_table(out, &header, &rows.collect::<Vec<_>>())
}

/// Makes the page of a snapshot: its history, replayed with every policy on the simulated device.
fn write_page(snapshot: &Snapshot, page: &PathBuf) -> Result<String> {
    let trace = TorchSnapshot::from_allocator(snapshot)?.to_trace("monitoring")?;
    let mut outcomes = Vec::new();
    for policy in Policy::ALL {
        let replay = Replay::new(policy).keep_timeline().keep_placement();
        outcomes.push(replay.run(&trace, &headwater::open(DeviceChoice::Sim)?)?);
    }
    let data = report_on(&trace, outcomes);
    let cannot = || format!("cannot write {}", page.display());
    write_html(&data, BufWriter::new(File::create(page).with_context(cannot)?)).with_context(cannot)?;
    Ok(describe_report(&data))
}
