//! The allocation state of a pool, taken and restored.
//!
//! Compiled graphs form trees: after a graph, one of several others may follow, each captured with the memory as the first one left
//! it. Before another branch is captured, the pool is put back into that state: blocks that came later are no more, blocks that
//! were given back later are held again. Content is not touched, and no memory moves: a checkpoint is a list of blocks.

use std::collections::BTreeMap;

use headwater_driver::DevicePtr;

use super::PoolId;
use super::allocator::GraphAllocator;
use super::carver::Lane;
use super::core::{Core, Live};
use super::handles::PoolHandle;
use super::wanted::Half;
use crate::graph::error::GraphError;

/// The blocks that a pool had at one moment.
#[derive(Clone, Debug)]
pub struct PoolCheckpoint {
    pool: PoolId,
    live: BTreeMap<u64, Live>,
}

impl PoolCheckpoint {
    /// The pool it was taken of.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The blocks that callers held, in the order of addresses.
    pub fn blocks(&self) -> impl Iterator<Item = DevicePtr> + '_ {
        self.live.keys().map(|address| DevicePtr::new(*address))
    }
}

/// What restoring a state changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Blocks that were held and are free now: whoever held them must not give them back.
    pub freed: Vec<DevicePtr>,
    /// Blocks that were free and are held now: they are to be given back.
    pub allocated: Vec<DevicePtr>,
}

impl GraphAllocator {
    /// The blocks that `pool` has now.
    ///
    /// # Errors
    /// [`GraphError::ForeignPool`].
    pub fn checkpoint(&self, pool: &PoolHandle) -> Result<PoolCheckpoint, GraphError> {
        let pool = &self.own(pool)?.pool;
        Ok(PoolCheckpoint { pool: pool.id(), live: pool.core.lock().live_blocks() })
    }

    /// Puts a pool back into the state that `checkpoint` was taken of. Waits for streams that still use blocks of the pool.
    ///
    /// # Safety
    /// Blocks that are held now and were not then are not used or given back by their holders any more.
    ///
    /// # Errors
    /// [`GraphError::ForeignPool`]; [`GraphError::CannotRestore`]; what the driver answered. Then nothing has changed.
    pub unsafe fn restore(
        &self,
        pool: &PoolHandle,
        checkpoint: &PoolCheckpoint,
    ) -> Result<Restored, GraphError> {
        let pool = &self.own(pool)?.pool;
        if checkpoint.pool != pool.id() {
            return Err(GraphError::ForeignPool { pool: checkpoint.pool });
        }
        if pool.core.lock().first_pending().is_some() {
            let until = pool.core.lock().now();
            self.common.fence.wait()?;
            pool.core.lock().all_finished(until);
        }
        let mut core = pool.core.lock();
        let refused = |(address, bytes), busy| GraphError::CannotRestore {
            pool: checkpoint.pool,
            ptr: DevicePtr::new(address),
            bytes,
            busy,
        };
        if let Some(pending) = core.first_pending() {
            return Err(refused(pending, true));
        }
        let differs = |address: &u64, block: &Live, others: &BTreeMap<u64, Live>| {
            others.get(address).is_none_or(|other| other.bytes != block.bytes)
        };
        let blocks = |of: &BTreeMap<u64, Live>, others: &BTreeMap<u64, Live>| {
            let changed = of.iter().filter(|(address, block)| differs(address, block, others));
            changed.map(|(address, _)| DevicePtr::new(*address)).collect()
        };
        let present = core.live_blocks();
        let restored = Restored {
            freed: blocks(&present, &checkpoint.live),
            allocated: blocks(&checkpoint.live, &present),
        };
        core.replace_live(&checkpoint.live).map_err(|place| refused(place, false))?;
        Ok(restored)
    }
}

impl Core {
    fn live_blocks(&self) -> BTreeMap<u64, Live> {
        self.live().map(|(address, block)| (address, block.clone())).collect()
    }

    /// Puts another set of blocks in the place of the present one: `live` and nothing else. The pieces that others have free
    /// keep their lanes. Everything is checked first; the first block that has no place is the answer then.
    pub(super) fn replace_live(&mut self, live: &BTreeMap<u64, Live>) -> Result<(), (u64, u64)> {
        self.settle();
        let [mut small, mut large] = Half::BOTH.map(|half| self.carver(half).all_free());
        for (address, block) in live {
            let carver = match block.half {
                Half::Small => &mut small,
                Half::Large => &mut large,
            };
            if !carver.take_at(*address, block.bytes) {
                return Err((*address, block.bytes));
            }
        }
        let stamp = self.tick();
        let mut moved: Vec<(Half, u64, u64, Lane, u64)> = Vec::new();
        for half in Half::BOTH {
            for piece in self.carver(half).pieces() {
                if let Some((lane, stamp)) = piece.free.filter(|(lane, _)| *lane != Lane::ANYONE) {
                    moved.push((half, piece.address, piece.bytes, lane, stamp));
                }
            }
        }
        for (address, block) in self.take_live() {
            self.count_given_back(&block);
            self.stats.active.decrease(block.half.kind(), 1);
            self.stats.active_bytes.decrease(block.half.kind(), block.bytes);
            if block.lane.scope.is_none() {
                let lane = self.lanes.number(block.lane);
                moved.push((block.half, address, block.bytes, lane, stamp));
            }
        }
        *self.carver_mut(Half::Small) = small;
        *self.carver_mut(Half::Large) = large;
        for (half, address, bytes, lane, stamp) in moved {
            self.carver_mut(half).move_range(address, bytes, lane, stamp);
        }
        for (address, block) in live {
            self.put_live(*address, block.clone());
        }
        Ok(())
    }
}
