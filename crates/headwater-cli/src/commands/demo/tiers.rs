//! `headwater demo --tiers`: more data than the GPU holds, worked through to the right answer.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use headwater::config::Config;
use headwater::{Allocator, CachingAllocator, HumanBytes, Opened};
use headwater_conformance::kernels::TestKernels;
use headwater_tiers::Spill;
use headwater_tiers::demo::{DemoReport, DemoRow, DemoSizes, Phase, Watcher, working_set};
use headwater_tiers::metrics::{MetricsEndpoint, metrics_address};
use headwater_tiers::spill::Route;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::args::{DemoOptions, TiersOptions};
use crate::output::{grouped, json_line, table};

/// Buffers in the GPU space.
const BUFFERS: u64 = 16;

pub(super) fn run(options: &DemoOptions, opened: &Opened) -> Result<()> {
    let json = options.common.json;
    let engine = Arc::new(OnceLock::new());
    let endpoint =
        options.tiers.metrics.as_deref().map(|address| serve(address, engine.clone())).transpose()?;
    if let Some(endpoint) = &endpoint {
        // Not on standard output, which may be read by a program.
        eprintln!("figures: http://{}/metrics", endpoint.address());
    }
    let caching = CachingAllocator::new(opened.driver.clone(), opened.device, Config::default())?;
    let allocator: Arc<dyn Allocator> = caching;
    let kernels = TestKernels::load(&opened.driver, opened.device)?;
    // SAFETY: the demonstration has pinned the words for this work.
    let add = |ptr, words, value, stream| unsafe { kernels.add(ptr, words, value, stream) };
    let watched = Watched { begun: Instant::now(), bar: bar(), engine };
    let report = working_set(&allocator, &sizes(&options.tiers), &add, &watched)?;
    watched.bar.finish_and_clear();
    let page = options.output.clone().unwrap_or_else(|| "headwater-tiers.html".into());
    write(&report, &page)?;
    if json {
        print_json(opened, &report, &page)
    } else {
        print_text(opened, &report, &page)
    }
    if endpoint.is_some() {
        std::thread::sleep(Duration::from_secs(options.tiers.serve_for));
    }
    // The endpoint first: it may be asking the engine, which is gone with the last of both.
    drop((endpoint, watched));
    kernels.unload()?;
    match report.words_wrong {
        0 => Ok(()),
        wrong => bail!("{wrong} of {} words came back wrong", report.words_checked),
    }
}

fn sizes(options: &TiersOptions) -> DemoSizes {
    let mut sizes = DemoSizes::default();
    if let Some(limit) = options.limit {
        (sizes.gpu_bytes, sizes.host_bytes) = (limit.0, limit.0);
    }
    sizes.buffer_bytes = (sizes.gpu_bytes / BUFFERS) & !3;
    if let Some(folder) = &options.spill_to {
        sizes.directory.clone_from(folder);
    }
    sizes
}

/// Shows how far it is, and knows the engine for those who ask.
struct Watched {
    begun: Instant,
    bar: ProgressBar,
    engine: Arc<OnceLock<Spill>>,
}

impl Watcher for Watched {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn begun(&self, spill: &Spill) {
        // Called once; a second engine would not be shown.
        let _ = self.engine.set(spill.clone());
    }

    fn stepped(&self, row: &DemoRow, step: u64, steps: u64) {
        self.bar.set_length(steps);
        self.bar.set_position(step);
        let [gpu, host, disk] = row.bytes_by_tier.map(HumanBytes);
        self.bar.set_message(format!("{}: GPU {gpu}, HOST {host}, DISK {disk}", row.phase));
    }
}

/// On standard error, where that is a terminal; nothing elsewhere.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    match ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg:56}") {
        Ok(style) => bar.with_style(style),
        // The template is fixed; without it the bar has another look, which is no reason to fail.
        Err(_) => bar,
    }
}

fn serve(address: &str, engine: Arc<OnceLock<Spill>>) -> Result<MetricsEndpoint> {
    let text = move || engine.get().map_or_else(String::new, Spill::prometheus_text);
    Ok(MetricsEndpoint::serve(metrics_address(address)?, text)?)
}

fn write(report: &DemoReport, path: &Path) -> Result<()> {
    let is_picture = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    let text = if is_picture { report.svg() } else { report.html() };
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn print_text(opened: &Opened, report: &DemoReport, page: &Path) {
    println!("{}, on {} ({})\n", report.summary(), opened.driver.backend(), opened.why);
    let mut rows = Vec::new();
    let last_of_each =
        report.rows.chunk_by(|one, next| one.phase == next.phase).filter_map(<[DemoRow]>::last);
    for row in last_of_each.filter(|row| row.phase != Phase::Begin) {
        let [gpu, host, disk] = row.bytes_by_tier.map(|bytes| HumanBytes(bytes).to_string());
        let seconds = format!("{:.2}", row.elapsed.as_secs_f64());
        rows.push(vec![row.phase.to_string(), seconds, gpu, host, disk]);
    }
    println!("{}\n", table(&["after", "seconds", "GPU", "HOST", "DISK"], &rows));
    let moved = |route: &Route| {
        let figures = report.figures.route(*route);
        (figures.moves > 0).then(|| {
            let [moves, called_off] = [figures.moves, figures.cancelled].map(grouped);
            vec![route.name().to_owned(), moves, HumanBytes(figures.bytes).to_string(), called_off]
        })
    };
    let rows: Vec<Vec<String>> = Route::ALL.iter().filter_map(moved).collect();
    println!("{}\n", table(&["route", "moves", "bytes", "called off"], &rows));
    println!("Disk: {}.", report.disk);
    println!("Bytes by tier over time: {}, for your browser.", page.display());
}

fn print_json(opened: &Opened, report: &DemoReport, page: &Path) {
    for row in &report.rows {
        let [gpu_bytes, host_bytes, disk_bytes] = row.bytes_by_tier;
        json_line(&json!({
            "demo": "tiers",
            "step": row.what(),
            "seconds": row.elapsed.as_secs_f64(),
            "gpu_bytes": gpu_bytes,
            "host_bytes": host_bytes,
            "disk_bytes": disk_bytes,
        }));
    }
    let route = |route: &Route| {
        let figures = report.figures.route(*route);
        let seconds = figures.time.as_secs_f64();
        let value = json!({
            "moves": figures.moves, "bytes": figures.bytes, "seconds": seconds,
            "cancelled": figures.cancelled, "failed": figures.failed,
        });
        (route.name().to_owned(), value)
    };
    json_line(&json!({
        "demo": "tiers",
        "device": opened.driver.backend(),
        "gpu_bytes": report.gpu_bytes,
        "working_set_bytes": report.working_set_bytes,
        "words_checked": report.words_checked,
        "words_wrong": report.words_wrong,
        "seconds": report.elapsed.as_secs_f64(),
        "routes": Route::ALL.iter().map(route).collect::<serde_json::Map<_, _>>(),
        "disk": report.disk,
        "report": page,
    }));
}
