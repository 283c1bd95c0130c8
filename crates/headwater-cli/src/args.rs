//! What the command line understands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use headwater::DeviceChoice;
use headwater_trace::replay::Policy;

use crate::byte_size::ByteSize;
use crate::commands::proofs::{Guest, Proof};

/// GPU memory manager: replay what programs asked for, see where the memory went, check a device.
#[derive(Debug, Parser)]
#[command(name = "headwater", version, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The main job in a minute: replay a real trace, write the report, run streams and a graph, verify every byte
    Demo(DemoOptions),
    /// Replay what a program asked for with several policies, side by side
    Replay(ReplayOptions),
    /// Write a page that shows where the memory of a program went
    Report(ReportOptions),
    /// How quick the allocators are, beside the C library's malloc
    Bench(BenchmarkOptions),
    /// Devices, memory, capabilities, and which backend was chosen and why
    Info(Common),
    /// Check a device and the allocators on it against the conformance suites
    Conformance(ConformanceOptions),
}

/// Options of the subcommands that use a device.
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
pub(crate) struct DemoOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Where to write the report, a picture where FILE ends in .svg [default: headwater-demo.html, or headwater-tiers.html]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tiers: TiersOptions,
}

/// Options of `demo --tiers`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TiersOptions {
    /// Show tiers instead: three times what the GPU space holds is worked through, with spill to host memory and disk
    #[arg(long)]
    pub(crate) tiers: bool,
    /// What the GPU space holds, and the host space too: 32M or a number of bytes [default: 32M]
    #[arg(long, value_name = "BYTES", requires = "tiers")]
    pub(crate) limit: Option<ByteSize>,
    /// The folder for the spill file, which has no name in it [default: the temporary folder]
    #[arg(long, value_name = "FOLDER", requires = "tiers")]
    pub(crate) spill_to: Option<PathBuf>,
    /// Serve Prometheus figures meanwhile at http://ADDRESS/metrics: a port is one of this machine alone
    #[arg(long, value_name = "ADDRESS", requires = "tiers")]
    pub(crate) metrics: Option<String>,
    /// Go on serving them for so long afterwards
    #[arg(long, value_name = "SECONDS", requires = "metrics", default_value_t = 0)]
    pub(crate) serve_for: u64,
}

/// How traces are replayed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Replaying {
    /// Policy: direct, binned, classic or paged; may be given several times [default: all there are]
    #[arg(long = "policy", value_name = "POLICY")]
    pub(crate) policies: Vec<Policy>,
    /// Where to replay: sim, cuda, cuda:N or auto
    #[arg(long, default_value = "sim", value_name = "DEVICE")]
    pub(crate) device: DeviceChoice,
    /// Reserve at most so much: 40G, 512M or a number of bytes
    #[arg(long, value_name = "BYTES")]
    pub(crate) limit: Option<ByteSize>,
    /// Stop before this event (the first is 0)
    #[arg(long, value_name = "EVENT")]
    pub(crate) until: Option<u64>,
    /// Print one JSON object a line instead of text for people
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayOptions {
    /// Files: alloctrace, PyTorch memory snapshots, RMM logs or .hwt
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) replaying: Replaying,
    /// Also find the smallest limit at which each policy still succeeds
    #[arg(long, conflicts_with = "limit")]
    pub(crate) find_limit: bool,
    /// Write live, allocated, active and reserved bytes over events: CSV, or JSON where FILE ends in .json
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    /// On a real device: also replay on the simulated one, and show each driver call's time beside the model's
    #[arg(long)]
    pub(crate) compare_model: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ReportOptions {
    /// A file: alloctrace, a PyTorch memory snapshot, an RMM log or .hwt
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) replaying: Replaying,
    /// Where to write the page [default: the trace's name with .html]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ConformanceOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run only the cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Then run a random program of so many requests on several streams with real kernels, on every allocator
    #[arg(long, value_name = "REQUESTS", default_value_t = 0)]
    pub(crate) stress: u64,
    /// Where the random program comes from: the same seed, the same program
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Instead of the suites: show what is claimed of the paged backing; may be given several times
    #[arg(long, value_name = "PROOF", value_delimiter = ',')]
    pub(crate) prove: Vec<Proof>,
    /// The other process of `--prove share`; started by the first one
    #[arg(long, hide = true)]
    pub(crate) guest: Option<Guest>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct BenchmarkOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Policy: direct, binned, classic or paged; may be given several times [default: all but direct]
    #[arg(long = "policy", value_name = "POLICY")]
    pub(crate) policies: Vec<Policy>,
    /// Only this benchmark; may be given several times [default: all]
    #[arg(long = "bench", value_name = "NAME")]
    pub(crate) benches: Vec<String>,
    /// Numbers of threads
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) threads: Vec<usize>,
    /// Sizes of the pair: 4K,1M or numbers of bytes
    #[arg(long, value_name = "BYTES,BYTES", value_delimiter = ',')]
    pub(crate) sizes: Vec<ByteSize>,
    /// Also write the result as a picture
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
