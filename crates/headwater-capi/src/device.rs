//! Devices: opened by name, and asked what they are.

use std::ffi::c_char;
use std::sync::Arc;

use headwater::{DeviceChoice, Opened};
use headwater_driver::{DeviceId, Driver, Stream};

use crate::arguments::{Versioned, check_versioned, fill_versioned, out, owned_text, text};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::known_streams::KnownStreams;
use crate::status::{Failure, hw_status};

/// A device that was opened.
#[derive(Debug)]
pub struct hw_device {
    _opaque: [u8; 0],
}

handle_kind!(hw_device, 1, "device", Device);

/// A CUDA stream's value (`CUstream`). 0 and 1 are the legacy default stream, 2 is the calling thread's default stream, as in
/// CUDA; any other is a stream that Headwater made or that is adopted when it is first named.
pub type hw_stream = u64;

/// An address on a device (`CUdeviceptr`). Zero is none.
pub type hw_device_ptr = u64;

/// What is behind a device handle.
#[derive(Debug)]
pub struct Device {
    pub(crate) opened: Opened,
    pub(crate) streams: KnownStreams,
}

impl Device {
    pub(crate) fn open(choice: DeviceChoice) -> Result<Self, Failure> {
        let opened = headwater::open(choice)?;
        Ok(Self { streams: KnownStreams::new(opened.device), opened })
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.opened.driver
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.opened.device
    }

    /// The stream with CUDA's value, adopted if need be.
    ///
    /// # Safety
    /// It is a live stream of the device, or none at all: every function that takes a stream asks this of its caller.
    #[inline]
    pub(crate) unsafe fn stream(&self, raw: hw_stream) -> Result<Stream, Failure> {
        // SAFETY: passed on.
        unsafe { self.streams.stream(&**self.driver(), raw) }
    }
}

/// What a device is and has.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_device_info {
    /// Set by the caller to `sizeof(hw_device_info)`.
    pub struct_bytes: u64,
    /// Its ordinal.
    pub ordinal: u32,
    /// How many devices the driver has.
    pub device_count: u32,
    /// 1 for the simulated device.
    pub is_simulated: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability, major.
    pub compute_major: u32,
    /// Compute capability, minor.
    pub compute_minor: u32,
    /// 1 where it has virtual memory management, which the paged policy needs.
    pub has_virtual_memory: u32,
    /// 1 where streams can be captured.
    pub has_capture: u32,
    /// All of its memory.
    pub total_bytes: u64,
    /// What is free for anyone at this moment.
    pub free_bytes: u64,
}

// SAFETY: numbers alone, and the size first.
unsafe impl Versioned for hw_device_info {}

/// The library's version, `major.minor.patch`. The text is Headwater's and always good.
#[unsafe(no_mangle)]
pub extern "C" fn hw_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Opens a device: `auto` (CUDA device 0 where CUDA works, the simulated device otherwise), `sim`, `cuda` or `cuda:N`. Each
/// simulated device is one of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_open(choice: *const c_char, device: *mut *mut hw_device) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(device, "device") }?;
        // SAFETY: as above.
        let choice: DeviceChoice = unsafe { text(choice, "choice") }?.parse()?;
        place.write(handles::make(Device::open(choice)?));
        Ok(())
    })
}

/// Closes a device handle. Allocators and pools that were made with it go on working.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_close(device: *mut hw_device) -> hw_status {
    guarded(|| handles::take(device).map(drop))
}

/// What the device is and has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_get_info(
    device: *const hw_device,
    info: *mut hw_device_info,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { check_versioned(info, "info") }?;
        let device = handles::get(device)?;
        let (driver, id) = (device.driver(), device.id());
        let properties = driver.device_properties(id)?;
        let memory = driver.memory_info(id)?;
        let found = hw_device_info {
            struct_bytes: 0,
            ordinal: id.0,
            device_count: driver.device_count(),
            is_simulated: u32::from(device.opened.sim.is_some()),
            multiprocessors: properties.multiprocessors,
            compute_major: properties.compute_capability.0,
            compute_minor: properties.compute_capability.1,
            has_virtual_memory: u32::from(properties.capabilities.virtual_memory),
            has_capture: u32::from(properties.capabilities.capture),
            total_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
        };
        // SAFETY: the caller's promise.
        unsafe { fill_versioned(info, &found, "info") }
    })
}

/// The maker's name for the device. Give the text back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_name(device: *const hw_device, name: *mut *mut c_char) -> hw_status {
    // SAFETY: the caller's promise.
    unsafe { tell(device, name, |device| Ok(device.driver().device_properties(device.id())?.name)) }
}

/// The driver's version in its own words. Give the text back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_driver_version(
    device: *const hw_device,
    version: *mut *mut c_char,
) -> hw_status {
    // SAFETY: the caller's promise.
    unsafe { tell(device, version, |device| Ok(device.driver().version())) }
}

/// Why it is this device, in one sentence. Give the text back with `hw_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_device_why(device: *const hw_device, why: *mut *mut c_char) -> hw_status {
    // SAFETY: the caller's promise.
    unsafe { tell(device, why, |device| Ok(device.opened.why.clone())) }
}

/// What the simulated device noticed so far and CUDA would have hidden: how many mistakes, and (where `hazards_text` is not null)
/// one line for each, to be given back with `hw_string_free`. `HW_STATUS_NOT_SUPPORTED` on a real device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_sim_hazards(
    device: *const hw_device,
    count: *mut u64,
    hazards_text: *mut *mut c_char,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(count, "count") }?;
        let device = handles::get(device)?;
        let not_simulated = || Failure::new(hw_status::NotSupported, "a real device does not notice hazards");
        let sim = device.opened.sim.as_ref().ok_or_else(not_simulated)?;
        sim.wait_until_idle();
        let hazards = sim.hazards();
        if !hazards_text.is_null() {
            let lines: Vec<String> = hazards.iter().map(ToString::to_string).collect();
            // SAFETY: as above.
            unsafe { out(hazards_text, "hazards_text") }?.write(owned_text(&lines.join("\n"))?);
        }
        place.write(hazards.len() as u64 + sim.hazards_dropped());
        Ok(())
    })
}

/// A text about a device.
///
/// # Safety
/// As [`out`].
unsafe fn tell(
    device: *const hw_device,
    place: *mut *mut c_char,
    what: impl FnOnce(&Device) -> Result<String, Failure>,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(place, "the text's place") }?;
        place.write(owned_text(&what(&*handles::get(device)?)?)?);
        Ok(())
    })
}
