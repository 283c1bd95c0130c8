//! What a snapshot means as a trace.

use super::*;
use crate::{Event, LabelId, Limits, Trace};

const MIB: u64 = 1 << 20;

fn entry(action: Action, address: u64, bytes: u64, t_us: u64) -> TraceEntry {
    let none = LabelId::NONE;
    let (stack, compile_context, user_metadata) = (none, none, none);
    TraceEntry {
        action,
        address,
        bytes,
        stream: 0,
        t_us,
        stack,
        compile_context,
        user_metadata,
        pool_id: None,
    }
}

fn block(address: u64, bytes: u64, state: BlockState) -> Block {
    Block { address, bytes, requested_bytes: bytes - 1, state, stack: LabelId::NONE }
}

fn snapshot(entries: Vec<TraceEntry>, blocks: Vec<Block>) -> Snapshot {
    let mut snapshot = Snapshot { device_traces: vec![entries], ..Snapshot::default() };
    if !blocks.is_empty() {
        let (address, bytes) = (blocks[0].address, 2 * MIB);
        snapshot.segments.push(Segment { address, bytes, stream: 5, blocks, ..Segment::default() });
    }
    snapshot
}

fn events(trace: &Trace) -> Vec<String> {
    let say = |event: &Event| match *event {
        Event::Alloc { id, bytes, .. } => format!("a{id} {bytes}"),
        Event::Free { id, .. } => format!("f{id}"),
        Event::Complete { id, .. } => format!("c{id}"),
        Event::SegmentAlloc { bytes, .. } => format!("+{}", bytes / MIB),
        Event::SegmentMap { bytes, .. } => format!("m{}", bytes / MIB),
        Event::SegmentFree { bytes, .. } | Event::SegmentUnmap { bytes, .. } => format!("-{}", bytes / MIB),
        Event::Oom { bytes, free_bytes, .. } => format!("oom {bytes} {free_bytes}"),
        Event::Annotation { label, .. } => trace.names.describe(label),
    };
    trace.check().unwrap();
    trace.events.iter().map(say).collect()
}

#[test]
fn a_give_back_completes_later_only_where_other_entries_lie_between() {
    use Action::{Alloc, FreeCompleted, FreeRequested};
    let history = vec![
        entry(Alloc, 0x1000, 100, 1),
        entry(FreeRequested, 0x1000, 100, 2),
        entry(FreeCompleted, 0x1000, 100, 2),
        entry(Alloc, 0x1000, 200, 3),
        entry(FreeRequested, 0x1000, 200, 4),
        entry(Alloc, 0x2000, 300, 5),
        entry(FreeCompleted, 0x1000, 200, 6),
    ];
    let trace = snapshot(history, vec![]).to_trace("t").unwrap();
    assert_eq!(events(&trace), ["a0 100", "f0", "a1 200", "f1", "a2 300", "c1"]);
}

#[test]
fn what_was_there_before_the_history_comes_first() {
    use Action::{Alloc, FreeCompleted, FreeRequested};
    let history = vec![
        entry(FreeRequested, 0x1000, 77, 10),
        entry(FreeCompleted, 0x1000, 77, 10),
        entry(FreeCompleted, 0x3000, 33, 11),
        entry(Alloc, 0x5000, 512, 12),
    ];
    // 0x2000 is never mentioned; 0x5000 is the history's own; 0x5100 overlaps it, so it came after recording stopped.
    let blocks = vec![
        block(0x2000, 512, BlockState::Allocated),
        block(0x4000, 512, BlockState::PendingFree),
        block(0x5000, 256, BlockState::Allocated),
        block(0x5100, 512, BlockState::Allocated),
        block(0x6000, 512, BlockState::Inactive),
    ];
    let trace = snapshot(history, blocks).to_trace("t").unwrap();
    let initial = ["a0 77", "a1 33", "f1", "+2", "a2 511", "a3 511", "f3"];
    assert_eq!(events(&trace), [&initial[..], &["f0", "c1", "a4 512"]].concat());
    assert_eq!(trace.header.initial_events, 7);
    assert!(trace.events[..7].iter().all(|event| event.t_us() == 10));
}

#[test]
fn segments_from_before_are_found_by_going_backwards_and_give_the_peak() {
    use Action::{SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};
    let at = 0x7000_0000_0000;
    let history = vec![
        entry(SegmentFree, at + 100 * MIB, 20 * MIB, 1),
        entry(SegmentAlloc, at + 200 * MIB, 4 * MIB, 2),
        entry(SegmentMap, at + 2 * MIB, 6 * MIB, 3),
        entry(SegmentUnmap, at, 2 * MIB, 4),
    ];
    let mut snapshot = snapshot(history, vec![]);
    for (address, bytes) in [(at + 2 * MIB, 6 * MIB), (at + 200 * MIB, 4 * MIB)] {
        snapshot.segments.push(Segment { address, bytes, ..Segment::default() });
    }
    let trace = snapshot.to_trace("t").unwrap();
    assert_eq!(events(&trace), ["+2", "+20", "-20", "+4", "m6", "-2"]);
    assert_eq!(trace.header.reported.peak_reserved, Some(22 * MIB));
}

#[test]
fn gaps_in_a_history_are_repaired_and_counted() {
    use Action::{Alloc, FreeCompleted, FreeRequested};
    let history = vec![
        entry(Alloc, 0x1000, 1, 1),
        entry(Alloc, 0x1000, 2, 2),
        entry(FreeRequested, 0x1000, 2, 3),
        entry(FreeCompleted, 0x1000, 2, 3),
        entry(FreeRequested, 0x1000, 3, 4),
        entry(FreeCompleted, 0x1000, 3, 4),
        entry(FreeCompleted, 0x1000, 3, 5),
    ];
    let trace = snapshot(history, vec![]).to_trace("t").unwrap();
    assert_eq!(events(&trace), ["a0 1", "f0", "a1 2", "f1", "a2 3", "f2"]);
    for key in ["implied_frees", "implied_allocs", "unmatched_completes"] {
        assert_eq!(trace.header.extra[key], 1, "{key}");
    }
}

#[test]
fn devices_and_annotations_are_merged_by_time() {
    let mut snapshot = snapshot(vec![entry(Action::Alloc, 1, 1, 10), entry(Action::Alloc, 2, 2, 30)], vec![]);
    snapshot.device_traces.push(vec![entry(Action::Alloc, 1, 3, 20), entry(Action::Oom, 7, 4, 40)]);
    let text = |snapshot: &mut Snapshot, text: &str| snapshot.names.text(text).unwrap();
    let (name, step, stage) =
        (text(&mut snapshot, "name"), text(&mut snapshot, "step"), text(&mut snapshot, "stage"));
    let one = ExternalAnnotation { device: 1, t_us: 25, texts: vec![(name, step)] };
    let two = ExternalAnnotation { device: 0, t_us: 5, texts: vec![(name, step), (stage, step)] };
    snapshot.external_annotations = vec![one, two];
    let trace = snapshot.to_trace("t").unwrap();
    assert_eq!(events(&trace), ["name=step stage=step", "a0 1", "a1 3", "step", "a2 2", "oom 4 7"]);
    assert_eq!(trace.summary().devices, 2);
}

#[test]
fn one_list_used_as_many_histories_is_not_multiplied() {
    // device_traces = [t] * 100,000 with t = [{...}] * 100,000: ten thousand million entries in half a megabyte.
    let mut bytes = b"\x80\x04}\x8c\x0ddevice_traces](](".to_vec();
    bytes.extend_from_slice(b"}\x8c\x06action\x8c\x05allocs\x94");
    bytes.extend(b"h\0".repeat(100_000));
    bytes.extend_from_slice(b"e\x94");
    bytes.extend(b"h\x01".repeat(100_000));
    bytes.extend_from_slice(b"es.");
    let error = Snapshot::from_pickle(&bytes, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("the file repeats some"), "{error}");
}

#[test]
fn values_of_the_wrong_kind_are_named_with_the_byte_of_their_dictionary() {
    let message = |bytes: &[u8]| Snapshot::from_pickle(bytes, &Limits::default()).unwrap_err().to_string();
    assert_eq!(
        message(b"\x80\x04N."),
        "PyTorch snapshot: byte 0: expected a snapshot's dictionary, found None"
    );
    assert!(message(b"\x80\x04}.").contains("is no memory snapshot"));
    let wrong = b"\x80\x04}\x8c\x08segments](}\x8c\x07address\x8c\x01xses.";
    assert_eq!(message(wrong), "PyTorch snapshot: byte 15: expected a number, found \"x\"");
    let wrong = b"\x80\x04}\x8c\x0ddevice_traces](](}\x8c\x06action\x8c\x04copysees.";
    assert_eq!(message(wrong), "PyTorch snapshot: byte 22: no action of an allocator: \"copy\"");
}

#[test]
fn a_snapshot_comes_back_from_its_pickle() {
    let mut snapshot =
        snapshot(vec![entry(Action::Oom, 9, 1 << 40, 1)], vec![block(0x200, 512, BlockState::Inactive)]);
    let frames = [("a.py", 1, "f"), ("b.py", 2, "g")]
        .map(|(file, line, f)| snapshot.names.frame(file, line, f).unwrap());
    let stack = snapshot.names.stack(&frames).unwrap();
    let context = snapshot.names.text("compiled").unwrap();
    let rich = TraceEntry {
        stack,
        compile_context: context,
        pool_id: Some((0, 3)),
        ..entry(Action::Alloc, 1 << 60, 9, 2)
    };
    snapshot.device_traces[0].extend([rich, rich, TraceEntry { stream: u64::MAX, ..rich }]);
    snapshot.device_traces.push(Vec::new());
    snapshot.segments[0].blocks[0].stack = stack;
    let settings = r#"{"max_split_size": -1, "roundup": {"1": 0, "2": [true, null, 1.5, "x"]}}"#;
    snapshot.allocator_settings = serde_json::from_str(settings).unwrap();
    let bytes = snapshot.write(Vec::new()).unwrap();
    let back = Snapshot::from_pickle(&bytes, &Limits::default()).unwrap();
    assert_eq!(back.write(Vec::new()).unwrap(), bytes, "the same bytes again");
    assert_eq!((back.segments.len(), &back.allocator_settings), (1, &snapshot.allocator_settings));
    let entries = &back.device_traces[0];
    assert_eq!((entries[3].stream, entries[1].pool_id), (u64::MAX, Some((0, 3))));
    assert_eq!(back.names.describe(entries[1].compile_context), "compiled");
    assert_eq!(back.names.describe(back.segments[0].blocks[0].stack), "f (a.py:1)");
}
