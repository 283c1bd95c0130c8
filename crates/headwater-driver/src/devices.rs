//! Devices: how many there are, what they can do, what they have left.

use crate::{CallCounts, CallTimes, DeviceId, Result};

/// Devices and what is known about them.
pub trait Devices {
    /// The backend's name: `sim` or `cuda`.
    fn backend(&self) -> &'static str;

    /// The driver's version in its own words, for people (`CUDA 13.0`).
    fn version(&self) -> String;

    /// How many devices there are; their ids are `0..device_count()`. At least one.
    fn device_count(&self) -> u32;

    /// What `device` is and can do. Read once and kept by the backend: cheap to ask.
    ///
    /// # Errors
    /// `InvalidValue` where there is no such device.
    fn device_properties(&self, device: DeviceId) -> Result<DeviceProperties>;

    /// Free and total memory of `device`. Legal during capture.
    ///
    /// # Errors
    /// `InvalidValue` where there is no such device; `DeviceLost`.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;

    /// Whether kernels of `from` can be given access to memory of `to`. A device is no peer of itself.
    ///
    /// # Errors
    /// `InvalidValue` where one of the devices does not exist.
    fn peer_access_possible(&self, from: DeviceId, to: DeviceId) -> Result<bool>;

    /// Lets kernels of `from` use the plain memory of `to`, from now on. Doing it twice is no error. Virtual memory
    /// is not covered: it names its devices in [`access_set`](crate::VirtualMemory::access_set).
    ///
    /// # Errors
    /// `InvalidValue` where one of the devices does not exist or both are the same; `NotSupported` where they cannot.
    fn peer_access_enable(&self, from: DeviceId, to: DeviceId) -> Result<()>;

    /// How often each call was made through this backend so far, failed calls included.
    fn call_counts(&self) -> CallCounts;

    /// Host time spent in each call so far, failed calls included. On a real device by the clock, while
    /// [`measured`](Self::measure_calls); on the simulated one by its cost model, always, and for all views of the machine.
    fn call_times(&self) -> CallTimes;

    /// Measures calls from now on, or no longer. Reading the clock costs some 50 ns a call, so that it is off by default.
    fn measure_calls(&self, measure: bool);
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The maker's name for it.
    pub name: String,
    /// All of its memory.
    pub total_bytes: u64,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Its place on the PCI bus, `domain:bus:device.function`.
    pub pci_address: String,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// What a device and its driver can do. A call behind a missing capability answers `NotSupported` or `Unavailable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Virtual memory management: the whole of [`VirtualMemory`](crate::VirtualMemory).
    pub virtual_memory: bool,
    /// Stream capture and graphs: the whole of [`Capture`](crate::Capture).
    pub capture: bool,
    /// Pinned host memory that the device reaches at full speed.
    pub host_pinning: bool,
    /// At least one other device can be a peer.
    pub peer_access: bool,
    /// Physical handles can be exported to other processes as file descriptors.
    pub shareable_handles: bool,
}

/// Memory of a device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What is free for anyone.
    pub free_bytes: u64,
    /// What there is.
    pub total_bytes: u64,
}
