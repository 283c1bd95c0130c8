//! The classic backing's core: segments cut into blocks by PyTorch's rules, with no lock, clock, driver or I/O.
//!
//! The core answers from what it has and says what is missing; asking the driver is its caller's part. A request is served in
//! three steps. *Search*: the smallest free block of the request's stream and pool that holds it, the lowest address among
//! equals (`take.rs`). *Carve*: the rest is split off where it is large enough. Where there is none, the caller *promises*
//! itself a segment (so that the limit holds while the driver is asked), and adds what the driver gave. A block given back
//! becomes free at once or when its waits have ended, and merges with its free neighbours (`free.rs`).
//!
//! | file | what |
//! |---|---|
//! | `rules.rs` | sizes: of blocks, of segments, what is split, what is oversize |
//! | `blocks.rs`, `segments.rs` | the tables |
//! | `tags.rs` | streams as numbers, and what has finished in them |
//! | `pool.rs` | the free blocks of a pool in best-fit order |
//! | `take.rs` | search, carve, segments from the driver |
//! | `free.rs` | give-back, waits, merging |
//! | `release.rs` | which segments to return to the driver, and returning them |
//! | `view.rs` | look-ups by address, sums |
//! | `verify.rs` | the walk over everything, for tests and those in doubt |

pub(crate) mod blocks;
mod free;
pub(crate) mod pool;
pub(crate) mod release;
pub(crate) mod rules;
pub(crate) mod segments;
pub(crate) mod tags;
mod take;
mod verify;
mod view;

use headwater_driver::DevicePtr;
use rustc_hash::FxHashMap;

use crate::config::Config;
use crate::stats::{DeviceStats, PoolKind};

use blocks::BlockTable;
pub(crate) use blocks::{BlockId, State};
use pool::FreeIndex;
pub(crate) use rules::{Rules, Wanted};
use segments::Segments;
pub(crate) use tags::{Tag, Tags};

/// Everything the classic backing knows.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) rules: Rules,
    pub(crate) tags: Tags,
    pub(crate) stats: DeviceStats,
    pub(crate) blocks: BlockTable,
    segments: Segments,
    small: FreeIndex,
    large: FreeIndex,
    /// Blocks that callers hold, by the address they know.
    live: FxHashMap<DevicePtr, BlockId>,
    /// The clock of `tags.rs`.
    ticks: u64,
    limit_bytes: Option<u64>,
    /// Segments that the driver is being asked for.
    promised_bytes: u64,
    garbage_collection_threshold: Option<f64>,
}

impl Core {
    /// A core without memory, for a device with `total_bytes`.
    pub(crate) fn new(config: &Config, total_bytes: u64) -> Self {
        let rules = Rules::new(config);
        let stats = DeviceStats { max_split_size: rules.max_split_bytes(), ..DeviceStats::default() };
        Self {
            rules,
            tags: Tags::default(),
            stats,
            blocks: BlockTable::default(),
            segments: Segments::default(),
            small: FreeIndex::default(),
            large: FreeIndex::default(),
            live: FxHashMap::default(),
            ticks: 0,
            limit_bytes: config.limit_bytes(total_bytes),
            promised_bytes: 0,
            garbage_collection_threshold: config.garbage_collection_threshold(),
        }
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Another limit from now on. What is reserved beyond it stays.
    pub(crate) fn set_limit_bytes(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
    }

    /// The time, as `tags.rs` counts it.
    pub(crate) fn now(&self) -> u64 {
        self.ticks
    }

    /// Something happened that later marks cover and earlier ones do not. Returns its time.
    pub(crate) fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn index(&self, pool: PoolKind) -> &FreeIndex {
        if pool == PoolKind::SmallPool { &self.small } else { &self.large }
    }

    fn index_mut(&mut self, pool: PoolKind) -> &mut FreeIndex {
        if pool == PoolKind::SmallPool { &mut self.small } else { &mut self.large }
    }

    pub(crate) fn pool_of(&self, id: BlockId) -> PoolKind {
        let segment = self.segments.get(self.blocks[id].segment);
        segment.map_or(PoolKind::LargePool, |segment| segment.pool)
    }
}

/// How the free parts of partly used segments changed in one operation: noted once, so that a block that is taken out and
/// put back in the same operation counts for nothing, as in PyTorch.
#[derive(Default)]
struct InactiveChange {
    blocks: i64,
    bytes: i64,
}

impl InactiveChange {
    fn add(&mut self, is_split: bool, bytes: u64) {
        self.blocks += i64::from(is_split);
        self.bytes += if is_split { bytes as i64 } else { 0 };
    }

    fn remove(&mut self, is_split: bool, bytes: u64) {
        self.blocks -= i64::from(is_split);
        self.bytes -= if is_split { bytes as i64 } else { 0 };
    }

    fn apply(self, stats: &mut DeviceStats, pool: PoolKind) {
        for (array, change) in
            [(&mut stats.inactive_split, self.blocks), (&mut stats.inactive_split_bytes, self.bytes)]
        {
            match change {
                0 => {}
                1.. => array.increase(pool, change as u64),
                _ => array.decrease(pool, change.unsigned_abs()),
            }
        }
    }
}
