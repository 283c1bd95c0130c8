//! Memory behind a captured graph is put away and brought back, and the graph's results are right.
//!
//! A model server in small: *weights* that a graph reads, *scratch* that it writes, input and output. The graph is captured
//! and launched; then weights and scratch sleep, somebody else takes the memory and overwrites it, and they wake. Once with the
//! contents saved: the graph is right at once. Once without: the weights are filled again, and it is right.

use std::sync::Arc;

use headwater::caching::Contents;
use headwater::{Block, Request};
use headwater_driver::{CaptureMode, DeviceId, DevicePtr, Driver, GraphExec, Stream};

use super::{Stage, failed};
use crate::case::Failure;

const MIB: u64 = 1 << 20;
/// Words of the weights and of the scratch memory: 64 MiB each.
const WORDS: u64 = 16 * MIB;
const WEIGHT: u32 = 1000;

/// What was done and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NapReport {
    /// Times that the memory was put away and brought back.
    pub naps: u64,
    /// What went to the driver in all naps together.
    pub released_bytes: u64,
    /// Launches of the graph.
    pub launches: u64,
    /// Words checked on the device.
    pub words_checked: u64,
    /// Words that were not what they had to be.
    pub words_wrong: u64,
}

/// Puts the memory away `naps` times each way, with `launches` launches in between.
///
/// # Errors
/// What did not work.
pub fn run(
    driver: &Arc<dyn Driver>,
    device: DeviceId,
    naps: u64,
    launches: u64,
) -> Result<NapReport, Failure> {
    let stage = Stage::new(driver, device, 1)?;
    let stream = stage.streams[0];
    let block = |words: u64| Block::allocate(stage.shared(), Request::new(4 * words, stream)).map_err(failed);
    let model = Model {
        stage: &stage,
        stream,
        weights: block(WORDS)?,
        scratch: block(WORDS)?,
        output: block(WORDS)?,
    };
    model.fill_weights()?;
    let (graph, exec) = {
        driver.capture_begin(stream, CaptureMode::Global).map_err(failed)?;
        let recorded = model.record();
        let graph = driver.capture_end(stream).map_err(failed)?;
        recorded?;
        (graph, driver.graph_instantiate(device, graph).map_err(failed)?)
    };
    let mut report = NapReport::default();
    let mut result = model.launch(exec, launches, &mut report);
    for contents in [Contents::Saved, Contents::Lost] {
        for _ in 0..naps {
            if result.is_ok() {
                result =
                    model.nap(contents, &mut report).and_then(|()| model.launch(exec, launches, &mut report));
            }
        }
    }
    stage.wait(stream)?;
    driver.graph_exec_destroy(exec).map_err(failed)?;
    driver.graph_destroy(graph).map_err(failed)?;
    result.map(|()| report)
}

struct Model<'a> {
    stage: &'a Stage,
    stream: Stream,
    weights: Block,
    scratch: Block,
    output: Block,
}

impl Model<'_> {
    fn fill_weights(&self) -> Result<(), Failure> {
        // SAFETY: the block is live, and used in this stream.
        unsafe { self.stage.kernels.fill(self.weights.ptr(), WORDS, WEIGHT, self.stream) }.map_err(failed)
    }

    /// scratch = weights + 1; output = scratch + 1.
    fn record(&self) -> Result<(), Failure> {
        let (kernels, stream) = (&self.stage.kernels, self.stream);
        let [weights, scratch, output] = [&self.weights, &self.scratch, &self.output].map(Block::ptr);
        // SAFETY: nothing runs now; at a launch all blocks are live and awake.
        unsafe {
            kernels.copy(scratch, weights, WORDS, stream).map_err(failed)?;
            kernels.add(scratch, WORDS, 1, stream).map_err(failed)?;
            kernels.copy(output, scratch, WORDS, stream).map_err(failed)?;
            kernels.add(output, WORDS, 1, stream).map_err(failed)
        }
    }

    fn launch(&self, exec: GraphExec, launches: u64, report: &mut NapReport) -> Result<(), Failure> {
        for _ in 0..launches {
            // SAFETY: all blocks are live and awake, and everything is in one stream.
            unsafe {
                self.stage.kernels.fill(self.output.ptr(), WORDS, 0, self.stream).map_err(failed)?;
                self.stage.driver.graph_launch(exec, self.stream).map_err(failed)?;
            }
            report.words_wrong +=
                self.stage.wrong_words(self.output.ptr(), WORDS, WEIGHT + 2, self.stream)?;
            report.words_checked += WORDS;
            report.launches += 1;
        }
        Ok(())
    }

    fn nap(&self, contents: Contents, report: &mut NapReport) -> Result<(), Failure> {
        let (stage, stream) = (self.stage, self.stream);
        let asleep = [self.weights.ptr(), self.scratch.ptr()];
        // SAFETY: one stream uses the blocks, and nothing does until they are awake.
        let slept = unsafe { stage.allocator.sleep(&asleep, contents, stream) };
        let (id, released_bytes) = slept.map_err(failed)?;
        report.naps += 1;
        report.released_bytes += released_bytes;
        self.be_somebody_else(released_bytes)?;
        stage.allocator.wake(id, stream).map_err(failed)?;
        if contents == Contents::Lost {
            self.fill_weights()?;
        }
        Ok(())
    }

    /// Takes as much memory as went to the driver, overwrites it and gives it back.
    fn be_somebody_else(&self, bytes: u64) -> Result<(), Failure> {
        if bytes == 0 {
            return Err(Failure::new("nothing was released by sleeping"));
        }
        let (driver, device) = (&self.stage.driver, self.stage.device);
        let taken: DevicePtr = driver.mem_alloc(device, bytes).map_err(failed)?;
        // SAFETY: just allocated, and waited for before it is freed.
        let filled = unsafe { driver.fill_bytes(taken, 0xEE, bytes, self.stream) };
        let waited = driver.stream_synchronize(self.stream);
        driver.mem_free(device, taken).map_err(failed)?;
        filled.and(waited).map_err(failed)
    }
}
