//! Allocation and reuse: the same matrix asked for twice, with and without a cache.
//!
//! A matrix of 1000 x 1000 doubles is asked for, written and changed by kernels, compared on the host and given back; then the
//! same again. Without a cache both requests are driver calls. With one, the second is answered from the first's memory: no
//! driver call, and (with one block given back, and nothing asked for between) the same address.
//!
//! `cargo run --release -p headwater --example allocation_reuse -- [--device auto|sim|cuda] [--json]`

mod shared;

use std::io::Write;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use headwater::{Allocator, DeviceVec, HumanBytes, Opened, Policy};
use headwater_conformance::kernels::TestKernels;
use headwater_driver::{DevicePtr, Stream, StreamOptions};
use serde_json::json;
use shared::{Clock, Common, fail_on_hazards, write_table};

/// 1000 x 1000 doubles.
const MATRIX_BYTES: u64 = 1000 * 1000 * 8;
/// What the kernels leave in every word: a fill, and an addition to it.
const FILLED: u32 = 1_000_000;
const ADDED: u32 = 7;

/// Asks for the same matrix twice, with and without a cache
#[derive(Debug, Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
}

/// One matrix: where it was, and what asking for it and giving it back took.
struct Use {
    ptr: DevicePtr,
    request_us: f64,
    request_calls: u64,
    give_back_us: f64,
}

fn main() -> Result<()> {
    run(&Options::parse(), &mut std::io::stdout().lock())
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let opened = options.common.open(out)?;
    let (driver, device) = (&opened.driver, opened.device);
    let kernels = TestKernels::load(driver, device)?;
    let stream = driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
    let clock = Clock::of(&opened);
    let mut rows = Vec::new();
    for policy in Policy::ALL {
        let allocator = policy.build(Arc::clone(driver), device, None)?;
        let first = use_matrix(&allocator, &kernels, stream, &clock)?;
        let second = use_matrix(&allocator, &kernels, stream, &clock)?;
        if policy != Policy::Direct {
            ensure!(second.request_calls == 0, "{policy}: {} driver calls for a hit", second.request_calls);
            ensure!(second.ptr == first.ptr, "{policy}: {} instead of {}", second.ptr, first.ptr);
        }
        let stats = allocator.stats();
        let cached_bytes = stats.cached_bytes();
        let released_bytes = allocator.empty_cache()?;
        ensure!(
            released_bytes == cached_bytes,
            "{policy}: {released_bytes} of {cached_bytes} bytes released"
        );
        if options.common.json {
            let row = json!({
                "example": "allocation_reuse",
                "device": driver.backend(),
                "clock": clock.name(),
                "policy": policy.name(),
                "bytes": MATRIX_BYTES,
                "first_request_us": first.request_us,
                "first_request_driver_calls": first.request_calls,
                "second_request_us": second.request_us,
                "second_request_driver_calls": second.request_calls,
                "give_back_us": second.give_back_us,
                "same_address": second.ptr == first.ptr,
                "cached_bytes": cached_bytes,
                "verified": true,
            });
            writeln!(out, "{row}")?;
        }
        rows.push(vec![
            policy.name().to_owned(),
            format!("{:.1} us, {} calls", first.request_us, first.request_calls),
            format!("{:.1} us, {} calls", second.request_us, second.request_calls),
            format!("{:.1} us", second.give_back_us),
            if second.ptr == first.ptr { "yes" } else { "no" }.to_owned(),
            HumanBytes(cached_bytes).to_string(),
        ]);
    }
    if !options.common.json {
        writeln!(out, "{} twice, every word verified; time is {}", HumanBytes(MATRIX_BYTES), clock.name())?;
        let header =
            ["policy", "first request", "second request", "give back", "same address", "cached then"];
        write_table(out, &header, &rows)?;
    }
    finish(&opened, kernels, stream)
}

/// Asks for a matrix, computes in it, compares it, and gives it back.
fn use_matrix(
    allocator: &Arc<dyn Allocator>,
    kernels: &TestKernels,
    stream: Stream,
    clock: &Clock,
) -> Result<Use> {
    let (driver, words) = (allocator.driver(), MATRIX_BYTES / 4);
    let (calls_before, start_us) = (driver.call_counts(), clock.us());
    let matrix = DeviceVec::<u32>::uninit(Arc::clone(allocator), words as usize, stream)?;
    let request_us = clock.us() - start_us;
    let request_calls = driver.call_counts().since(&calls_before).total();
    let ptr = matrix.ptr();
    // SAFETY: the matrix has `words` words, lives past the wait in `to_vec`, and only this stream touches it.
    unsafe {
        kernels.fill(ptr, words, FILLED, stream)?;
        kernels.add(ptr, words, ADDED, stream)?;
    }
    let values = matrix.to_vec(stream)?;
    if let Some(place) = values.iter().position(|value| *value != FILLED + ADDED) {
        bail!("word {place} is {}, expected {}", values[place], FILLED + ADDED);
    }
    let start_us = clock.us();
    drop(matrix);
    Ok(Use { ptr, request_us, request_calls, give_back_us: clock.us() - start_us })
}

fn finish(opened: &Opened, kernels: TestKernels, stream: Stream) -> Result<()> {
    opened.driver.stream_destroy(stream)?;
    kernels.unload()?;
    fail_on_hazards(opened)
}
