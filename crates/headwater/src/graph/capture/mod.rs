//! Graph memory by capture: what a captured stream asks for comes from a private pool.
//!
//! | file | what |
//! |---|---|
//! | `allocator.rs` | [`GraphAllocator`]: an [`Allocator`](crate::Allocator) around another, which routes requests and give-backs |
//! | `captures.rs` | captures begun and ended, here and by somebody else |
//! | `captured_order.rs` | the order of captured streams, read off the capture |
//! | `routes.rs` | which request goes to which pool |
//! | `handles.rs` | [`PoolHandle`], and the guards that keep a pool's memory |
//! | `graphs.rs` | [`CapturedGraph`] and [`RunnableGraph`] |
//! | `private_pool.rs`, `growth.rs`, `retire.rs` | one pool: what it is, how it gets memory, how it gives it back |
//! | `core.rs`, `walk.rs`, `wanted.rs`, `lanes.rs`, `shelf.rs`, `carver.rs` | its state: blocks, who may reuse what, pieces; no lock and no driver |
//! | `checkpoint.rs` | a pool's state, taken and restored |
//! | `common.rs` | what all pools have in common: limit, directory of addresses |
//! | `snapshot.rs`, `figures.rs` | being seen |
//!
//! A private pool does not use a caching allocator inside. Such an allocator returns free segments to the driver, or moves free pages to
//! other addresses, when memory is short; a graph still has those addresses. A pool's memory stays where it is, all of it, for as
//! long as a graph of the pool lives.

mod allocator;
mod captured_order;
mod captures;
mod carver;
mod checkpoint;
mod common;
mod core;
mod figures;
mod graphs;
mod growth;
mod handles;
mod lanes;
mod private_pool;
mod retire;
mod routes;
mod shelf;
mod snapshot;
mod walk;
mod wanted;

pub use allocator::{GraphAllocator, GraphAllocatorBuilder};
pub use checkpoint::{PoolCheckpoint, Restored};
pub use graphs::{CapturedGraph, RunnableGraph};
pub use handles::{PoolHandle, PoolId};
pub use snapshot::{PoolBlock, PoolSnapshot};
