//! `headwater demo`: allocate, fill, copy back and verify, with timings.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use headwater::{Allocator, DeviceVec, Direct, HumanBytes, Opened};
use headwater_conformance::kernels::TestKernels;
use headwater_driver::{Stream, StreamOptions};
use serde_json::json;

use crate::args::Common;
use crate::output::{json_line, table};

const SIZES_BYTES: [u64; 4] = [4 << 10, 1 << 20, 16 << 20, 256 << 20];

/// What each word holds in the end: a fill of the first, and an addition of the second.
const FILLED: u32 = 0x4857_0000;
const ADDED: u32 = 42;

/// The device's own time: virtual on the simulated device, real otherwise.
enum Clock<'o> {
    Virtual(&'o headwater_sim::SimDriver),
    Real(Instant),
}

impl Clock<'_> {
    fn us(&self) -> f64 {
        match self {
            Self::Virtual(sim) => sim.now_ns() as f64 / 1e3,
            Self::Real(start) => start.elapsed().as_secs_f64() * 1e6,
        }
    }
}

/// One size: microseconds for each step.
struct Row {
    bytes: u64,
    allocate_us: f64,
    kernels_us: f64,
    copy_back_us: f64,
    give_back_us: f64,
}

pub(crate) fn run(options: &Common) -> Result<()> {
    let opened = headwater::open(options.device)?;
    let properties = opened.driver.device_properties(opened.device)?;
    if !options.json {
        println!("{} on {} ({})\n", opened.driver.backend(), properties.name, opened.why);
    }
    let clock = match &opened.sim {
        Some(sim) => Clock::Virtual(sim),
        None => Clock::Real(Instant::now()),
    };
    let rows = measure(&opened, &clock)?;
    if options.json {
        rows.iter().for_each(|row| json_line(&row_json(&opened, row)));
    } else {
        print_rows(&opened, &rows);
    }
    report_hazards(&opened)
}

fn measure(opened: &Opened, clock: &Clock<'_>) -> Result<Vec<Row>> {
    let allocator: Arc<dyn Allocator> = Arc::new(Direct::new(opened.driver.clone(), opened.device)?);
    let stream =
        opened.driver.stream_create(opened.device, StreamOptions { non_blocking: true, priority: 0 })?;
    let kernels = TestKernels::load(&opened.driver, opened.device)?;
    let rows: Result<Vec<Row>> =
        SIZES_BYTES.iter().map(|bytes| measure_size(&allocator, &kernels, stream, *bytes, clock)).collect();
    kernels.unload()?;
    opened.driver.stream_destroy(stream)?;
    rows
}

fn measure_size(
    allocator: &Arc<dyn Allocator>,
    kernels: &TestKernels,
    stream: Stream,
    bytes: u64,
    clock: &Clock<'_>,
) -> Result<Row> {
    let words = bytes / 4;
    let start = clock.us();
    let buffer = DeviceVec::<u32>::uninit(Arc::clone(allocator), words as usize, stream)?;
    let allocated = clock.us();
    // SAFETY: the buffer has `words` words and lives past the wait below; only this stream touches it.
    unsafe {
        kernels.fill(buffer.ptr(), words, FILLED, stream)?;
        kernels.add(buffer.ptr(), words, ADDED, stream)?;
    }
    allocator.driver().stream_synchronize(stream)?;
    let computed = clock.us();
    let values = buffer.to_vec(stream)?;
    let copied = clock.us();
    if let Some(place) = values.iter().position(|value| *value != FILLED + ADDED) {
        bail!("word {place} of {words} is {:#x}, expected {:#x}", values[place], FILLED + ADDED);
    }
    let verified = clock.us();
    drop(buffer);
    let end = clock.us();
    Ok(Row {
        bytes,
        allocate_us: allocated - start,
        kernels_us: computed - allocated,
        copy_back_us: copied - computed,
        give_back_us: end - verified,
    })
}

fn print_rows(opened: &Opened, rows: &[Row]) {
    let clock = if opened.sim.is_some() { "virtual us" } else { "us" };
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let us = [row.allocate_us, row.kernels_us, row.copy_back_us, row.give_back_us];
            let us = us.map(|us| format!("{us:.1}"));
            [HumanBytes(row.bytes).to_string()]
                .into_iter()
                .chain(us)
                .chain(["every word".to_owned()])
                .collect()
        })
        .collect();
    println!("direct allocator, {clock}");
    println!("{}", table(&["size", "allocate", "two kernels", "copy back", "give back", "verified"], &rows));
}

fn row_json(opened: &Opened, row: &Row) -> serde_json::Value {
    json!({
        "allocator": "direct",
        "device": opened.driver.backend(),
        "bytes": row.bytes,
        "allocate_us": row.allocate_us,
        "kernels_us": row.kernels_us,
        "copy_back_us": row.copy_back_us,
        "give_back_us": row.give_back_us,
        "verified": true,
        "virtual_time": opened.sim.is_some(),
    })
}

/// The simulated device knows of mistakes that the values do not show.
fn report_hazards(opened: &Opened) -> Result<()> {
    let Some(sim) = &opened.sim else { return Ok(()) };
    match sim.hazards().first() {
        None => Ok(()),
        Some(hazard) => bail!("the simulated device found a hazard: {hazard}"),
    }
}
