//! What recording costs: pairs of a request and its give-back, with and without a recorder around the same allocator.
//!
//! In bursts with pauses, as programs are, and without end, where the writing thread must keep up and the disk is the limit.
//!
//! `cargo run --release -p headwater-trace --example record_overhead`

use std::error::Error;
use std::time::{Duration, Instant};

use headwater::caching::{CachingAllocator, label};
use headwater::config::Config;
use headwater::{Allocator, Request};
use headwater_driver::{DeviceId, Stream};
use headwater_trace::record::Recorder;

/// Fits the recorder's buffers twice over.
const BURST_PAIRS: u32 = 1000;
const BURSTS: usize = 500;
const PAUSE: Duration = Duration::from_micros(500);
const ENDLESS_PAIRS: u32 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let sim = headwater_sim::SimDriver::new();
    let inner = CachingAllocator::new(sim, DeviceId(0), Config::pytorch_rules())?;
    let recorder = Recorder::new(inner.clone(), std::io::sink())?;
    println!("clock              {:6.1} ns a reading", clock_ns());
    let plain_ns = burst_ns(&*inner)?;
    println!("plain              {plain_ns:6.1} ns an event");
    let show = |what: &str, ns: f64| println!("{what:<18} {ns:6.1} ns an event: {:.1} more", ns - plain_ns);
    show("recorded", burst_ns(&recorder)?);
    {
        let _scope = label::scope("a label");
        show("recorded, labelled", burst_ns(&recorder)?);
    }
    show("recorded, no pause", pairs_ns(&recorder, ENDLESS_PAIRS)?);
    println!("{} events written", recorder.finish()?.events);
    Ok(())
}

/// Of what recording adds, the part that is reading the clock.
fn clock_ns() -> f64 {
    let start = Instant::now();
    let mut last = start;
    for _ in 0..ENDLESS_PAIRS {
        last = std::hint::black_box(Instant::now());
    }
    last.duration_since(start).as_nanos() as f64 / f64::from(ENDLESS_PAIRS)
}

/// The middle of many bursts.
fn burst_ns(allocator: &dyn Allocator) -> Result<f64, Box<dyn Error>> {
    let mut bursts_ns = Vec::with_capacity(BURSTS);
    for _ in 0..BURSTS {
        bursts_ns.push(pairs_ns(allocator, BURST_PAIRS)?);
        std::thread::sleep(PAUSE);
    }
    bursts_ns.sort_by(f64::total_cmp);
    Ok(bursts_ns[BURSTS / 2])
}

/// Nanoseconds for each event of so many pairs.
fn pairs_ns(allocator: &dyn Allocator, pairs: u32) -> Result<f64, Box<dyn Error>> {
    let stream = Stream::legacy_default(allocator.device());
    let start = Instant::now();
    for _ in 0..pairs {
        let ptr = allocator.allocate(Request::new(4096, stream))?;
        // SAFETY: the block was given to this loop, and nothing uses it.
        unsafe { allocator.give_back(ptr)? };
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(2 * pairs))
}
