//! A `libcuda` with no GPU behind it: the simulated device behind the CUDA driver's C ABI.
//!
//! The CUDA backend opens the driver's shared library by name and calls it through C prototypes. This library has
//! the same symbols and the same prototypes, so that the very code that runs on a GPU (its loader, its struct layouts, its
//! context handling, its error mapping) runs in tests on machines without one. Behind each symbol is a call to
//! [`SimDriver`](headwater_sim::SimDriver) through the `Driver` traits.
//!
//! # How to use it
//! `cargo test -p fake-libcuda` builds it and tests the backend on it. By hand:
//! ```text
//! cargo build -p fake-libcuda
//! HEADWATER_LIBCUDA=$PWD/target/debug/libfake_cuda.so program # for Headwater's own programs
//! mkdir fake && ln -s ../target/debug/libfake_cuda.so fake/libcuda.so.1
//! LD_LIBRARY_PATH=$PWD/fake program                           # for anything that opens libcuda.so.1
//! ```
//! Settings are read at `cuInit`: `FAKE_CUDA_DEVICES` (2), `FAKE_CUDA_MEMORY_BYTES` (8 GiB a device),
//! `FAKE_CUDA_DRIVER_VERSION` (13000), `FAKE_CUDA_INIT_RESULT` (what `cuInit` returns), `FAKE_CUDA_NO_VMM=1` and
//! `FAKE_CUDA_NO_PEER=1` (devices that cannot do these).
//!
//! # What it is strict about
//! It behaves as libcuda does, not as a caller would like: nothing works before `cuInit`, most calls need a current
//! context, each thread has its own stack of contexts, streams and events belong to the context they were made in.
//! And it is stricter where libcuda is merely undefined: the use of a destroyed stream, event, handle, graph, module
//! or context is counted. `control.rs` has the symbols by which a test reads that count and makes calls fail.
//!
//! # What it lacks
//! No symbol stands here that the simulator cannot answer for: no stream-ordered pools, no host functions, no graph
//! editing, no managed memory, no sharing between processes. Capture information carries no graph nodes.
//!
//! | file | what it covers |
//! |---|---|
//! | `abi.rs` | the driver's types, struct layouts, constants and result codes |
//! | `entry.rs` | the way in: guards that every symbol passes, and checked places for answers |
//! | `machine.rs`, `objects.rs`, `addresses.rs`, `settings.rs` | the state behind the symbols |
//! | `context.rs` | primary contexts and the stack of each thread |
//! | `devices.rs` ... `kernels.rs` | the symbols, in the files of the `Driver` contract |
//! | `errors.rs`, `procedures.rs` | names of codes; `cuGetProcAddress` |
//! | `control.rs` | what tests read and set |

// `cuGetProcAddress` asks the dynamic linker, and shared libraries are found the way Linux does.
#![cfg(target_os = "linux")]
// The names are CUDA's.
#![allow(non_snake_case)]

mod abi;
mod addresses;
mod capture;
mod context;
mod control;
mod copies;
mod devices;
mod entry;
mod errors;
mod events;
mod host_memory;
mod kernels;
mod machine;
mod objects;
mod plain_memory;
mod procedures;
mod settings;
mod streams;
mod virtual_memory;
