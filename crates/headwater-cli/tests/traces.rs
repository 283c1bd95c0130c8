//! `replay`, `report` and `demo` as a user runs them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at its first surprise")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The keys of `replay --json`, as the design lists them.
const KEYS: [&str; 13] = [
    "trace",
    "policy",
    "device",
    "events",
    "peak_live_bytes",
    "peak_reserved_bytes",
    "fragmentation",
    "driver_calls",
    "modelled_driver_us",
    "driver_us",
    "measured_driver_us",
    "host_ns_per_event",
    "ooms",
];

/// A folder of a test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("headwater-cli-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// 40 MiB, cut up by a request for half of them, and 40 MiB more.
    fn small_trace(&self) -> String {
        let mib = |n: u64| n * MIB;
        let (large, half) = (mib(40), mib(20));
        let head = r#"# alloctrace 1 {"name": "small", "peak_reserved": 83886080, "seconds": 2.0}"#;
        self.file(
            "small.trace",
            &format!("{head}\na 0 {large} 0 1\nf 0 0 2\na 1 {half} 0 3\na 2 {large} 0 4\n"),
        )
    }

    fn headwater(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command.args(arguments).current_dir(&self.0).output().unwrap()
    }

    fn answers(&self, arguments: &[&str]) -> String {
        let output = self.headwater(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        self.answers(arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.headwater(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bundled(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../headwater-trace/testdata").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn replay_gives_one_object_a_line_with_the_keys_of_the_design_and_the_time_of_each_call() {
    let folder = Folder::new("keys");
    let trace = folder.small_trace();
    let text =
        folder.answers(&["replay", &trace, &trace, "--json", "--policy", "direct", "--policy", "classic"]);
    assert_eq!(text.lines().count(), 4);
    for line in text.lines() {
        let figures: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        assert_eq!(figures.len(), KEYS.len());
        let mut from = 0;
        for key in KEYS {
            from += line[from..].find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} in {line}"));
        }
        assert_eq!((&figures["trace"], &figures["device"]), (&"small".into(), &"sim".into()));
        assert_eq!((&figures["events"], &figures["ooms"]), (&4.into(), &0.into()));
        assert_eq!(figures["peak_live_bytes"], 60 * MIB);
        assert!(figures["driver_calls"]["cuMemAlloc"].as_u64().unwrap() > 0);
        assert!(figures["modelled_driver_us"].as_f64().unwrap() > 0.0);
    }
    let classic: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    assert_eq!((&classic["policy"], &classic["fragmentation"]), (&"classic".into(), &0.25.into()));
}

#[test]
fn a_recorded_trace_reserves_with_classic_what_its_header_says() {
    let folder = Folder::new("classic");
    for name in ["montecarlo", "fsdp_streams"] {
        let path = bundled(&format!("{name}.trace.gz"));
        let header = headwater_trace::open(&path).unwrap().header;
        let figures = &folder.json(&["replay", &path, "--policy", "classic", "--json"])[0];
        assert_eq!(figures["peak_reserved_bytes"].as_u64(), header.reported.peak_reserved, "{name}");
    }
}

#[test]
fn the_table_starts_with_what_was_recorded_and_has_every_policy_side_by_side() {
    let folder = Folder::new("table");
    let text = folder.answers(&["replay", &folder.small_trace()]);
    let rows: Vec<&str> = text.lines().map(str::trim_start).collect();
    let place =
        |name: &str| rows.iter().position(|row| row.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    assert!(place("as recorded") < place("direct"));
    assert!(place("direct") < place("classic"));
    assert!(rows[place("classic")].contains("80.0 MiB"), "{text}");
}

#[test]
fn a_limit_says_where_memory_runs_out_and_find_limit_says_what_would_do() {
    let folder = Folder::new("limit");
    let trace = folder.small_trace();
    let classic = ["replay", &trace, "--policy", "classic"];
    let short = folder.answers(&[&classic[..], &["--limit", "70M"]].concat());
    assert!(short.contains("classic: stopped at event 3: out of memory"), "{short}");
    let figures = folder.json(&[&classic[..], &["--limit", "70M", "--json"]].concat());
    assert_eq!((&figures[0]["ooms"], &figures[0]["events"]), (&1.into(), &4.into()));
    let found = folder.json(&[&classic[..], &["--find-limit", "--json"]].concat());
    assert_eq!(found[0]["smallest_limit_bytes"], 80 * MIB);
    let until = folder.json(&[&classic[..], &["--limit", "70M", "--until", "3", "--json"]].concat());
    assert_eq!((&until[0]["ooms"], &until[0]["events"]), (&0.into(), &3.into()));
}

#[test]
fn a_timeline_is_csv_or_json_by_its_name() {
    let folder = Folder::new("timeline");
    let trace = folder.small_trace();
    let (csv, json) = (folder.path("t.csv"), folder.path("t.json"));
    folder.answers(&["replay", &trace, "--policy", "classic", "--timeline", &csv]);
    let csv = std::fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().next(), Some("trace,policy,event,t_us,live,allocated,active,reserved"));
    assert_eq!(csv.lines().last(), Some("small,classic,3,4,62914560,62914560,62914560,83886080"));
    folder.answers(&["replay", &trace, "--timeline", &json]);
    let runs: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!((&runs[0]["policy"], &runs[0]["samples"][0]["live"]), (&"direct".into(), &(40 * MIB).into()));
}

#[test]
fn a_report_is_one_file_with_the_figures_of_the_replay() {
    let folder = Folder::new("report");
    let trace = folder.small_trace();
    let text = folder.answers(&["report", &trace]);
    assert!(text.contains("small.html"), "{text}");
    let page = std::fs::read_to_string(folder.path("small.html")).unwrap();
    assert!(page.contains("<html") && page.contains("classic"));
    let lines = folder.json(&["report", &trace, "-o", &folder.path("other.html"), "--json"]);
    let replayed = folder.json(&["replay", &trace, "--json"]);
    assert_eq!(lines.len(), replayed.len() + 1);
    for (one, other) in lines.iter().zip(&replayed) {
        assert_eq!(one["peak_reserved_bytes"], other["peak_reserved_bytes"]);
    }
    assert!(Path::new(lines.last().unwrap()["report"].as_str().unwrap()).exists());
}

#[test]
fn bad_words_and_files_are_named() {
    let folder = Folder::new("bad");
    let trace = folder.small_trace();
    assert!(folder.refusal(&["replay", &trace, "--policy", "best"]).contains("unknown policy `best`"));
    assert!(folder.refusal(&["replay", &trace, "--limit", "4Q"]).contains("`4Q`"));
    assert!(folder.refusal(&["replay", &folder.path("none.gz")]).contains("none.gz"));
    let impossible = folder.file("bad.trace", "# alloctrace 1 {}\nf 7 0 1\n");
    assert!(folder.refusal(&["replay", &impossible]).contains("id 7 was never allocated"));
    let cut = folder.file("cut.trace", "# alloctrace 1 {}\na 0 12\n");
    assert!(folder.refusal(&["report", &cut]).contains("byte"));
}

#[test]
fn the_demo_replays_draws_and_verifies() {
    let folder = Folder::new("demo");
    let lines = folder.json(&["demo", "--device", "sim", "--json"]);
    let of = |key: &str, value: &str| lines.iter().filter(|line| line[key] == value).count();
    assert_eq!((of("policy", "direct"), of("policy", "classic")), (1, 1));
    assert!(of("demo", "buffers") > 0);
    for part in ["streams", "graph"] {
        let line = lines.iter().find(|line| line["demo"] == part).unwrap();
        assert!(line["verified_bytes"].as_u64().unwrap() > 0, "{line}");
    }
    assert!(Path::new(&folder.path("headwater-demo.html")).exists());
    let text = folder.answers(&["demo", "--device", "sim", "-o", "elsewhere.html"]);
    assert!(text.contains("elsewhere.html") && text.contains("Graph: captured"), "{text}");
}
