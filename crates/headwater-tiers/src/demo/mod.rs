//! A working set larger than the GPU, worked through to the right answer: what `headwater demo --tiers` shows.
//!
//! Buffers of 32-bit words, three times as many as the GPU space holds. Buffer `i` is filled with `i`, and every pass adds the pass's
//! number to all words of all buffers, on the GPU; so data moves down and up all the time. At the end every word of every
//! buffer is read back on the host and compared.

mod page;
mod report;
mod svg;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater::Allocator;
use headwater_driver::{DevicePtr, Stream};

pub use report::{DemoPasses, DemoReport, DemoRow, Phase};

use crate::disk::DiskOptions;
use crate::error::TierError;
use crate::manager::{Tiers, TiersConfig};
use crate::space::{DiskConfig, GpuConfig, HostConfig, StreamPolicy};
use crate::spill::{Spill, SpillBuffer, SpillConfig};
use crate::thresholds::{Fraction, Thresholds};
use crate::tier::SpaceId;

/// The work: adds a value to so many 32-bit words at an address, in a stream. Called only while the words are pinned on the
/// stream's device for this work alone.
pub type Add<'a> = dyn Fn(DevicePtr, u64, u32, Stream) -> headwater_driver::Result<()> + 'a;

/// Somebody who looks on.
pub trait Watcher {
    /// The time, from any beginning. A simulated device has its own.
    fn now(&self) -> Duration;

    /// The engine has been made.
    fn begun(&self, _spill: &Spill) {}

    /// A step has been done, the `step`-th of `steps`.
    fn stepped(&self, _row: &DemoRow, _step: u64, _steps: u64) {}
}

/// Nobody looks on; the host's clock.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched(Instant);

impl Default for Unwatched {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Watcher for Unwatched {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// How large the demonstration is.
#[derive(Clone, Debug)]
pub struct DemoSizes {
    /// What the GPU space holds.
    pub gpu_bytes: u64,
    /// What the HOST space holds, staging blocks not counted.
    pub host_bytes: u64,
    /// Where the rest goes.
    pub directory: PathBuf,
    /// The size of one buffer.
    pub buffer_bytes: u64,
    /// All buffers together, as a multiple of the GPU space.
    pub times_gpu: u64,
    /// How often all buffers are worked through.
    pub passes: u32,
    /// The size of pinned blocks.
    pub block_bytes: u64,
}

impl Default for DemoSizes {
    fn default() -> Self {
        Self {
            gpu_bytes: 32 << 20,
            host_bytes: 32 << 20,
            directory: std::env::temp_dir(),
            buffer_bytes: 2 << 20,
            times_gpu: 3,
            passes: 3,
            block_bytes: 1 << 20,
        }
    }
}

/// Works through a set of buffers larger than the GPU space, on the device of `allocator`.
///
/// # Errors
/// Those of the tiers; [`TierError::Driver`] where `add` fails; [`TierError::BadSetting`] for buffers that hold no word or that the
/// GPU space has no room for two of.
pub fn working_set(
    allocator: &Arc<dyn Allocator>,
    sizes: &DemoSizes,
    add: &Add<'_>,
    watcher: &dyn Watcher,
) -> Result<DemoReport, TierError> {
    if sizes.buffer_bytes < 4 || sizes.buffer_bytes > sizes.gpu_bytes / 2 {
        let why = format!("{} is not between a word and half of the GPU space", sizes.buffer_bytes);
        return Err(TierError::bad_setting("buffer_bytes", why));
    }
    let spill = engine(allocator, sizes)?;
    watcher.begun(&spill);
    let (driver, device) = (allocator.driver().clone(), allocator.device());
    let stream = spill.tiers().space(SpaceId::gpu(device))?.acquire_stream(&StreamPolicy::Grow)?;
    let stream = stream.stream();
    let task = spill.task(0);
    let words = sizes.buffer_bytes / 4;
    let count = (sizes.gpu_bytes * sizes.times_gpu).div_ceil(sizes.buffer_bytes);
    let begun = watcher.now();
    let steps = 2 + count * (2 + u64::from(sizes.passes));
    let mut rows = Vec::new();
    let mut note = |phase: Phase, buffer: Option<u64>| {
        let elapsed = watcher.now().saturating_sub(begun);
        let row = DemoRow { phase, buffer, elapsed, bytes_by_tier: spill.figures().bytes_by_tier };
        watcher.stepped(&row, rows.len() as u64 + 1, steps);
        rows.push(row);
    };

    let mut buffers: Vec<SpillBuffer<u32>> = Vec::new();
    note(Phase::Begin, None);
    for index in 0..count {
        let buffer = spill.buffer(words as usize, device, &task.wait())?;
        let access = buffer.write_on_gpu(stream, &task.wait())?;
        // SAFETY: the access keeps the block where it is, and the stream is ordered after its other users.
        unsafe { driver.fill_words(access.ptr(), index as u32, words, stream)? };
        drop(access);
        buffers.push(buffer);
        note(Phase::Fill, Some(index));
    }
    driver.stream_synchronize(stream)?;
    let (before, passes_begun) = (spill.figures(), watcher.now());
    for pass in 1..=sizes.passes {
        for (index, buffer) in buffers.iter().enumerate() {
            let access = buffer.write_on_gpu(stream, &task.wait())?;
            add(access.ptr(), words, pass, stream)?;
            drop(access);
            note(Phase::Pass(pass), Some(index as u64));
        }
    }
    driver.stream_synchronize(stream)?;
    let passes = DemoPasses::between(&before, &spill.figures(), watcher.now().saturating_sub(passes_begun));
    let added = (1..=sizes.passes).sum::<u32>();
    let (mut words_checked, mut words_wrong) = (0, 0);
    for (index, buffer) in buffers.iter().enumerate() {
        let values = buffer.read_on_host(&task.wait())?.to_vec()?;
        words_checked += values.len() as u64;
        words_wrong += values.iter().filter(|value| **value != index as u32 + added).count() as u64;
        note(Phase::Check, Some(index as u64));
    }
    let figures = spill.figures();
    drop(buffers);
    note(Phase::End, None);
    let disk = spill.store(SpaceId::disk(0)).map_or_else(String::new, |store| store.describe().to_string());
    Ok(DemoReport {
        gpu_bytes: sizes.gpu_bytes,
        working_set_bytes: count * sizes.buffer_bytes,
        rows,
        words_checked,
        words_wrong,
        disk,
        figures,
        passes,
        elapsed: watcher.now().saturating_sub(begun),
    })
}

fn engine(allocator: &Arc<dyn Allocator>, sizes: &DemoSizes) -> Result<Spill, TierError> {
    let thresholds = Thresholds {
        reservation_limit: Fraction::WHOLE,
        downgrade_trigger: Fraction::percent(90),
        downgrade_stop: Fraction::percent(75),
    };
    let mut gpu = GpuConfig::new(allocator.clone(), sizes.gpu_bytes);
    gpu.thresholds = thresholds;
    let staging_blocks = (sizes.host_bytes / sizes.block_bytes.max(1) / 4).clamp(8, 64) as usize;
    let mut host = HostConfig::new(0, sizes.host_bytes + staging_blocks as u64 * sizes.block_bytes);
    host.pinned.block_bytes = sizes.block_bytes;
    // Pinning is slow (0.4 s a GiB, measured on an H200): all of it is there before the first step.
    let blocks = host.capacity_bytes.div_ceil(sizes.block_bytes);
    host.pinned.blocks_per_slab = u32::try_from(blocks).unwrap_or(u32::MAX).clamp(1, 128);
    host.pinned.initial_slabs =
        u32::try_from(blocks.div_ceil(u64::from(host.pinned.blocks_per_slab))).unwrap_or(u32::MAX);
    host.thresholds = thresholds;
    let mut disk = DiskConfig::new(&sizes.directory, sizes.gpu_bytes.saturating_mul(sizes.times_gpu + 1));
    disk.thresholds.reservation_limit = Fraction::WHOLE;
    disk.options = DiskOptions { keep_free_bytes: 64 << 20, ..DiskOptions::default() };
    let tiers = TiersConfig::default().driver(allocator.driver().clone()).gpu(gpu).host(host).disk(disk);
    Spill::new(Tiers::new(tiers)?, SpillConfig { staging_blocks, ..SpillConfig::default() })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use headwater::CachingAllocator;
    use headwater_conformance::kernels::TestKernels;
    use headwater_driver::DeviceId;
    use headwater_sim::SimDriver;

    use super::*;

    #[test]
    fn three_times_the_gpu_comes_out_right_and_makes_a_picture() {
        let sim = SimDriver::new();
        let caching =
            CachingAllocator::new(sim.clone(), DeviceId(0), headwater::config::Config::default()).unwrap();
        let allocator: Arc<dyn Allocator> = caching;
        let sizes = DemoSizes { gpu_bytes: 8 << 20, host_bytes: 4 << 20, passes: 2, ..DemoSizes::default() };
        let kernels = TestKernels::load(allocator.driver(), DeviceId(0)).unwrap();
        // SAFETY: the demonstration has pinned the words for this work.
        let add = |ptr, words, value, stream| unsafe { kernels.add(ptr, words, value, stream) };
        let report = working_set(&allocator, &sizes, &add, &Unwatched::default()).unwrap();
        assert_eq!((report.words_checked, report.words_wrong), (6 << 20, 0), "{}", report.summary());
        assert!(report.rows.iter().all(|row| row.bytes_by_tier[0] <= sizes.gpu_bytes));
        assert!(
            report.rows.iter().any(|row| row.bytes_by_tier[2] > 0),
            "some of it was on disk: {:?}",
            report.figures
        );
        assert!(sim.hazards().is_empty(), "{:?}", sim.hazards());
        let svg = report.svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<polygon").count(), 3);
        for phase in ["fill", "pass 1", "pass 2", "check"] {
            assert!(svg.contains(&format!(">{phase}</text>")), "{phase} in {svg}");
        }
        let page = report.html();
        assert!(page.contains(&svg) && page.contains("gpu_to_host"), "{page}");
    }
}
