//! Recorded PyTorch programs replayed: `classic` reserves what PyTorch reserved, and every policy holds what was asked
//! for.
//!
//! Two traces are in the repository. The others are used where they are found beside it, in `../shared/traces/recorded`.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use headwater::DeviceChoice;
use headwater_trace::Trace;
use headwater_trace::replay::{Outcome, Policy, Replay, report_on};
use headwater_trace::report::PolicyReport;

fn recorded(name: &str) -> Option<Trace> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [here.join("testdata"), here.join("../../../shared/traces/recorded")];
    let paths = folders.map(|folder: PathBuf| folder.join(format!("{name}.trace.gz")));
    let found = paths.iter().find(|path| path.exists());
    if found.is_none() {
        println!("{name} is not here");
    }
    found.map(|path| headwater_trace::open(path).unwrap())
}

fn replay(policy: Policy, trace: &Trace) -> Outcome {
    Replay::new(policy).run(trace, &headwater::open(DeviceChoice::Sim).unwrap()).unwrap()
}

/// How far from PyTorch's peak.
fn off(name: &str) -> Option<f64> {
    let trace = recorded(name)?;
    let figures = replay(Policy::Classic, &trace).figures;
    let pytorch = trace.header.reported.peak_reserved.unwrap();
    println!("{name}: peak reserved {}, PyTorch {pytorch}", figures.peak_reserved_bytes);
    assert_eq!(figures.peak_live_bytes, trace.summary().peak_live_bytes);
    assert_eq!(figures.events, trace.events.len() as u64);
    Some((figures.peak_reserved_bytes as f64 / pytorch as f64 - 1.0).abs())
}

#[test]
fn classic_reserves_what_pytorch_reserved_to_the_byte() {
    for name in ["montecarlo", "fsdp_streams", "gpt2_varlen", "resnet_multiscale"] {
        if let Some(off) = off(name) {
            assert!(off == 0.0, "{name} is off by {off}");
        }
    }
}

/// Its ties depend on the addresses that the driver gave.
#[test]
fn classic_reserves_what_pytorch_reserved_for_llama_within_a_hundredth_and_a_half() {
    if let Some(off) = off("llama_ckpt") {
        assert!(off <= 0.015, "{off}");
    }
}

#[test]
fn every_policy_replays_the_bundled_traces_twice_the_same() {
    for name in ["montecarlo", "fsdp_streams"] {
        let Some(trace) = recorded(name) else { continue };
        for policy in Policy::ALL {
            let [one, other] = [replay(policy, &trace), replay(policy, &trace)];
            assert_eq!(one.figures.ooms, 0, "{name} {policy}");
            assert_eq!(one.figures.peak_live_bytes, trace.summary().peak_live_bytes, "{name} {policy}");
            assert!(one.figures.fragmentation >= 0.0, "{name} {policy}");
            assert_eq!(one.figures.driver_calls, other.figures.driver_calls, "{name} {policy}");
            assert_eq!(one.figures.modelled_driver_us, other.figures.modelled_driver_us, "{name} {policy}");
            assert_eq!(one.stats, other.stats, "{name} {policy}");
        }
    }
}

/// What exists, by address: its length.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, address: u64, bytes: u64) {
        let before = self.0.range(..address + bytes).next_back();
        assert!(before.is_none_or(|(start, length)| start + length <= address), "{address:#x} overlaps");
        self.0.insert(address, bytes);
    }

    fn covers(&self, address: u64, bytes: u64) -> bool {
        let (mut at, end) = (address, address + bytes);
        while at < end {
            match self.0.range(..=at).next_back() {
                Some((start, length)) if start + length > at => at = start + length,
                _ => return false,
            }
        }
        true
    }
}

/// What an event changes, by place in the report's lists.
#[derive(Clone, Default)]
struct Change {
    spans_gone: Vec<usize>,
    spans_new: Vec<usize>,
    blocks_gone: Vec<usize>,
    blocks_new: Vec<usize>,
}

/// Walks the events of a report: nothing overlaps, every block has memory behind it, and there is as much memory as counted.
fn walk(policy: &PolicyReport, events: u32) {
    let (mut memory, mut blocks) = (Ranges::default(), Ranges::default());
    let mut changes = vec![Change::default(); events as usize];
    for (place, span) in policy.spans.iter().enumerate() {
        changes[span.born as usize].spans_new.push(place);
        span.died.into_iter().for_each(|died| changes[died as usize].spans_gone.push(place));
    }
    for (place, block) in policy.blocks.iter().enumerate() {
        changes[block.born as usize].blocks_new.push(place);
        block.completed.into_iter().for_each(|event| changes[event as usize].blocks_gone.push(place));
    }
    let mut counted = policy.timeline.iter().peekable();
    let mut reserved = 0;
    for (event, change) in (0u32..).zip(&changes) {
        let Change { spans_gone, spans_new, blocks_gone, blocks_new } = change;
        for place in blocks_gone {
            blocks.0.remove(&policy.blocks[*place].address);
        }
        for place in spans_gone {
            memory.0.remove(&policy.spans[*place].address);
        }
        spans_new
            .iter()
            .map(|place| &policy.spans[*place])
            .for_each(|span| memory.add(span.address, span.bytes));
        for block in blocks_new.iter().map(|place| &policy.blocks[*place]) {
            blocks.add(block.address, block.bytes);
            assert!(memory.covers(block.address, block.bytes), "{event}: {block:?} has no memory");
        }
        if let Some(sample) = counted.next_if(|sample| sample.event == event) {
            reserved = sample.reserved;
        }
        let there: u64 = memory.0.values().sum();
        assert_eq!(there, reserved, "{} at event {event}", policy.figures.policy);
    }
}

#[test]
fn reports_show_every_byte_where_it_was() {
    // A part of each, because the walk looks at everything after every event.
    for (name, events) in [("montecarlo", 6_000), ("fsdp_streams", 12_000)] {
        let Some(trace) = recorded(name) else { continue };
        let replay = |policy| Replay::new(policy).until(Some(events)).keep_timeline().keep_placement();
        let run = |policy| replay(policy).run(&trace, &headwater::open(DeviceChoice::Sim).unwrap()).unwrap();
        let data = report_on(&trace, Policy::ALL.into_iter().map(run));
        for policy in &data.policies {
            assert!(!policy.blocks.is_empty());
            walk(policy, events as u32);
        }
    }
}
