//! The driver: its library, its devices, and what was made through it.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use headwater_driver::{
    Call, CallClocks, CallCounters, Capabilities, DeviceId, DeviceProperties, DriverError, Event,
};

use crate::Unavailable;
use crate::abi::{Attribute, CuDevice, CuResult, MemAllocationProp};
use crate::call_site::CallSite;
use crate::context::PrimaryContext;
use crate::error::{driver_error, name_of};
use crate::ledger::Ledger;
use crate::library;
use crate::objects::{
    EventObject, GraphExecObject, GraphObject, HandleObject, KernelObject, ModuleObject, StreamObject,
};
use crate::registry::{Key, Owned, Registry};
use crate::table::Table;

/// The real driver: `libcuda`, loaded at run time.
///
/// Open it once a process and share it: the ids and addresses of one are unknown to another.
///
/// Streams, events, graphs and modules that were made through it and are still there when it is dropped are
/// destroyed, and handles released (mapped memory stays mapped). Plain memory, address ranges, mappings and pinned host
/// memory are their caller's to give back: work on the device may still use them. Then the primary contexts are given
/// back; where nobody else in the process uses a device, its context and its plain memory go with that.
///
/// ```no_run
/// use std::sync::Arc;
/// use headwater_cuda::CudaDriver;
/// use headwater_driver::{DeviceId, Driver};
///
/// let driver: Arc<dyn Driver> = CudaDriver::open()?;
/// let memory = driver.memory_info(DeviceId(0))?;
/// println!("{} of {} bytes free", memory.free_bytes, memory.total_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CudaDriver {
    pub(crate) table: Arc<Table>,
    pub(crate) version: i32,
    pub(crate) devices: Vec<Device>,
    pub(crate) counters: CallCounters,
    pub(crate) is_measuring: AtomicBool,
    pub(crate) clocks: CallClocks,
    numbers: AtomicU64,

    pub(crate) streams: Registry<Owned<StreamObject>>,
    pub(crate) events: Registry<Owned<EventObject>>,
    pub(crate) handles: Registry<Owned<HandleObject>>,
    pub(crate) graphs: Registry<Owned<GraphObject>>,
    pub(crate) graph_execs: Registry<Owned<GraphExecObject>>,
    pub(crate) modules: Registry<Owned<ModuleObject>>,
    pub(crate) kernels: Registry<KernelObject>,

    pub(crate) plain_memory: Ledger,
    pub(crate) addresses: Ledger,
    /// What is mapped, by address.
    pub(crate) mappings: Ledger,
    pub(crate) host_allocated: Ledger,
    pub(crate) host_registered: Ledger,
}

/// A device and what was read of it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) cu: CuDevice,
    pub(crate) properties: DeviceProperties,
    /// Network cards can reach physical handles of this device, where they are made for it.
    rdma: bool,
    pub(crate) granularity: OnceLock<u64>,
    pub(crate) context: OnceLock<Arc<PrimaryContext>>,
}

impl CudaDriver {
    /// Loads the machine's driver and looks at its devices. Makes no context yet: that is left to the first call that
    /// needs one, so that devices nobody uses keep their memory.
    ///
    /// The library is the one that the environment variable `HEADWATER_LIBCUDA` names, otherwise `libcuda.so.1`,
    /// otherwise `libcuda.so`.
    ///
    /// # Errors
    /// [`Unavailable`] says what is missing.
    pub fn open() -> Result<Arc<Self>, Unavailable> {
        let names = library::names(std::env::var_os(library::LIBRARY_SETTING));
        // SAFETY: the system's CUDA driver, or what whoever runs the process has put in its place, as with LD_PRELOAD.
        unsafe { Self::start(library::load_first(&names)?) }
    }

    /// As [`open`](Self::open), with the library at `path`.
    ///
    /// # Safety
    /// The library can be loaded safely, and what it exports under the names of the CUDA driver's calls are those calls.
    ///
    /// # Errors
    /// [`Unavailable`] says what is missing.
    pub unsafe fn open_library(path: impl AsRef<Path>) -> Result<Arc<Self>, Unavailable> {
        // SAFETY: the caller vouches for the library.
        unsafe { Self::start(library::load_first(&[path.as_ref().as_os_str()])?) }
    }

    /// # Safety
    /// `library` is a CUDA driver, or has none of its names.
    unsafe fn start(library: libloading::Library) -> Result<Arc<Self>, Unavailable> {
        // SAFETY: the caller vouches for the library.
        Self::with_table(unsafe { Table::load(library)? })
    }

    /// Starts the driver whose calls these are.
    pub(crate) fn with_table(table: Table) -> Result<Arc<Self>, Unavailable> {
        let table = Arc::new(table);
        let counters = CallCounters::default();
        counters.note(Call::Init);
        // SAFETY: zero is the only flag there is.
        let code = unsafe { (table.init)(0) };
        started(&table, code)?;
        let mut version = 0;
        // SAFETY: `version` lives through the call.
        started(&table, unsafe { (table.driver_get_version)(&mut version) })?;
        let mut count = 0;
        // SAFETY: `count` lives through the call.
        started(&table, unsafe { (table.device_get_count)(&mut count) })?;
        let ids = (0..u32::try_from(count).unwrap_or(0)).map(DeviceId);
        let mut devices = Vec::new();
        for id in ids {
            counters.note(Call::DeviceProperties);
            let device = Device::read(&table, id).map_err(|code| Unavailable::DeviceSilent {
                device: id,
                error: driver_error(&table, Call::DeviceProperties, code, (0, None)),
            })?;
            devices.push(device);
        }
        if devices.is_empty() {
            return Err(Unavailable::NoDevice);
        }
        find_peers(&table, &mut devices);
        Ok(Arc::new(Self {
            table,
            version,
            devices,
            counters,
            is_measuring: AtomicBool::new(false),
            clocks: CallClocks::default(),
            numbers: AtomicU64::new(1),
            streams: Registry::default(),
            events: Registry::default(),
            handles: Registry::default(),
            graphs: Registry::default(),
            graph_execs: Registry::default(),
            modules: Registry::default(),
            kernels: Registry::default(),
            plain_memory: Ledger::default(),
            addresses: Ledger::default(),
            mappings: Ledger::default(),
            host_allocated: Ledger::default(),
            host_registered: Ledger::default(),
        }))
    }

    /// The `CUevent` behind an event, for calls of the CUDA API that this contract does not have. It is good until the
    /// event is destroyed.
    ///
    /// # Errors
    /// `InvalidHandle` where the event does not exist (any more).
    pub fn raw_event(&self, event: Event) -> Result<u64, DriverError> {
        // Not a call of the driver, so not counted as one; the error has to name one nevertheless.
        CallSite::uncounted(self, Call::EventQuery).event(event).map(|event| event.raw.0 as u64)
    }

    /// Begins one call of the contract, and counts it.
    pub(crate) fn call(&self, call: Call) -> CallSite<'_> {
        self.counters.note(call);
        CallSite::uncounted(self, call)
    }

    /// A number that no object of this driver had before.
    pub(crate) fn new_key(&self, device: DeviceId) -> Key {
        // Relaxed: only that no two are the same matters.
        (device, self.numbers.fetch_add(1, Ordering::Relaxed))
    }
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the registries: they can hold tens of thousands of events.
        f.debug_struct("CudaDriver")
            .field("version", &self.version)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Reads what a device is. Needs no context.
    fn read(table: &Table, id: DeviceId) -> Result<Self, CuResult> {
        let ordinal = i32::try_from(id.0).map_err(|_| CuResult::INVALID_DEVICE)?;
        let mut cu = 0;
        // SAFETY: `cu` lives through the call.
        succeeded(unsafe { (table.device_get)(&mut cu, ordinal) })?;
        let mut total_bytes = 0_usize;
        // SAFETY: `total_bytes` lives through the call.
        succeeded(unsafe { (table.device_total_mem)(&mut total_bytes, cu) })?;
        // SAFETY: the buffer is as long as `text` says.
        let name = text(|buffer, len| unsafe { (table.device_get_name)(buffer, len, cu) })?;
        // SAFETY: as above.
        let pci_address = text(|buffer, len| unsafe { (table.device_get_pci_bus_id)(buffer, len, cu) })?;
        let attribute = |attribute| attribute_of(table, cu, attribute);
        let can = |what| attribute(what).map(|value| value != 0);
        Ok(Self {
            id,
            cu,
            properties: DeviceProperties {
                name,
                total_bytes: total_bytes as u64,
                compute_capability: (
                    attribute(Attribute::ComputeCapabilityMajor)?,
                    attribute(Attribute::ComputeCapabilityMinor)?,
                ),
                multiprocessors: attribute(Attribute::MultiprocessorCount)?,
                pci_address,
                capabilities: Capabilities {
                    virtual_memory: can(Attribute::VirtualMemoryManagement)?,
                    capture: table.has_capture(),
                    // Every CUDA device copies from and to pinned memory at full speed.
                    host_pinning: true,
                    peer_access: false, // Known when all devices are, see `find_peers`.
                    shareable_handles: can(Attribute::HandleTypePosixFileDescriptor)?,
                },
            },
            rdma: can(Attribute::GpuDirectRdmaWithVirtualMemory)?,
            granularity: OnceLock::new(),
            context: OnceLock::new(),
        })
    }

    /// How physical handles of this device are made.
    pub(crate) fn allocation_prop(&self, exportable: bool) -> MemAllocationProp {
        let private = MemAllocationProp::on_device(self.cu, self.rdma);
        if exportable { private.exportable() } else { private }
    }

    /// The device's primary context, retained at first use.
    pub(crate) fn context(&self, table: &Arc<Table>) -> Result<&Arc<PrimaryContext>, CuResult> {
        if let Some(context) = self.context.get() {
            return Ok(context);
        }
        // Two threads may come here at once. Both retain, and the one that is late gives its count back: no lock is held
        // while the driver makes a context, which takes a tenth of a second and more.
        let retained = Arc::new(PrimaryContext::retain(table, self.cu)?);
        Ok(self.context.get_or_init(|| retained))
    }
}

/// Notes which devices have a peer.
fn find_peers(table: &Table, devices: &mut [Device]) {
    let all: Vec<CuDevice> = devices.iter().map(|device| device.cu).collect();
    for device in devices {
        let mut others = all.iter().filter(|other| **other != device.cu);
        device.properties.capabilities.peer_access = others.any(|other| {
            let mut can = 0;
            // SAFETY: `can` lives through the call. A device that cannot answer is no peer.
            unsafe { (table.device_can_access_peer)(&mut can, device.cu, *other) }.is_success() && can != 0
        });
    }
}

/// An attribute's value, never below zero.
fn attribute_of(table: &Table, device: CuDevice, attribute: Attribute) -> Result<u32, CuResult> {
    let mut value = 0;
    // SAFETY: `value` lives through the call.
    match unsafe { (table.device_get_attribute)(&mut value, attribute as u32, device) } {
        // An older driver does not know the attribute: it cannot do what the attribute is about.
        CuResult::INVALID_VALUE => Ok(0),
        code => succeeded(code).map(|()| u32::try_from(value).unwrap_or(0)),
    }
}

/// A string that the driver writes into a buffer.
fn text(write: impl FnOnce(*mut c_char, i32) -> CuResult) -> Result<String, CuResult> {
    let mut buffer = [0 as c_char; 256];
    // One less than there is room for: the last zero stays whatever the driver does.
    succeeded(write(buffer.as_mut_ptr(), buffer.len() as i32 - 1))?;
    // SAFETY: the buffer ends with a zero.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}

fn succeeded(code: CuResult) -> Result<(), CuResult> {
    if code.is_success() { Ok(()) } else { Err(code) }
}

/// The answer to a call that must succeed for the driver to be of use.
fn started(table: &Table, code: CuResult) -> Result<(), Unavailable> {
    match code {
        CuResult::SUCCESS => Ok(()),
        CuResult::NO_DEVICE => Err(Unavailable::NoDevice),
        code => Err(Unavailable::Init { code: code.0, name: name_of(table, code).into_owned() }),
    }
}
