//! `demo --tiers` as a user runs it, and its figures as Prometheus reads them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at its first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A folder of a test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("headwater-cli-tiers-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The demonstration with a GPU space of 4 MiB, spilling into the folder.
    fn demo(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command.args(["demo", "--tiers", "--device", "sim", "--limit", "4M", "--spill-to", "."]);
        command.args(more).current_dir(&self.0);
        command
    }

    fn entries(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn three_times_the_limit_comes_out_right_with_a_row_a_step_and_a_page() {
    let folder = Folder::new("json");
    let output = folder.demo(&["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, steps) = lines.split_last().unwrap();
    assert_eq!((&last["gpu_bytes"], &last["working_set_bytes"]), (&(4 * MIB).into(), &(12 * MIB).into()));
    assert_eq!((&last["words_checked"], &last["words_wrong"]), (&(3 * MIB).into(), &0.into()));
    assert!(last["routes"]["gpu_to_host"]["bytes"].as_u64().unwrap() > 0);
    // Begin and end, and 48 buffers filled, worked on three times and checked.
    assert_eq!(steps.len(), 2 + 48 * 5);
    let of = |key: &str| steps.iter().map(|step| step[key].as_u64().unwrap()).max().unwrap();
    assert!(of("gpu_bytes") <= 4 * MIB && of("host_bytes") > 0 && of("disk_bytes") > 0, "{last}");
    assert_eq!(folder.entries(), ["headwater-tiers.html"], "no spill file is left");
    let page = std::fs::read_to_string(folder.0.join("headwater-tiers.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("pass 3"));
}

#[test]
fn people_get_a_table_and_a_picture_where_they_ask_for_one() {
    let folder = Folder::new("text");
    let output = folder.demo(&["-o", "tiers.svg"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["words checked, 0 wrong", "pass 3", "gpu_to_host", "Disk: ", "tiers.svg"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(std::fs::read_to_string(folder.0.join("tiers.svg")).unwrap().starts_with("<svg"));
}

#[test]
fn figures_are_served_on_this_machine_alone_while_it_runs_and_for_as_long_as_asked() {
    let folder = Folder::new("metrics");
    let mut child = folder
        .demo(&["--metrics", "0", "--serve-for", "600"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("figures: http://").unwrap().strip_suffix("/metrics").unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    // Asked again until the figures show that data has moved.
    let text = loop {
        let mut connection = TcpStream::connect(address).unwrap();
        write!(connection, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        let moved_up = |route: &str| {
            let name = format!("headwater_spill_bytes_total{{route=\"{route}\"}} ");
            let value = body.lines().find_map(|row| row.strip_prefix(&name));
            value.map_or(0.0, |value| value.parse::<f64>().unwrap())
        };
        // Two of the three passes, whichever tier the data came up from.
        let moved = moved_up("host_to_gpu") + moved_up("disk_to_gpu");
        if moved >= 24.0 * MIB as f64 {
            break body.to_owned();
        }
        std::thread::yield_now();
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text.contains("headwater_space_capacity_bytes{space=\"GPU 0\"} 4194304\n"), "{text}");
    assert!(text.contains("# TYPE headwater_spill_bytes_total counter\n"), "{text}");
}

#[test]
fn options_of_tiers_are_refused_elsewhere_and_addresses_must_make_sense() {
    let folder = Folder::new("refused");
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    let output = command.args(["demo", "--metrics", "9464"]).current_dir(&folder.0).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("--tiers"));
    let output = folder.demo(&["--metrics", "somewhere"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("somewhere"));
}
