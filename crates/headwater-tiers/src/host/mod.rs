//! Host memory: pinned blocks of one size.
//!
//! | file | what |
//! |---|---|
//! | `config.rs` | sizes and placement |
//! | `slab.rs` | one piece of pinned memory: made, placed on a NUMA node, freed |
//! | `numa.rs` | the operating system's side of placement |
//! | `uses.rs` | device work that still uses blocks |
//! | `blocks.rs` | which blocks are free, and which wait for a device |
//! | `pool.rs` | slabs cut into blocks: taken, given back, shrunk |
//! | `supply.rs` | where blocks come from: slabs pinned, and blocks that devices are done with |
//! | `buffer.rs` | [`HostBuffer`]: an allocation of several blocks |

mod blocks;
mod buffer;
mod config;
pub(crate) mod numa;
mod pool;
mod slab;
mod supply;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
pub(crate) mod uses;

pub use buffer::HostBuffer;
pub use config::{BLOCK_BYTES_DEFAULT, PinnedConfig, Placement};
pub use pool::{PinnedPool, PinnedUse, PlacementReport};
