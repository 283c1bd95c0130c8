//! `headwater replay`: what a program asked for, asked of every policy.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use headwater::DeviceChoice;
use headwater_trace::Trace;
use headwater_trace::replay::{Outcome, find_limit, timeline};

use crate::args::ReplayOptions;
use crate::model_comparison::print_comparison;
use crate::replaying::{open_traces, print_json, print_table, run_one, spinner};

pub(crate) fn run(options: &ReplayOptions) -> Result<()> {
    let mut done: Vec<(Trace, Vec<Outcome>)> = Vec::new();
    for path in &options.traces {
        for trace in open_traces(path)? {
            let outcomes = replay_trace(options, &trace)?;
            if options.timeline.is_some() {
                done.push((trace, outcomes));
            }
        }
    }
    match &options.timeline {
        Some(path) => write_timeline(path, &done),
        None => Ok(()),
    }
}

fn replay_trace(options: &ReplayOptions, trace: &Trace) -> Result<Vec<Outcome>> {
    let replaying = &options.replaying;
    let (mut outcomes, mut limits_bytes) = (Vec::new(), Vec::new());
    for policy in replaying.policies() {
        let mut replay = replaying.replay(policy);
        if options.timeline.is_some() {
            replay = replay.keep_timeline();
        }
        let outcome = run_one(&replay, policy, trace, replaying.device)?;
        if options.find_limit {
            let bar = spinner(format!("{} {policy}: looking for the smallest limit", trace.header.name));
            let open = || headwater::open(replaying.device);
            let found = find_limit(policy, trace, replaying.until, open);
            bar.finish_and_clear();
            limits_bytes.push(found?);
        }
        if replaying.json {
            print_json(&outcome, limits_bytes.last().copied())?;
        }
        if options.compare_model {
            let modelled = run_one(&replay, policy, trace, DeviceChoice::Sim)?;
            print_comparison(&outcome.figures, &modelled.figures, replaying.json);
        }
        outcomes.push(outcome);
    }
    if !replaying.json {
        print_table(trace, &outcomes, &limits_bytes);
    }
    Ok(outcomes)
}

fn write_timeline(path: &Path, done: &[(Trace, Vec<Outcome>)]) -> Result<()> {
    let runs: Vec<(&Trace, &Outcome)> = done
        .iter()
        .flat_map(|(trace, outcomes)| outcomes.iter().map(move |outcome| (trace, outcome)))
        .collect();
    let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let write = || {
        let sink = BufWriter::new(File::create(path)?);
        if is_json { timeline::write_json(&runs, sink) } else { timeline::write_csv(&runs, sink) }
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
