//! The hit paths, a known number of times, to be counted by a simulator of the processor (`benches/instructions.sh`).
//!
//! `hit_path_instructions POLICY WORK COUNT`. POLICY: `binned`, `classic`, `paged`. WORK: `pair` (64 KiB out and back),
//! `pair_large` (16 MiB), `record_stream`; and `malloc`, the C library's pair, under any policy. Two runs with different counts
//! differ by the work alone.

use std::hint::black_box;
use std::sync::Arc;

use headwater::{AllocError, Allocator, DeviceChoice, Policy, Request};
use headwater_driver::{Stream, StreamOptions};

const SMALL_BYTES: u64 = 64 << 10;
const LARGE_BYTES: u64 = 16 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let policy: Policy = arguments.next().ok_or("which policy?")?.parse()?;
    let work = arguments.next().ok_or("which work?")?;
    let count: u64 = arguments.next().ok_or("how often?")?.parse()?;
    let opened = headwater::open(DeviceChoice::Sim)?;
    let stream = Stream::legacy_default(opened.device);
    let options = StreamOptions { non_blocking: true, priority: 0 };
    let user = opened.driver.stream_create(opened.device, options)?;
    let allocator: Arc<dyn Allocator> = policy.build(opened.driver, opened.device, None)?;
    // Unknown to the compiler, so that it calls through the table of methods as everybody does.
    let allocator = black_box(&*allocator);
    let pairs = |bytes| (0..count).try_for_each(|_| pair(allocator, Request::new(bytes, stream)));
    match work.as_str() {
        "malloc" => (0..count).for_each(|_| {
            // SAFETY: what malloc returned goes to free once.
            unsafe { libc::free(black_box(libc::malloc(black_box(64)))) }
        }),
        "pair" => pairs(SMALL_BYTES)?,
        "pair_large" => pairs(LARGE_BYTES)?,
        "record_stream" => {
            let held = allocator.allocate(Request::new(SMALL_BYTES, stream))?;
            (0..count).try_for_each(|_| allocator.record_stream(held, user))?;
        }
        _ => return Err(format!("`{work}` is no work: malloc, pair, pair_large or record_stream").into()),
    }
    Ok(())
}

fn pair(allocator: &dyn Allocator, request: Request) -> Result<(), AllocError> {
    let ptr = allocator.allocate(request)?;
    // SAFETY: it came out just now, and nothing uses it.
    unsafe { allocator.give_back(ptr) }
}
