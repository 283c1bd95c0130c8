//! Memory that is given back when its Python object goes.

use headwater_driver::DevicePtr;
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;

use crate::errors::{Result, bad_value};
use crate::process::memory;

/// A piece of device memory. It is given back by `free()`, or when the object goes.
#[pyclass(module = "headwater._native", frozen)]
pub(crate) struct Block {
    /// Null once it was given back.
    ptr: Mutex<u64>,
    nbytes: u64,
    stream: u64,
    device: i64,
}

impl Block {
    /// The address, for as long as the guard is held.
    fn address(&self) -> MutexGuard<'_, u64> {
        self.ptr.lock()
    }

    fn give_back(&self) -> Result<()> {
        let ptr = std::mem::take(&mut *self.address());
        if ptr != 0 {
            // SAFETY: the address is this object's alone, and was taken out of it.
            unsafe { memory(Some(self.device))?.give_back(DevicePtr::new(ptr)) }?;
        }
        Ok(())
    }
}

#[pymethods]
impl Block {
    #[new]
    #[pyo3(signature = (nbytes, stream=0, device=None))]
    fn new(py: Python<'_>, nbytes: u64, stream: u64, device: Option<i64>) -> Result<Self> {
        py.detach(|| {
            let memory = memory(device)?;
            let ptr = memory.allocate(nbytes, stream)?.raw();
            let device = i64::from(memory.device().0);
            Ok(Self { ptr: Mutex::new(ptr), nbytes, stream, device })
        })
    }

    /// Its first address; 0 where it is empty or was given back.
    #[getter]
    fn ptr(&self) -> u64 {
        *self.address()
    }

    /// How many bytes were asked for.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// CUDA's value for the stream it belongs to.
    #[getter]
    fn stream(&self) -> u64 {
        self.stream
    }

    /// The ordinal of its device.
    #[getter]
    fn device(&self) -> i64 {
        self.device
    }

    /// Notes that work in `stream` uses it.
    fn record_stream(&self, py: Python<'_>, stream: u64) -> Result<()> {
        let ptr = *self.address();
        if ptr == 0 && self.nbytes > 0 {
            return Err(bad_value("the block was given back"));
        }
        py.detach(|| Ok(memory(Some(self.device))?.record_stream(DevicePtr::new(ptr), stream)?))
    }

    /// Gives it back now. Nothing happens the second time.
    fn free(&self, py: Python<'_>) -> Result<()> {
        py.detach(|| self.give_back())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The address is the object's own, so it is taken back; there is nobody to tell otherwise.
        let _ = self.give_back();
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Block>()
}
