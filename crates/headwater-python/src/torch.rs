//! Addresses for PyTorch: the hooks of its pluggable allocator, and the calls of the C++ shim.

use headwater_capi::torch as hooks;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The addresses of the hooks, by what PyTorch calls them.
#[pyfunction]
fn torch_hooks(py: Python<'_>) -> PyResult<Py<PyDict>> {
    let addresses = PyDict::new(py);
    for (name, address) in [
        ("alloc", hooks::headwater_torch_alloc as *const () as usize),
        ("free", hooks::headwater_torch_free as *const () as usize),
        ("init", hooks::headwater_torch_init as *const () as usize),
        ("reset", hooks::headwater_torch_reset as *const () as usize),
        ("memory_fraction", hooks::headwater_torch_memory_fraction as *const () as usize),
        ("base_alloc", hooks::headwater_torch_base_alloc as *const () as usize),
        ("record_stream", hooks::headwater_torch_record_stream as *const () as usize),
        ("begin_allocate_to_pool", hooks::headwater_torch_begin_allocate_to_pool as *const () as usize),
        ("end_allocate_to_pool", hooks::headwater_torch_end_allocate_to_pool as *const () as usize),
        ("release_pool", hooks::headwater_torch_release_pool as *const () as usize),
    ] {
        addresses.set_item(name, address)?;
    }
    Ok(addresses.unbind())
}

/// The address of the table of calls for the C++ shim.
#[pyfunction]
fn torch_calls() -> usize {
    &raw const hooks::CALLS as usize
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(torch_hooks, module)?)?;
    module.add_function(wrap_pyfunction!(torch_calls, module)?)
}
