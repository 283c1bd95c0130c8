//! What PyTorch calls: one set of allocators for the whole process, behind the hooks of its pluggable allocator.
//!
//! PyTorch knows a device by its ordinal and a stream by its `cudaStream_t`; it hands over both with every call. So there is one
//! [`Process`], made at the first call or before it with settings of the caller's, with one [`DeviceMemory`] a device: a caching
//! allocator, graph pools around it, and a recorder around both while one is wanted. Python's `headwater.cuda`, CuPy and Numba
//! use the same allocators, so that all of them together show one set of figures and share one cache.
//!
//! | file | what |
//! |---|---|
//! | `process.rs` | [`Process`]: the driver and the devices' memory, made once |
//! | `device_memory.rs` | [`DeviceMemory`]: the allocators of one device, streams adopted on the way |
//! | `pools.rs` | PyTorch's pool ids, and the pools behind them |
//! | `hooks.rs` | the functions PyTorch is given: allocate, free, empty the cache, limits, streams |
//! | `pool_hooks.rs` | the same for pools |
//! | `std_function.rs` | `std::function<bool(cudaStream_t)>`, which a pool's hook gets |
//! | `cxx_exception.rs` | a C++ exception thrown without C++, so that out of memory is an exception and no null pointer |
//! | `calls.rs` | [`Calls`]: the table of calls that the C++ shim is given |
//! | `figures.rs`, `walk.rs`, `checkpoints.rs` | statistics, snapshots and pool states in C's terms, for the shim |
//!
//! Nothing here decides anything about memory.

mod calls;
mod checkpoints;
mod cxx_exception;
mod device_memory;
mod figures;
mod hooks;
mod pool_hooks;
mod pools;
mod process;
mod std_function;
#[cfg(test)]
mod tests;
mod walk;

pub use calls::{CALLS, CALLS_VERSION, Calls, Filter, Place};
pub use checkpoints::{CheckpointVisitor, PoolState};
pub use device_memory::{DeviceMemory, MemoryError};
pub use figures::{Failure, Figures, MESSAGE_BYTES, StatFigures};
pub use hooks::*;
pub use pool_hooks::*;
pub use pools::PoolKey;
pub use process::{Process, ProcessError, ProcessOptions, Visitor};
pub use std_function::StdFunction;
pub use walk::{BlockState, WalkedBlock, WalkedSegment, Walker};
