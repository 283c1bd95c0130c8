//! The traces recorded for this project read to the figures PyTorch itself reported.
//!
//! One is in `testdata/`; the others are looked for beside the workspace and, where they are not, said to be absent.
#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use std::path::{Path, PathBuf};

use headwater_trace::{Format, Trace, alloctrace, hwt, open, read, snapshot::Snapshot};

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `(file, allocs, frees, completes, streams, live at the end)`: counted by another program, line by line.
const RECORDED: [(&str, u64, u64, u64, u64, u64); 5] = [
    ("montecarlo", 15_781, 15_780, 0, 1, 1),
    ("gpt2_varlen", 67_853, 67_850, 0, 1, 3),
    ("llama_ckpt", 42_263, 42_261, 0, 1, 2),
    ("fsdp_streams", 24_607, 24_580, 3_127, 3, 27),
    ("resnet_multiscale", 31_315, 31_312, 0, 1, 3),
];

fn check_recorded(
    path: &Path,
    (name, allocs, frees, completes, streams, final_live): (&str, u64, u64, u64, u64, u64),
) {
    let trace = open(path).unwrap();
    trace.check().unwrap();
    let sum = trace.summary();
    assert_eq!((trace.header.name.as_str(), trace.header.source), (name, Format::Alloctrace));
    assert_eq!((sum.allocs, sum.frees, sum.completes), (allocs, frees, completes), "{name}");
    assert_eq!((sum.streams, sum.final_live, sum.time_steps_back), (streams, final_live, 0), "{name}");
    assert_eq!(Some(sum.peak_live_bytes), trace.header.reported.peak_requested, "{name}");
    assert_eq!(sum.events, allocs + frees + completes);
    assert!(trace.header.reported.peak_reserved > trace.header.reported.peak_allocated);
    assert!(trace.header.reported.seconds.is_some() && trace.header.extra.contains_key("frag"));
}

fn montecarlo() -> Trace {
    open(crate_dir().join("testdata/montecarlo.trace.gz")).unwrap()
}

#[test]
fn the_bundled_trace_has_pytorchs_peak_of_live_bytes() {
    check_recorded(&crate_dir().join("testdata/montecarlo.trace.gz"), RECORDED[0]);
}

#[test]
fn every_recorded_trace_has_pytorchs_peak_of_live_bytes_where_the_shared_folder_exists() {
    let folder = crate_dir().join("../../../shared/traces/recorded");
    if !folder.is_dir() {
        println!("ABSENT: {}: four of the five recorded traces were not read", folder.display());
        return;
    }
    for recorded in RECORDED {
        check_recorded(&folder.join(format!("{}.trace.gz", recorded.0)), recorded);
    }
}

#[test]
fn a_recorded_trace_goes_through_every_format_and_back() {
    let trace = montecarlo();
    let limits = Default::default();

    let mut text = Vec::new();
    assert_eq!(alloctrace::write(&trace, &mut text).unwrap(), Default::default());
    assert_eq!(read(&text[..], &limits).unwrap(), trace);

    let file = hwt::write(&trace, Vec::new()).unwrap();
    assert!(file.len() * 3 < text.len(), "{} bytes against {} of text", file.len(), text.len());
    let back = read(&file[..], &limits).unwrap();
    assert_eq!(
        (back.events, back.names, back.header.reported),
        (trace.events.clone(), trace.names.clone(), trace.header.reported.clone())
    );

    let (snapshot, left_out) = Snapshot::from_trace(&trace).unwrap();
    assert_eq!(left_out, Default::default());
    let pickle = snapshot.write(Vec::new()).unwrap();
    let back = read(&pickle[..], &limits).unwrap();
    // The made-up segment is there from the beginning; everything else is as it was.
    assert_eq!(back.header.initial_events, 1);
    assert_eq!(back.events[1..], trace.events);
}
