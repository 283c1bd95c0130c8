//! Statistics of one device: what is counted, how it is named, and how it is checked against what is really there.
//!
//! Plain data with no lock: the allocator updates a [`DeviceStats`] under its own lock, and readers get a copy. Every
//! count that can rise and fall is a [`Stat`] (now, peak, and the totals that went up and down); most are kept once
//! for each pool and once for all ([`StatArray`]). Flattened, the names are those of PyTorch's
//! `torch.cuda.memory_stats()`, so that tools that read those read ours; Headwater's own counters come after them.
//!
//! | name | what it counts |
//! |---|---|
//! | `allocation`, `allocated_bytes`, `requested_bytes` | blocks callers hold; their size; what the callers asked for (live) |
//! | `active`, `active_bytes` | those, and the given back ones that a stream still uses |
//! | `inactive_split`, `inactive_split_bytes` | free parts of segments that are partly in use, and cannot go back to the driver |
//! | `segment`, `reserved_bytes` | what the driver gave us |
//! | `oversize_allocations`, `oversize_segments` | blocks and segments of at least `max_split_size` |
//! | `num_alloc_retries`, `num_ooms`, `num_oom_rejections` | retries after a failed driver call; errors; requests refused at the limit |
//! | `num_sync_all_streams`, `num_device_alloc`, `num_device_free` | waits for all streams; segments or handles from and to the driver |
//! | `max_split_size` | the setting, in bytes; -1: unlimited |
//! | `num_hits`, `num_misses` | requests served from the cache, and not (ours) |
//! | `num_owed_give_backs` | give-backs whose driver call could not be made or failed, and is owed (ours) |
//!
//! ```
//! use headwater::stats::{DeviceStats, PoolKind};
//! let mut stats = DeviceStats::default();
//! stats.reserved_bytes.increase(PoolKind::SmallPool, 2 << 20);
//! stats.requested_bytes.increase(PoolKind::SmallPool, 1 << 20);
//! stats.requested_bytes.decrease(PoolKind::SmallPool, 1 << 20);
//! assert_eq!(stats.flatten()["requested_bytes.small_pool.peak"], 1 << 20);
//! assert_eq!(stats.fragmentation(), 0.5);
//! ```

mod device;
mod reconcile;
mod stat;
mod summary;
#[cfg(test)]
mod tests;

pub use device::DeviceStats;
pub use reconcile::{Difference, Differences, Tally, WalkedTotals};
pub use stat::{PoolKind, Stat, StatArray};
