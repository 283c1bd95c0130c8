//! What the conformance suite cannot show, because it is about this pool alone.

mod classes;
mod faults;
mod mixed;
mod model;
mod streams;
mod threads;

use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Stream, StreamOptions, Streams};
use headwater_sim::SimDriver;

use super::{Binned, BinnedOptions, ClassStats};
use crate::allocator::{Allocator, Request};
use crate::error::AllocError;

const DEVICE: DeviceId = DeviceId(0);
const STREAM: Stream = Stream::legacy_default(DEVICE);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn pool(sim: &Arc<SimDriver>) -> Arc<Binned> {
    Arc::new(Binned::new(sim.clone(), DEVICE).unwrap())
}

fn pool_with(sim: &Arc<SimDriver>, options: BinnedOptions) -> Arc<Binned> {
    Arc::new(Binned::with_options(sim.clone(), DEVICE, options).unwrap())
}

fn take(pool: &Binned, bytes: u64, stream: Stream) -> DevicePtr {
    pool.allocate(Request::new(bytes, stream)).unwrap()
}

fn give_back(pool: &Binned, ptr: DevicePtr) -> Result<(), AllocError> {
    // SAFETY: these tests own the addresses they give back.
    unsafe { pool.give_back(ptr) }
}

fn stream(sim: &SimDriver) -> Stream {
    sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap()
}

fn class_of(pool: &Binned, block_bytes: u64) -> ClassStats {
    pool.class_stats().into_iter().find(|class| class.block_bytes == block_bytes).unwrap()
}

fn reserved_bytes(pool: &Binned) -> u64 {
    pool.stats().reserved_bytes.all.current
}
