//! A captured graph: its memory comes from the caching allocator, some of it while the stream is being captured.

use std::sync::Arc;

use anyhow::{Result, bail};
use headwater::caching::CachingAllocator;
use headwater::config::Config;
use headwater::{Allocator, Block, DeviceVec, HumanBytes, Request};
use headwater_driver::{CaptureMode, GraphExec, Stream, StreamOptions};
use serde_json::json;

use super::Stage;
use crate::output::json_line;

const WORDS: u64 = 1 << 20;
const LAUNCHES: u32 = 16;
/// What a launch leaves in the scratch memory, and adds to the sum.
const STEP: u32 = 7;

pub(super) fn run(stage: &Stage<'_>) -> Result<()> {
    let (driver, device) = (&stage.opened.driver, stage.opened.device);
    if !driver.device_properties(device)?.capabilities.capture {
        if !stage.json {
            println!("Graph: this device cannot capture streams");
        }
        return Ok(());
    }
    let caching = CachingAllocator::new(Arc::clone(driver), device, Config::default())?;
    let allocator: Arc<dyn Allocator> = caching.clone();
    let stream = driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
    let start_us = stage.clock.us();
    let sum = DeviceVec::<u32>::zeroed(Arc::clone(&allocator), WORDS as usize, stream)?;
    let copy = DeviceVec::<u32>::zeroed(Arc::clone(&allocator), WORDS as usize, stream)?;
    // The scratch block stays ours for as long as the graph exists: its address is in the graph.
    let (scratch, exec) = capture(stage, &allocator, &sum, &copy, stream)?;
    for _ in 0..LAUNCHES {
        // SAFETY: the three blocks are held until after the wait below.
        unsafe { driver.graph_launch(exec, stream)? };
    }
    driver.stream_synchronize(stream)?;
    verify("sum", &sum.to_vec(stream)?, STEP * LAUNCHES)?;
    verify("copy", &copy.to_vec(stream)?, STEP)?;
    let us = stage.clock.us() - start_us;
    driver.graph_exec_destroy(exec)?;
    drop((scratch, sum, copy));
    caching.forget_stream(stream)?;
    driver.stream_destroy(stream)?;
    let verified_bytes = 2 * 4 * WORDS;
    if stage.json {
        json_line(&json!({
            "demo": "graph",
            "allocator": caching.name(),
            "device": driver.backend(),
            "launches": LAUNCHES,
            "verified_bytes": verified_bytes,
            "us": us,
            "virtual_time": stage.clock.is_virtual(),
        }));
    } else {
        println!(
            "Graph: captured with memory asked for during the capture, launched {LAUNCHES} times: {} verified, {us:.0} {}",
            HumanBytes(verified_bytes),
            stage.clock.unit(),
        );
    }
    Ok(())
}

/// Captures: fill the scratch block, copy it out, add to the sum.
fn capture(
    stage: &Stage<'_>,
    allocator: &Arc<dyn Allocator>,
    sum: &DeviceVec<u32>,
    copy: &DeviceVec<u32>,
    stream: Stream,
) -> Result<(Block, GraphExec)> {
    let (driver, kernels) = (&stage.opened.driver, &stage.kernels);
    driver.capture_begin(stream, CaptureMode::ThreadLocal)?;
    let put_work = || -> Result<Block> {
        let scratch = Block::allocate(Arc::clone(allocator), Request::new(4 * WORDS, stream))?;
        // SAFETY: all three have `WORDS` words, do not overlap, and are held by the caller while the graph can run.
        unsafe {
            kernels.fill(scratch.ptr(), WORDS, STEP, stream)?;
            kernels.copy(copy.ptr(), scratch.ptr(), WORDS, stream)?;
            kernels.add(sum.ptr(), WORDS, STEP, stream)?;
        }
        Ok(scratch)
    };
    let put = put_work();
    // Ended in any case: a stream left in capture could not even be destroyed.
    let graph = driver.capture_end(stream);
    let (scratch, graph) = (put?, graph?);
    let exec = driver.graph_instantiate(stage.opened.device, graph)?;
    driver.graph_destroy(graph)?;
    Ok((scratch, exec))
}

fn verify(what: &str, values: &[u32], expected: u32) -> Result<()> {
    match values.iter().position(|value| *value != expected) {
        None => Ok(()),
        Some(place) => bail!("{what}: word {place} is {:#x}, expected {expected:#x}", values[place]),
    }
}
