//! The paged backing's core: addresses and physical memory as two things, with no lock, clock, driver or I/O.
//!
//! One arena of addresses a device, and physical handles mapped into it on demand. Blocks lie side by side and share handles;
//! a handle that no block uses can be taken away from where it is and mapped where it is needed. So memory that is free but in
//! pieces is not lost: on a miss the pieces are brought together, by mapping and not by copying, before anything is
//! asked of the device.
//!
//! **A hit** is a search: the smallest free range that the request's stream may use, in the region where blocks of its size
//! belong (`lifetimes.rs`, `extents.rs`). No driver call. **A miss** yields a plan (`place.rs`, `plan.rs`): the place with
//! the fewest bytes missing, filled with whole-free handles from elsewhere and with new ones. The plan is carried out without
//! the lock (`carry_out.rs`) and then committed (`commit.rs`). A steady program settles: every size finds its place again and
//! no driver call is made at all.
//!
//! **Streams.** A free range belongs to the stream that gave it back, or to all once that stream is known to have finished
//! with it. A handle whose last use on stream S may still run can be taken for S at once: mapped at two addresses for
//! a while, because S's own order protects it; the old mapping is removed when S has passed a mark (`retiring`). For other
//! streams only finished handles are taken. Nothing ever waits for the device.
//!
//! | file | what |
//! |---|---|
//! | `policy.rs` | the numbers, with reasons |
//! | `extents.rs` | regions, addresses, gaps |
//! | `handles.rs` | physical memory, who is behind which page, what is free as a whole |
//! | `lifetimes.rs` | how long blocks of a size live |
//! | `take.rs`, `free.rs` | hits, give-back, merging |
//! | `place.rs`, `plan.rs`, `commit.rs` | a miss: where, from what, and afterwards |
//! | `release.rs` | which handles to return, and returning them |
//! | `sleep.rs`, `nap.rs` | memory behind live blocks, put away and brought back: the books, the calls |
//! | `share.rs` | blocks for other processes |
//! | `view.rs`, `verify.rs` | looking; every page in exactly one place |
//! | `carry_out.rs` | plans turned into driver calls, with undo |
//! | `marks.rs` | learning what streams have finished |
//! | `climb.rs` | what is tried before a request fails |
//! | `upkeep.rs` | opening, closing, trimming, peers, addresses |

pub(crate) mod carry_out;
mod climb;
mod commit;
pub(crate) mod extents;
mod free;
pub(crate) mod handles;
mod lifetimes;
pub(crate) mod marks;
mod nap;
mod place;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod release;
mod share;
mod sleep;
mod sources;
mod take;
mod upkeep;
mod verify;
mod view;
mod views;

use std::collections::BTreeMap;
use std::ops::Range;

use headwater_driver::{DevicePtr, Handle};
use rustc_hash::{FxHashMap, FxHashSet};

use super::classic::blocks::BlockTable;
use super::classic::pool::FreeIndex;
use super::classic::{BlockId, Tags};
use crate::config::Config;
use crate::stats::DeviceStats;
use extents::{Extent, Region};
use handles::{HandleId, Handles, StrandedChange};
use lifetimes::Lifetimes;
pub(in crate::caching) use nap::Nap;
pub use nap::{Contents, SleepId};
pub(in crate::caching) use upkeep::open;
use views::Views;

/// A handle that is mapped nowhere: a call failed and could not be undone. The next miss uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loose {
    pub(crate) handle: Handle,
    pub(crate) bytes: u64,
}

/// Everything the paged backing knows.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) tags: Tags,
    pub(crate) stats: DeviceStats,
    pub(crate) granularity_bytes: u64,
    pub(crate) blocks: BlockTable,
    by_address: BTreeMap<u64, BlockId>,
    extents: Vec<Extent>,
    /// By region.
    free: [FreeIndex; 3],
    /// Blocks that callers hold, by the address they know.
    live: FxHashMap<DevicePtr, BlockId>,
    handles: Handles,
    lifetimes: Lifetimes,
    views: Views,
    loose: Vec<Loose>,
    /// Handles that were made for export, where the others are private (`share.rs`).
    exportable: FxHashSet<Handle>,
    /// Live blocks whose memory is put away.
    asleep: FxHashSet<BlockId>,
    /// Bytes of handles that the driver is about to be asked for.
    promised_bytes: u64,
    /// The clock of `tags.rs`.
    ticks: u64,
    /// Requests served so far: the clock of lifetimes.
    allocations: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    limit_bytes: Option<u64>,
}

impl Core {
    /// A core without addresses or memory, for a device with `total_bytes`.
    pub(crate) fn new(config: &Config, total_bytes: u64, granularity_bytes: u64) -> Self {
        Self {
            tags: Tags::default(),
            stats: DeviceStats::default(),
            granularity_bytes,
            blocks: BlockTable::default(),
            by_address: BTreeMap::new(),
            extents: Vec::new(),
            free: Default::default(),
            live: FxHashMap::default(),
            handles: Handles::default(),
            lifetimes: Lifetimes::default(),
            views: Views::default(),
            loose: Vec::new(),
            exportable: FxHashSet::default(),
            asleep: FxHashSet::default(),
            promised_bytes: 0,
            ticks: 0,
            allocations: 0,
            peak_live_bytes: 0,
            peak_reserved_bytes: 0,
            limit_bytes: config.limit_bytes(total_bytes),
        }
    }

    /// The addresses to reserve for a device with `total_bytes`.
    pub(crate) fn arena_bytes(config: &Config, total_bytes: u64, granularity_bytes: u64) -> u64 {
        let wanted = total_bytes.saturating_mul(policy::ARENA_TIMES_MEMORY).min(policy::ARENA_MAX_BYTES);
        let configured = config.address_reserve_bytes(None, total_bytes);
        // Eighths of it must be whole pages, and no region can be smaller than one.
        let unit = 8 * granularity_bytes;
        wanted.max(configured).div_ceil(unit) * unit
    }

    /// Takes over reserved addresses, and divides them among the regions.
    pub(crate) fn add_arena(&mut self, base: DevicePtr, bytes: u64) {
        let eighth = bytes / 8;
        for region in Region::ALL {
            let eighths = region.eighths();
            let range = base.raw() + eighths.start * eighth..base.raw() + eighths.end * eighth;
            self.extents.push(Extent::new(region, range));
        }
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Another limit from now on. What is reserved beyond it stays.
    pub(crate) fn set_limit_bytes(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
    }

    pub(crate) fn now(&self) -> u64 {
        self.ticks
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    pub(crate) fn promised_bytes(&self) -> u64 {
        self.promised_bytes
    }

    fn reserved_bytes(&self) -> u64 {
        self.stats.reserved_bytes.all.current
    }

    fn region_of(&self, id: BlockId) -> Region {
        self.extents[self.blocks[id].segment.0 as usize].region
    }

    /// The pool that a block is counted in.
    pub(crate) fn pool_of(&self, id: BlockId) -> crate::stats::PoolKind {
        self.region_of(id).pool()
    }

    fn extent_of(&self, address: u64) -> Option<usize> {
        self.extents.iter().position(|extent| extent.contains(address))
    }

    /// The handle behind an address.
    fn handle_at(&self, extent: usize, address: u64) -> Option<HandleId> {
        let extent = self.extents.get(extent)?;
        extent.pages.get((address - extent.base) / self.granularity_bytes)
    }

    /// Counts a range of blocks as in use, or as free again, in the handles behind it.
    fn change_use(&mut self, extent: usize, range: Range<u64>, in_use: bool) {
        let (mut at, mut change) = (range.start, StrandedChange::default());
        while at < range.end {
            let Some(id) = self.handle_at(extent, at) else { break };
            let end = self.handles.get(id).map_or(range.end, |mapped| mapped.end().min(range.end));
            let part = self.handles.change_use(id, end - at, in_use);
            change.handles += part.handles;
            change.bytes += part.bytes;
            at = end;
        }
        let pool = self.extents[extent].region.pool();
        let stats = &mut self.stats;
        for (array, change) in
            [(&mut stats.inactive_split, change.handles), (&mut stats.inactive_split_bytes, change.bytes)]
        {
            match change {
                0 => {}
                1.. => array.increase(pool, change as u64),
                _ => array.decrease(pool, change.unsigned_abs()),
            }
        }
    }
}
