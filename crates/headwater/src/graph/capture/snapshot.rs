//! Private pools at one moment.

use headwater_driver::DevicePtr;

use super::PoolId;
use super::allocator::GraphAllocator;
use super::private_pool::PrivatePool;
use super::wanted::Half;
use crate::allocator::{BlockFacts, BlockState};

/// A private pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Its name.
    pub id: PoolId,
    /// What the driver gave it. Pools of a group count what they map, though they map the same memory.
    pub reserved_bytes: u64,
    /// What callers asked for and hold.
    pub requested_bytes: u64,
    /// The same, rounded.
    pub allocated_bytes: u64,
    /// The most that was allocated at once: what the graphs of the pool need.
    pub allocated_bytes_peak: u64,
    /// What was given back and waits for streams.
    pub pending_bytes: u64,
    /// What the driver gave beyond that most: memory that nobody has needed yet.
    pub waste_bytes: u64,
    /// Graphs of the pool, runnable ones included.
    pub graphs: usize,
    /// Captures and other routes under way.
    pub routes: usize,
    /// Uses by others, see [`GraphAllocator::begin_allocate_to_pool`].
    pub foreign_uses: usize,
    /// Whether it shares physical memory with other pools.
    pub shares_physical_memory: bool,
    /// All blocks and free pieces, small ones first, each in the order of addresses.
    pub blocks: Vec<PoolBlock>,
}

/// A block or free piece of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolBlock {
    /// Its first address.
    pub ptr: DevicePtr,
    /// What it takes up.
    pub bytes: u64,
    /// What was asked for; 0 where nobody holds it.
    pub requested_bytes: u64,
    /// What it is doing.
    pub state: BlockState,
}

impl GraphAllocator {
    /// Every private pool at this moment, in the order in which they were made.
    pub fn pool_snapshots(&self) -> Vec<PoolSnapshot> {
        self.common.pools().iter().map(|pool| snapshot(pool)).collect()
    }
}

pub(super) fn snapshot(pool: &PrivatePool) -> PoolSnapshot {
    let (graphs, routes, foreign_uses) = {
        let holders = pool.holders.lock();
        (holders.graphs, holders.routes, holders.foreign)
    };
    let core = pool.core.lock();
    let nobody = headwater_driver::Stream::legacy_default(pool.common.device);
    let blocks = Half::BOTH
        .iter()
        .flat_map(|half| core.carver(*half).pieces())
        .filter_map(|piece| core.block_at(DevicePtr::new(piece.address), nobody))
        .map(|BlockFacts { ptr, requested_bytes, allocated_bytes, state, .. }| {
            let requested_bytes = if state == BlockState::Live { requested_bytes } else { 0 };
            PoolBlock { ptr, bytes: allocated_bytes, requested_bytes, state }
        })
        .collect();
    let stats = &core.stats;
    let reserved_bytes = stats.reserved_bytes.all.current;
    PoolSnapshot {
        id: pool.id(),
        reserved_bytes,
        requested_bytes: stats.requested_bytes.all.current,
        allocated_bytes: stats.allocated_bytes.all.current,
        allocated_bytes_peak: stats.allocated_bytes.all.peak,
        pending_bytes: stats.pending_bytes(),
        waste_bytes: reserved_bytes.saturating_sub(stats.allocated_bytes.all.peak),
        graphs,
        routes,
        foreign_uses,
        shares_physical_memory: pool.group.is_some(),
        blocks,
    }
}
