//! The arena grows inside of a capture and beside it, in the strictest mode, and the graph's results are right.
//!
//! The capturing stream asks the paged allocator itself for memory that it does not have yet, and a private pool of a
//! `GraphAllocator` grows too; another thread meanwhile makes the same arena grow for a stream of its own. Handles are made and mapped
//! while the capture is under way; then the graph is launched again and again on changing input.

use std::sync::Arc;
use std::thread;

use headwater::graph::GraphAllocator;
use headwater::{Allocator, Block, Request};
use headwater_driver::{Call, CaptureMode, DeviceId, Driver, Stream};

use super::{Stage, failed};
use crate::case::Failure;

const MIB: u64 = 1 << 20;
/// Sizes that are asked for inside of the capture; none is there before.
const SIZES: [u64; 5] = [6 * MIB, 40 * MIB, 2 * MIB, 96 * MIB, 22 * MIB];
const WORDS: u64 = 65_536;

/// What was done and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrowthReport {
    /// Handles that were made between the begin and the end of captures.
    pub handles_made_in_capture: u64,
    /// Launches of the two graphs.
    pub launches: u64,
    /// Words checked on the device.
    pub words_checked: u64,
    /// Words that were not what they had to be.
    pub words_wrong: u64,
}

/// Captures twice, in `mode`, and launches each graph `launches` times.
///
/// # Errors
/// What did not work; a capture that was lost, for one.
pub fn run(
    driver: &Arc<dyn Driver>,
    device: DeviceId,
    mode: CaptureMode,
    launches: u64,
) -> Result<GrowthReport, Failure> {
    let mut report = GrowthReport::default();
    let stage = Stage::new(driver, device, 2)?;
    in_the_arena(&stage, mode, launches, &mut report)?;
    let stage = Stage::new(driver, device, 2)?;
    in_a_pool(&stage, mode, launches, &mut report)?;
    Ok(report)
}

/// Another thread asks for memory of its own, and uses and checks it. Its stream is not captured.
fn grow_beside(stage: &Stage, stream: Stream) -> Result<u64, Failure> {
    let mut blocks = Vec::new();
    for bytes in SIZES {
        let block = Block::allocate(stage.shared(), Request::new(bytes + 2 * MIB, stream)).map_err(failed)?;
        // SAFETY: the block is this stream's.
        unsafe { stage.kernels.fill(block.ptr(), WORDS, 0xBEEF, stream) }.map_err(failed)?;
        blocks.push(block);
    }
    Ok(blocks.len() as u64)
}

/// Captures what adds `number` to every block in turn, blocks being asked for on the way.
fn record(
    stage: &Stage,
    allocator: &Arc<dyn Allocator>,
    input: &Block,
    stream: Stream,
) -> Result<Vec<Block>, Failure> {
    let mut blocks: Vec<Block> = Vec::new();
    for bytes in SIZES {
        let block = Block::allocate(Arc::clone(allocator), Request::new(bytes, stream)).map_err(failed)?;
        let before = blocks.last().map_or(input.ptr(), Block::ptr);
        // SAFETY: nothing runs now; at a launch the blocks are held by the caller or by the graph.
        unsafe {
            stage.kernels.copy(block.ptr(), before, WORDS, stream).map_err(failed)?;
            stage.kernels.add(block.ptr(), WORDS, 1, stream).map_err(failed)?;
        }
        blocks.push(block);
    }
    Ok(blocks)
}

fn in_the_arena(
    stage: &Stage,
    mode: CaptureMode,
    launches: u64,
    report: &mut GrowthReport,
) -> Result<(), Failure> {
    let (stream, other) = (stage.streams[0], stage.streams[1]);
    let input = Block::allocate(stage.shared(), Request::new(4 * WORDS, stream)).map_err(failed)?;
    let before = stage.driver.call_counts().of(Call::HandleCreate);
    stage.driver.capture_begin(stream, mode).map_err(failed)?;
    let (recorded, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| grow_beside(stage, other));
        let recorded = record(stage, &stage.shared(), &input, stream);
        (recorded, beside.join())
    });
    let made = stage.driver.call_counts().of(Call::HandleCreate) - before;
    let graph = stage.driver.capture_end(stream).map_err(failed)?;
    let blocks = recorded?;
    beside.map_err(|_| Failure::new("the other thread panicked"))??;
    report.handles_made_in_capture += made;
    let exec = stage.driver.graph_instantiate(stage.device, graph).map_err(failed)?;
    let last = blocks.last().map_or(input.ptr(), Block::ptr);
    for launch in 0..launches {
        // SAFETY: all blocks are live, and everything is in one stream.
        unsafe {
            stage.kernels.fill(input.ptr(), WORDS, launch as u32, stream).map_err(failed)?;
            stage.driver.graph_launch(exec, stream).map_err(failed)?;
        }
        report.words_wrong += stage.wrong_words(last, WORDS, launch as u32 + SIZES.len() as u32, stream)?;
        report.words_checked += WORDS;
        report.launches += 1;
    }
    stage.wait(stream)?;
    stage.wait(other)?;
    stage.driver.graph_exec_destroy(exec).map_err(failed)?;
    stage.driver.graph_destroy(graph).map_err(failed)
}

fn in_a_pool(
    stage: &Stage,
    mode: CaptureMode,
    launches: u64,
    report: &mut GrowthReport,
) -> Result<(), Failure> {
    let (stream, other) = (stage.streams[0], stage.streams[1]);
    let graphs = GraphAllocator::over_caching(&stage.allocator).map_err(failed)?;
    let allocator: Arc<dyn Allocator> = Arc::clone(&graphs) as Arc<dyn Allocator>;
    let input = Block::allocate(stage.shared(), Request::new(4 * WORDS, stream)).map_err(failed)?;
    let output = Block::allocate(stage.shared(), Request::new(4 * WORDS, stream)).map_err(failed)?;
    let before = stage.driver.call_counts().of(Call::HandleCreate);
    graphs.begin_capture(stream, mode, None).map_err(failed)?;
    let (recorded, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| grow_beside(stage, other));
        let recorded = record(stage, &allocator, &input, stream).and_then(|blocks| {
            let last = blocks.last().map_or(input.ptr(), Block::ptr);
            // SAFETY: as in `record`.
            unsafe { stage.kernels.copy(output.ptr(), last, WORDS, stream) }.map_err(failed)
        });
        (recorded, beside.join())
    });
    let made = stage.driver.call_counts().of(Call::HandleCreate) - before;
    let graph = graphs.end_capture(stream).map_err(failed)?;
    recorded?;
    beside.map_err(|_| Failure::new("the other thread panicked"))??;
    report.handles_made_in_capture += made;
    let graph = graph.instantiate().map_err(failed)?;
    for launch in 0..launches {
        // SAFETY: the graph holds its pool's memory; input and output are live, and everything is in one stream.
        unsafe {
            stage.kernels.fill(input.ptr(), WORDS, launch as u32, stream).map_err(failed)?;
            graph.launch(stream).map_err(failed)?;
        }
        let expected = launch as u32 + SIZES.len() as u32;
        report.words_wrong += stage.wrong_words(output.ptr(), WORDS, expected, stream)?;
        report.words_checked += WORDS;
        report.launches += 1;
    }
    stage.wait(stream)?;
    stage.wait(other)
}
