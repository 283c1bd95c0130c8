//! Buffers: allocate, fill, copy back and verify, with and without a cache.

use std::sync::Arc;

use anyhow::{Result, bail};
use headwater::caching::CachingAllocator;
use headwater::config::Config;
use headwater::{Allocator, DeviceVec, Direct, HumanBytes};
use headwater_driver::{Stream, StreamOptions};
use serde_json::json;

use super::Stage;
use crate::output::{json_line, table};

const SIZES_BYTES: [u64; 4] = [4 << 10, 1 << 20, 16 << 20, 256 << 20];

/// What each word holds in the end: a fill of the first, and an addition of the second.
const FILLED: u32 = 0x4857_0000;
const ADDED: u32 = 42;

/// One size with one allocator: microseconds for each step.
struct Row {
    allocator: &'static str,
    bytes: u64,
    allocate_us: f64,
    kernels_us: f64,
    copy_back_us: f64,
    give_back_us: f64,
}

pub(super) fn run(stage: &Stage<'_>) -> Result<()> {
    let (driver, device) = (&stage.opened.driver, stage.opened.device);
    let direct: Arc<dyn Allocator> = Arc::new(Direct::new(Arc::clone(driver), device)?);
    let caching: Arc<dyn Allocator> = CachingAllocator::new(Arc::clone(driver), device, Config::default())?;
    let stream = driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
    let mut rows = Vec::new();
    for bytes in SIZES_BYTES {
        rows.push(measure("direct", &direct, stage, stream, bytes)?);
        // The first time fills the cache; the second is what a program sees from then on.
        measure("caching", &caching, stage, stream, bytes)?;
        rows.push(measure("caching", &caching, stage, stream, bytes)?);
    }
    // An allocator that is dropped may still ask something of the stream.
    drop((direct, caching));
    driver.stream_destroy(stream)?;
    if stage.json {
        rows.iter().for_each(|row| json_line(&row_json(stage, row)));
    } else {
        print_rows(stage, &rows);
    }
    Ok(())
}

fn measure(
    name: &'static str,
    allocator: &Arc<dyn Allocator>,
    stage: &Stage<'_>,
    stream: Stream,
    bytes: u64,
) -> Result<Row> {
    let (clock, kernels) = (&stage.clock, &stage.kernels);
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
        allocator: name,
        bytes,
        allocate_us: allocated - start,
        kernels_us: computed - allocated,
        copy_back_us: copied - computed,
        give_back_us: end - verified,
    })
}

fn print_rows(stage: &Stage<'_>, rows: &[Row]) {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let us = [row.allocate_us, row.kernels_us, row.copy_back_us, row.give_back_us];
            let us = us.map(|us| format!("{us:.1}"));
            [format!("{}, {}", HumanBytes(row.bytes), row.allocator)]
                .into_iter()
                .chain(us)
                .chain(["every word".to_owned()])
                .collect()
        })
        .collect();
    println!(
        "Buffers, {}{}:",
        stage.clock.unit(),
        if stage.clock.is_virtual() { " (driver and device alone)" } else { "" }
    );
    println!(
        "{}\n",
        table(&["buffer", "allocate", "two kernels", "copy back", "give back", "verified"], &rows)
    );
}

fn row_json(stage: &Stage<'_>, row: &Row) -> serde_json::Value {
    json!({
        "demo": "buffers",
        "allocator": row.allocator,
        "device": stage.opened.driver.backend(),
        "bytes": row.bytes,
        "allocate_us": row.allocate_us,
        "kernels_us": row.kernels_us,
        "copy_back_us": row.copy_back_us,
        "give_back_us": row.give_back_us,
        "verified": true,
        "virtual_time": stage.clock.is_virtual(),
    })
}
