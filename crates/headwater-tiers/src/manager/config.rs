//! How the tiers of a machine are set up.

use std::sync::Arc;

use headwater::Allocator;
use headwater_driver::{DeviceId, Driver};

use super::topology::Topology;
use crate::clock::{Clock, SystemClock};
use crate::error::TierError;
use crate::host::Placement;
use crate::space::{DiskConfig, GpuConfig, HostConfig};
use crate::thresholds::Fraction;

/// How many younger requests may pass a waiting one.
pub const PASSES_MAX_DEFAULT: u32 = 16;

/// How many requests may wait.
pub const WAITERS_MAX_DEFAULT: usize = 4096;

/// The spaces of a machine and the rules of the queue.
#[derive(Clone, Debug)]
pub struct TiersConfig {
    /// Pins host memory; needed where there are HOST spaces. GPU spaces use their allocator's.
    pub driver: Option<Arc<dyn Driver>>,
    /// The GPU spaces.
    pub gpus: Vec<GpuConfig>,
    /// The HOST spaces.
    pub hosts: Vec<HostConfig>,
    /// The DISK spaces; their numbers are their places here.
    pub disks: Vec<DiskConfig>,
    /// How many younger requests may pass a waiting one before it holds them up. Zero is strict order.
    pub passes_max: u32,
    /// How many requests may wait.
    pub waiters_max: usize,
    /// Where the time for deadlines comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for TiersConfig {
    fn default() -> Self {
        Self {
            driver: None,
            gpus: Vec::new(),
            hosts: Vec::new(),
            disks: Vec::new(),
            passes_max: PASSES_MAX_DEFAULT,
            waiters_max: WAITERS_MAX_DEFAULT,
            clock: Arc::new(SystemClock),
        }
    }
}

impl TiersConfig {
    /// The spaces of a machine as it was found. `allocator_of` makes the allocator of each GPU; `gpu_share` of a device,
    /// `host_share` of a node and `disk_share` of what is free on a mount become capacities.
    ///
    /// # Errors
    /// Those of `allocator_of`.
    pub fn from_topology(
        driver: Arc<dyn Driver>,
        topology: &Topology,
        shares: Shares,
        allocator_of: impl Fn(DeviceId) -> Result<Arc<dyn Allocator>, TierError>,
    ) -> Result<Self, TierError> {
        let mut config = Self { driver: Some(driver), ..Self::default() };
        for place in &topology.gpus {
            let mut gpu = GpuConfig::new(allocator_of(place.device)?, shares.gpu.of(place.total_bytes));
            gpu.numa_node = place.numa_node;
            config.gpus.push(gpu);
        }
        let has_several_nodes = topology.nodes.len() > 1;
        for place in &topology.nodes {
            let mut host = HostConfig::new(place.node, shares.host.of(place.total_bytes));
            if has_several_nodes {
                host.pinned.placement = Placement::PreferNode;
            }
            config.hosts.push(host);
        }
        for place in &topology.mounts {
            config.disks.push(DiskConfig::new(&place.path, shares.disk.of(place.free_bytes)));
        }
        Ok(config)
    }

    /// The same, with a driver.
    #[must_use]
    pub fn driver(mut self, driver: Arc<dyn Driver>) -> Self {
        self.driver = Some(driver);
        self
    }

    /// The same, with another GPU space.
    #[must_use]
    pub fn gpu(mut self, gpu: GpuConfig) -> Self {
        self.gpus.push(gpu);
        self
    }

    /// The same, with another HOST space.
    #[must_use]
    pub fn host(mut self, host: HostConfig) -> Self {
        self.hosts.push(host);
        self
    }

    /// The same, with another DISK space.
    #[must_use]
    pub fn disk(mut self, disk: DiskConfig) -> Self {
        self.disks.push(disk);
        self
    }
}

/// How much of a machine becomes tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of a device's memory. The rest is for contexts, other programs and what allocators round.
    pub gpu: Fraction,
    /// Of a node's memory. Pinned memory cannot be swapped, so much must stay.
    pub host: Fraction,
    /// Of what is free on a mount.
    pub disk: Fraction,
}

impl Default for Shares {
    fn default() -> Self {
        Self { gpu: Fraction::percent(95), host: Fraction::percent(50), disk: Fraction::percent(90) }
    }
}
