//! What the demonstration did.

use std::fmt;
use std::time::Duration;

use headwater::HumanBytes;

use super::{page, svg};
use crate::spill::{Route, SpillFigures};

/// How much was where at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoRow {
    /// What was going on.
    pub phase: Phase,
    /// The buffer that had just been dealt with, where it was one.
    pub buffer: Option<u64>,
    /// Since the beginning, by the watcher's clock.
    pub elapsed: Duration,
    /// Spillable bytes by tier: GPU, HOST, DISK.
    pub bytes_by_tier: [u64; 3],
}

impl DemoRow {
    /// What had just been done, in words.
    pub fn what(&self) -> String {
        self.buffer
            .map_or_else(|| self.phase.to_string(), |buffer| format!("{}, buffer {buffer}", self.phase))
    }
}

/// What the demonstration does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing yet.
    Begin,
    /// Buffers are made and filled.
    Fill,
    /// The work, for the n-th time.
    Pass(u32),
    /// Everything is read back and compared.
    Check,
    /// All buffers are gone.
    End,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin => f.write_str("begin"),
            Self::Fill => f.write_str("fill"),
            Self::Pass(pass) => write!(f, "pass {pass}"),
            Self::Check => f.write_str("check"),
            Self::End => f.write_str("end"),
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DemoReport {
    /// What the GPU space holds.
    pub gpu_bytes: u64,
    /// All buffers together.
    pub working_set_bytes: u64,
    /// One row a step.
    pub rows: Vec<DemoRow>,
    /// Words compared at the end.
    pub words_checked: u64,
    /// Words that were not what they must be: none.
    pub words_wrong: u64,
    /// How the disk was reached.
    pub disk: String,
    /// What the engine counted.
    pub figures: SpillFigures,
    /// What the passes alone moved and how long they took.
    pub passes: DemoPasses,
    /// How long it all took.
    pub elapsed: Duration,
}

/// What the passes moved: filling before and checking afterwards are not in it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DemoPasses {
    /// How long they took, until the device had done all of its work.
    pub elapsed: Duration,
    /// From the GPU.
    pub down_bytes: u64,
    /// To the GPU.
    pub up_bytes: u64,
    /// To disk.
    pub written_bytes: u64,
    /// From disk.
    pub read_bytes: u64,
}

impl DemoPasses {
    pub(super) fn between(before: &SpillFigures, after: &SpillFigures, elapsed: Duration) -> Self {
        let moved = |routes: [Route; 2]| {
            let bytes =
                |figures: &SpillFigures| routes.map(|route| figures.route(route).bytes).iter().sum::<u64>();
            bytes(after) - bytes(before)
        };
        Self {
            elapsed,
            down_bytes: moved([Route::GpuToHost, Route::GpuToDisk]),
            up_bytes: moved([Route::HostToGpu, Route::DiskToGpu]),
            written_bytes: moved([Route::HostToDisk, Route::GpuToDisk]),
            read_bytes: moved([Route::DiskToHost, Route::DiskToGpu]),
        }
    }
}

impl DemoReport {
    /// Bytes by tier over time, as a picture.
    pub fn svg(&self) -> String {
        svg::draw(self)
    }

    /// The picture and the figures, as a page for a browser.
    pub fn html(&self) -> String {
        page::write(self)
    }

    /// The outcome in a sentence.
    pub fn summary(&self) -> String {
        format!(
            "{} worked through on a GPU space of {}: {} words checked, {} wrong",
            HumanBytes(self.working_set_bytes),
            HumanBytes(self.gpu_bytes),
            self.words_checked,
            self.words_wrong,
        )
    }
}
