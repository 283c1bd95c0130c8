//! A snapshot that PyTorch 2.11 wrote on an H200 (six steps of a six-layer transformer with changing lengths, a side
//! stream and Python stacks) reads and replays to the figures that PyTorch itself reported for the run.

use std::path::Path;

use headwater::{DeviceChoice, open as open_device};
use headwater_trace::replay::{Policy, Replay};
use headwater_trace::{Label, LabelId, Names};

// What `torch.cuda.memory_stats()` said at the end of that run.
const REQUESTED_BYTES_PEAK: u64 = 1_663_815_692;
const RESERVED_BYTES_PEAK: u64 = 2_346_713_088;
const DEVICE_ALLOCS: u64 = 77;
const ALLOCATIONS: u64 = 3_154;

fn snapshot() -> headwater_trace::Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/torch_2_11_training.pickle.gz");
    headwater_trace::open(&path).expect("the bundled snapshot reads")
}

#[test]
fn it_reads_with_its_stacks() {
    let trace = snapshot();
    trace.check().unwrap();
    let summary = trace.summary();
    assert_eq!(summary.peak_live_bytes, REQUESTED_BYTES_PEAK);
    assert_eq!(summary.allocs, ALLOCATIONS);
    assert_eq!(summary.streams, 2);
    assert_eq!(trace.header.reported.peak_reserved, Some(RESERVED_BYTES_PEAK));
    let led_back = trace.events.iter().filter(|event| leads_back_to(&trace.names, event.label(), "train.py"));
    assert!(led_back.count() > 1_000, "the stacks lead back to the script");
}

/// Whether a call of `file` is on the stack.
fn leads_back_to(names: &Names, label: LabelId, file: &str) -> bool {
    let Some(Label::Stack(frames)) = names.label(label) else { return false };
    frames.iter().any(|frame| names.frame_at(*frame).is_some_and(|frame| frame.file == file))
}

#[test]
fn classic_replays_it_to_pytorchs_own_figures() {
    let outcome =
        Replay::new(Policy::Classic).run(&snapshot(), &open_device(DeviceChoice::Sim).unwrap()).unwrap();
    assert_eq!(outcome.figures.peak_live_bytes, REQUESTED_BYTES_PEAK);
    assert_eq!(outcome.figures.peak_reserved_bytes, RESERVED_BYTES_PEAK);
    assert_eq!(outcome.figures.driver_calls["cuMemAlloc"], DEVICE_ALLOCS);
}
