//! The pickles we write are opened by Python's own unpickler, and those Python writes by ours.
#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use std::io::Write;
use std::process::{Command, Stdio};

use headwater_trace::snapshot::Snapshot;
use headwater_trace::{Event, Limits, Names, Trace, read};

/// Runs a program of Python with `input`; its output.
fn python(program: &str, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3, which this project needs, could not be started");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(output.status.success(), "python3 failed");
    output.stdout
}

fn labelled_trace() -> Trace {
    let mut trace = Trace::new("python");
    let Names { .. } = trace.names;
    let (main, side) = (trace.names.stream(0).unwrap(), trace.names.stream(0x5555_0000_1111).unwrap());
    let frames = [("train.py", 10, "step"), ("nn/linear.py", 114, "forward \u{e9}")]
        .map(|(file, line, function)| trace.names.frame(file, line, function).unwrap());
    let (stack, text) = (trace.names.stack(&frames).unwrap(), trace.names.text("weights").unwrap());
    let mark = trace.names.text("epoch 1").unwrap();
    for id in 0..2_500 {
        let (label, stream) = if id % 3 == 0 { (text, side) } else { (stack, main) };
        trace.events.push(Event::Alloc {
            id,
            bytes: 1_000_000 * id,
            t_us: 1_700_000_000_000_000 + id,
            label,
            stream,
            device: 0,
        });
        if id % 2 == 0 {
            trace.events.push(Event::Free { id, t_us: 1_700_000_000_000_000 + id, label, stream, device: 0 });
        }
    }
    trace.events.push(Event::Complete { id: 0, t_us: 1_700_000_000_009_000, device: 0 });
    trace.events.push(Event::Oom {
        bytes: 1 << 45,
        free_bytes: 12,
        t_us: 1_700_000_000_009_001,
        label: stack,
        stream: main,
        device: 0,
    });
    trace.events.push(Event::Annotation { label: mark, t_us: 1_700_000_000_009_002, device: 0 });
    trace
}

#[test]
fn python_opens_the_snapshot_we_write_and_finds_pytorchs_keys() {
    let (snapshot, _) = Snapshot::from_trace(&labelled_trace()).unwrap();
    let pickle = snapshot.write(Vec::new()).unwrap();
    python(
        r#"
import pickle, pickletools, sys
data = sys.stdin.buffer.read()
# What PyTorch's viewer knows.
viewer = set("""PROTO APPEND APPENDS LIST TUPLE NEWFALSE NEWTRUE NONE BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST
FRAME LONG1 LONG_BINGET MARK MEMOIZE BINPUT LONG_BINPUT SETITEMS SETITEM DICT SHORT_BINUNICODE BINUNICODE STOP
EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 BINFLOAT""".split())
assert {op.name for op, _, _ in pickletools.genops(data)} <= viewer
assert data[:2] == b"\x80\x04"
s = pickle.loads(data)
assert list(s) == ["segments", "device_traces", "allocator_settings", "external_annotations"]
assert list(s["segments"][0]) == ["device", "address", "total_size", "allocated_size", "active_size", "requested_size",
    "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"]
assert list(s["segments"][0]["blocks"][0]) == ["address", "size", "requested_size", "state", "frames"]
assert len(s["segments"]) == 2 and s["segments"][0]["segment_pool_id"] == (0, 0)
for segment in s["segments"]:
    address = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == address
        address += block["size"]
    assert address == segment["address"] + segment["total_size"]
    states = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
    assert segment["requested_size"] == sum(b["requested_size"] for b in states)
trace, = s["device_traces"]
assert sum(e["action"] == "alloc" for e in trace) == 2500
assert sum(e["action"] == "free_requested" for e in trace) == sum(e["action"] == "free_completed" for e in trace) == 1250
allocs = [e for e in trace if e["action"] == "alloc"]
assert allocs[0]["user_metadata"] == "weights" and "frames" not in allocs[0]
assert allocs[1]["frames"][1] == {"name": "forward \xe9", "filename": "nn/linear.py", "line": 114}
assert allocs[1]["frames"] is allocs[2]["frames"], "shared"
assert allocs[1]["compile_context"] == "N/A" and allocs[1]["size"] == 1000000
assert trace[-1] == {"action": "oom", "device_free": 12, "size": 1 << 45, "stream": 0, "time_us": 1700000000009001,
    "compile_context": "N/A", "user_metadata": "", "frames": allocs[1]["frames"]}
assert s["external_annotations"] == [{"name": "epoch 1", "device": 0, "time_us": 1700000000009002}]
"#,
        &pickle,
    );
}

/// A snapshot as PyTorch builds it, in the protocol given as `PROTOCOL`.
const SNAPSHOT: &str = r#"
import pickle, sys
frame = {"name": "step", "filename": "train.py", "line": 10}
stack = [frame, {"name": "main", "filename": "train.py", "line": 99}]
def entry(action, addr, size, t, **more):
    return {"action": action, "device_free" if action == "oom" else "addr": addr, "size": size, "stream": 0,
            "time_us": t, "compile_context": "N/A", "user_metadata": "", "frames": stack, **more}
trace = [entry("segment_alloc", 0x7f0000000000, 2 << 20, 1)]
for i in range(3000):
    trace.append(entry("alloc", 0x7f0000000000 + 512 * (i % 64), i + 1, 2 + i))
    trace.append(entry("free_requested", 0x7f0000000000 + 512 * (i % 64), i + 1, 2 + i))
    trace.append(entry("free_completed", 0x7f0000000000 + 512 * (i % 64), i + 1, 2 + i))
trace.append(entry("oom", 4096, 1 << 40, 4000, pool_id=(0, 1)))
segment = {"device": 0, "address": 0x7f0000000000, "total_size": 2 << 20, "allocated_size": 0, "active_size": 0,
    "requested_size": 0, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
    "frames": stack, "blocks": [{"address": 0x7f0000000000, "size": 2 << 20, "requested_size": 0, "state": "inactive",
    "frames": []}]}
settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
    "expandable_segments": False, "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}}
pickle.dump({"segments": [segment], "device_traces": [trace, []], "allocator_settings": settings,
    "external_annotations": [], "host_segments": [], "host_traces": []}, sys.stdout.buffer, protocol=PROTOCOL)
"#;

#[test]
fn every_protocol_python_writes_is_read() {
    for protocol in 2..=5 {
        let pickle = python(&SNAPSHOT.replace("PROTOCOL", &protocol.to_string()), b"");
        let snapshot = Snapshot::from_pickle(&pickle, &Limits::default()).unwrap();
        assert_eq!(snapshot.ignored_keys, ["host_segments", "host_traces"]);
        let trace = read(&pickle[..], &Limits::default()).unwrap();
        trace.check().unwrap();
        let sum = trace.summary();
        assert_eq!(
            (sum.allocs, sum.frees, sum.completes, sum.ooms),
            (3000, 3000, 0, 1),
            "protocol {protocol}"
        );
        assert_eq!((sum.peak_live_bytes, trace.header.initial_events), (3000, 0));
        assert_eq!(trace.header.reported.peak_reserved, Some(2 << 20));
        assert_eq!(trace.header.extra["allocator_settings"]["max_split_size"], -1);
        assert_eq!(trace.names.describe(trace.events[1].label()), "step (train.py:10)");
        assert_eq!(trace.names.label_count(), 1);
    }
}

#[test]
fn a_pickle_that_would_run_code_does_not() {
    let program = "import pickle, sys, os\nclass Bad:\n  def __reduce__(self): return (os.system, ('true',))\n\
         pickle.dump({'segments': Bad()}, sys.stdout.buffer, protocol=PROTOCOL)";
    for protocol in 2..=5 {
        let pickle = python(&program.replace("PROTOCOL", &protocol.to_string()), b"");
        let message = read(&pickle[..], &Limits::default()).unwrap_err().to_string();
        assert!(message.contains("GLOBAL refused: it imports code by name"), "{message}");
    }
}
