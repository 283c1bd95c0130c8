//! Raw requests, for those who keep addresses themselves (CuPy, Numba); copies and fills; limits.

use headwater_driver::DevicePtr;
use pyo3::prelude::*;

use crate::errors::Result;
use crate::process::memory;

/// Gives out memory for use in the stream with CUDA's value `stream` (0: the default stream). Returns the address.
#[pyfunction]
#[pyo3(signature = (nbytes, stream=0, device=None))]
fn allocate(py: Python<'_>, nbytes: u64, stream: u64, device: Option<i64>) -> Result<u64> {
    Ok(py.detach(|| -> Result<_> { Ok(memory(device)?.allocate(nbytes, stream)?) })?.raw())
}

/// Takes memory back.
#[pyfunction]
#[pyo3(signature = (ptr, device=None))]
fn give_back(py: Python<'_>, ptr: u64, device: Option<i64>) -> Result<()> {
    // SAFETY: Python's `Block` objects never hand out ownership of their address; what comes here came from `allocate`, or is
    // refused.
    py.detach(|| -> Result<_> { Ok(unsafe { memory(device)?.give_back(DevicePtr::new(ptr)) }?) })
}

/// Notes that work in `stream` uses the block at `ptr`.
#[pyfunction]
#[pyo3(signature = (ptr, stream, device=None))]
fn record_stream(py: Python<'_>, ptr: u64, stream: u64, device: Option<i64>) -> Result<()> {
    py.detach(|| -> Result<_> { Ok(memory(device)?.record_stream(DevicePtr::new(ptr), stream)?) })
}

/// The block around an address: (address, requested bytes, allocated bytes, stream), or None.
#[pyfunction]
#[pyo3(signature = (ptr, device=None))]
fn block_at(py: Python<'_>, ptr: u64, device: Option<i64>) -> Result<Option<(u64, u64, u64, u64)>> {
    let facts = py.detach(|| -> Result<_> { Ok(memory(device)?.front().block_at(DevicePtr::new(ptr))) })?;
    Ok(facts.map(|facts| (facts.ptr.raw(), facts.requested_bytes, facts.allocated_bytes, facts.stream.raw())))
}

/// Returns what nobody uses to the driver, and says how many bytes that was.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn empty_cache(py: Python<'_>, device: Option<i64>) -> Result<u64> {
    py.detach(|| -> Result<_> { Ok(memory(device)?.empty_cache()?) })
}

/// Free and total bytes of the device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn memory_info(py: Python<'_>, device: Option<i64>) -> Result<(u64, u64)> {
    let info = py.detach(|| -> Result<_> {
        let memory = memory(device)?;
        Ok(memory.driver().memory_info(memory.device())?)
    })?;
    Ok((info.free_bytes, info.total_bytes))
}

/// At most this share of the device's memory is reserved from now on.
#[pyfunction]
#[pyo3(signature = (fraction, device=None))]
fn set_memory_fraction(py: Python<'_>, fraction: f64, device: Option<i64>) -> Result<()> {
    py.detach(|| -> Result<_> { Ok(memory(device)?.set_fraction(fraction)?) })
}

/// The limit on reserved bytes, or None.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn limit_bytes(py: Python<'_>, device: Option<i64>) -> Result<Option<u64>> {
    py.detach(|| -> Result<_> { Ok(memory(device)?.limit_bytes()) })
}

/// At most so many bytes are reserved from now on; None is no limit but the device's.
#[pyfunction]
#[pyo3(signature = (limit, device=None))]
fn set_limit_bytes(py: Python<'_>, limit: Option<u64>, device: Option<i64>) -> Result<()> {
    py.detach(|| -> Result<_> {
        memory(device)?.set_limit_bytes(limit);
        Ok(())
    })
}

/// Copies `nbytes` from the host address `src` to the device address `dst` in `stream`, and waits for it.
#[pyfunction]
#[pyo3(signature = (dst, src, nbytes, stream=0, device=None))]
fn copy_to_device(
    py: Python<'_>,
    dst: u64,
    src: u64,
    nbytes: u64,
    stream: u64,
    device: Option<i64>,
) -> Result<()> {
    py.detach(|| -> Result<_> {
        let memory = memory(device)?;
        let stream = memory.stream(stream)?;
        let driver = memory.driver();
        // SAFETY: the Python side holds the host object and the block for the time of this call, and has checked the lengths.
        unsafe { driver.copy_to_device(DevicePtr::new(dst), src as *const u8, nbytes, stream)? };
        Ok(driver.stream_synchronize(stream)?)
    })
}

/// Copies `nbytes` from the device address `src` to the host address `dst` in `stream`, and waits for it.
#[pyfunction]
#[pyo3(signature = (dst, src, nbytes, stream=0, device=None))]
fn copy_to_host(
    py: Python<'_>,
    dst: u64,
    src: u64,
    nbytes: u64,
    stream: u64,
    device: Option<i64>,
) -> Result<()> {
    py.detach(|| -> Result<_> {
        let memory = memory(device)?;
        let stream = memory.stream(stream)?;
        let driver = memory.driver();
        // SAFETY: as above.
        unsafe { driver.copy_to_host(dst as *mut u8, DevicePtr::new(src), nbytes, stream)? };
        Ok(driver.stream_synchronize(stream)?)
    })
}

/// Copies `nbytes` within the device's memory, in `stream`; not waited for.
#[pyfunction]
#[pyo3(signature = (dst, src, nbytes, stream=0, device=None))]
fn copy_on_device(
    py: Python<'_>,
    dst: u64,
    src: u64,
    nbytes: u64,
    stream: u64,
    device: Option<i64>,
) -> Result<()> {
    py.detach(|| -> Result<_> {
        let memory = memory(device)?;
        let stream = memory.stream(stream)?;
        // SAFETY: both blocks are alive when the copy is queued, and a give-back lets work of their stream finish; other streams
        // are recorded by the Python side.
        unsafe { memory.driver().copy_on_device(DevicePtr::new(dst), DevicePtr::new(src), nbytes, stream)? };
        Ok(())
    })
}

/// Sets `nbytes` bytes at `dst` to `value`, in `stream`; not waited for.
#[pyfunction]
#[pyo3(signature = (dst, value, nbytes, stream=0, device=None))]
fn fill(py: Python<'_>, dst: u64, value: u8, nbytes: u64, stream: u64, device: Option<i64>) -> Result<()> {
    py.detach(|| -> Result<_> {
        let memory = memory(device)?;
        let stream = memory.stream(stream)?;
        // SAFETY: as above.
        unsafe { memory.driver().fill_bytes(DevicePtr::new(dst), value, nbytes, stream)? };
        Ok(())
    })
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(allocate, module)?)?;
    module.add_function(wrap_pyfunction!(give_back, module)?)?;
    module.add_function(wrap_pyfunction!(record_stream, module)?)?;
    module.add_function(wrap_pyfunction!(block_at, module)?)?;
    module.add_function(wrap_pyfunction!(empty_cache, module)?)?;
    module.add_function(wrap_pyfunction!(memory_info, module)?)?;
    module.add_function(wrap_pyfunction!(set_memory_fraction, module)?)?;
    module.add_function(wrap_pyfunction!(limit_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(set_limit_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(copy_to_device, module)?)?;
    module.add_function(wrap_pyfunction!(copy_to_host, module)?)?;
    module.add_function(wrap_pyfunction!(copy_on_device, module)?)?;
    module.add_function(wrap_pyfunction!(fill, module)?)
}
