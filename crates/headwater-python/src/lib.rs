//! `headwater._native`: the process's allocators, as Python sees them.
//!
//! Thin on purpose: numbers in, numbers out. Everything that is convenient (buffers with shapes, streams as context managers,
//! PyTorch, CuPy, Numba) is Python, in `python/headwater/`; everything that is memory is in the crates below. Every call that can
//! wait for a driver, a lock or a disk lets the interpreter's lock go.
//!
//! | file | what |
//! |---|---|
//! | `process.rs` | choosing the device and the settings; what there is |
//! | `memory.rs` | raw requests, copies and fills; limits |
//! | `block.rs` | `Block`: memory that is given back when the object goes |
//! | `figures.rs` | statistics and snapshots |
//! | `streams.rs` | streams |
//! | `pools.rs` | private pools, by thread |
//! | `recording.rs` | traces |
//! | `dlpack.rs` | capsules for other libraries |
//! | `torch.rs` | addresses for PyTorch |
//! | `errors.rs` | Rust's errors as Python's |

mod block;
mod dlpack;
mod errors;
mod figures;
mod memory;
mod pools;
mod process;
mod recording;
mod streams;
mod torch;

use pyo3::prelude::*;

/// The native part of Headwater. Use the package `headwater` instead.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    process::add_to(module)?;
    memory::add_to(module)?;
    block::add_to(module)?;
    figures::add_to(module)?;
    streams::add_to(module)?;
    pools::add_to(module)?;
    recording::add_to(module)?;
    dlpack::add_to(module)?;
    torch::add_to(module)
}
