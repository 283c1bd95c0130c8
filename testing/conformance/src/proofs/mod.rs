//! What is claimed of the paged backing and can be shown on a real device only, as programs that show it.
//!
//! `headwater conformance --prove NAME` runs one and prints what it found. On the simulated device they run as tests: the time is
//! virtual there, and what is overwritten too early is named.
//!
//! | module | what is shown |
//! |---|---|
//! | [`overlap`] | two independent streams under memory pressure still run side by side |
//! | [`growth`] | the arena grows inside and beside a capture, and the graph's results are right |
//! | [`nap`] | memory behind a captured graph is put away and brought back, and the graph's results are right |
//! | [`share`] | two processes use one block, and the death of one leaves the other fine |

pub mod growth;
pub mod nap;
pub mod overlap;
pub mod share;

use std::fmt::Display;
use std::sync::Arc;

use headwater::config::Config;
use headwater::{Allocator, CachingAllocator, DeviceVec};
use headwater_driver::{DeviceId, DevicePtr, Driver, Stream, StreamOptions};

use crate::case::Failure;
use crate::kernels::TestKernels;

#[track_caller]
fn failed(error: impl Display) -> Failure {
    Failure::new(format!("expected the proof to run, got: {error}"))
}

/// What a proof stands on: kernels, streams, and a paged allocator of its own.
struct Stage {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    kernels: TestKernels,
    streams: Vec<Stream>,
    allocator: Arc<CachingAllocator>,
}

impl Stage {
    fn new(driver: &Arc<dyn Driver>, device: DeviceId, streams: usize) -> Result<Self, Failure> {
        let config = Config::parse("backing:paged").map_err(failed)?;
        let mut stage = Self {
            driver: Arc::clone(driver),
            device,
            kernels: TestKernels::load(driver, device).map_err(failed)?,
            streams: Vec::new(),
            allocator: CachingAllocator::new(Arc::clone(driver), device, config).map_err(failed)?,
        };
        for _ in 0..streams {
            let options = StreamOptions { non_blocking: true, priority: 0 };
            stage.streams.push(driver.stream_create(device, options).map_err(failed)?);
        }
        Ok(stage)
    }

    fn shared(&self) -> Arc<dyn Allocator> {
        Arc::clone(&self.allocator) as Arc<dyn Allocator>
    }

    fn wait(&self, stream: Stream) -> Result<(), Failure> {
        self.driver.stream_synchronize(stream).map_err(failed)
    }

    /// A count of wrong words, zero.
    fn counter(&self, stream: Stream) -> Result<DeviceVec<u32>, Failure> {
        DeviceVec::zeroed(self.shared(), 1, stream).map_err(failed)
    }

    /// How many of `words` words at `ptr` are not `value`. Waits.
    fn wrong_words(&self, ptr: DevicePtr, words: u64, value: u32, stream: Stream) -> Result<u64, Failure> {
        let counter = self.counter(stream)?;
        // SAFETY: the caller's words are live, and the counter is waited for.
        unsafe { self.kernels.check(ptr, words, value, counter.ptr(), stream) }.map_err(failed)?;
        read(&counter, stream)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for stream in &self.streams {
            // What ended the proof is told already; the allocator is told before its streams go.
            let _ = self.driver.stream_synchronize(*stream);
            let _ = self.allocator.forget_stream(*stream);
            let _ = self.driver.stream_destroy(*stream);
        }
    }
}

fn read(counter: &DeviceVec<u32>, stream: Stream) -> Result<u64, Failure> {
    let words = counter.to_vec(stream).map_err(failed)?;
    Ok(words.iter().map(|words| u64::from(*words)).sum())
}
