//! A small machine for spill tests: a GPU of half a MiB, as much host memory, and a disk in memory that can fail.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use headwater::Direct;
use headwater_driver::{Call, DeviceId};
use headwater_sim::{CostModel, FaultPlan, SimDriver};
use headwater_tiers::disk::{Compression, DiskFaults, DiskOptions, DiskStore, MemoryIo};
use headwater_tiers::{
    DiskConfig, Fraction, GpuConfig, HostConfig, SpaceId, Spill, SpillConfig, Thresholds, TierError, Tiers,
    TiersConfig,
};

pub(crate) const KIB: u64 = 1024;
pub(crate) const DEVICE: DeviceId = DeviceId(0);
pub(crate) const GPU: SpaceId = SpaceId::gpu(DEVICE);
pub(crate) const GPU_BYTES: u64 = 512 * KIB;

pub(crate) struct Machine {
    pub(crate) sim: Arc<SimDriver>,
    pub(crate) disk: Arc<MemoryIo>,
    pub(crate) spill: Spill,
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Self {
        let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
        let thresholds = Thresholds {
            reservation_limit: Fraction::WHOLE,
            downgrade_trigger: Fraction::percent(90),
            downgrade_stop: Fraction::percent(70),
        };
        let direct = Arc::new(Direct::new(sim.clone(), DEVICE).unwrap());
        let mut gpu = GpuConfig::new(direct, GPU_BYTES);
        gpu.thresholds = thresholds;
        let mut host = HostConfig::new(0, 512 * KIB);
        host.thresholds = thresholds;
        (host.pinned.block_bytes, host.pinned.blocks_per_slab, host.pinned.initial_slabs) = (8 * KIB, 8, 1);
        let mut mount = DiskConfig::new("/", 64 << 20);
        mount.thresholds.reservation_limit = Fraction::WHOLE;
        let tiers = TiersConfig::default().driver(sim.clone()).gpu(gpu).host(host).disk(mount);
        let disk = Arc::new(MemoryIo::new(64 << 20, seed));
        let options =
            DiskOptions { keep_free_bytes: 0, compression: Compression::Measured, ..DiskOptions::default() };
        let mut config = SpillConfig {
            poll: Duration::from_millis(1),
            deadlock_patience: Duration::from_millis(3),
            staging_blocks: 8,
            window_bytes: 16 * KIB,
            ..SpillConfig::default()
        };
        config.stores.insert(SpaceId::disk(0), DiskStore::with_io(disk.clone(), options));
        Self { spill: Spill::new(Tiers::new(tiers).unwrap(), config).unwrap(), sim, disk }
    }

    /// Two in a hundred driver calls and disk operations fail from now on.
    pub(crate) fn fail_some(&self, seed: u64) {
        // Freeing is left out: a block that the driver refuses to take back is the allocator's to return later.
        let failing = [
            Call::MemAlloc,
            Call::HostAlloc,
            Call::CopyToDevice,
            Call::CopyToHost,
            Call::FillBytes,
            Call::StreamCreate,
            Call::StreamWaitEvent,
            Call::StreamSynchronize,
            Call::EventCreate,
            Call::EventRecord,
            Call::EventQuery,
            Call::EventSynchronize,
        ];
        self.sim.set_faults(FaultPlan::none().fail_share(0.02, seed).only(&failing));
        self.disk.set_faults(DiskFaults::every(0.02));
    }

    /// Everything was returned, nothing is left, and no race was found.
    pub(crate) fn end(self, seed: u64) {
        self.sim.set_faults(FaultPlan::none());
        self.disk.set_faults(DiskFaults::default());
        let Self { sim, disk, spill } = self;
        let figures = spill.figures();
        assert_eq!((figures.tasks, figures.waiting, figures.moves_in_flight), (0, 0, 0), "seed {seed}");
        let tiers = spill.tiers().clone();
        drop(spill);
        for space in tiers.spaces() {
            assert_eq!(space.usage().used_bytes(), 0, "seed {seed}: {}", space.id());
            assert!(space.usage().used_bytes_peak <= space.capacity_bytes(), "seed {seed}: {}", space.id());
        }
        drop(tiers);
        assert_eq!(disk.taken_bytes(), 0, "seed {seed}");
        assert!(sim.hazards().is_empty(), "seed {seed}: {:?}", sim.hazards());
        assert!(sim.leaks().is_empty(), "seed {seed}: {:?}", sim.leaks());
    }
}

/// A small generator, so that a failing seed is the same program again.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// Errors that a machine on which everything can fail may answer with. A wait that ran out is none: it would be a hang.
pub(crate) fn is_expected(error: &TierError) -> bool {
    matches!(
        error,
        TierError::Cancelled
            | TierError::RollBack { .. }
            | TierError::SplitWork { .. }
            | TierError::GaveUp { .. }
            | TierError::Disk(_)
            | TierError::Driver(_)
            | TierError::Alloc(_)
            | TierError::OutOfMemory { .. }
    )
}

/// The seeds of a run: `usual` of them, or those that `HEADWATER_SEEDS` names (`5` or `1..200`).
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let Ok(named) = std::env::var("HEADWATER_SEEDS") else { return 1..1 + usual };
    let number =
        |text: &str| text.parse::<u64>().expect("HEADWATER_SEEDS is a number or two with .. between");
    match named.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&named)..number(&named) + 1,
    }
}
