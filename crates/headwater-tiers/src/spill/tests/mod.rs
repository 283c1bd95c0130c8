//! The engine on the simulated device.

mod closing;
mod pressure;
mod round_trips;
mod tasks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headwater::adaptors::WithFailureCallback;
use headwater::{Allocator, Block, CachingAllocator, Direct, Request};
use headwater_driver::{DeviceId, Stream, StreamOptions, Streams};
use headwater_sim::{CostModel, SimDriver, Work};

use super::*;
use crate::disk::{Compression, DiskIo, DiskOptions, IoQueue, MemoryIo};
use crate::{DiskConfig, Fraction, GpuConfig, HostConfig, Thresholds, TiersConfig};

const KIB: u64 = 1024;
const DEVICE: DeviceId = DeviceId(0);
const GPU: SpaceId = SpaceId::gpu(DEVICE);

struct Machine {
    sim: Arc<SimDriver>,
    disk: Arc<MemoryIo>,
    spill: Spill,
    stream: Stream,
}

fn patience() -> Wait {
    Wait::at_most(Duration::from_secs(30))
}

fn options() -> DiskOptions {
    DiskOptions { keep_free_bytes: 0, compression: Compression::Off, ..DiskOptions::default() }
}

fn whole() -> Thresholds {
    Thresholds {
        reservation_limit: Fraction::WHOLE,
        downgrade_trigger: Fraction::WHOLE,
        downgrade_stop: Fraction::WHOLE,
    }
}

/// A machine with blocks of 16 KiB, and a disk in memory or the given one.
fn machine_with(gpu_kib: u64, host_kib: u64, config: SpillConfig, io: Option<Arc<dyn DiskIo>>) -> Machine {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    let direct = Arc::new(Direct::new(sim.clone(), DEVICE).unwrap());
    let mut gpu = GpuConfig::new(direct, gpu_kib * KIB);
    gpu.thresholds = whole();
    let mut host = HostConfig::new(0, host_kib * KIB);
    host.thresholds = whole();
    (host.pinned.block_bytes, host.pinned.blocks_per_slab, host.pinned.initial_slabs) = (16 * KIB, 8, 1);
    let mut mount = DiskConfig::new("/", 64 << 20);
    mount.thresholds = whole();
    let tiers =
        Tiers::new(TiersConfig::default().driver(sim.clone()).gpu(gpu).host(host).disk(mount)).unwrap();
    let disk = Arc::new(MemoryIo::new(64 << 20, 1));
    let store = DiskStore::with_io(io.unwrap_or_else(|| disk.clone()), options());
    let mut config = SpillConfig { staging_blocks: 4, window_bytes: 32 * KIB, ..config };
    config.stores.insert(SpaceId::disk(0), store);
    let spill = Spill::new(tiers, config).unwrap();
    let stream = sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap();
    Machine { sim, disk, spill, stream }
}

fn machine(gpu_kib: u64, host_kib: u64, background: bool) -> Machine {
    let poll = Duration::from_millis(1);
    let deadlock_patience = Duration::from_millis(5);
    machine_with(
        gpu_kib,
        host_kib,
        SpillConfig { background, poll, deadlock_patience, ..SpillConfig::default() },
        None,
    )
}

impl Machine {
    /// Everything is given back, and no race was found.
    fn end(self) {
        let Self { sim, disk, spill, stream } = self;
        drop(spill);
        sim.stream_destroy(stream).unwrap();
        assert_eq!(disk.taken_bytes(), 0, "no room is left on the disk");
        assert!(sim.hazards().is_empty(), "{:?}", sim.hazards());
        assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    }

    fn numbers(&self, kib: u64, seed: u32) -> (SpillBuffer<u32>, Vec<u32>) {
        let values = pattern((kib * KIB / 4) as usize, seed);
        (self.spill.buffer_from_slice(&values, Tier::Gpu, DEVICE, &patience()).unwrap(), values)
    }
}

fn pattern(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9)).collect()
}
