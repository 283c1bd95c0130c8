//! Streams by CUDA's value. The class is Python's; here is what the driver does.

use headwater_driver::{EventOptions, Stream, StreamOptions};
use pyo3::prelude::*;

use crate::errors::Result;
use crate::process::memory;

/// Makes a stream. Smaller priorities run first.
#[pyfunction]
#[pyo3(signature = (priority=0, non_blocking=true, device=None))]
fn stream_create(py: Python<'_>, priority: i32, non_blocking: bool, device: Option<i64>) -> Result<u64> {
    py.detach(|| {
        let memory = memory(device)?;
        let options = StreamOptions { non_blocking, priority };
        Ok(memory.driver().stream_create(memory.device(), options)?.raw())
    })
}

/// Destroys a stream of `stream_create`. Work in it still finishes, and its memory becomes available to others.
#[pyfunction]
#[pyo3(signature = (stream, device=None))]
fn stream_destroy(py: Python<'_>, stream: u64, device: Option<i64>) -> Result<()> {
    py.detach(|| {
        let memory = memory(device)?;
        let stream = Stream::from_raw(memory.device(), stream);
        memory.caching().forget_stream(stream)?;
        Ok(memory.driver().stream_destroy(stream)?)
    })
}

/// Waits until all work in the stream has finished.
#[pyfunction]
#[pyo3(signature = (stream, device=None))]
fn stream_synchronize(py: Python<'_>, stream: u64, device: Option<i64>) -> Result<()> {
    py.detach(|| {
        let memory = memory(device)?;
        Ok(memory.driver().stream_synchronize(memory.stream(stream)?)?)
    })
}

/// Whether all work in the stream has finished.
#[pyfunction]
#[pyo3(signature = (stream, device=None))]
fn stream_query(py: Python<'_>, stream: u64, device: Option<i64>) -> Result<bool> {
    py.detach(|| {
        let memory = memory(device)?;
        Ok(memory.driver().stream_query(memory.stream(stream)?)?)
    })
}

/// Makes later work in `stream` wait for what `before` has been given by now.
#[pyfunction]
#[pyo3(signature = (stream, before, device=None))]
fn stream_wait_stream(py: Python<'_>, stream: u64, before: u64, device: Option<i64>) -> Result<()> {
    py.detach(|| {
        let memory = memory(device)?;
        let driver = memory.driver();
        let (after, before) = (memory.stream(stream)?, memory.stream(before)?);
        let event = driver.event_create(memory.device(), EventOptions::default())?;
        let ordered =
            driver.event_record(event, before).and_then(|()| driver.stream_wait_event(after, event));
        // A wait that is queued outlives its event.
        let destroyed = driver.event_destroy(event);
        Ok(ordered.and(destroyed)?)
    })
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(stream_create, module)?)?;
    module.add_function(wrap_pyfunction!(stream_destroy, module)?)?;
    module.add_function(wrap_pyfunction!(stream_synchronize, module)?)?;
    module.add_function(wrap_pyfunction!(stream_query, module)?)?;
    module.add_function(wrap_pyfunction!(stream_wait_stream, module)?)
}
