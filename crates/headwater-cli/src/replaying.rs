//! What `replay`, `report` and `demo` share: traces one device at a time, policies one after the other, a bar meanwhile.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use headwater::{DeviceChoice, HumanBytes};
use headwater_trace::replay::{Outcome, Policy, Replay};
use headwater_trace::{Event, Trace};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::args::Replaying;
use crate::output::{grouped, json_line, table};

impl Replaying {
    /// The policies asked for, or all there are.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        if self.policies.is_empty() { Policy::ALL.to_vec() } else { self.policies.clone() }
    }

    /// The replay that the options describe.
    pub(crate) fn replay(&self, policy: Policy) -> Replay {
        Replay::new(policy).limit_bytes(self.limit.map(|limit| limit.0)).until(self.until)
    }
}

/// The traces in a file: one for each device it is about.
pub(crate) fn open_traces(path: &Path) -> Result<Vec<Trace>> {
    // The message has the whole chain of causes in it.
    let trace = headwater_trace::open(path).map_err(|error| anyhow!("{error}"))?;
    let mut devices: Vec<u8> = trace.events.iter().map(Event::device).collect();
    devices.sort_unstable();
    devices.dedup();
    if devices.len() < 2 {
        return Ok(vec![trace]);
    }
    let of_device = |device: u8| {
        let mut part = trace.on_device(device)?;
        part.header.name = format!("{}:{device}", trace.header.name);
        // What was reported is about all devices together.
        part.header.reported = Default::default();
        Ok(part)
    };
    devices.into_iter().map(of_device).collect()
}

/// One replay, on a device of its own: a fresh simulated device makes the figures the same every time.
pub(crate) fn run_one(
    replay: &Replay,
    policy: Policy,
    trace: &Trace,
    device: DeviceChoice,
) -> Result<Outcome> {
    let on = headwater::open(device)?;
    let bar = bar(replay.events(trace), format!("{} {policy}", trace.header.name));
    let outcome = replay.run_with_progress(trace, &on, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    outcome.with_context(|| trace.header.name.clone())
}

/// A bar on standard error, where that is a terminal; nothing elsewhere.
fn bar(events: u64, label: String) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} events");
    let bar = ProgressBar::new(events).with_message(label);
    match style {
        Ok(style) => bar.with_style(style),
        // The template is fixed; without it the bar has another look, which is no reason to fail.
        Err(_) => bar,
    }
}

/// A bar that turns, for work whose length is not known.
pub(crate) fn spinner(label: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(label);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// One line for programs: the figures, and the smallest limit where it was looked for.
pub(crate) fn print_json(outcome: &Outcome, smallest_limit_bytes: Option<u64>) -> Result<()> {
    let figures = &outcome.figures;
    match smallest_limit_bytes {
        // As it is, so that the keys keep their order.
        None => println!("{}", serde_json::to_string(figures)?),
        Some(bytes) => {
            let mut figures = serde_json::to_value(figures)?;
            figures["smallest_limit_bytes"] = Value::from(bytes);
            json_line(&figures);
        }
    }
    Ok(())
}

/// One table for people: what the trace says of itself, then every policy, then where memory ran out.
pub(crate) fn print_table(trace: &Trace, outcomes: &[Outcome], smallest_limits_bytes: &[u64]) {
    let summary = trace.summary();
    println!(
        "{}: {} events, {} allocations in {} stream(s), {} live at the peak",
        trace.header.name,
        grouped(summary.events),
        grouped(summary.allocs),
        summary.streams,
        HumanBytes(summary.peak_live_bytes),
    );
    if let Some(byte) = trace.header.cut_at {
        println!("the file was cut short: what came after byte {byte} is lost");
    }
    let mut header = vec![
        "policy",
        "peak reserved",
        "peak live",
        "fragmentation",
        "driver calls",
        "driver time",
        "host/event",
    ];
    let mut rows: Vec<Vec<String>> = reported_row(trace, summary.peak_live_bytes).into_iter().collect();
    rows.extend(outcomes.iter().map(|outcome| policy_row(trace, outcome)));
    if !smallest_limits_bytes.is_empty() {
        header.push("smallest limit");
        let skip = rows.len() - outcomes.len();
        for (row, bytes) in rows.iter_mut().skip(skip).zip(smallest_limits_bytes) {
            row.push(format!("{} MiB", grouped(bytes >> 20)));
        }
        rows.iter_mut().take(skip).for_each(|row| row.push(String::new()));
    }
    println!("{}", table(&header, &rows));
    for outcome in outcomes {
        if let Some(ran_out) = &outcome.ran_out {
            println!("{}: stopped at event {}: {}", outcome.figures.policy, ran_out.event, ran_out.report);
        }
    }
    println!();
}

/// What the recording allocator said of itself, where it did.
fn reported_row(trace: &Trace, summed_live_bytes: u64) -> Option<Vec<String>> {
    let reported = &trace.header.reported;
    let reserved = reported.peak_reserved?;
    let live = reported.peak_requested.unwrap_or(summed_live_bytes);
    let calls = reported.device_alloc.map(|allocs| allocs + reported.device_free.unwrap_or(0));
    let share = if reserved == 0 { 0.0 } else { 1.0 - live as f64 / reserved as f64 };
    Some(vec![
        "as recorded".to_owned(),
        HumanBytes(reserved).to_string(),
        HumanBytes(live).to_string(),
        percent(share),
        calls.map(grouped).unwrap_or_default(),
        String::new(),
        String::new(),
    ])
}

fn policy_row(trace: &Trace, outcome: &Outcome) -> Vec<String> {
    let figures = &outcome.figures;
    let ran_out = if outcome.ran_out.is_some() { " (ran out)" } else { "" };
    let driver_us = figures.modelled_driver_us.or(figures.measured_driver_us);
    let driver_time = driver_us.map(|us| match trace.header.reported.seconds {
        Some(seconds) if seconds > 0.0 => {
            format!("{:.1} ms ({} of the run)", us / 1e3, percent(us / 1e6 / seconds))
        }
        _ => format!("{:.1} ms", us / 1e3),
    });
    vec![
        format!("{}{ran_out}", figures.policy),
        HumanBytes(figures.peak_reserved_bytes).to_string(),
        HumanBytes(figures.peak_live_bytes).to_string(),
        percent(figures.fragmentation),
        grouped(figures.driver_calls.values().sum()),
        driver_time.unwrap_or_else(|| "not modelled".to_owned()),
        format!("{:.0} ns", figures.host_ns_per_event),
    ]
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
