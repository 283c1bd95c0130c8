//! What comes out of a replay.

use std::collections::BTreeMap;

use headwater::OutOfMemoryReport;
use headwater::stats::DeviceStats;
use serde::Serialize;

use super::placement::Placement;
use super::timeline::Sample;

/// The figures of one policy on one trace, in the order and under the keys of `headwater replay --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// The name of the trace.
    pub trace: String,
    /// The policy.
    pub policy: &'static str,
    /// The device: `sim`, `cuda:0`.
    pub device: String,
    /// Events replayed.
    pub events: u64,
    /// The most bytes that the program held at once.
    pub peak_live_bytes: u64,
    /// The most bytes that the driver had given at once.
    pub peak_reserved_bytes: u64,
    /// 1 - peak live / peak reserved.
    pub fragmentation: f64,
    /// How often the allocator made each driver call, from its making to the last event.
    pub driver_calls: BTreeMap<&'static str, u64>,
    /// What those calls cost by the simulated device's model; `None` on a real device, which has none.
    pub modelled_driver_us: Option<f64>,
    /// The same by call: by the model on the simulated device, by the clock on a real one.
    pub driver_us: BTreeMap<&'static str, f64>,
    /// What all calls took together by the clock; `None` on the simulated device, where they take no time worth measuring.
    pub measured_driver_us: Option<f64>,
    /// Real time of the whole loop for each event, the device's calls included.
    pub host_ns_per_event: f64,
    /// Requests that failed for want of memory: one at most, because it ends the run.
    pub ooms: u64,
}

/// What one policy did with a trace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The figures.
    pub figures: Figures,
    /// What the allocator counted, at the end.
    pub stats: DeviceStats,
    /// Where memory ran out, if it did.
    pub ran_out: Option<RanOut>,
    /// What the policy counted, by rising event; empty unless asked for.
    pub timeline: Vec<Sample>,
    pub(super) placement: Option<Placement>,
}

/// The request that could not be served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RanOut {
    /// Its event.
    pub event: u64,
    /// What the allocator said.
    pub report: Box<OutOfMemoryReport>,
}

/// 1 - live / reserved; 0 where nothing was reserved.
pub(super) fn fragmentation(peak_live_bytes: u64, peak_reserved_bytes: u64) -> f64 {
    match peak_reserved_bytes {
        0 => 0.0,
        reserved => 1.0 - peak_live_bytes as f64 / reserved as f64,
    }
}
