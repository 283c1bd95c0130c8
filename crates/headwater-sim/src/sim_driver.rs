//! The driver: one view of a simulated machine, and what it offers beyond the contract.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use headwater_driver::{
    Call, CallCounters, DeviceId, DeviceProperties, ErrorClass, Kernel, MemoryInfo, Result, Stream,
};
use parking_lot::{Mutex, MutexGuard};

use crate::builder::SimBuilder;
use crate::builtin_kernels::{ParamKind, SimKernel};
use crate::faults::FaultPlan;
use crate::hazards::Hazard;
use crate::leaks::Leak;
use crate::machine::{Machine, Settings, with_memory};
use crate::work::{Access, Effect, Operation, Reach, Work};

/// A simulated machine with GPUs. Deterministic: calls made in the same order have the same results, times and hazards.
///
/// Calls may come from any thread; the order in which they come is the machine's order. There is one host clock for all
/// threads.
pub struct SimDriver {
    machine: Arc<Mutex<Machine>>,
    properties: Arc<[DeviceProperties]>,
    view: u32,
    counters: CallCounters,
}

impl SimDriver {
    /// One H200-like device. [`builder`](Self::builder) makes others.
    pub fn new() -> Arc<Self> {
        SimBuilder::default().build()
    }

    /// The parts of a machine, to be changed and built.
    pub fn builder() -> SimBuilder {
        SimBuilder::default()
    }

    pub(crate) fn with_settings(settings: Settings) -> Arc<Self> {
        let properties = settings.devices.clone().into();
        let machine = Arc::new(Mutex::new(Machine::new(settings)));
        Arc::new(Self { machine, properties, view: 0, counters: CallCounters::default() })
    }

    /// The same machine as somebody else in this process sees it, PyTorch say: memory, time and hazards are shared, but
    /// streams made through one view are unknown to the other until adopted, and calls are counted apart.
    pub fn second_view(&self) -> Arc<Self> {
        let mut machine = self.machine.lock();
        machine.views += 1;
        Arc::new(Self {
            machine: Arc::clone(&self.machine),
            properties: Arc::clone(&self.properties),
            view: machine.views,
            counters: CallCounters::default(),
        })
    }

    /// Virtual time since the machine was made.
    pub fn now_ns(&self) -> u64 {
        self.machine.lock().now_ns
    }

    /// The modelled cost of all driver calls so far, waiting not included.
    pub fn modelled_driver_ns(&self) -> u64 {
        self.machine.lock().driver_ns
    }

    /// The host is busy with something else for so long.
    pub fn advance_ns(&self, ns: u64) {
        let mut machine = self.machine.lock();
        let until = machine.now_ns.saturating_add(ns);
        machine.advance_to(until);
    }

    /// Gives a piece of work to a stream. Costs, counts and fails as a kernel launch; in a captured stream it becomes a
    /// node.
    ///
    /// # Errors
    /// As [`kernel_launch`](headwater_driver::Kernels::kernel_launch). Addresses are not checked here but when it runs, as
    /// on a device: a wrong one is a hazard, and the device is lost when the work ends.
    pub fn submit(&self, stream: Stream, work: Work) -> Result<()> {
        let mut machine = self.enter(Call::KernelLaunch, 0)?;
        let key = machine.stream_key(Call::KernelLaunch, self.view, stream)?;
        let reach = Reach::Kernel(stream.device());
        let reads = work.reads.into_iter().map(|range| Access::read(range, reach));
        let writes = work.writes.into_iter().map(|range| Access::write(range, reach));
        let operation = Operation {
            label: work.label,
            stream,
            accesses: reads.chain(writes).collect(),
            duration_ns: work.duration_ns,
            effect: Effect::Declared,
        };
        machine.submit(Call::KernelLaunch, key, operation, None)?;
        Ok(())
    }

    /// Whether all work has ended by now.
    pub fn idle(&self) -> bool {
        let machine = self.machine.lock();
        let streams = machine.streams.iter().map(|(_, stream)| stream.tail_ns);
        let departed = machine.devices.iter().map(|device| device.departed.tail_ns);
        machine.pending.is_empty() && streams.chain(departed).all(|tail_ns| tail_ns <= machine.now_ns)
    }

    /// Waits until all work of all devices has ended, as a program does at its end. No driver call: it costs nothing and
    /// is legal always.
    pub fn wait_until_idle(&self) {
        let mut machine = self.machine.lock();
        for ordinal in 0..self.properties.len() {
            machine.wait_for_device(DeviceId(ordinal as u32));
        }
    }

    /// The hazards found so far. Reads of unwritten bytes are found when the work ends, all others when it is submitted.
    pub fn hazards(&self) -> Vec<Hazard> {
        self.machine.lock().detector.log().found().to_vec()
    }

    /// How many hazards there were beyond those kept.
    pub fn hazards_dropped(&self) -> u64 {
        self.machine.lock().detector.log().dropped()
    }

    /// Takes the hazards out, to look for new ones.
    pub fn take_hazards(&self) -> Vec<Hazard> {
        self.machine.lock().detector.log_mut().take()
    }

    /// What has not been given back.
    pub fn leaks(&self) -> Vec<Leak> {
        self.machine.lock().leaks()
    }

    /// From now on, calls fail by this plan.
    pub fn set_faults(&self, faults: FaultPlan) {
        self.machine.lock().faults = faults;
    }

    /// Somebody else takes `bytes` of a device's memory, or all that is left; an unknown device is ignored.
    pub fn shrink_memory(&self, device: DeviceId, bytes: u64) {
        let mut machine = self.machine.lock();
        if let Some(device) = machine.devices.get_mut(device.0 as usize) {
            device.taken_bytes += bytes.min(device.memory().free_bytes);
        }
    }

    /// Somebody else gives back all that [`shrink_memory`](Self::shrink_memory) took.
    pub fn restore_memory(&self, device: DeviceId) {
        if let Some(device) = self.machine.lock().devices.get_mut(device.0 as usize) {
            device.taken_bytes = 0;
        }
    }

    /// Real memory that the contents of the simulated devices' memory take.
    pub fn content_host_bytes(&self) -> u64 {
        self.machine.lock().physical.host_bytes()
    }

    /// Makes a kernel known: launches of PTX entries with its name run it. One of the same name is replaced. Its effect runs
    /// inside of the machine and must not call the driver.
    pub fn register_kernel(&self, kernel: SimKernel) {
        let mut machine = self.machine.lock();
        machine.known_kernels.insert(kernel.name.to_string(), Arc::new(kernel));
    }

    /// The kinds of a kernel's parameters; none where the kernel does not exist or nobody implements it.
    pub fn kernel_params(&self, kernel: Kernel) -> Option<Vec<ParamKind>> {
        let machine = self.machine.lock();
        let state = machine.kernels.get(kernel.raw())?;
        machine.known_kernels.get(&state.name).map(|known| known.params.clone())
    }

    /// Whether `ptr` is in pinned host memory.
    pub fn host_is_pinned(&self, ptr: NonNull<u8>) -> bool {
        self.machine.lock().host.find(ptr.as_ptr() as u64, 1).is_some()
    }

    /// Reads device memory as it is now, without a call and without waiting: for tests that look at what a program cannot
    /// see. None where part of the range is not allocated or mapped. Bytes that nobody wrote read as 0xCD.
    pub fn peek(&self, range: Range<u64>) -> Option<Vec<u8>> {
        self.machine.lock().peek(range)
    }

    /// Whether the host can read and write the whole range at its own addresses: memory of a machine that was built for it
    /// ([`SimBuilder::host_visible`](crate::SimBuilder::host_visible)), mapped or allocated now. What streams were given is there
    /// when they have been waited for.
    pub fn is_host_visible(&self, range: Range<u64>) -> bool {
        self.machine.lock().is_host_visible(&range)
    }

    pub(crate) fn view(&self) -> u32 {
        self.view
    }

    pub(crate) fn counters(&self) -> &CallCounters {
        &self.counters
    }

    pub(crate) fn properties(&self) -> &[DeviceProperties] {
        &self.properties
    }

    /// The machine without a call: no count, no cost, no faults.
    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock()
    }

    /// The start of every call: counted, charged, and failed where the plan says so.
    pub(crate) fn enter(&self, call: Call, size_bytes: u64) -> Result<MutexGuard<'_, Machine>> {
        self.counters.note(call);
        let mut machine = self.machine.lock();
        machine.begin(call, size_bytes)?;
        Ok(machine)
    }

    /// The same for a call on a device, which fills in the numbers of an injected shortage of memory.
    pub(crate) fn enter_on(
        &self,
        call: Call,
        device: DeviceId,
        size_bytes: u64,
    ) -> Result<MutexGuard<'_, Machine>> {
        self.counters.note(call);
        let mut machine = self.machine.lock();
        if let Err(error) = machine.begin(call, size_bytes) {
            let memory = machine.devices.get(device.0 as usize).map(|device| device.memory());
            return Err(match (error.class(), memory) {
                (ErrorClass::OutOfMemory { .. }, Some(memory)) => with_memory(error, memory),
                _ => error,
            });
        }
        machine.device(call, device)?;
        Ok(machine)
    }

    /// Memory of a device, without a call.
    pub fn memory_now(&self, device: DeviceId) -> Option<MemoryInfo> {
        self.machine.lock().devices.get(device.0 as usize).map(|device| device.memory())
    }
}

impl std::fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDriver")
            .field("devices", &self.properties.len())
            .field("view", &self.view)
            .field("now_ns", &self.now_ns())
            .finish_non_exhaustive()
    }
}
