//! Names of pools, and guards that keep their memory.

use std::fmt;
use std::sync::Arc;

use super::private_pool::PrivatePool;
use super::retire::Patience;

/// Names a private pool. No two pools of an allocator have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub(super) u64);

impl PoolId {
    /// The id as a number.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph pool {}", self.0)
    }
}

/// A private pool, to be given to captures: graphs captured into one pool share its memory, so they must never run at
/// the same time.
///
/// A handle keeps the pool's name and not its memory: that is kept by graphs, by captures under way and by blocks.
#[derive(Debug)]
pub struct PoolHandle {
    pub(super) pool: Arc<PrivatePool>,
}

impl PoolHandle {
    pub(super) fn new(pool: Arc<PrivatePool>) -> Self {
        pool.hold(|holders| holders.handles += 1);
        Self { pool }
    }

    /// The pool's name.
    pub fn id(&self) -> PoolId {
        self.pool.id()
    }

    /// Graphs of the pool there are, runnable ones included.
    pub fn graphs(&self) -> usize {
        self.pool.holders.lock().graphs
    }

    /// Uses by others: routes and retentions that were not released yet.
    pub fn foreign_uses(&self) -> usize {
        self.pool.holders.lock().foreign
    }

    /// What the driver gave the pool.
    pub fn reserved_bytes(&self) -> u64 {
        self.pool.reserved_bytes()
    }
}

impl Clone for PoolHandle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.pool))
    }
}

impl PartialEq for PoolHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }
}

impl Eq for PoolHandle {}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        let last = {
            let mut holders = self.pool.holders.lock();
            holders.handles -= 1;
            holders.handles == 0
        };
        if last {
            // What still runs keeps the memory for now; a later call tries again.
            let _ = self.pool.retire(Patience::Ask);
        }
    }
}

/// Keeps the addresses of a pool for a graph.
#[derive(Debug)]
pub(super) struct GraphHold {
    pub(super) pool: Arc<PrivatePool>,
}

impl GraphHold {
    pub(super) fn new(pool: Arc<PrivatePool>) -> Self {
        pool.hold(|holders| holders.graphs += 1);
        Self { pool }
    }
}

impl Drop for GraphHold {
    fn drop(&mut self) {
        let last = {
            let mut holders = self.pool.holders.lock();
            holders.graphs -= 1;
            holders.graphs == 0
        };
        if last {
            // As above.
            let _ = self.pool.retire(Patience::Ask);
        }
    }
}

/// Keeps the addresses of a pool while requests are routed to it.
#[derive(Debug)]
pub(super) struct RouteHold {
    pub(super) pool: Arc<PrivatePool>,
}

impl RouteHold {
    pub(super) fn new(pool: Arc<PrivatePool>) -> Self {
        pool.hold(|holders| holders.routes += 1);
        Self { pool }
    }
}

impl Drop for RouteHold {
    fn drop(&mut self) {
        let last = {
            let mut holders = self.pool.holders.lock();
            holders.routes -= 1;
            holders.routes == 0
        };
        if last {
            // As above.
            let _ = self.pool.retire(Patience::Ask);
        }
    }
}
