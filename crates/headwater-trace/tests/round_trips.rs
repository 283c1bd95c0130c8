//! Every format to every other that can hold the same facts, for random traces.
#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use headwater_trace::snapshot::Snapshot;
use headwater_trace::{Event, Format, LabelId, Limits, Trace, alloctrace, hwt, read, rmm_csv};
use proptest::prelude::*;

mod common;
use common::{Richness, trace_strategy};

fn through_alloctrace(trace: &Trace) -> Trace {
    let mut text = Vec::new();
    assert_eq!(alloctrace::write(trace, &mut text).unwrap(), Default::default(), "nothing is left out");
    read(&text[..], &Limits::default()).unwrap()
}

fn through_hwt(trace: &Trace) -> Trace {
    let file = hwt::write(trace, Vec::new()).unwrap();
    read(&file[..], &Limits::default()).unwrap()
}

/// Without the segment that stands for all addresses, and with ids by first use.
fn through_snapshot(trace: &Trace) -> Trace {
    let (snapshot, left_out) = Snapshot::from_trace(trace).unwrap();
    assert_eq!(left_out, Default::default(), "nothing is left out");
    let mut back = read(&snapshot.write(Vec::new()).unwrap()[..], &Limits::default()).unwrap();
    let made_up = back.header.initial_events as usize;
    assert!(back.events.drain(..made_up).all(|event| matches!(event, Event::SegmentAlloc { .. })));
    back
}

/// As RMM would have logged it: addresses by id, streams in hexadecimal.
fn as_rmm_csv(trace: &Trace) -> String {
    let mut csv = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    let mut sizes = std::collections::BTreeMap::new();
    for event in &trace.events {
        let raw = trace.names.stream_raw(event.stream().unwrap()).unwrap();
        let (action, pointer, bytes) = match *event {
            Event::Alloc { id, bytes, .. } => {
                sizes.insert(id, bytes);
                ("allocate", format!("{:#x}", 0x1000 + 512 * id), bytes)
            }
            Event::Free { id, .. } => ("free", format!("{:#x}", 0x1000 + 512 * id), sizes[&id]),
            Event::Oom { bytes, .. } => ("allocate failure", "(nil)".to_owned(), bytes),
            _ => unreachable!("not in these traces"),
        };
        let (seconds, micros) = (event.t_us() / 1_000_000, event.t_us() % 1_000_000);
        let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        csv += &format!("1,{h:02}:{m:02}:{s:02}.{micros:06},{action},{pointer},{bytes},{raw:#x}\n");
    }
    csv
}

/// The events without what a format cannot hold.
fn facts(trace: &Trace, labels: bool) -> Vec<(Event, String, Option<u64>)> {
    let plain = Trace { header: Default::default(), ..trace.clone() };
    let canonical = plain.canonical().unwrap();
    let strip = |event: &Event| {
        let text = if labels { full_label(&canonical, event.label()) } else { String::new() };
        let mut event = *event;
        if let Event::Alloc { label, .. }
        | Event::Free { label, .. }
        | Event::Oom { label, .. }
        | Event::Annotation { label, .. } = &mut event
        {
            *label = LabelId::NONE;
        }
        (event, text, event.stream().and_then(|stream| canonical.names.stream_raw(stream)))
    };
    canonical.events.iter().map(strip).collect()
}

fn full_label(trace: &Trace, label: LabelId) -> String {
    match trace.names.label(label) {
        Some(headwater_trace::Label::Stack(frames)) => {
            frames.iter().map(|&frame| format!("{:?};", trace.names.frame_at(frame))).collect()
        }
        _ => trace.names.describe(label),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plain_traces_survive_every_order_of_formats(trace in trace_strategy(Richness::Plain)) {
        trace.check().unwrap();
        let canonical = trace.canonical().unwrap();
        let mut once = through_alloctrace(&trace);
        once.header.source = Format::Memory;
        prop_assert_eq!(&once, &canonical);
        let mut twice = through_alloctrace(&through_hwt(&through_alloctrace(&trace)));
        twice.header.source = Format::Memory;
        prop_assert_eq!(&twice, &canonical);
        let around = through_hwt(&through_snapshot(&through_alloctrace(&trace)));
        prop_assert_eq!(facts(&around, true), facts(&trace, true));
    }

    #[test]
    fn rich_traces_survive_hwt_exactly(trace in trace_strategy(Richness::Everything)) {
        let mut back = through_hwt(&trace);
        back.header.source = trace.header.source;
        prop_assert_eq!(back, trace.canonical().unwrap());
    }

    #[test]
    fn labelled_traces_of_many_devices_survive_snapshots(trace in trace_strategy(Richness::Labels)) {
        trace.check().unwrap();
        let back = through_snapshot(&trace);
        back.check().unwrap();
        prop_assert_eq!(facts(&back, true), facts(&trace, true));
    }

    #[test]
    fn initial_allocations_survive_snapshots_in_number_and_bytes(
        mut trace in trace_strategy(Richness::Plain), share in 0.0..1.0f64
    ) {
        // Everything up to an arbitrary point was there before.
        let before = (trace.events.len() as f64 * share) as usize;
        let kept = trace.events.split_off(before);
        let mut live: Vec<Event> = Vec::new();
        for event in trace.events.drain(..) {
            match event {
                Event::Alloc { .. } => live.push(event),
                Event::Free { id: freed, .. } => live.retain(|e| !matches!(e, Event::Alloc { id, .. } if *id == freed)),
                _ => {}
            }
        }
        let known: Vec<u64> = live.iter().filter_map(|e| if let Event::Alloc { id, .. } = e { Some(*id) } else { None }).collect();
        let mut known: std::collections::BTreeSet<u64> = known.into_iter().collect();
        trace.header.initial_events = live.len() as u64;
        trace.events = live;
        // A give-back from before, whose completion comes later, is left out of this test.
        for event in kept {
            match event {
                Event::Alloc { id, .. } => _ = known.insert(id),
                Event::Complete { id, .. } if !known.contains(&id) => continue,
                _ => {}
            }
            trace.events.push(event);
        }
        trace.check().unwrap();
        let (snapshot, _) = Snapshot::from_trace(&trace).unwrap();
        let back = read(&snapshot.write(Vec::new()).unwrap()[..], &Limits::default()).unwrap();
        back.check().unwrap();
        let (sum, back_sum) = (trace.summary(), back.summary());
        prop_assert_eq!((back_sum.allocs, back_sum.frees), (sum.allocs, sum.frees));
        prop_assert_eq!((back_sum.peak_live_bytes, back_sum.final_live_bytes), (sum.peak_live_bytes, sum.final_live_bytes));
    }

    #[test]
    fn rmm_logs_become_every_other_format(trace in trace_strategy(Richness::Rmm)) {
        let log = rmm_csv::read(as_rmm_csv(&trace).as_bytes(), &Limits::default()).unwrap();
        log.check().unwrap();
        prop_assert_eq!(facts(&log, false), facts(&trace, false));
        prop_assert_eq!(facts(&through_hwt(&log), true), facts(&log, true));
        prop_assert_eq!(facts(&through_snapshot(&log), true), facts(&log, true));
    }
}
