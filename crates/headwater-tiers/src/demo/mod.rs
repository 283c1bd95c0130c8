//! A working set larger than the GPU, worked through to the right answer: what `headwater demo --tiers` shows.
//!
//! Buffers of 32-bit words, three times as many as the GPU space holds. Buffer `i` is filled with `i`, and every pass adds the pass's
//! number to all words of all buffers, on the GPU; so data moves down and up all the time. At the end every word of every
//! buffer is read back on the host and compared.

mod svg;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater::{Allocator, HumanBytes};
use headwater_driver::{Driver, Kernel, KernelArg, LaunchShape, Module};

use crate::disk::DiskOptions;
use crate::error::TierError;
use crate::manager::{Tiers, TiersConfig};
use crate::space::{DiskConfig, GpuConfig, HostConfig, StreamPolicy};
use crate::spill::{Spill, SpillBuffer, SpillConfig, SpillFigures};
use crate::thresholds::{Fraction, Thresholds};
use crate::tier::SpaceId;

/// Device code with `hw_add`; the simulated device knows a kernel of that name.
const ADD_PTX: &[u8] = include_bytes!("add.ptx");

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
        }
    }
}

/// How much was where at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoRow {
    /// What had just been done.
    pub what: String,
    /// Since the beginning, by the host's clock.
    pub elapsed: Duration,
    /// Spillable bytes by tier: GPU, HOST, DISK.
    pub bytes_by_tier: [u64; 3],
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DemoReport {
    /// What the GPU space holds.
    pub gpu_bytes: u64,
    /// All buffers together.
    pub working_set_bytes: u64,
    /// One row a step.
    pub rows: Vec<DemoRow>,
    /// Words compared at the end.
    pub words_checked: u64,
    /// Words that were not what they must be: none.
    pub words_wrong: u64,
    /// How the disk was reached.
    pub disk: String,
    /// What the engine counted.
    pub figures: SpillFigures,
    /// How long it all took.
    pub elapsed: Duration,
}

impl DemoReport {
    /// Bytes by tier over time, as a picture.
    pub fn svg(&self) -> String {
        svg::draw(self)
    }

    /// The outcome in a sentence.
    pub fn summary(&self) -> String {
        format!(
            "{} worked through on a GPU space of {}: {} words checked, {} wrong",
            HumanBytes(self.working_set_bytes),
            HumanBytes(self.gpu_bytes),
            self.words_checked,
            self.words_wrong,
        )
    }
}

/// Works through a set of buffers larger than the GPU space, on the device of `allocator`.
///
/// # Errors
/// Those of the tiers; [`TierError::Driver`] where the device cannot load the kernel.
pub fn working_set(allocator: &Arc<dyn Allocator>, sizes: &DemoSizes) -> Result<DemoReport, TierError> {
    let begun = Instant::now();
    let spill = engine(allocator, sizes)?;
    let (driver, device) = (allocator.driver().clone(), allocator.device());
    let adder = Adder::load(&driver, allocator)?;
    let stream = spill.tiers().space(SpaceId::gpu(device))?.acquire_stream(&StreamPolicy::Grow)?;
    let stream = stream.stream();
    let task = spill.task(0);
    let mut rows = Vec::new();
    let mut note = |what: String| {
        rows.push(DemoRow { what, elapsed: begun.elapsed(), bytes_by_tier: spill.figures().bytes_by_tier });
    };

    let words = sizes.buffer_bytes / 4;
    let count = (sizes.gpu_bytes * sizes.times_gpu).div_ceil(sizes.buffer_bytes.max(4));
    let mut buffers: Vec<SpillBuffer<u32>> = Vec::new();
    note("begin".into());
    for index in 0..count {
        let buffer = spill.buffer(words as usize, device, &task.wait())?;
        let access = buffer.write_on_gpu(stream, &task.wait())?;
        // SAFETY: the access keeps the block where it is, and the stream is ordered after its other users.
        unsafe { driver.fill_words(access.ptr(), index as u32, words, stream)? };
        drop(access);
        buffers.push(buffer);
        note(format!("fill buffer {index}"));
    }
    for pass in 1..=sizes.passes {
        for (index, buffer) in buffers.iter().enumerate() {
            let access = buffer.write_on_gpu(stream, &task.wait())?;
            adder.add(access.ptr(), words, pass, stream)?;
            drop(access);
            note(format!("pass {pass}, buffer {index}"));
        }
    }
    let added = (1..=sizes.passes).sum::<u32>();
    let (mut words_checked, mut words_wrong) = (0, 0);
    for (index, buffer) in buffers.iter().enumerate() {
        let values = buffer.read_on_host(&task.wait())?.to_vec()?;
        words_checked += values.len() as u64;
        words_wrong += values.iter().filter(|value| **value != index as u32 + added).count() as u64;
        note(format!("check buffer {index}"));
    }
    let figures = spill.figures();
    drop(buffers);
    note("end".into());
    let disk = spill.store(SpaceId::disk(0)).map_or_else(String::new, |store| store.describe().to_string());
    Ok(DemoReport {
        gpu_bytes: sizes.gpu_bytes,
        working_set_bytes: count * sizes.buffer_bytes,
        rows,
        words_checked,
        words_wrong,
        disk,
        figures,
        elapsed: begun.elapsed(),
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
    let staging_blocks = 8;
    let mut host = HostConfig::new(0, 0);
    host.pinned.blocks_per_slab = 16;
    host.pinned.initial_slabs = 1;
    host.capacity_bytes = sizes.host_bytes + staging_blocks as u64 * host.pinned.block_bytes;
    host.thresholds = thresholds;
    let mut disk = DiskConfig::new(&sizes.directory, sizes.gpu_bytes.saturating_mul(sizes.times_gpu + 1));
    disk.thresholds.reservation_limit = Fraction::WHOLE;
    disk.options = DiskOptions { keep_free_bytes: 64 << 20, ..DiskOptions::default() };
    let tiers = TiersConfig::default().driver(allocator.driver().clone()).gpu(gpu).host(host).disk(disk);
    Spill::new(Tiers::new(tiers)?, SpillConfig { staging_blocks, ..SpillConfig::default() })
}

/// The kernel, unloaded at the end.
struct Adder {
    driver: Arc<dyn Driver>,
    module: Module,
    kernel: Kernel,
}

impl Adder {
    fn load(driver: &Arc<dyn Driver>, allocator: &Arc<dyn Allocator>) -> Result<Self, TierError> {
        let module = driver.module_load(allocator.device(), ADD_PTX)?;
        match driver.kernel_get(module, "hw_add") {
            Ok(kernel) => Ok(Self { driver: driver.clone(), module, kernel }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = driver.module_unload(module);
                Err(error.into())
            }
        }
    }

    fn add(
        &self,
        ptr: headwater_driver::DevicePtr,
        words: u64,
        value: u32,
        stream: headwater_driver::Stream,
    ) -> Result<(), TierError> {
        let args = [KernelArg::Ptr(ptr), KernelArg::U64(words), KernelArg::U32(value)];
        // SAFETY: the arguments are the kernel's, and the caller's access keeps the block where it is until a move or another
        // access, both of which wait for this launch.
        unsafe { self.driver.kernel_launch(self.kernel, LaunchShape::for_elements(words), &args, stream)? };
        Ok(())
    }
}

impl Drop for Adder {
    fn drop(&mut self) {
        // A lost device refuses, and then there is nothing left to unload.
        let _ = self.driver.module_unload(self.module);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use headwater::CachingAllocator;
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
        let report = working_set(&allocator, &sizes).unwrap();
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
    }
}
