//! What all measurements share: options, device, clock, engine, and how results are told.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use headwater::config::Config;
use headwater::{CachingAllocator, DeviceChoice, Opened};
use headwater_conformance::kernels::TestKernels;
use headwater_driver::{DevicePtr, Stream, StreamOptions};
use headwater_tiers::disk::{Compression, DiskOptions};
use headwater_tiers::{
    DiskConfig, Fraction, GpuConfig, HostConfig, Spill, SpillConfig, Thresholds, Tiers, TiersConfig, Wait,
};
use serde_json::json;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The words that are filled with one number, each piece with another: a piece in the wrong place is noticed.
const PIECE_WORDS: u64 = 256 << 10;

pub(crate) struct Setting {
    pub(crate) opened: Opened,
    pub(crate) kernels: TestKernels,
    pub(crate) directory: PathBuf,
    /// What one move moves.
    pub(crate) bytes: u64,
    /// The size of pinned blocks, and so of disk transfers.
    pub(crate) block_bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) disk_rounds: usize,
    json: bool,
    begun: Instant,
}

/// Speeds in GB/s.
pub(crate) struct Compared {
    pub(crate) what: &'static str,
    pub(crate) raw: f64,
    pub(crate) tiers: f64,
    /// The least share of raw that is to be reached.
    pub(crate) target: f64,
}

impl Setting {
    pub(crate) fn from_arguments() -> Result<Self, Failure> {
        let (mut device, mut directory, mut mib) = (DeviceChoice::Auto, std::env::temp_dir(), None);
        let (mut block_mib, mut rounds, mut disk_rounds, mut json) = (2, 9, 5, false);
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            if flag == "--json" {
                json = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--device" => device = value.parse()?,
                "--mib" => mib = Some(value.parse::<u64>()?),
                "--block-mib" => block_mib = value.parse::<u64>()?,
                "--rounds" => rounds = value.parse()?,
                "--disk-rounds" => disk_rounds = value.parse()?,
                "--directory" => directory = value.into(),
                _ => {
                    let known = "--device, --mib, --block-mib, --rounds, --disk-rounds, --directory, --json";
                    return Err(format!("unknown option {flag}: {known}").into());
                }
            }
        }
        let opened = headwater::open(device)?;
        // The simulated device copies on the host, a hundred times slower than it says.
        let mib = mib.unwrap_or(if opened.sim.is_some() { 256 } else { 1024 }).max(block_mib);
        let kernels = TestKernels::load(&opened.driver, opened.device)?;
        Ok(Self {
            opened,
            kernels,
            directory,
            bytes: mib << 20,
            block_bytes: block_mib.max(1) << 20,
            rounds: rounds.max(1),
            disk_rounds: disk_rounds.max(1),
            json,
            begun: Instant::now(),
        })
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.opened.sim.is_some()
    }

    /// The clock that the copies run on.
    pub(crate) fn now(&self) -> Duration {
        match &self.opened.sim {
            Some(sim) => Duration::from_nanos(sim.now_ns()),
            None => self.begun.elapsed(),
        }
    }

    pub(crate) fn stream(&self) -> Result<Stream, Failure> {
        let options = StreamOptions { non_blocking: true, priority: 0 };
        Ok(self.opened.driver.stream_create(self.opened.device, options)?)
    }

    pub(crate) fn patience() -> Wait {
        Wait::at_most(Duration::from_secs(600))
    }

    /// How long `act` takes on the copies' clock.
    pub(crate) fn time(&self, act: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
        let begun = self.now();
        act()?;
        Ok((self.now() - begun).as_secs_f64())
    }

    /// An engine that moves only what it is told to.
    pub(crate) fn engine(&self, gpu_bytes: u64, host_bytes: u64) -> Result<Spill, Failure> {
        let marks = Thresholds {
            reservation_limit: Fraction::WHOLE,
            downgrade_trigger: Fraction::WHOLE,
            downgrade_stop: Fraction::WHOLE,
        };
        let opened = &self.opened;
        let allocator = CachingAllocator::new(opened.driver.clone(), opened.device, Config::default())?;
        let mut gpu = GpuConfig::new(allocator, gpu_bytes);
        gpu.thresholds = marks;
        let config = SpillConfig { background: false, ..SpillConfig::default() };
        let host_bytes = host_bytes + config.staging_blocks as u64 * self.block_bytes;
        let mut host = HostConfig::new(0, host_bytes);
        host.thresholds = marks;
        host.pinned.block_bytes = self.block_bytes;
        host.pinned.blocks_per_slab = 128;
        host.pinned.initial_slabs = u32::try_from(host_bytes.div_ceil(128 * self.block_bytes))?;
        let mut disk = DiskConfig::new(&self.directory, 4 * self.bytes);
        // What is not compressed can be compared with raw transfers.
        disk.options = DiskOptions {
            compression: Compression::Off,
            keep_free_bytes: 64 << 20,
            ..DiskOptions::default()
        };
        let tiers = TiersConfig::default().driver(opened.driver.clone()).gpu(gpu).host(host).disk(disk);
        Ok(Spill::new(Tiers::new(tiers)?, config)?)
    }

    /// Fills `bytes` at `ptr` with numbers that tell every piece from the others.
    ///
    /// # Safety
    /// The range is allocated, and nobody else uses it until the stream is done.
    pub(crate) unsafe fn fill(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        seed: u32,
        stream: Stream,
    ) -> Result<(), Failure> {
        for (piece, at) in (0..bytes / 4).step_by(PIECE_WORDS as usize).enumerate() {
            let words = PIECE_WORDS.min(bytes / 4 - at);
            let there = DevicePtr::new(ptr.raw() + 4 * at);
            // SAFETY: the piece lies in the range.
            unsafe { self.kernels.fill(there, words, seed + piece as u32, stream)? };
        }
        Ok(())
    }

    /// Fails where a word is not what [`fill`](Self::fill) made it.
    ///
    /// # Safety
    /// As [`fill`](Self::fill).
    pub(crate) unsafe fn check(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        seed: u32,
        stream: Stream,
    ) -> Result<(), Failure> {
        let (driver, device) = (&self.opened.driver, self.opened.device);
        let wrong = driver.mem_alloc(device, 256)?;
        let mut count = [0_u8; 4];
        let counted = || -> Result<(), Failure> {
            // SAFETY: the counter is ours, and the stream is waited for below.
            unsafe { driver.fill_words(wrong, 0, 1, stream)? };
            for (piece, at) in (0..bytes / 4).step_by(PIECE_WORDS as usize).enumerate() {
                let words = PIECE_WORDS.min(bytes / 4 - at);
                let there = DevicePtr::new(ptr.raw() + 4 * at);
                // SAFETY: the piece lies in the range, and the counter outside of it.
                unsafe { self.kernels.check(there, words, seed + piece as u32, wrong, stream)? };
            }
            // SAFETY: four bytes there and here, and the stream is waited for.
            unsafe { driver.copy_to_host(count.as_mut_ptr(), wrong, 4, stream)? };
            Ok(driver.stream_synchronize(stream)?)
        }();
        driver.mem_free(device, wrong)?;
        counted?;
        match u32::from_ne_bytes(count) {
            0 => Ok(()),
            wrong => Err(format!("{wrong} words of {} came back wrong", bytes / 4).into()),
        }
    }

    pub(crate) fn print_head(&self) -> Result<(), Failure> {
        let (driver, device) = (&self.opened.driver, self.opened.device);
        let name = driver.device_properties(device)?.name;
        if self.json {
            println!("{}", json!({ "device": driver.backend(), "name": name, "why": self.opened.why }));
        } else {
            println!("{} on {name}: {}", driver.backend(), self.opened.why);
        }
        Ok(())
    }

    /// The head of a table, or a remark.
    pub(crate) fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    pub(crate) fn print(&self, row: &Compared) {
        let share = row.tiers / row.raw;
        if self.json {
            println!(
                "{}",
                json!({ "what": row.what, "raw_gb_s": row.raw, "tiers_gb_s": row.tiers, "share": share,
                    "target": row.target, "met": share >= row.target, "virtual_time": self.is_simulated() })
            );
        } else {
            let met = if share >= row.target { "met" } else { "not met" };
            println!(
                "{:<22} {:>9.2} {:>9.2} {:>8.1} %   {:.0} % {met}",
                row.what,
                row.raw,
                row.tiers,
                100.0 * share,
                100.0 * row.target
            );
        }
    }

    pub(crate) fn print_json(&self, value: &serde_json::Value) {
        if self.json {
            println!("{value}");
        }
    }

    /// The simulated device knows of mistakes that the values do not show.
    pub(crate) fn report_hazards(&self) -> Result<(), Failure> {
        let Some(sim) = &self.opened.sim else { return Ok(()) };
        sim.hazards().first().map_or(Ok(()), |hazard| Err(format!("hazard: {hazard}").into()))
    }
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
