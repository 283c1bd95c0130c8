//! Two streams of kernels, alone and while data moves both ways.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headwater_driver::{DevicePtr, Stream};
use headwater_tiers::{Spill, SpillBuffer, Tier};
use serde_json::json;

use crate::setting::{Failure, Setting, median};

/// What one kernel works on: some 30 us of an H200's memory.
const KERNEL_BYTES: u64 = 64 << 20;
/// Kernels queued in each stream before the host waits.
const BATCH: u32 = 64;

struct Computing<'a> {
    setting: &'a Setting,
    streams: [Stream; 2],
    memory: [DevicePtr; 2],
    words: u64,
    launched: u32,
}

impl<'a> Computing<'a> {
    fn new(setting: &'a Setting) -> Result<Self, Failure> {
        let (driver, device) = (&setting.opened.driver, setting.opened.device);
        let bytes = if setting.is_simulated() { 1 << 20 } else { KERNEL_BYTES };
        let memory = [driver.mem_alloc(device, bytes)?, driver.mem_alloc(device, bytes)?];
        let streams = [setting.stream()?, setting.stream()?];
        for (ptr, stream) in memory.iter().zip(streams) {
            // SAFETY: the memory is ours, and used in this stream only.
            unsafe { driver.fill_bytes(*ptr, 0, bytes, stream)? };
        }
        Ok(Self { setting, streams, memory, words: bytes / 4, launched: 0 })
    }

    /// Kernels a second and stream, for about as long as `span`.
    fn rate(&mut self, span: Duration) -> Result<f64, Failure> {
        let (begun, mut kernels) = (Instant::now(), 0);
        while kernels == 0 || begun.elapsed() < span {
            for _ in 0..BATCH {
                for (ptr, stream) in self.memory.iter().zip(self.streams) {
                    // SAFETY: the memory is ours, and used in this stream only.
                    unsafe { self.setting.kernels.add(*ptr, self.words, 1, stream)? };
                }
            }
            for stream in self.streams {
                self.setting.opened.driver.stream_synchronize(stream)?;
            }
            (kernels, self.launched) = (kernels + BATCH, self.launched + BATCH);
        }
        Ok(f64::from(kernels) / begun.elapsed().as_secs_f64())
    }

    /// Every kernel has run, once: the words have counted them.
    fn end(self) -> Result<(), Failure> {
        let (driver, device) = (&self.setting.opened.driver, self.setting.opened.device);
        for (ptr, stream) in self.memory.iter().zip(self.streams) {
            let mut first = [0_u8; 4];
            // SAFETY: four bytes there and here, and the stream is waited for.
            unsafe { driver.copy_to_host(first.as_mut_ptr(), *ptr, 4, stream)? };
            driver.stream_synchronize(stream)?;
            if u32::from_ne_bytes(first) != self.launched {
                return Err(format!("{} kernels counted {:?}", self.launched, first).into());
            }
            driver.mem_free(device, *ptr)?;
            driver.stream_destroy(stream)?;
        }
        Ok(())
    }
}

/// Moves a buffer down and up, over and over.
fn keep_moving(
    setting: &Setting,
    spill: &Spill,
    stop: &AtomicBool,
    moved: &AtomicU64,
) -> Result<(), Failure> {
    let (patience, device) = (Setting::patience(), setting.opened.device);
    let stream = setting.stream()?;
    let buffer: SpillBuffer<u8> = spill.buffer(setting.bytes as usize, device, &patience)?;
    while !stop.load(Ordering::Relaxed) {
        buffer.spill_to(Tier::Host, &patience)?;
        drop(buffer.read_on_gpu(stream, &patience)?);
        setting.opened.driver.stream_synchronize(stream)?;
        moved.fetch_add(2 * setting.bytes, Ordering::Relaxed);
    }
    drop(buffer);
    Ok(setting.opened.driver.stream_destroy(stream)?)
}

pub(crate) fn measure(setting: &Setting) -> Result<(), Failure> {
    let mut computing = Computing::new(setting)?;
    let spill = setting.engine(3 * setting.bytes, 3 * setting.bytes)?;
    let span = Duration::from_millis(300);
    computing.rate(span / 3)?;
    let (mut alone, mut beside, mut speeds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        alone.push(computing.rate(span)?);
        let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| -> Result<(), Failure> {
            // Two movers: while one goes down the other goes up.
            let moving = [0, 1].map(|_| scope.spawn(|| keep_moving(setting, &spill, &stop, &moved)));
            // The first turns make room, and are not what is measured.
            let warm_bytes = 8 * setting.bytes;
            while moved.load(Ordering::Relaxed) < warm_bytes
                && !moving.iter().any(|mover| mover.is_finished())
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (before, begun) = (moved.load(Ordering::Relaxed), Instant::now());
            let rate = computing.rate(span);
            let moved_bytes = moved.load(Ordering::Relaxed) - before;
            speeds.push(moved_bytes as f64 / begun.elapsed().as_secs_f64() / 1e9);
            stop.store(true, Ordering::Relaxed);
            for mover in moving {
                mover.join().map_err(|_| "a mover panicked")??;
            }
            beside.push(rate?);
            Ok(())
        })?;
    }
    computing.end()?;
    let (alone, beside, speed) = (median(alone), median(beside), median(speeds));
    if setting.is_simulated() {
        // Its kernels and copies are made by the host's processors: how fast says nothing.
        setting.say("\nTwo streams of compute: every kernel ran once, alone and while data moved");
    } else {
        setting.say(&format!(
            "\nTwo streams of compute: {alone:.0} kernels a second each alone, {beside:.0} while data moved at {speed:.1} GB/s ({:.1} %)",
            100.0 * beside / alone
        ));
    }
    setting.print_json(&json!({
        "what": "compute while moving", "kernels_per_s_alone": alone, "kernels_per_s_moving": beside,
        "moving_gb_s": speed, "share": beside / alone, "simulated": setting.is_simulated(),
    }));
    Ok(())
}
