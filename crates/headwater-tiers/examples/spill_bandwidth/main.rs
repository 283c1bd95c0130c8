//! How fast data moves through the tiers, against the same bytes moved raw in the same run.
//!
//! ```text
//! cargo run --release -p headwater-tiers --example spill_bandwidth -- --device cuda --directory /mnt/nvme
//! ```
//!
//! | file | what is measured |
//! |---|---|
//! | `copies.rs` | GPU and HOST, one way each and both ways at once, against plain pinned copies |
//! | `disks.rs` | HOST and GPU to and from DISK, against bare direct transfers of the same size and depth |
//! | `working_set.rs` | three times the GPU limit worked through to the right answer, against the bandwidth bound |
//! | `compute.rs` | two streams of kernels, with and without data on the move |
//!
//! Raw and tiers take turns, round by round, and the medians are compared; every byte that comes back is checked, and the exit
//! status is 1 where one is wrong. On the simulated device copies are timed by its virtual clock, which all threads share and any of
//! them moves on by waiting: what two threads do at once looks like one after the other there. The disk is always the real one.

mod compute;
mod copies;
mod disks;
mod setting;
mod working_set;

use std::process::ExitCode;

use setting::{Failure, Setting};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spill_bandwidth: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let setting = Setting::from_arguments()?;
    setting.print_head()?;
    let raw = copies::measure(&setting)?;
    let raw_disk = disks::measure(&setting)?;
    working_set::measure(&setting, raw, raw_disk)?;
    compute::measure(&setting)?;
    setting.report_hazards()
}
