//! How a simulated machine is made.

use std::sync::Arc;

use headwater_driver::{Capabilities, DeviceProperties};

use crate::cost::CostModel;
use crate::faults::FaultPlan;
use crate::machine::Settings;
use crate::sim_driver::SimDriver;

/// A machine's most devices: access is kept as one bit a device.
const DEVICES_MAX: u32 = 64;

/// What an H200 has left for programs (measured: about 139 GiB).
const H200_MEMORY_BYTES: u64 = 139 << 30;

/// The parts of a simulated machine. Without further words: one H200-like device, H200 costs, no faults.
///
/// ```
/// use headwater_driver::{DeviceId, Devices};
/// use headwater_sim::{CostModel, SimDriver};
///
/// # fn main() -> headwater_driver::Result<()> {
/// let sim = SimDriver::builder().devices(2).memory_bytes(1 << 30).cost(CostModel::free_of_charge()).build();
/// assert_eq!(sim.device_count(), 2);
/// assert_eq!(sim.memory_info(DeviceId(1))?.free_bytes, 1 << 30);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SimBuilder {
    devices: u32,
    memory_bytes: u64,
    host_memory_bytes: u64,
    capabilities: Option<Capabilities>,
    cost: CostModel,
    faults: FaultPlan,
    hazard_limit: usize,
    report_unwritten: bool,
    host_visible: bool,
}

impl Default for SimBuilder {
    fn default() -> Self {
        Self {
            devices: 1,
            memory_bytes: H200_MEMORY_BYTES,
            host_memory_bytes: 1 << 40,
            capabilities: None,
            cost: CostModel::h200(),
            faults: FaultPlan::none(),
            hazard_limit: 1024,
            report_unwritten: true,
            host_visible: false,
        }
    }
}

impl SimBuilder {
    /// How many devices there are: at least one, at most 64.
    #[must_use]
    pub fn devices(mut self, count: u32) -> Self {
        self.devices = count.clamp(1, DEVICES_MAX);
        self
    }

    /// The memory of each device.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// How much pinned host memory can be allocated (1 TiB unless told; it takes real memory only where written).
    #[must_use]
    pub fn host_memory_bytes(mut self, bytes: u64) -> Self {
        self.host_memory_bytes = bytes;
        self
    }

    /// What the devices can do. Unless told: everything, and peers where there are several. Handles are exported and imported
    /// within one simulated machine: each process has a machine of its own.
    #[must_use]
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = Some(capabilities);
        self
    }

    /// What calls cost.
    #[must_use]
    pub fn cost(mut self, cost: CostModel) -> Self {
        self.cost = cost;
        self
    }

    /// Which calls fail.
    #[must_use]
    pub fn faults(mut self, faults: FaultPlan) -> Self {
        self.faults = faults;
        self
    }

    /// How many hazards are kept (1024 unless told); the rest is counted.
    #[must_use]
    pub fn hazard_limit(mut self, limit: usize) -> Self {
        self.hazard_limit = limit;
        self
    }

    /// Whether reads of bytes that nobody wrote are hazards (they are, unless told). Off for programs that move blocks with
    /// unwritten padding on purpose.
    #[must_use]
    pub fn report_unwritten_reads(mut self, report: bool) -> Self {
        self.report_unwritten = report;
        self
    }

    /// Whether the host sees device memory at the device's own addresses, as on machines where both share one memory: for
    /// programs that look at buffers in place ([`SimDriver::is_host_visible`]). Every byte then counts as written. One machine of a
    /// process can have this: all have the same addresses.
    #[must_use]
    pub fn host_visible(mut self, visible: bool) -> Self {
        self.host_visible = visible;
        self
    }

    /// The machine.
    pub fn build(self) -> Arc<SimDriver> {
        let capabilities = self.capabilities.unwrap_or(Capabilities {
            virtual_memory: true,
            capture: true,
            host_pinning: true,
            peer_access: self.devices > 1,
            shareable_handles: true,
        });
        let properties = |ordinal: u32| DeviceProperties {
            name: "Simulated H200".into(),
            total_bytes: self.memory_bytes,
            compute_capability: (9, 0),
            multiprocessors: 132,
            pci_address: format!("0000:{:02x}:00.0", ordinal + 1),
            capabilities,
        };
        SimDriver::with_settings(Settings {
            devices: (0..self.devices).map(properties).collect(),
            cost: self.cost,
            faults: self.faults,
            host_memory_bytes: self.host_memory_bytes,
            hazard_limit: self.hazard_limit,
            report_unwritten: self.report_unwritten,
            host_visible: self.host_visible,
        })
    }
}
