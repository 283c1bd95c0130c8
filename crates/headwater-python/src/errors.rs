//! Rust's errors as Python's. The classes are Python's own, in `headwater/_errors.py`: the stable ABI cannot derive from
//! `MemoryError` here.

use std::fmt::Display;

use headwater::graph::GraphError;
use headwater::{AllocError, OutOfMemoryReport};
use headwater_capi::torch::{MemoryError, ProcessError};
use headwater_driver::DriverError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An error on its way to Python.
pub(crate) enum Error {
    OutOfMemory(Box<OutOfMemoryReport>),
    /// The caller's mistake.
    Value(String),
    /// Everything else that has a name in `_errors.py`.
    Named(&'static str, String),
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::OutOfMemory(report) => Self::OutOfMemory(report),
            AllocError::Driver(error) => (*error).into(),
            error => Self::Value(error.to_string()),
        }
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Named("DriverError", error.to_string())
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Alloc(error) => error.into(),
            error => Self::Value(error.to_string()),
        }
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Alloc(error) => error.into(),
            MemoryError::Graph(error) => error.into(),
            MemoryError::Trace(error) => Self::Named("TraceError", error.to_string()),
            error => Self::Value(error.to_string()),
        }
    }
}

impl From<ProcessError> for Error {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::Alloc(error) => error.into(),
            ProcessError::Open(error) => Self::Named("DeviceError", error.to_string()),
            ProcessError::MadeAlready { .. } => Self::Named("DeviceError", error.to_string()),
            error => Self::Value(error.to_string()),
        }
    }
}

/// A caller's mistake, in words.
pub(crate) fn bad_value(why: impl Display) -> Error {
    Error::Value(why.to_string())
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| match error {
            Error::OutOfMemory(report) => out_of_memory(py, &report).unwrap_or_else(|failure| failure),
            Error::Value(why) => PyValueError::new_err(why),
            Error::Named(name, why) => match class(py, name).and_then(|class| class.call1((why.as_str(),))) {
                Ok(instance) => PyErr::from_value(instance),
                Err(_) => PyRuntimeError::new_err(why),
            },
        })
    }
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("headwater._errors")?.getattr(name)
}

fn out_of_memory(py: Python<'_>, report: &OutOfMemoryReport) -> PyResult<PyErr> {
    let numbers = PyDict::new(py);
    numbers.set_item("device", report.device.0)?;
    numbers.set_item("requested_bytes", report.requested_bytes)?;
    numbers.set_item("live_bytes", report.live_bytes)?;
    numbers.set_item("allocated_bytes", report.allocated_bytes)?;
    numbers.set_item("cached_bytes", report.cached_bytes)?;
    numbers.set_item("pending_bytes", report.pending_bytes)?;
    numbers.set_item("reserved_bytes", report.reserved_bytes)?;
    numbers.set_item("limit_bytes", report.limit_bytes)?;
    numbers.set_item("over_limit", report.over_limit)?;
    numbers.set_item("device_free_bytes", report.memory.map(|memory| memory.free_bytes))?;
    numbers.set_item("device_total_bytes", report.memory.map(|memory| memory.total_bytes))?;
    let instance = class(py, "OutOfMemoryError")?.call((report.to_string(),), Some(&numbers))?;
    Ok(PyErr::from_value(instance))
}
