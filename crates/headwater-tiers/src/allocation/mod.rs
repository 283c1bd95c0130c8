//! Device memory inside reservations.
//!
//! | file | what |
//! |---|---|
//! | `oom.rs` | what to do when the memory below runs out |
//! | `reserved_block.rs` | a block with its claim: the owned form |
//! | `tracker.rs` | which reservation a stream or thread draws from |
//! | `reserved_allocator.rs` | an [`Allocator`](headwater::Allocator) whose requests draw from what their stream or thread has |

mod oom;
mod reserved_allocator;
mod reserved_block;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod tracker;

pub use oom::{EmptyCacheAndRetry, FailAtOnce, OomAction, OomPolicy, RetryWith};
pub use reserved_allocator::{ReservedAllocator, Unreserved};
pub use reserved_block::ReservedBlock;
pub use tracker::{Attached, Tracking};
