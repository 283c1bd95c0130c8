//! From outcomes to the data of a report.

use super::outcome::Outcome;
use super::placement::Placement;
use super::timeline::Sample;
use crate::model::Trace;
use crate::report::{self, PolicyFigures, PolicyReport, ReportData};

/// What a page shows of `trace` and of what policies did with it. The outcomes are of runs that kept the timeline and the
/// placement; what they did not keep is missing from the page.
pub fn report_on(trace: &Trace, outcomes: impl IntoIterator<Item = Outcome>) -> ReportData {
    let mut data = ReportData::of_trace(trace);
    data.policies.extend(outcomes.into_iter().map(policy_report));
    data
}

fn policy_report(outcome: Outcome) -> PolicyReport {
    let Outcome { figures, stats, ran_out, timeline, placement } = outcome;
    let (blocks, spans) = placement.map(Placement::into_parts).unwrap_or_default();
    PolicyReport {
        figures: PolicyFigures {
            policy: figures.policy.to_owned(),
            device: figures.device,
            peak_live_bytes: figures.peak_live_bytes,
            peak_allocated_bytes: stats.allocated_bytes.all.peak,
            peak_active_bytes: stats.active_bytes.all.peak,
            peak_reserved_bytes: figures.peak_reserved_bytes,
            fragmentation: figures.fragmentation,
            driver_calls: figures.driver_calls.into_iter().map(|(n, count)| (n.to_owned(), count)).collect(),
            modelled_driver_us: figures.modelled_driver_us.unwrap_or(0.0),
            host_ns_per_event: Some(figures.host_ns_per_event),
            ooms: figures.ooms,
        },
        timeline: timeline.iter().map(report_sample).collect(),
        spans,
        blocks,
        oom_events: ran_out.iter().map(|ran_out| as_index(ran_out.event)).collect(),
    }
}

fn report_sample(sample: &Sample) -> report::Sample {
    let Sample { event, live, allocated, active, reserved } = *sample;
    report::Sample { event: as_index(event), live, allocated, active, reserved }
}

fn as_index(event: u64) -> u32 {
    u32::try_from(event).unwrap_or(u32::MAX)
}
