//! Statistics and snapshots, in PyTorch's shape.

use std::collections::BTreeMap;

use headwater::Allocator;
use headwater::allocator::BlockState;
use headwater::caching::snapshot::SegmentSnapshot;
use headwater::graph::capture::{PoolBlock, PoolSnapshot};
use headwater::stats::PoolKind;
use headwater_capi::torch::DeviceMemory;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::Result;
use crate::process::memory;

/// Every number that is counted, by PyTorch's names; ours come after them.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn memory_stats(py: Python<'_>, device: Option<i64>) -> Result<BTreeMap<String, i64>> {
    py.detach(|| Ok(memory(device)?.stats().flatten()))
}

/// The same in words.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn memory_summary(py: Python<'_>, device: Option<i64>) -> Result<String> {
    py.detach(|| Ok(memory(device)?.stats().summary()))
}

/// Lets every peak start again from now.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn reset_peaks(py: Python<'_>, device: Option<i64>) -> Result<()> {
    py.detach(|| {
        memory(device)?.graphs().reset_peaks();
        Ok(())
    })
}

/// Lets every total start again from zero.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn reset_totals(py: Python<'_>, device: Option<i64>) -> Result<()> {
    py.detach(|| {
        memory(device)?.graphs().reset_totals();
        Ok(())
    })
}

/// Whether every byte is where it is counted; an error says what is not.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn verify(py: Python<'_>, device: Option<i64>) -> Result<()> {
    py.detach(|| {
        let memory = memory(device)?;
        memory.caching().verify().map_err(crate::errors::bad_value)?;
        memory.graphs().verify().map_err(crate::errors::bad_value)?;
        memory.graphs().reconcile().map_err(crate::errors::bad_value)
    })
}

/// Segments and blocks, and the history where one is kept, as `torch.cuda.memory._snapshot()` has them.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn memory_snapshot(py: Python<'_>, device: Option<i64>) -> PyResult<Py<PyDict>> {
    let memory = py.detach(|| memory(device))?;
    let (snapshot, pools) = py.detach(|| (memory.caching().snapshot(), memory.graphs().pool_snapshots()));
    let segments = PyList::empty(py);
    for segment in &snapshot.segments {
        segments.append(segment_dict(py, memory, segment)?)?;
    }
    for pool in &pools {
        for blocks in runs(pool) {
            segments.append(pool_segment_dict(py, memory, pool, blocks)?)?;
        }
    }
    let trace = PyList::empty(py);
    for event in &snapshot.trace {
        let dict = PyDict::new(py);
        dict.set_item("action", event.action.name())?;
        dict.set_item("addr", event.ptr.raw())?;
        dict.set_item("size", event.bytes)?;
        dict.set_item("stream", stream_number(event.stream.raw()))?;
        dict.set_item("time_us", event.time_us)?;
        if let Some(label) = &event.label {
            dict.set_item("user_metadata", &**label)?;
        }
        trace.append(dict)?;
    }
    let whole = PyDict::new(py);
    whole.set_item("segments", segments)?;
    whole.set_item("device_traces", [trace])?;
    whole.set_item("settings", &snapshot.settings)?;
    whole.set_item("trace_dropped", snapshot.trace_dropped)?;
    Ok(whole.unbind())
}

/// PyTorch shows the default stream as 0.
fn stream_number(raw: u64) -> u64 {
    if raw == 1 { 0 } else { raw }
}

fn segment_type(pool: PoolKind) -> &'static str {
    if pool == PoolKind::SmallPool { "small" } else { "large" }
}

fn segment_dict<'py>(
    py: Python<'py>,
    memory: &DeviceMemory,
    segment: &SegmentSnapshot,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("device", memory.device().0)?;
    dict.set_item("address", segment.address.raw())?;
    dict.set_item("total_size", segment.total_bytes)?;
    dict.set_item("allocated_size", segment.allocated_bytes)?;
    dict.set_item("active_size", segment.active_bytes)?;
    dict.set_item("requested_size", segment.requested_bytes)?;
    dict.set_item("stream", stream_number(segment.stream.raw()))?;
    dict.set_item("segment_type", segment_type(segment.pool))?;
    dict.set_item("segment_pool_id", (0, 0))?;
    dict.set_item("is_expandable", segment.is_expandable)?;
    let blocks = PyList::empty(py);
    for block in &segment.blocks {
        let item = PyDict::new(py);
        item.set_item("address", block.address.raw())?;
        item.set_item("size", block.bytes)?;
        item.set_item("requested_size", block.requested_bytes)?;
        item.set_item("state", block.state.name())?;
        blocks.append(item)?;
    }
    dict.set_item("blocks", blocks)?;
    Ok(dict)
}

/// A pool's blocks, cut where addresses are not contiguous: each run is shown as one segment.
fn runs(pool: &PoolSnapshot) -> Vec<&[PoolBlock]> {
    pool.blocks.chunk_by(|one, next| one.ptr.raw() + one.bytes == next.ptr.raw()).collect()
}

fn pool_segment_dict<'py>(
    py: Python<'py>,
    memory: &DeviceMemory,
    pool: &PoolSnapshot,
    run: &[PoolBlock],
) -> PyResult<Bound<'py, PyDict>> {
    let sum = |keep: fn(&PoolBlock) -> bool| -> u64 {
        run.iter().filter(|block| keep(block)).map(|block| block.bytes).sum()
    };
    let dict = PyDict::new(py);
    dict.set_item("device", memory.device().0)?;
    dict.set_item("address", run.first().map_or(0, |block| block.ptr.raw()))?;
    dict.set_item("total_size", sum(|_| true))?;
    dict.set_item("allocated_size", sum(|block| block.state == BlockState::Live))?;
    dict.set_item("active_size", sum(|block| block.state != BlockState::Cached))?;
    dict.set_item("requested_size", run.iter().map(|block| block.requested_bytes).sum::<u64>())?;
    dict.set_item("stream", 0)?;
    dict.set_item("segment_type", "large")?;
    dict.set_item("segment_pool_id", memory.key_of_pool(pool.id.raw()).unwrap_or((0, pool.id.raw())))?;
    dict.set_item("is_expandable", false)?;
    let blocks = PyList::empty(py);
    for block in run {
        let item = PyDict::new(py);
        item.set_item("address", block.ptr.raw())?;
        item.set_item("size", block.bytes)?;
        item.set_item("requested_size", block.requested_bytes)?;
        let state = match block.state {
            BlockState::Live => "active_allocated",
            BlockState::Pending => "active_pending_free",
            _ => "inactive",
        };
        item.set_item("state", state)?;
        blocks.append(item)?;
    }
    dict.set_item("blocks", blocks)?;
    Ok(dict)
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(memory_stats, module)?)?;
    module.add_function(wrap_pyfunction!(memory_summary, module)?)?;
    module.add_function(wrap_pyfunction!(reset_peaks, module)?)?;
    module.add_function(wrap_pyfunction!(reset_totals, module)?)?;
    module.add_function(wrap_pyfunction!(verify, module)?)?;
    module.add_function(wrap_pyfunction!(memory_snapshot, module)?)
}
