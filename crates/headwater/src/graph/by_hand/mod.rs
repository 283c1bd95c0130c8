//! Graph memory by hand: blocks with ids and addresses that never change.
//!
//! A program that builds its graphs itself asks [`GraphPool`] for blocks, puts their addresses into graphs, returns blocks
//! that it needs no more, and resets the pool between iterations. Blocks are used again without moving: `book.rs` says
//! which. What runs when is the program's to know: a returned block is handed out at once, whatever still runs.

mod book;
mod builder;
mod pool;
#[cfg(test)]
mod tests;

pub use builder::GraphPoolBuilder;
pub use pool::{GraphPool, GraphPoolStats, InitialFill};

use std::fmt;

use headwater_driver::DevicePtr;

/// Names a block of a [`GraphPool`]. No two blocks of a process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub(super) u64);

impl BlockId {
    /// The id as a number.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The id with this number, for callers who kept only that.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph block {}", self.0)
    }
}

/// A block of a [`GraphPool`]: a plain value; the pool owns the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphBlock {
    /// Its name.
    pub id: BlockId,
    /// Its address, for as long as the block exists.
    pub ptr: DevicePtr,
    /// What was asked for when it was last handed out.
    pub bytes: u64,
    /// What it takes up.
    pub extent_bytes: u64,
    /// Whether it is handed out, rather than available.
    pub in_use: bool,
}
