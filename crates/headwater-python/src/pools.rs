//! Private pools for part of a program: what a thread asks for inside of a `with` block comes from one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use pyo3::prelude::*;

use crate::errors::{Result, bad_value};
use crate::process::memory;

/// Ids of Python's pools: PyTorch counts its own up from one.
const FIRST_ID: u64 = 1 << 63;

static NEXT_ID: AtomicU64 = AtomicU64::new(FIRST_ID);

/// A pool of its own, kept until it is released. Returns its id.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn pool_create(py: Python<'_>, device: Option<i64>) -> Result<u64> {
    py.detach(|| {
        // Relaxed: only that no two are the same matters.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        memory(device)?.retain_pool((0, id))?;
        Ok(id)
    })
}

/// What this thread asks for comes from the pool from now on.
#[pyfunction]
#[pyo3(signature = (id, device=None))]
fn pool_enter(py: Python<'_>, id: u64, device: Option<i64>) -> Result<()> {
    let thread: ThreadId = std::thread::current().id();
    py.detach(|| {
        let memory = memory(device)?;
        if memory.pool((0, id)).is_none() {
            return Err(bad_value("the pool was closed"));
        }
        Ok(memory.begin_allocate_to_pool((0, id), move |_| std::thread::current().id() == thread)?)
    })
}

/// The end of that.
#[pyfunction]
#[pyo3(signature = (id, device=None))]
fn pool_leave(py: Python<'_>, id: u64, device: Option<i64>) -> Result<()> {
    py.detach(|| {
        let memory = memory(device)?;
        memory.end_allocate_to_pool((0, id))?;
        Ok(memory.release_pool((0, id))?)
    })
}

/// Lets the pool go: its memory returns to the driver when the last block of it was given back.
#[pyfunction]
#[pyo3(signature = (id, device=None))]
fn pool_release(py: Python<'_>, id: u64, device: Option<i64>) -> Result<()> {
    py.detach(|| Ok(memory(device)?.release_pool((0, id))?))
}

/// What the driver gave the pool; 0 where it is no more.
#[pyfunction]
#[pyo3(signature = (id, device=None))]
fn pool_reserved_bytes(py: Python<'_>, id: u64, device: Option<i64>) -> Result<u64> {
    py.detach(|| Ok(memory(device)?.pool((0, id)).map_or(0, |pool| pool.reserved_bytes())))
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pool_create, module)?)?;
    module.add_function(wrap_pyfunction!(pool_enter, module)?)?;
    module.add_function(wrap_pyfunction!(pool_leave, module)?)?;
    module.add_function(wrap_pyfunction!(pool_release, module)?)?;
    module.add_function(wrap_pyfunction!(pool_reserved_bytes, module)?)
}
