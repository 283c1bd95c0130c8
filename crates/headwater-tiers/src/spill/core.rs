//! What all spillable data of one engine shares.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use headwater_driver::{DeviceId, Driver, Stream};
use parking_lot::Mutex;

use super::config::SpillConfig;
use super::copy_streams::CopyStreams;
use super::metrics::{Counters, SpillFigures};
use super::node::Node;
use super::staging::Staging;
use super::tasks::Tasks;
use crate::disk::DiskStore;
use crate::error::TierError;
use crate::host::uses::Events;
use crate::manager::Tiers;
use crate::reservation::OverPolicy;
use crate::space::{NotificationChannel, Notifier, Space};
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;
use headwater_driver::capture_guard::relaxed;

/// How often a stream is asked to finish before its device counts as lost.
const SETTLE_ATTEMPTS: u32 = 8;

/// How many requests to move something up can be waiting.
const PREFETCHES_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) tiers: Tiers,
    pub(crate) config: SpillConfig,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) events: Arc<Events>,
    /// After the tiers: an allocator that goes may still ask something of a stream.
    pub(crate) copy_streams: BTreeMap<DeviceId, CopyStreams>,
    pub(crate) stores: BTreeMap<SpaceId, DiskStore>,
    pub(crate) staging: Staging,
    pub(crate) block_bytes: u64,
    pub(crate) counters: Counters,
    pub(crate) tasks: Arc<Tasks>,
    /// Signalled when room may be needed, or data may have become free to move.
    pub(crate) kicks: Arc<NotificationChannel>,
    _kicks_alive: Notifier,
    nodes: Mutex<BTreeMap<u64, Weak<Node>>>,
    /// What is to be moved up when there is room, oldest first.
    prefetches: Mutex<VecDeque<(Weak<Node>, DeviceId)>>,
    next_id: AtomicU64,
    /// Counts accesses: the time that idleness is measured in.
    ticks: AtomicU64,
}

impl Core {
    pub(crate) fn new(tiers: Tiers, config: SpillConfig) -> Result<Arc<Self>, TierError> {
        let of_tier = |tier| tiers.spaces().iter().filter(move |space| space.tier() == tier);
        let gpu = of_tier(Tier::Gpu).next();
        let gpu = gpu.ok_or_else(|| {
            TierError::bad_setting("gpus", "data spills from a GPU space, and there is none")
        })?;
        let driver = gpu.allocator()?.driver().clone();
        let hosts: Vec<&Space> = of_tier(Tier::Host).collect();
        let Some(host) = hosts.first() else {
            return Err(TierError::bad_setting(
                "hosts",
                "data moves through pinned blocks, and there is no HOST space",
            ));
        };
        let block_bytes = host.pinned_pool()?.block_bytes();
        for other in &hosts {
            if other.pinned_pool()?.block_bytes() != block_bytes {
                let why =
                    format!("{} has other blocks than {}: images are cut into blocks", other.id(), host.id());
                return Err(TierError::bad_setting("block_bytes", why));
            }
        }
        let mut stores = config.stores.clone();
        for disk in of_tier(Tier::Disk) {
            if let Entry::Vacant(vacant) = stores.entry(disk.id()) {
                vacant.insert(DiskStore::open(disk.mount()?, disk.disk_options()?)?);
            }
        }
        // A small HOST space keeps half of itself for data.
        let room = host.usage().limit_bytes / block_bytes;
        let blocks = match config.staging_blocks.max(2) {
            _ if stores.is_empty() => 0,
            wanted if wanted as u64 >= room => (room / 2).max(2) as usize,
            wanted => wanted,
        };
        let staging = Staging::new(set_aside(host, blocks, block_bytes)?);
        let mut copy_streams = BTreeMap::new();
        for space in of_tier(Tier::Gpu) {
            let device = DeviceId(space.id().place());
            copy_streams.insert(device, CopyStreams::new(&driver, device, tiers.clock())?);
        }
        let kicks = NotificationChannel::new(tiers.clock().clone());
        let tasks = Tasks::new(config.rollbacks_max, config.splits_max, config.task_wait, kicks.clone());
        let core = Arc::new(Self {
            events: Events::new(driver.clone()),
            driver,
            copy_streams,
            stores,
            staging,
            block_bytes,
            counters: Counters::default(),
            tasks,
            _kicks_alive: kicks.notifier(),
            kicks,
            nodes: Mutex::default(),
            prefetches: Mutex::default(),
            next_id: AtomicU64::new(1),
            ticks: AtomicU64::new(0),
            tiers,
            config,
        });
        let kicks = Arc::downgrade(&core.kicks);
        core.tiers.when_somebody_waits(move || {
            if let Some(kicks) = kicks.upgrade() {
                kicks.signal();
            }
        });
        Ok(core)
    }

    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The time of an access.
    pub(crate) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn now_ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    pub(crate) fn register(&self, node: &Arc<Node>) {
        self.nodes.lock().insert(node.id(), Arc::downgrade(node));
    }

    pub(crate) fn unregister(&self, id: u64) {
        self.nodes.lock().remove(&id);
    }

    /// All there are. The lock is not held while they are looked at.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        let nodes: Vec<_> = self.nodes.lock().values().cloned().collect();
        nodes.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn node(&self, id: u64) -> Option<Arc<Node>> {
        let node = self.nodes.lock().get(&id).cloned();
        node.and_then(|node| node.upgrade())
    }

    /// Has a mover bring the bytes of `node` to `device` when there is room; says whether the request was taken.
    pub(crate) fn prefetch_soon(&self, node: &Arc<Node>, device: DeviceId) -> bool {
        let mut prefetches = self.prefetches.lock();
        if !self.config.background || prefetches.len() >= PREFETCHES_MAX {
            return false;
        }
        prefetches.push_back((Arc::downgrade(node), device));
        drop(prefetches);
        self.kicks.signal();
        true
    }

    /// Moves up what was asked for, as long as that does not reach the mark at which data has to move down again. Says whether
    /// anything was moved.
    pub(crate) fn prefetch(&self, space: &Space) -> bool {
        let device = DeviceId(space.id().place());
        let mut has_moved = false;
        loop {
            let next = {
                let mut prefetches = self.prefetches.lock();
                let index = prefetches.iter().position(|(_, wanted)| *wanted == device);
                index.and_then(|index| prefetches.remove(index))
            };
            let Some((node, _)) = next else { return has_moved };
            let Some(node) = node.upgrade() else { continue };
            let usage = space.usage();
            let after_bytes = usage.used_bytes().saturating_add(node.layout.part_bytes());
            if usage.waiting > 0 || space.thresholds().should_downgrade(after_bytes, usage.capacity_bytes) {
                // Not now: those who wait come first, and what would go down again stays down.
                self.prefetches.lock().push_front((Arc::downgrade(&node), device));
                return has_moved;
            }
            // A request that fails is dropped: whoever uses the data is told.
            has_moved |= node.restore_now(device).unwrap_or(false);
        }
    }

    /// Waits until `stream` has nothing to do. A driver that fails a few times in a row has lost the device.
    pub(crate) fn settle(&self, stream: Stream) -> Result<(), TierError> {
        let mut attempt = 0;
        loop {
            match relaxed(&*self.driver, || self.driver.stream_synchronize(stream)) {
                Ok(()) => return Ok(()),
                Err(error) if attempt + 1 >= SETTLE_ATTEMPTS => return Err(error.into()),
                Err(_) => attempt += 1,
            }
        }
    }

    pub(crate) fn figures(&self) -> SpillFigures {
        let mut figures = SpillFigures::default();
        self.counters.fill(&mut figures);
        self.tasks.fill(&mut figures);
        figures.waiting = self.tiers.waiting() as u64;
        figures.disk_in_flight = self.stores.values().map(DiskStore::in_flight).sum();
        figures.disk_rereads = self.stores.values().map(|store| store.usage().rereads).sum();
        for node in self.nodes() {
            let (tier, bytes) = node.tier_and_bytes();
            figures.bytes_by_tier[tier as usize] += bytes;
        }
        figures
    }
}

/// Pinned blocks for staging, one a buffer.
fn set_aside(
    host: &Space,
    blocks: usize,
    block_bytes: u64,
) -> Result<Vec<crate::host::HostBuffer>, TierError> {
    let bytes = blocks as u64 * block_bytes;
    let reservation = host.make_reservation(bytes, &Wait::at_most(Duration::ZERO))?;
    (0..blocks).map(|_| host.allocate_host(&reservation, block_bytes, OverPolicy::Fail)).collect()
}
