//! What a policy counted over the events of a trace, and the two ways to write it down.

use std::io::{self, Write};

use headwater::stats::DeviceStats;
use serde::Serialize;

use super::outcome::Outcome;
use crate::model::Trace;

/// What a policy counted after one event. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The event.
    pub event: u64,
    /// What the program asked for and holds.
    pub live: u64,
    /// The same, rounded.
    pub allocated: u64,
    /// The same, and what was given back but is still used by a stream.
    pub active: u64,
    /// What the driver gave.
    pub reserved: u64,
}

/// Samples as they come: events that change nothing are left out.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    samples: Vec<Sample>,
}

impl Timeline {
    pub(super) fn observe(&mut self, event: u64, live: u64, stats: &DeviceStats) {
        let sample = Sample {
            event,
            live,
            allocated: stats.allocated_bytes.all.current,
            active: stats.active_bytes.all.current,
            reserved: stats.reserved_bytes.all.current,
        };
        let unchanged = self.samples.last().is_some_and(|last| Sample { event, ..*last } == sample);
        if !unchanged {
            self.samples.push(sample);
        }
    }

    pub(super) fn into_samples(self) -> Vec<Sample> {
        self.samples
    }
}

/// Writes the timelines of several runs as one table, with a row for each event that changed something.
///
/// # Errors
/// A sink that does not take the bytes.
pub fn write_csv(runs: &[(&Trace, &Outcome)], mut sink: impl Write) -> io::Result<()> {
    writeln!(sink, "trace,policy,event,t_us,live,allocated,active,reserved")?;
    for (trace, outcome) in runs {
        let name = csv_field(&outcome.figures.trace);
        let policy = outcome.figures.policy;
        for sample in &outcome.timeline {
            let Sample { event, live, allocated, active, reserved } = *sample;
            let t_us = time_of(trace, event);
            writeln!(sink, "{name},{policy},{event},{t_us},{live},{allocated},{active},{reserved}")?;
        }
    }
    sink.flush()
}

/// Writes the timelines of several runs as one JSON array: for each run `trace`, `policy`, `device` and `samples`, each
/// of those with the columns of the table.
///
/// # Errors
/// A sink that does not take the bytes.
pub fn write_json(runs: &[(&Trace, &Outcome)], mut sink: impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Row {
        t_us: u64,
        #[serde(flatten)]
        sample: Sample,
    }
    #[derive(Serialize)]
    struct Run<'a> {
        trace: &'a str,
        policy: &'a str,
        device: &'a str,
        samples: Vec<Row>,
    }
    let rows = |trace: &Trace, outcome: &Outcome| {
        let row = |sample: &Sample| Row { t_us: time_of(trace, sample.event), sample: *sample };
        outcome.timeline.iter().map(row).collect()
    };
    sink.write_all(b"[")?;
    for (place, (trace, outcome)) in runs.iter().enumerate() {
        sink.write_all(if place == 0 { b"\n" } else { b",\n" })?;
        let figures = &outcome.figures;
        let samples = rows(trace, outcome);
        let (trace, policy, device) = (&*figures.trace, figures.policy, &*figures.device);
        serde_json::to_writer(&mut sink, &Run { trace, policy, device, samples })?;
    }
    sink.write_all(b"\n]\n")?;
    sink.flush()
}

fn time_of(trace: &Trace, event: u64) -> u64 {
    usize::try_from(event).ok().and_then(|event| trace.events.get(event)).map_or(0, |event| event.t_us())
}

/// A text as a field of CSV: in quotes where it could be taken for something else.
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_change_nothing_are_left_out() {
        let mut timeline = Timeline::default();
        let stats = DeviceStats::default();
        for (event, live) in [(0, 0), (1, 5), (2, 5), (3, 0)] {
            timeline.observe(event, live, &stats);
        }
        let kept: Vec<u64> = timeline.into_samples().iter().map(|sample| sample.event).collect();
        assert_eq!(kept, [0, 1, 3]);
    }

    #[test]
    fn a_name_with_a_comma_stays_one_field() {
        assert_eq!(csv_field("plain"), "plain");
        assert_eq!(csv_field("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
