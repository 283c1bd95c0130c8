//! The engine on the machine's own file system: data that was on disk comes back whole, nothing has a name while it is there, and a
//! process that dies in the middle leaves nothing behind.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at its first surprise")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use headwater::Direct;
use headwater_driver::DeviceId;
use headwater_sim::{CostModel, SimDriver};
use headwater_tiers::disk::{Compression, DiskOptions, IoChoice};
use headwater_tiers::{
    DiskConfig, GpuConfig, HostConfig, SpaceId, Spill, SpillConfig, Tier, Tiers, TiersConfig, Wait,
};

const DEVICE: DeviceId = DeviceId(0);

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("headwater-real-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

fn engine(directory: &Path, io: IoChoice, compression: Compression) -> Option<(Arc<SimDriver>, Spill)> {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    let direct = Arc::new(Direct::new(sim.clone(), DEVICE).unwrap());
    let mut host = HostConfig::new(0, 8 << 20);
    (host.pinned.block_bytes, host.pinned.blocks_per_slab, host.pinned.initial_slabs) = (256 << 10, 8, 1);
    let mut disk = DiskConfig::new(directory, 64 << 20);
    disk.options = DiskOptions { io, compression, keep_free_bytes: 0, depth: 16, ..DiskOptions::default() };
    let tiers = TiersConfig::default()
        .driver(sim.clone())
        .gpu(GpuConfig::new(direct, 16 << 20))
        .host(host)
        .disk(disk);
    let config = SpillConfig { background: false, staging_blocks: 6, ..SpillConfig::default() };
    let spill = Spill::new(Tiers::new(tiers).unwrap(), config);
    // A machine without io_uring or direct I/O has fewer ways.
    if io == IoChoice::Best { Some((sim, spill.unwrap())) } else { spill.ok().map(|spill| (sim, spill)) }
}

fn words(len: usize, seed: u64) -> Vec<u64> {
    // Half noise, half zeros, so that compression has something to do and something to leave.
    let noise =
        (0..len as u64 / 2).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ i);
    let mut words: Vec<u64> = noise.collect();
    words.resize(len, 0);
    words
}

#[test]
fn data_comes_back_from_the_real_disk_by_every_way() {
    let directory = scratch("ways");
    let patience = Wait::at_most(Duration::from_secs(60));
    for io in [IoChoice::Best, IoChoice::DirectUring, IoChoice::DirectThreads, IoChoice::Buffered] {
        for compression in [Compression::Off, Compression::Always] {
            let Some((sim, spill)) = engine(&directory, io, compression) else { continue };
            for len in [1, 511, 32 << 10, (300 << 10) + 3] {
                let values = words(len, len as u64);
                let buffer = spill.buffer_from_slice(&values, Tier::Gpu, DEVICE, &patience).unwrap();
                // From the GPU and from the host, and back to both.
                for tier in [Tier::Gpu, Tier::Host] {
                    buffer.spill_to(Tier::Disk, &patience).unwrap();
                    assert_eq!(buffer.space(), SpaceId::disk(0));
                    assert_eq!(entries(&directory), 0, "the file has no name");
                    if tier == Tier::Gpu {
                        buffer.prefetch(DEVICE, &patience).unwrap();
                    }
                    assert!(
                        buffer.read_on_host(&patience).unwrap().to_vec().unwrap() == values,
                        "{io:?} {len}"
                    );
                }
            }
            drop(spill);
            assert!(sim.hazards().is_empty() && sim.leaks().is_empty());
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

const CHILD: &str = "HEADWATER_TEST_CRASH_DIRECTORY";

/// Not a test by itself: the process that dies. Run by the test below, in a process of its own.
#[test]
fn crash_child() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let Some((_sim, spill)) = engine(Path::new(&directory), IoChoice::Best, Compression::Off) else { return };
    let patience = Wait::at_most(Duration::from_secs(60));
    let buffer = spill.buffer_from_slice(&words(1 << 18, 1), Tier::Disk, DEVICE, &patience).unwrap();
    assert_eq!(buffer.space().tier(), Tier::Disk);
    println!("spilled {}", buffer.len());
    std::process::abort();
}

#[test]
fn a_process_that_dies_with_data_on_disk_leaves_nothing() {
    let directory = scratch("crash");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["crash_child", "--exact", "--nocapture"])
        .env(CHILD, &directory)
        .output()
        .unwrap();
    assert!(!child.status.success(), "it died");
    assert!(String::from_utf8_lossy(&child.stdout).contains("spilled"), "{child:?}");
    assert_eq!(entries(&directory), 0);
    std::fs::remove_dir_all(&directory).unwrap();
}
