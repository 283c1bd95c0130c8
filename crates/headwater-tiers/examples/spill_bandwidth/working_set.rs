//! Three times the GPU limit, worked through to the right answer, and how far that is from what the bus and the disk allow.

use std::sync::Arc;
use std::time::Duration;

use headwater::config::Config;
use headwater::{Allocator, CachingAllocator, HumanBytes};
use headwater_tiers::demo::{DemoReport, DemoSizes, Watcher, working_set};
use serde_json::json;

use crate::copies::RawCopies;
use crate::disks::RawDisk;
use crate::setting::{Failure, Setting};

impl Watcher for Setting {
    fn now(&self) -> Duration {
        self.now()
    }
}

pub(crate) fn measure(setting: &Setting, raw: RawCopies, disk: RawDisk) -> Result<(), Failure> {
    let gpu_bytes = 2 * setting.bytes;
    let sizes = DemoSizes {
        gpu_bytes,
        host_bytes: 4 * gpu_bytes,
        directory: setting.directory.clone(),
        buffer_bytes: gpu_bytes / 32,
        block_bytes: setting.block_bytes,
        passes: 3,
        ..DemoSizes::default()
    };
    run(setting, "3 x GPU, HOST holds all", &sizes, raw, disk)?;
    let gpu_bytes = setting.bytes;
    // A third on each tier: two thirds of the set go to the disk and back in every pass.
    let sizes = DemoSizes {
        gpu_bytes,
        host_bytes: gpu_bytes,
        buffer_bytes: gpu_bytes / 16,
        passes: if setting.is_simulated() { 1 } else { 2 },
        ..sizes
    };
    run(setting, "3 x GPU, DISK too", &sizes, raw, disk)
}

fn run(
    setting: &Setting,
    what: &str,
    sizes: &DemoSizes,
    raw: RawCopies,
    disk: RawDisk,
) -> Result<(), Failure> {
    let opened = &setting.opened;
    let allocator: Arc<dyn Allocator> =
        CachingAllocator::new(opened.driver.clone(), opened.device, Config::default())?;
    // SAFETY: the demonstration has pinned the words for this work.
    let add = |ptr, words, value, stream| unsafe { setting.kernels.add(ptr, words, value, stream) };
    let report = working_set(&allocator, sizes, &add, setting)?;
    if report.words_wrong > 0 {
        return Err(report.summary().into());
    }
    let passes = &report.passes;
    let (down, up) = (passes.down_bytes as f64 / 1e9, passes.up_bytes as f64 / 1e9);
    // Each way cannot be faster than one way alone, and both together not than both ways at once.
    // (On the simulated device the bus has a clock of its own, and the disk has not: only the bus is compared.)
    let bus = (down / raw.down).max(up / raw.up).max((down + up) / raw.both);
    let device = passes.written_bytes as f64 / 1e9 / disk.write + passes.read_bytes as f64 / 1e9 / disk.read;
    let bound_s = if setting.is_simulated() { bus } else { bus.max(device) };
    tell(setting, what, &report, bound_s);
    Ok(())
}

fn tell(setting: &Setting, what: &str, report: &DemoReport, bound_s: f64) {
    let passes = &report.passes;
    let took_s = passes.elapsed.as_secs_f64();
    setting.say(&format!(
        "\n{what}: {}\n  passes moved {} down and {} up, {} to disk and {} from it, in {took_s:.3} s; the bandwidth bound is {bound_s:.3} s ({:.0} %)",
        report.summary(),
        HumanBytes(passes.down_bytes),
        HumanBytes(passes.up_bytes),
        HumanBytes(passes.written_bytes),
        HumanBytes(passes.read_bytes),
        100.0 * bound_s / took_s,
    ));
    setting.print_json(&json!({
        "what": what, "gpu_bytes": report.gpu_bytes, "working_set_bytes": report.working_set_bytes,
        "words_checked": report.words_checked, "words_wrong": report.words_wrong,
        "down_bytes": passes.down_bytes, "up_bytes": passes.up_bytes, "written_bytes": passes.written_bytes,
        "read_bytes": passes.read_bytes, "seconds": took_s, "bound_seconds": bound_s, "share": bound_s / took_s,
    }));
}
