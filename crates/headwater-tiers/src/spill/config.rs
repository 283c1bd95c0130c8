//! How the spill engine is set up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::victims::{PriorityThenColdest, VictimPolicy};
use crate::disk::DiskStore;
use crate::tier::SpaceId;

/// How the spill engine works.
#[derive(Clone, Debug)]
pub struct SpillConfig {
    /// Whether movers of their own keep every GPU and HOST space between its trigger and its stop, and make the room that others
    /// wait for. Without them room is made in the thread that needs it.
    pub background: bool,
    /// How often movers look for themselves; waiting requests and returned data wake them sooner.
    pub poll: Duration,
    /// Who goes first.
    pub policy: Arc<dyn VictimPolicy>,
    /// How many pinned blocks are set aside for moves between GPU and disk. One move takes half of them, so this is twice as
    /// deep as the disk's queue with the defaults of both. Half of a HOST space that has no more blocks than that.
    pub staging_blocks: usize,
    /// The largest single copy between GPU and HOST; two such windows are under way at once. 8 MiB and more run at full speed
    /// (54 of 55 GB/s, measured on an H200), and a move can be called off between two windows.
    pub window_bytes: u64,
    /// How long all tasks must wait with nothing happening before one is asked to roll back.
    pub deadlock_patience: Duration,
    /// How often a task is asked to roll back at most.
    pub rollbacks_max: u32,
    /// How often a task is asked to split its work at most.
    pub splits_max: u32,
    /// The longest that a task waits for anything, in case nobody watches over it.
    pub task_wait: Duration,
    /// Disk stores to be used instead of opening the mounts: for tests with faults.
    pub stores: BTreeMap<SpaceId, DiskStore>,
}

impl Default for SpillConfig {
    fn default() -> Self {
        Self {
            background: true,
            poll: Duration::from_millis(10),
            policy: Arc::new(PriorityThenColdest),
            staging_blocks: 64,
            window_bytes: 32 << 20,
            deadlock_patience: Duration::from_millis(20),
            rollbacks_max: 100,
            splits_max: 16,
            task_wait: Duration::from_secs(600),
            stores: BTreeMap::new(),
        }
    }
}
