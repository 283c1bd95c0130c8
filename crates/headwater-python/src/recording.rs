//! Traces: what a device is asked for, written into a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_capi::torch::{DeviceMemory, MemoryError, Process};
use headwater_trace::record::RecordOptions;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::errors::{Error, Result};
use crate::process::memory;

/// Records what a device is asked for from now on into the file `path`.
#[pyfunction]
#[pyo3(signature = (path, name="", device=None))]
fn start_recording(py: Python<'_>, path: PathBuf, name: &str, device: Option<i64>) -> PyResult<()> {
    py.detach(|| {
        let memory = memory(device)?;
        if memory.is_recording() {
            // Before the file is touched.
            return Err(Error::from(MemoryError::RecordingAlready).into());
        }
        let file = File::create(&path).map_err(|error| cannot_create(&path, &error))?;
        let options = RecordOptions { name: name.to_owned(), ..RecordOptions::default() };
        Ok(memory.start_recording(file, options).map_err(Error::from)?)
    })
}

/// Ends the recording, closes its file, and says how many events are in it.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn stop_recording(py: Python<'_>, device: Option<i64>) -> Result<u64> {
    py.detach(|| Ok(memory(device)?.stop_recording()?.events))
}

/// Records every device, from now on or from its first use on: the first one into `path`, the n-th into `name.n.ext`.
#[pyfunction]
#[pyo3(signature = (path, name=""))]
fn record_all(py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
    // Tried now, so that a path that is none shows before the program has run.
    File::create(&path).map_err(|error| cannot_create(&path, &error))?;
    let name = name.to_owned();
    let begin = move |memory: &DeviceMemory| {
        let path = path_of(&path, memory.device().0);
        let begun = File::create(&path).map_err(|error| error.to_string()).and_then(|file| {
            let options = RecordOptions { name: name.clone(), ..RecordOptions::default() };
            memory.start_recording(file, options).map_err(|error| error.to_string())
        });
        if let Err(why) = begun {
            eprintln!("headwater: {} is not recorded into {}: {why}", memory.device(), path.display());
        }
    };
    py.detach(|| Process::visit_devices(Some(Arc::new(begin))));
    Ok(())
}

/// Ends what `record_all` began, and says how many events were written.
#[pyfunction]
fn stop_recording_all(py: Python<'_>) -> Result<u64> {
    py.detach(|| {
        Process::visit_devices(None);
        let mut events = 0;
        for memory in
            Process::get().into_iter().flat_map(Process::all_used).filter(|memory| memory.is_recording())
        {
            events += memory.stop_recording()?.events;
        }
        Ok(events)
    })
}

/// The file of a device.
fn path_of(path: &Path, device: u32) -> PathBuf {
    if device == 0 {
        return path.to_owned();
    }
    let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
    path.with_extension(extension.map_or(device.to_string(), |extension| format!("{device}.{extension}")))
}

fn cannot_create(path: &Path, error: &std::io::Error) -> PyErr {
    PyOSError::new_err(format!("cannot create {}: {error}", path.display()))
}

/// Whether a recording is under way.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn is_recording(py: Python<'_>, device: Option<i64>) -> Result<bool> {
    py.detach(|| Ok(memory(device)?.is_recording()))
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(start_recording, module)?)?;
    module.add_function(wrap_pyfunction!(stop_recording, module)?)?;
    module.add_function(wrap_pyfunction!(record_all, module)?)?;
    module.add_function(wrap_pyfunction!(stop_recording_all, module)?)?;
    module.add_function(wrap_pyfunction!(is_recording, module)?)
}
