//! What the command line understands.

use clap::{Args, Parser, Subcommand};
use headwater::DeviceChoice;

/// GPU memory manager: see what a device can do, check it, and watch memory being managed.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Devices, memory, capabilities, and which backend was chosen and why
    Info(Common),
    /// Check a device and the allocators on it against the conformance suites
    Conformance(ConformanceOptions),
    /// Allocate, fill, copy back and verify, with timings
    Demo(Common),
}

/// Options every subcommand has.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Where to run: auto (CUDA if it works, else simulated), sim, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: DeviceChoice,
    /// Print one JSON object a line instead of text for people
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ConformanceOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run only the cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
}
