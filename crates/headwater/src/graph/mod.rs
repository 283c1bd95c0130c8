//! Memory for CUDA graphs: addresses that stay fixed for as long as a graph has them in it.
//!
//! | where | what |
//! |---|---|
//! | `by_hand/` | [`GraphPool`]: blocks with ids, returned and reused, reset between iterations |
//! | `capture/` | [`GraphAllocator`]: private pools for everything that is allocated while a graph is captured |
//! | `shared_physical.rs` | [`SharedPhysical`]: pools of graphs that take turns, over the same physical memory |
//! | `fixed_memory.rs` | the driver's memory under all of them |
//! | `device_fence.rs` | waiting for what runs, where no stream can be asked |
//! | `error.rs` | [`GraphError`] |

pub mod by_hand;
pub mod capture;
mod device_fence;
mod error;
mod fixed_memory;
mod shared_physical;

pub use by_hand::{BlockId, GraphBlock, GraphPool};
pub use capture::{CapturedGraph, GraphAllocator, PoolHandle, PoolId, RunnableGraph};
pub use error::GraphError;
pub use shared_physical::SharedPhysical;
