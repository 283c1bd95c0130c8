//! Choosing the device and the settings, and saying what was chosen.

use headwater::DeviceChoice;
use headwater::config::Config;
use headwater_capi::torch::{DeviceMemory, Process, ProcessOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Error, Result, bad_value};

/// The environment variable that names the default device.
const DEVICE_VARIABLE: &str = "HEADWATER_DEVICE";

/// The process's allocators, made as they were prepared, or by the environment.
pub(crate) fn process() -> Result<&'static Process> {
    if let Some(process) = Process::get() {
        return Ok(process);
    }
    let device = std::env::var(DEVICE_VARIABLE).unwrap_or_else(|_| "auto".to_owned());
    let device = choice(&device)?;
    Ok(Process::get_or_make_prepared(|| Ok(ProcessOptions { device, config: None }))?)
}

/// A device's memory; by default that of the device that was opened.
pub(crate) fn memory(device: Option<i64>) -> Result<&'static DeviceMemory> {
    let process = process()?;
    Ok(process.memory(device.unwrap_or(i64::from(process.opened().device.0)))?)
}

fn choice(device: &str) -> Result<DeviceChoice> {
    device.parse().map_err(bad_value)
}

/// Makes the process's allocators on `device` ("auto", "sim", "cuda" or "cuda:N") by `settings` (as in HEADWATER_ALLOC_CONF;
/// None reads the environment).
#[pyfunction]
#[pyo3(signature = (device, settings=None))]
fn open_process(py: Python<'_>, device: &str, settings: Option<&str>) -> Result<()> {
    let options = options(device, settings)?;
    py.detach(|| Process::get_or_make(&options))?;
    Ok(())
}

/// The same, when they are first needed.
#[pyfunction]
#[pyo3(signature = (device, settings=None))]
fn prepare_process(device: &str, settings: Option<&str>) -> Result<()> {
    Ok(Process::prepare(options(device, settings)?)?)
}

fn options(device: &str, settings: Option<&str>) -> Result<ProcessOptions> {
    let config = settings.map(Config::parse).transpose().map_err(bad_value)?;
    if config.is_some() && Process::get().is_some() {
        let why = "the process's allocators are made already: settings come too late, give them before the first use";
        return Err(Error::Named("DeviceError", why.to_owned()));
    }
    Ok(ProcessOptions { device: choice(device)?, config })
}

/// Whether the process's allocators were made.
#[pyfunction]
fn is_open() -> bool {
    Process::get().is_some()
}

/// Whether somebody has used a device's memory.
#[pyfunction]
fn is_used(device: usize) -> bool {
    Process::get().is_some_and(|process| process.used(device).is_some())
}

/// Whether the host can read and write `nbytes` device bytes at `ptr` in place, as on the simulated device.
#[pyfunction]
fn is_host_visible(py: Python<'_>, ptr: u64, nbytes: u64) -> bool {
    let sim = Process::get().and_then(|process| process.opened().sim.as_ref());
    py.detach(|| sim.is_some_and(|sim| sim.is_host_visible(ptr..ptr.saturating_add(nbytes))))
}

/// What was chosen, and why.
#[pyfunction]
fn process_info(py: Python<'_>) -> Result<Py<PyDict>> {
    let process = py.detach(process)?;
    let fill = || -> PyResult<Py<PyDict>> {
        let info = PyDict::new(py);
        info.set_item("backend", process.driver().backend())?;
        info.set_item("device", process.opened().device.0)?;
        info.set_item("why", &process.opened().why)?;
        info.set_item("device_count", process.device_count())?;
        info.set_item("settings", process.config().to_settings_string())?;
        Ok(info.unbind())
    };
    fill().map_err(|error| Error::Value(error.to_string()))
}

/// The properties of a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn device_properties(py: Python<'_>, device: Option<i64>) -> PyResult<Py<PyDict>> {
    let memory = py.detach(|| memory(device))?;
    let driver = memory.driver();
    let properties =
        py.detach(|| driver.device_properties(memory.device())).map_err(crate::errors::Error::from)?;
    let dict = PyDict::new(py);
    dict.set_item("name", properties.name)?;
    dict.set_item("total_bytes", properties.total_bytes)?;
    dict.set_item("compute_capability", properties.compute_capability)?;
    dict.set_item("multiprocessors", properties.multiprocessors)?;
    dict.set_item("pci_address", properties.pci_address)?;
    Ok(dict.unbind())
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(open_process, module)?)?;
    module.add_function(wrap_pyfunction!(prepare_process, module)?)?;
    module.add_function(wrap_pyfunction!(is_open, module)?)?;
    module.add_function(wrap_pyfunction!(is_used, module)?)?;
    module.add_function(wrap_pyfunction!(is_host_visible, module)?)?;
    module.add_function(wrap_pyfunction!(process_info, module)?)?;
    module.add_function(wrap_pyfunction!(device_properties, module)?)
}
