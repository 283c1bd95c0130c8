//! Replays against what is known: PyTorch's own figures, the trace's own sums, and small traces worked out by hand.

use headwater::{DeviceChoice, Opened};
use headwater_driver::DeviceId;
use headwater_sim::SimDriver;

use super::*;
use crate::model::Event;
use crate::names::{LabelId, StreamId};

const MIB: u64 = 1 << 20;

fn sim() -> Opened {
    headwater::open(DeviceChoice::Sim).unwrap()
}

fn small_sim(memory_bytes: u64) -> Opened {
    let sim = SimDriver::builder().memory_bytes(memory_bytes).build();
    Opened { driver: sim.clone(), device: DeviceId(0), why: String::new(), sim: Some(sim) }
}

fn alloc(id: u64, bytes: u64) -> Event {
    Event::Alloc { id, bytes, t_us: id, label: LabelId::NONE, stream: StreamId(0), device: 0 }
}

fn free(id: u64) -> Event {
    Event::Free { id, t_us: id, label: LabelId::NONE, stream: StreamId(0), device: 0 }
}

fn complete(id: u64) -> Event {
    Event::Complete { id, t_us: id, device: 0 }
}

fn trace(events: &[Event]) -> Trace {
    let mut trace = Trace::new("by hand");
    trace.names.stream(0).unwrap();
    trace.names.stream(1).unwrap();
    trace.events = events.to_vec();
    trace
}

fn run(policy: Policy, trace: &Trace) -> Outcome {
    Replay::new(policy).run(trace, &sim()).unwrap()
}

#[test]
fn a_block_in_use_elsewhere_is_not_reused_before_the_trace_says_so() {
    let early = trace(&[alloc(0, 32 * MIB), free(0), alloc(1, 32 * MIB), complete(0)]);
    assert_eq!(run(Policy::Classic, &early).figures.peak_reserved_bytes, 64 * MIB);
    let late = trace(&[alloc(0, 32 * MIB), free(0), complete(0), alloc(1, 32 * MIB)]);
    assert_eq!(run(Policy::Classic, &late).figures.peak_reserved_bytes, 32 * MIB);
}

#[test]
fn on_a_device_whose_time_cannot_be_told_the_replay_keeps_the_block_back_itself() {
    let real = || Opened { sim: None, ..sim() };
    let waits = trace(&[alloc(0, 32 * MIB), free(0), alloc(1, 32 * MIB), complete(0), alloc(2, 30 * MIB)]);
    for policy in [Policy::Direct, Policy::Classic] {
        let outcome = Replay::new(policy).run(&waits, &real()).unwrap();
        assert_eq!(outcome.figures.peak_reserved_bytes, if policy == Policy::Direct { 62 } else { 64 } * MIB);
        assert_eq!(outcome.figures.peak_live_bytes, 62 * MIB);
        assert_eq!(outcome.figures.modelled_driver_us, None);
    }
}

#[test]
fn a_block_given_back_on_another_stream_was_used_by_it() {
    let elsewhere = Event::Free { id: 0, t_us: 1, label: LabelId::NONE, stream: StreamId(1), device: 0 };
    let outcome = run(Policy::Classic, &trace(&[alloc(0, 4 * MIB), elsewhere, alloc(1, 4 * MIB)]));
    assert!(outcome.figures.driver_calls.contains_key("cuEventRecord"), "{:?}", outcome.figures.driver_calls);
}

#[test]
fn only_the_allocators_own_calls_are_counted_and_paid_for() {
    let waits = trace(&[alloc(0, 4 * MIB), free(0), alloc(1, 4 * MIB), complete(0), free(1)]);
    let direct = run(Policy::Direct, &waits).figures;
    assert_eq!(direct.driver_calls.get("cuMemAlloc"), Some(&2));
    assert_eq!(direct.driver_calls.get("cuMemFree"), Some(&2));
    for own in ["cuStreamCreateWithPriority", "cuLaunchKernel"] {
        assert_eq!(direct.driver_calls.get(own), None, "{own}");
    }
    // 30.7 us for each call, 0.53 us a MiB for each free, and two short calls around each for the capture mode.
    let short: u64 =
        direct.driver_calls.iter().filter(|(name, _)| !name.contains("Mem")).map(|(_, n)| n).sum();
    let expected_us = 4.0 * 30.7 + 8.0 * 0.53 + short as f64 * 0.4;
    let modelled_us = direct.modelled_driver_us.unwrap();
    assert!((modelled_us - expected_us).abs() < 0.01, "{modelled_us} against {expected_us}");
}

#[test]
fn out_of_memory_ends_the_run_and_says_where() {
    let big = trace(&[alloc(0, 64 * MIB), alloc(1, 64 * MIB), free(0), alloc(2, MIB)]);
    for policy in [Policy::Direct, Policy::Classic] {
        let limited = Replay::new(policy).limit_bytes(Some(100 * MIB));
        let outcome = limited.run(&big, &sim()).unwrap();
        let ran_out = outcome.ran_out.unwrap();
        assert_eq!((ran_out.event, ran_out.report.requested_bytes), (1, 64 * MIB));
        assert_eq!((outcome.figures.ooms, outcome.figures.events), (1, 2));
        assert_eq!(outcome.figures.peak_live_bytes, 64 * MIB);
        let on_small = Replay::new(policy).run(&big, &small_sim(100 * MIB)).unwrap();
        assert_eq!(on_small.ran_out.unwrap().event, 1);
    }
}

#[test]
fn the_smallest_limit_is_where_the_policy_stops_failing() {
    // 20 MiB are cut out of the 40 MiB given back, which then cannot be released for the next 40 MiB.
    let fits = trace(&[alloc(0, 40 * MIB), free(0), alloc(1, 20 * MIB), alloc(2, 40 * MIB)]);
    let open = || Ok(sim());
    assert_eq!(find_limit(Policy::Classic, &fits, None, open).unwrap(), 80 * MIB);
    assert_eq!(find_limit(Policy::Classic, &fits, Some(3), open).unwrap(), 40 * MIB);
    assert_eq!(find_limit(Policy::Direct, &fits, None, open).unwrap(), 60 * MIB);
    let error = find_limit(Policy::Classic, &fits, None, || Ok(small_sim(64 * MIB))).unwrap_err();
    assert!(matches!(error, ReplayError::NeverFits { event: 3, .. }), "{error}");
}

#[test]
fn a_replay_until_an_event_knows_nothing_of_what_comes_after() {
    let all = trace(&[alloc(0, 4 * MIB), alloc(1, 64 * MIB)]);
    let outcome = Replay::new(Policy::Direct).until(Some(1)).run(&all, &sim()).unwrap();
    assert_eq!((outcome.figures.events, outcome.figures.peak_live_bytes), (1, 4 * MIB));
    let beyond = Replay::new(Policy::Direct).until(Some(99)).run(&all, &sim()).unwrap();
    assert_eq!(beyond.figures.events, 2);
}

#[test]
fn the_timeline_follows_the_words_of_the_design() {
    let waits = trace(&[alloc(0, 1000), free(0), complete(0), alloc(1, 512)]);
    let kept = Replay::new(Policy::Classic).keep_timeline().run(&waits, &sim()).unwrap();
    let of = |event: usize| kept.timeline[event];
    assert_eq!((of(0).live, of(0).allocated, of(0).active, of(0).reserved), (1000, 1024, 1024, 2 * MIB));
    assert_eq!((of(1).live, of(1).allocated, of(1).active), (0, 0, 1024));
    let last = kept.timeline.last().unwrap();
    assert_eq!((last.event, last.live, last.active), (3, 512, 512));

    let mut csv = Vec::new();
    timeline::write_csv(&[(&waits, &kept)], &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    assert!(csv.contains("\nby hand,classic,0,0,1000,1024,1024,2097152\n"), "{csv}");
    let mut json = Vec::new();
    timeline::write_json(&[(&waits, &kept), (&waits, &kept)], &mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json[1]["samples"][0]["reserved"], 2 * MIB);
}

#[test]
fn traces_that_cannot_be_replayed_are_refused() {
    let impossible = Replay::new(Policy::Direct).run(&trace(&[free(3)]), &sim()).unwrap_err();
    assert!(matches!(impossible, ReplayError::Impossible(_)), "{impossible}");
    let other =
        Event::Alloc { id: 1, bytes: 1, t_us: 0, label: LabelId::NONE, stream: StreamId(0), device: 1 };
    let two = Replay::new(Policy::Direct).run(&trace(&[alloc(0, 1), other]), &sim()).unwrap_err();
    assert!(matches!(two, ReplayError::SeveralDevices { devices: 2 }), "{two}");
    assert!(Replay::new(Policy::Direct).run(&trace(&[other]), &sim()).is_ok());
}

#[test]
fn reports_hold_what_the_figures_say_and_nothing_overlaps() {
    // The wait is cut short under the limit: the policy waits for the stream itself.
    let cut = trace(&[
        alloc(0, 32 * MIB),
        free(0),
        alloc(1, 32 * MIB),
        alloc(2, 0),
        free(1),
        complete(0),
        alloc(3, 3 * MIB),
    ]);
    let replay = |policy| Replay::new(policy).limit_bytes(Some(40 * MIB)).keep_timeline().keep_placement();
    let outcomes = [Policy::Direct, Policy::Classic].map(|policy| replay(policy).run(&cut, &sim()).unwrap());
    let peaks = outcomes.each_ref().map(|outcome| outcome.figures.peak_reserved_bytes);
    let data = report_on(&cut, outcomes);
    for (policy, peak) in data.policies.iter().zip(peaks) {
        assert_eq!(policy.figures.ooms, 0);
        assert_eq!(policy.timeline.iter().map(|sample| sample.reserved).max(), Some(peak));
        let at = |event: u32, span: &crate::report::Span| {
            span.born <= event && span.died.is_none_or(|died| event < died)
        };
        for event in 0..7 {
            let there: u64 = policy.spans.iter().filter(|span| at(event, span)).map(|span| span.bytes).sum();
            assert!(there <= peak, "{} at {event}: {there}", policy.figures.policy);
        }
        let waited = &policy.blocks[0];
        assert!(waited.completed <= Some(policy.blocks[1].born), "{waited:?}");
    }
    crate::report::render(&data).unwrap();
}
