//! The machine: everything the simulated devices are, behind one lock.
//!
//! Time is virtual. The host's clock moves by the modelled cost of each call, by waiting, and by
//! [`advance_ns`](crate::SimDriver::advance_ns). Work gets its start and end when it is given to a stream: it starts when the
//! host has submitted it and everything ordered before it has ended. What it does to bytes happens when the host's clock
//! passes its end, in the order of ends; so a host that looks too early sees old bytes, as on CUDA.

mod address_space;
mod captures;
mod detector;
mod effects;
mod graphs;
mod host_ranges;
mod inspect;
mod mappings;
mod physical;
mod streams;
mod timeline;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_driver::{
    Call, CallClocks, CaptureMode, DeviceId, DeviceProperties, DriverError, ErrorClass, MemoryInfo, Result,
};
use rustc_hash::FxHashMap;

use crate::builtin_kernels::{SimKernel, builtin_kernels};
use crate::cost::CostModel;
use crate::exports::MachineName;
use crate::faults::FaultPlan;
use crate::refusal::{Refusal, injected, out_of_memory};
use crate::slots::Slots;
use crate::vector_clock::VectorClock;

pub(crate) use address_space::{Backing, Region};
pub(crate) use captures::Captures;
pub(crate) use detector::{Detector, Touched};
pub(crate) use graphs::{Exec, Template};
pub(crate) use host_ranges::{HostRanges, places_of, read_host};
pub(crate) use physical::PhysicalId;
pub(crate) use streams::{StreamKey, StreamState};
pub(crate) use timeline::{EventPoint, EventState, Pending};

use address_space::AddressSpace;
use physical::PhysicalMemory;
use streams::{Departed, ThreadStreams};

/// 2 MiB, the granularity of virtual memory on today's devices (measured).
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;

/// What a machine is made from.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) devices: Vec<DeviceProperties>,
    pub(crate) cost: CostModel,
    pub(crate) faults: FaultPlan,
    pub(crate) host_memory_bytes: u64,
    pub(crate) hazard_limit: usize,
    pub(crate) report_unwritten: bool,
    pub(crate) host_visible: bool,
}

/// All simulated devices and the host's side of them.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) now_ns: u64,
    pub(crate) driver_ns: u64,
    /// The same, by call.
    pub(crate) clocks: CallClocks,
    pub(crate) cost: CostModel,
    pub(crate) faults: FaultPlan,
    pub(crate) report_unwritten: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) space: AddressSpace,
    pub(crate) physical: PhysicalMemory,
    pub(crate) handles: Slots<HandleState>,
    pub(crate) host: HostRanges,
    pub(crate) streams: Slots<StreamState>,
    pub(crate) thread_streams: ThreadStreams,
    pub(crate) thread_modes: FxHashMap<u64, CaptureMode>,
    pub(crate) events: Slots<EventState>,
    pub(crate) captures: Captures,
    pub(crate) graphs: Slots<GraphState>,
    pub(crate) execs: Slots<Exec>,
    pub(crate) modules: Slots<ModuleState>,
    pub(crate) kernels: Slots<KernelState>,
    /// Kernels the machine can run, by the name of their entry point.
    pub(crate) known_kernels: BTreeMap<String, Arc<SimKernel>>,
    pub(crate) detector: Detector,
    /// Work whose end has not come, the next to end on top.
    pub(crate) pending: BinaryHeap<Reverse<Pending>>,
    pub(crate) submitted: u64,
    pub(crate) views: u32,
    /// The latest of the numbers that tell where memory is shown.
    pub(crate) shown: u64,
    /// For what it exports.
    pub(crate) name: MachineName,
}

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) properties: DeviceProperties,
    pub(crate) used_bytes: u64,
    /// What somebody else took: [`shrink_memory`](crate::SimDriver::shrink_memory).
    pub(crate) taken_bytes: u64,
    /// Why the device is lost.
    pub(crate) lost: Option<String>,
    pub(crate) legacy: StreamKey,
    /// Counts what the legacy default stream was given, so that blocking streams know when to look.
    pub(crate) legacy_version: u64,
    /// Its streams that are ordered with the legacy default stream.
    pub(crate) blocking: std::collections::BTreeSet<StreamKey>,
    /// What destroyed streams may still be running.
    pub(crate) departed: Departed,
    pub(crate) departed_blocking: Departed,
}

/// A handle from `cuMemCreate`.
#[derive(Debug)]
pub(crate) struct HandleState {
    pub(crate) device: DeviceId,
    pub(crate) physical: PhysicalId,
    pub(crate) bytes: u64,
    /// Whether it was made for export.
    pub(crate) exportable: bool,
    pub(crate) made_at_ns: u64,
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct GraphState {
    pub(crate) device: DeviceId,
    pub(crate) template: Arc<Template>,
    pub(crate) made_at_ns: u64,
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct ModuleState {
    pub(crate) device: DeviceId,
    /// Entry points, and the kernel's number where somebody asked for it.
    pub(crate) entries: BTreeMap<String, Option<u64>>,
    pub(crate) made_at_ns: u64,
}

/// A kernel somebody asked for.
#[derive(Debug)]
pub(crate) struct KernelState {
    pub(crate) device: DeviceId,
    pub(crate) name: String,
}

impl Device {
    pub(crate) fn memory(&self) -> MemoryInfo {
        let total_bytes = self.properties.total_bytes;
        let gone = self.used_bytes.saturating_add(self.taken_bytes);
        MemoryInfo { free_bytes: total_bytes.saturating_sub(gone), total_bytes }
    }
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut machine = Self {
            now_ns: 0,
            driver_ns: 0,
            clocks: CallClocks::default(),
            cost: settings.cost,
            faults: settings.faults,
            report_unwritten: settings.report_unwritten,
            devices: Vec::new(),
            space: AddressSpace::new(settings.devices.len()),
            physical: PhysicalMemory::new(settings.host_visible),
            handles: Slots::new(1),
            host: HostRanges::new(settings.host_memory_bytes),
            streams: Slots::new(2),
            thread_streams: ThreadStreams::default(),
            thread_modes: FxHashMap::default(),
            events: Slots::new(3),
            captures: Captures::default(),
            graphs: Slots::new(4),
            execs: Slots::new(5),
            modules: Slots::new(6),
            kernels: Slots::new(7),
            known_kernels: BTreeMap::new(),
            detector: Detector::new(settings.hazard_limit),
            pending: BinaryHeap::new(),
            submitted: 0,
            views: 0,
            shown: 0,
            name: MachineName::new(),
        };
        for kernel in builtin_kernels() {
            machine.known_kernels.insert(kernel.name.to_string(), Arc::new(kernel));
        }
        for (ordinal, properties) in settings.devices.into_iter().enumerate() {
            let legacy = machine.new_legacy_stream(DeviceId(ordinal as u32));
            machine.devices.push(Device {
                properties,
                used_bytes: 0,
                taken_bytes: 0,
                lost: None,
                legacy,
                legacy_version: 0,
                blocking: Default::default(),
                departed: Departed::default(),
                departed_blocking: Departed::default(),
            });
        }
        machine
    }

    /// The start of every call: the least it costs passes, and the fault plan is asked. Nothing has happened yet where it
    /// fails. `size_bytes` is what the call asks for.
    pub(crate) fn begin(&mut self, call: Call, size_bytes: u64) -> Result<()> {
        self.charge(call, self.cost.cost_ns(call, 0, 1));
        match self.faults.next(call) {
            Some(class) => Err(injected(call, class, size_bytes)),
            None => Ok(()),
        }
    }

    /// The rest of a call's cost, once it has worked: by its size, and by how many handles it took. A refused call does
    /// not pay for the size it asked for.
    pub(crate) fn charge_rest(&mut self, call: Call, size_bytes: u64, count: u64) {
        let whole = self.cost.cost_ns(call, size_bytes, count);
        self.charge(call, whole.saturating_sub(self.cost.cost_ns(call, 0, 1)));
    }

    fn charge(&mut self, call: Call, ns: u64) {
        self.clocks.add(call, ns);
        self.driver_ns = self.driver_ns.saturating_add(ns);
        self.advance_to(self.now_ns.saturating_add(ns));
    }

    /// Moves the host's clock; work that ends by then takes effect.
    pub(crate) fn advance_to(&mut self, time_ns: u64) {
        while let Some(Reverse(next)) = self.pending.peek() {
            if next.end_ns > time_ns {
                break;
            }
            if let Some(Reverse(ended)) = self.pending.pop() {
                self.now_ns = self.now_ns.max(ended.end_ns);
                self.finish(ended);
            }
        }
        self.now_ns = self.now_ns.max(time_ns);
    }

    /// The device called `id`, alive.
    pub(crate) fn device(&self, call: Call, id: DeviceId) -> Result<&Device> {
        let device = self.known_device(call, id)?;
        match &device.lost {
            Some(why) => Err(Refusal::IllegalAddress.of(call).with_detail(why.clone())),
            None => Ok(device),
        }
    }

    /// The same, to change it.
    pub(crate) fn device_mut(&mut self, call: Call, id: DeviceId) -> Result<&mut Device> {
        self.device(call, id)?;
        Ok(&mut self.devices[id.0 as usize])
    }

    /// The device called `id`, lost or not.
    pub(crate) fn known_device(&self, call: Call, id: DeviceId) -> Result<&Device> {
        self.devices.get(id.0 as usize).ok_or_else(|| {
            let there_are = format!("{id} of {} devices", self.devices.len());
            Refusal::InvalidDevice.of(call).with_detail(there_are)
        })
    }

    /// Takes `bytes` of a device's memory.
    pub(crate) fn take_memory(&mut self, call: Call, id: DeviceId, asked: u64, bytes: u64) -> Result<()> {
        let device = self.device_mut(call, id)?;
        let memory = device.memory();
        if bytes > memory.free_bytes {
            return Err(out_of_memory(call, asked, Some(memory)));
        }
        device.used_bytes += bytes;
        Ok(())
    }

    /// Removes a piece of physical memory that nobody holds or maps any more, its uses and its share of the device.
    pub(crate) fn reap(&mut self, id: PhysicalId) {
        if let Some(gone) = self.physical.reap(id) {
            self.detector.forget(gone.place..gone.place + gone.bytes.len());
            self.devices[gone.device.0 as usize].used_bytes -= gone.charged_bytes;
        }
    }

    /// Waits until everything on `device` has ended, and knows it: what a plain free does.
    pub(crate) fn wait_for_device(&mut self, id: DeviceId) {
        let device = &self.devices[id.0 as usize];
        let mut until_ns = device.departed.tail_ns;
        let mut clock: VectorClock = device.departed.clock.clone();
        for (_, stream) in self.streams.iter().filter(|(_, stream)| stream.device == id) {
            until_ns = until_ns.max(stream.tail_ns);
            clock.join(&stream.clock);
        }
        self.advance_to(until_ns);
        self.detector.host_learns(&clock);
    }
}

/// An injected or refused out-of-memory error with the device's numbers filled in.
pub(crate) fn with_memory(error: DriverError, memory: MemoryInfo) -> DriverError {
    match error.class() {
        ErrorClass::OutOfMemory { requested_bytes, memory: None } => {
            let filled = out_of_memory(error.call(), requested_bytes, Some(memory));
            match error.detail() {
                Some(detail) => filled.with_detail(detail),
                None => filled,
            }
        }
        _ => error,
    }
}

/// A number for the calling thread, the same for every machine.
pub(crate) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static THIS: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    THIS.with(|number| *number)
}
