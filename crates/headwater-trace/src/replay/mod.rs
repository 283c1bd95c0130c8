//! Replay: what a program asked for, asked again of any policy, on a simulated or a real device.
//!
//! Each stream of the trace becomes a stream of the device. Requests and give-backs come in the trace's order, and a block
//! that another stream still used when it was given back stays in use until the trace says that it was over (`device.rs`
//! says how). The trace's segment events and failed requests were the recording allocator's business, and are passed over.
//!
//! A request that fails for want of memory ends the run: what the program would have done then is not in the trace.
//!
//! | file | what |
//! |---|---|
//! | `policy.rs` | the policies, and the one place where their allocators are made |
//! | `device.rs` | streams, and work that ends at a chosen event |
//! | `run.rs` | the loop over events |
//! | `outcome.rs` | what comes out: the figures of `headwater replay` |
//! | [`timeline`] | live, allocated, active and reserved bytes over events, as CSV and JSON |
//! | `placement.rs`, `to_report.rs` | where everything lay, for the report |
//! | `limits.rs` | the smallest limit at which a program still fits |

mod device;
mod error;
mod limits;
mod outcome;
mod placement;
mod run;
#[cfg(test)]
mod tests;
pub mod timeline;
mod to_report;

pub use error::ReplayError;
pub use headwater::{Policy, UnknownPolicy};
pub use limits::{LIMIT_STEP_BYTES, find_limit};
pub use outcome::{Figures, Outcome, RanOut};
pub use to_report::report_on;

use headwater::Opened;

use crate::model::Trace;

/// How a trace is to be replayed.
///
/// ```
/// use headwater::DeviceChoice;
/// use headwater_trace::replay::{Policy, Replay};
/// use headwater_trace::{Event, LabelId, Trace};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut trace = Trace::new("one block");
/// let stream = trace.names.stream(0)?;
/// trace.events.push(Event::Alloc { id: 0, bytes: 3 << 20, t_us: 0, label: LabelId::NONE, stream, device: 0 });
///
/// let outcome = Replay::new(Policy::Classic).run(&trace, &headwater::open(DeviceChoice::Sim)?)?;
/// assert_eq!(outcome.figures.peak_live_bytes, 3 << 20);
/// assert_eq!(outcome.figures.peak_reserved_bytes, 20 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a replay does nothing until it is run"]
pub struct Replay {
    policy: Policy,
    limit_bytes: Option<u64>,
    until: Option<u64>,
    timeline: bool,
    placement: bool,
}

impl Replay {
    /// A replay with `policy` of all events, with no limit but the device's.
    pub const fn new(policy: Policy) -> Self {
        Self { policy, limit_bytes: None, until: None, timeline: false, placement: false }
    }

    /// With at most so many reserved bytes; `None` is no limit.
    pub const fn limit_bytes(mut self, limit_bytes: Option<u64>) -> Self {
        self.limit_bytes = limit_bytes;
        self
    }

    /// Of the events before this one only; `None` is all.
    pub const fn until(mut self, event: Option<u64>) -> Self {
        self.until = event;
        self
    }

    /// Keeping what the policy counted after every event that changed it.
    pub const fn keep_timeline(mut self) -> Self {
        self.timeline = true;
        self
    }

    /// Keeping where every block and segment lay.
    pub const fn keep_placement(mut self) -> Self {
        self.placement = true;
        self
    }

    /// Replays `trace` on a device. Figures are of this run alone, but a fresh simulated device gives the same ones
    /// every time: addresses decide ties.
    ///
    /// # Errors
    /// [`ReplayError`]; running out of memory is none.
    pub fn run(&self, trace: &Trace, on: &Opened) -> Result<Outcome, ReplayError> {
        self.run_with_progress(trace, on, &mut |_| {})
    }

    /// As [`run`](Self::run); `progress` is told now and then how many events are done.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with_progress(
        &self,
        trace: &Trace,
        on: &Opened,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Outcome, ReplayError> {
        run::run(self, trace, on, progress)
    }

    /// How many events of `trace` it covers.
    pub fn events(&self, trace: &Trace) -> u64 {
        let all = trace.events.len() as u64;
        self.until.map_or(all, |until| until.min(all))
    }
}
