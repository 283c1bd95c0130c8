//! The hit paths, a known number of times, to be counted by a simulator of the processor (`benches/instructions.sh`).
//!
//! `hit_path_instructions WORK COUNT`. WORK: `malloc`, `pair`, `record_stream`. Two runs with different counts differ by the
//! work alone.

use std::hint::black_box;
use std::sync::Arc;

use headwater::{Allocator, Binned, DeviceChoice, Request};
use headwater_driver::Stream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let work = arguments.next().ok_or("which work?")?;
    let count: u64 = arguments.next().ok_or("how often?")?.parse()?;
    let opened = headwater::open(DeviceChoice::Sim)?;
    let stream = Stream::legacy_default(opened.device);
    let user = Stream::from_raw(opened.device, 0x100);
    let pool: Arc<dyn Allocator> = Arc::new(Binned::new(opened.driver, opened.device)?);
    let pool = black_box(&*pool);
    let request = Request::new(64 << 10, stream);
    let held = pool.allocate(request)?;
    match work.as_str() {
        "malloc" => (0..count).for_each(|_| {
            // SAFETY: what malloc returned goes to free once.
            unsafe { libc::free(black_box(libc::malloc(black_box(64)))) }
        }),
        "pair" => {
            for _ in 0..count {
                let ptr = pool.allocate(request)?;
                // SAFETY: it came out just now, and nothing uses it.
                unsafe { pool.give_back(ptr) }?;
            }
        }
        "record_stream" => {
            for _ in 0..count {
                pool.record_stream(held, user)?;
            }
        }
        _ => return Err(format!("`{work}` is no work: malloc, pair or record_stream").into()),
    }
    Ok(())
}
