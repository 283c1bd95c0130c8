//! `headwater conformance --prove NAME`: what is claimed of the paged backing, shown on a device.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use headwater::{HumanBytes, Opened};
use headwater_conformance::proofs::share::{Manners, Owner};
use headwater_conformance::proofs::{growth, nap, overlap, share};
use headwater_driver::CaptureMode;
use serde_json::json;

use crate::args::ConformanceOptions;
use crate::output::json_line;

/// A proof by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proof {
    /// Two independent streams under memory pressure run side by side
    Overlap,
    /// The arena grows inside and beside a capture
    Growth,
    /// A captured graph survives the sleep of its memory
    Sleep,
    /// Two processes use one block, and one of them is killed
    Share,
}

/// What a process that was started for [`Proof::Share`] does in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Guest {
    Leaves,
    Stays,
}

/// Kernels as long as this leave no doubt which time is theirs.
const KERNEL_US: u64 = 2_000;
/// Side by side is 1 and one after the other 2; every change of roles may cost a few steps.
const RATIO_MAX: f64 = 1.5;

pub(crate) fn run(options: &ConformanceOptions) -> Result<()> {
    let opened = headwater::open(options.common.device)?;
    for proof in &options.prove {
        match proof {
            Proof::Overlap => prove_overlap(options, &opened)?,
            Proof::Growth => prove_growth(options, &opened)?,
            Proof::Sleep => prove_sleep(options, &opened)?,
            Proof::Share => prove_share(options, &opened)?,
        }
    }
    Ok(())
}

/// The other process of [`Proof::Share`]: the socket is its standard input.
pub(crate) fn visit(options: &ConformanceOptions, guest: Guest) -> Result<()> {
    let opened = headwater::open(options.common.device)?;
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let manners = match guest {
        Guest::Leaves => Manners::Leaves,
        Guest::Stays => Manners::Stays,
    };
    Ok(share::visit(&opened.driver, opened.device, &UnixStream::from(socket), manners)?)
}

fn prove_overlap(options: &ConformanceOptions, opened: &Opened) -> Result<()> {
    let report = overlap::run(&opened.driver, opened.device, 6, KERNEL_US)?;
    if options.common.json {
        json_line(&json!({
            "proof": "overlap",
            "backend": opened.driver.backend(),
            "steps": report.steps,
            "kernel_us": KERNEL_US,
            "alone_us": report.alone_us,
            "both_us": report.both_us,
            "ratio": report.ratio(),
            "waits": report.waits,
            "handles_moved": report.handles_moved,
            "handles_made": report.handles_made,
            "reserved_peak_bytes": report.reserved_peak_bytes,
            "limit_bytes": report.limit_bytes,
            "words_checked": report.words_checked,
            "words_wrong": report.words_wrong,
        }));
    } else {
        println!(
            "overlap: {} kernels of {KERNEL_US} us a stream; alone {:.1} and {:.1} ms, both at once {:.1} ms ({:.2} times the \
             longer); {} waits between streams, {} handles moved and {} made, {} reserved of {}; {} words checked, {} wrong",
            report.steps,
            report.alone_us[0] / 1e3,
            report.alone_us[1] / 1e3,
            report.both_us / 1e3,
            report.ratio(),
            report.waits,
            report.handles_moved,
            report.handles_made,
            HumanBytes(report.reserved_peak_bytes),
            HumanBytes(report.limit_bytes),
            report.words_checked,
            report.words_wrong
        );
    }
    ensure!(report.words_wrong == 0, "memory was handed out too early: {} words", report.words_wrong);
    ensure!(report.waits > 0, "no memory went from one stream to the other: nothing was shown");
    ensure!(report.ratio() < RATIO_MAX, "the streams waited for each other: {:.2}", report.ratio());
    Ok(())
}

fn prove_growth(options: &ConformanceOptions, opened: &Opened) -> Result<()> {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let report = growth::run(&opened.driver, opened.device, mode, 100)?;
        let name = format!("{mode:?}").to_lowercase();
        if options.common.json {
            json_line(&json!({
                "proof": "growth",
                "backend": opened.driver.backend(),
                "mode": name,
                "handles_made_in_capture": report.handles_made_in_capture,
                "launches": report.launches,
                "words_checked": report.words_checked,
                "words_wrong": report.words_wrong,
            }));
        } else {
            println!(
                "growth: {} handles made while capturing ({name}); {} launches, {} words checked, {} wrong",
                report.handles_made_in_capture, report.launches, report.words_checked, report.words_wrong
            );
        }
        ensure!(report.handles_made_in_capture > 0, "nothing grew while capturing: nothing was shown");
        ensure!(report.words_wrong == 0, "a graph's results were wrong: {} words", report.words_wrong);
    }
    Ok(())
}

fn prove_sleep(options: &ConformanceOptions, opened: &Opened) -> Result<()> {
    let report = nap::run(&opened.driver, opened.device, 5, 10)?;
    if options.common.json {
        json_line(&json!({
            "proof": "sleep",
            "backend": opened.driver.backend(),
            "naps": report.naps,
            "released_bytes": report.released_bytes,
            "launches": report.launches,
            "words_checked": report.words_checked,
            "words_wrong": report.words_wrong,
        }));
    } else {
        println!(
            "sleep: {} naps, {} released and used by somebody else; {} launches, {} words checked, {} wrong",
            report.naps,
            HumanBytes(report.released_bytes),
            report.launches,
            report.words_checked,
            report.words_wrong
        );
    }
    ensure!(report.words_wrong == 0, "the graph's results were wrong: {} words", report.words_wrong);
    Ok(())
}

fn prove_share(options: &ConformanceOptions, opened: &Opened) -> Result<()> {
    if opened.sim.is_some() {
        bail!("memory of the simulated device cannot leave its process: prove it on a GPU (--device cuda)");
    }
    let mut owner = Owner::new(&opened.driver, opened.device)?;
    let (socket, mut guest) = start_guest(options, Guest::Leaves)?;
    owner.lend(&socket)?;
    let status = guest.wait()?;
    ensure!(status.success(), "the other process ended with {status}");
    // Killed with the block mapped: the owner neither notices nor loses anything.
    let (socket, mut guest) = start_guest(options, Guest::Stays)?;
    owner.lend(&socket)?;
    guest.kill()?;
    guest.wait()?;
    let (socket, mut guest) = start_guest(options, Guest::Leaves)?;
    owner.lend(&socket)?;
    guest.wait()?;
    let report = owner.finish()?;
    if options.common.json {
        json_line(&json!({
            "proof": "share",
            "backend": opened.driver.backend(),
            "guests": report.guests,
            "killed": 1,
            "handles": report.handles,
            "export_us": report.export_us,
            "words_checked": report.words_checked,
            "words_wrong": report.words_wrong,
        }));
    } else {
        println!(
            "share: {} other processes used the block, one of them killed with it mapped; {} handles, {:.1} us to export one; \
             {} words checked, {} wrong",
            report.guests, report.handles, report.export_us, report.words_checked, report.words_wrong
        );
    }
    ensure!(report.words_wrong == 0, "the two sides saw different bytes: {} words", report.words_wrong);
    Ok(())
}

/// This program once more, as the other process.
fn start_guest(options: &ConformanceOptions, guest: Guest) -> Result<(UnixStream, Child)> {
    let (here, there) = UnixStream::pair()?;
    let name = guest.to_possible_value().context("the guest has a name")?.get_name().to_owned();
    let child = Command::new(std::env::current_exe()?)
        .args(["conformance", "--device", &options.common.device.to_string(), "--guest", &name])
        .stdin(Stdio::from(OwnedFd::from(there)))
        .spawn()?;
    Ok((here, child))
}
