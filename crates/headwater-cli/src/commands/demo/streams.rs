//! Several streams: what one fills, two others read late, after it was given back.
//!
//! Each round takes a block on the producer's stream, fills it, and lets both readers copy it after a pause. The block is
//! given back at once, while the readers still wait. Memory that were handed out again too early would be overwritten by a
//! later round before it is read, and the copies would show it.

use std::sync::Arc;

use anyhow::{Result, bail};
use headwater::caching::CachingAllocator;
use headwater::config::Config;
use headwater::{Allocator, Block, DeviceVec, HumanBytes, Request};
use headwater_driver::{DevicePtr, EventOptions, Stream, StreamOptions};
use serde_json::json;

use super::Stage;
use crate::output::json_line;

const ROUNDS: u32 = 64;
const READERS: usize = 2;
const WORDS: u64 = 64 << 10;
/// How long a reader sleeps before it copies.
const PAUSE_US: u64 = 50;

pub(super) fn run(stage: &Stage<'_>) -> Result<()> {
    let (driver, device) = (&stage.opened.driver, stage.opened.device);
    let caching = CachingAllocator::new(Arc::clone(driver), device, Config::default())?;
    let allocator: Arc<dyn Allocator> = caching.clone();
    let start_us = stage.clock.us();
    let mut streams = Vec::new();
    for _ in 0..=READERS {
        streams.push(driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?);
    }
    let (producer, readers) = (streams[0], &streams[1..]);
    let mut copies = Vec::new();
    for reader in readers {
        copies.push(DeviceVec::<u32>::uninit(Arc::clone(&allocator), copied_words(), *reader)?);
    }
    for round in 0..ROUNDS {
        let block = Block::allocate(Arc::clone(&allocator), Request::new(4 * WORDS, producer))?;
        produce_and_read(stage, &block, producer, readers, &copies, round)?;
        // Given back here, before anybody has read it.
    }
    let verified_words = verify(&copies)?;
    drop(copies);
    let us = stage.clock.us() - start_us;
    let stats = caching.stats();
    if let Err(defect) = caching.verify() {
        bail!("the allocator's books are wrong: {defect}");
    }
    for stream in streams {
        caching.forget_stream(stream)?;
        driver.stream_destroy(stream)?;
    }
    let peak_reserved_bytes = stats.reserved_bytes.all.peak;
    if stage.json {
        json_line(&json!({
            "demo": "streams",
            "allocator": caching.name(),
            "device": driver.backend(),
            "streams": READERS + 1,
            "rounds": ROUNDS,
            "verified_bytes": 4 * verified_words,
            "hits": stats.hits,
            "misses": stats.misses,
            "peak_reserved_bytes": peak_reserved_bytes,
            "us": us,
            "virtual_time": stage.clock.is_virtual(),
        }));
    } else {
        println!(
            "Streams: {ROUNDS} blocks of {} given back while {READERS} other streams still read them: {} verified, \
             {} reserved at most, {us:.0} {}",
            HumanBytes(4 * WORDS),
            HumanBytes(4 * verified_words),
            HumanBytes(peak_reserved_bytes),
            stage.clock.unit(),
        );
    }
    Ok(())
}

fn produce_and_read(
    stage: &Stage<'_>,
    block: &Block,
    producer: Stream,
    readers: &[Stream],
    copies: &[DeviceVec<u32>],
    round: u32,
) -> Result<()> {
    let (driver, kernels) = (&stage.opened.driver, &stage.kernels);
    let filled = driver.event_create(stage.opened.device, EventOptions::default())?;
    // SAFETY: the block has `WORDS` words; it was asked for on this stream, and what comes after is ordered below.
    unsafe { kernels.fill(block.ptr(), WORDS, value_of(round), producer)? };
    driver.event_record(filled, producer)?;
    for (reader, copy) in readers.iter().zip(copies) {
        driver.stream_wait_event(*reader, filled)?;
        kernels.spin(PAUSE_US, *reader)?;
        let target = DevicePtr::new(copy.ptr().raw() + 4 * WORDS * u64::from(round));
        // SAFETY: the copy has a place of `WORDS` words for each round, which only this stream writes; the block is
        // recorded on the stream, so it is not handed out again before this has run.
        unsafe { kernels.copy(target, block.ptr(), WORDS, *reader)? };
        block.record_stream(*reader)?;
    }
    driver.event_destroy(filled)?;
    Ok(())
}

/// Compares every word of every copy, and says how many there were.
fn verify(copies: &[DeviceVec<u32>]) -> Result<u64> {
    let mut verified_words = 0;
    for copy in copies {
        let values = copy.to_vec(copy.block().stream())?;
        for (round, part) in (0..ROUNDS).zip(values.chunks(WORDS as usize)) {
            let expected = value_of(round);
            if let Some(place) = part.iter().position(|value| *value != expected) {
                bail!("round {round}: word {place} is {:#x}, expected {expected:#x}", part[place]);
            }
            verified_words += part.len() as u64;
        }
    }
    Ok(verified_words)
}

fn copied_words() -> usize {
    (WORDS * u64::from(ROUNDS)) as usize
}

fn value_of(round: u32) -> u32 {
    0x5354_0000 + round
}
