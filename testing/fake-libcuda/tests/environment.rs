//! The settings, and the ways to find the library. The environment is the process's, so each test runs this executable
//! again as a child.

#![cfg(target_os = "linux")]
// What fails in a helper fails the test.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Fake, cuda};
use headwater_cuda::CudaDriver;
use headwater_driver::Devices;

/// What the child prints about the machine: one `name=value` a word.
fn child(settings: &[(&str, &str)]) -> Vec<String> {
    run("the_child_reports", settings)
}

/// What the ignored test `name` prints under these settings.
fn run(name: &str, settings: &[(&str, &str)]) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{words}\n{}", String::from_utf8_lossy(&output.stderr));
    words.split_whitespace().map(str::to_owned).collect()
}

#[test]
#[ignore = "runs as the child of the other tests"]
fn the_child_reports() {
    let fake = Fake::fresh();
    let mut version = 0;
    assert_eq!(cuda!(fake, cuDriverGetVersion(&mut version => *mut i32)), 0);
    let init = cuda!(fake, cuInit(0 => u32));
    println!(" version={version} init={init} ");
    if init != 0 {
        return;
    }
    let (mut devices, mut bytes, mut virtual_memory, mut peer, mut range) = (0, 0, -1, -1, 0);
    assert_eq!(cuda!(fake, cuDeviceGetCount(&mut devices => *mut i32)), 0);
    assert_eq!(cuda!(fake, cuDeviceTotalMem_v2(&mut bytes => *mut usize, 0 => i32)), 0);
    assert_eq!(cuda!(fake, cuDeviceGetAttribute(&mut virtual_memory => *mut i32, 102 => u32, 0 => i32)), 0);
    assert_eq!(cuda!(fake, cuDeviceCanAccessPeer(&mut peer => *mut i32, 0 => i32, devices - 1 => i32)), 0);
    let reserve = cuda!(
        fake,
        cuMemAddressReserve(&mut range => *mut u64, 2 << 20 => usize, 0 => usize, 0 => u64, 0 => u64)
    );
    println!(" devices={devices} bytes={bytes} vmm={virtual_memory} reserve={reserve} peer={peer} ");
}

#[track_caller]
fn assert_says(words: &[String], expected: &[&str]) {
    for word in expected {
        assert!(words.iter().any(|said| said == word), "no {word} in {words:?}");
    }
}

#[test]
fn without_settings_there_are_two_devices_of_8_gib_and_cuda_13() {
    let words = child(&[]);
    assert_says(
        &words,
        &["version=13000", "init=0", "devices=2", "bytes=8589934592", "vmm=1", "reserve=0", "peer=1"],
    );
}

#[test]
fn the_machine_can_be_chosen() {
    let words = child(&[
        ("FAKE_CUDA_DEVICES", "3"),
        ("FAKE_CUDA_MEMORY_BYTES", "1073741824"),
        ("FAKE_CUDA_DRIVER_VERSION", "12040"),
        ("FAKE_CUDA_NO_VMM", "1"),
        ("FAKE_CUDA_NO_PEER", "1"),
    ]);
    assert_says(
        &words,
        &["version=12040", "devices=3", "bytes=1073741824", "vmm=0", "reserve=801", "peer=0"],
    );
}

#[test]
fn init_can_be_told_to_fail() {
    assert_says(&child(&[("FAKE_CUDA_INIT_RESULT", "803")]), &["init=803"]);
    assert_says(&child(&[("FAKE_CUDA_DEVICES", "0")]), &["init=100"]);
}

#[test]
fn a_setting_that_is_no_number_is_ignored() {
    assert_says(&child(&[("FAKE_CUDA_DEVICES", "many")]), &["devices=2"]);
}

#[test]
#[ignore = "runs as the child of the tests below"]
fn the_child_opens_the_drivers_library() {
    let driver = CudaDriver::open().unwrap();
    println!(" {} devices={} ", driver.version().replace(' ', "-"), driver.device_count());
}

#[test]
fn the_backend_finds_it_by_its_setting() {
    let library = common::built_library();
    let settings = [("HEADWATER_LIBCUDA", library.to_str().unwrap()), ("FAKE_CUDA_DEVICES", "5")];
    assert_says(&run("the_child_opens_the_drivers_library", &settings), &["CUDA-13.0", "devices=5"]);
}

#[test]
fn the_backend_finds_it_on_the_library_path_under_the_drivers_name() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("library-path-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(common::built_library(), folder.join("libcuda.so.1")).unwrap();
    let settings = [("LD_LIBRARY_PATH", folder.to_str().unwrap()), ("FAKE_CUDA_DEVICES", "4")];
    assert_says(&run("the_child_opens_the_drivers_library", &settings), &["CUDA-13.0", "devices=4"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
