//! How fast a trace file is read: `cargo run --release -p headwater-trace --example read_speed -- FILE [REPEATS]`.

use std::error::Error;
use std::time::Instant;

use headwater_trace::{Limits, hwt};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: read_speed FILE [REPEATS]")?;
    let repeats: u32 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let file_bytes = std::fs::metadata(&path)?.len();
    for _ in 0..repeats.max(1) {
        let start = Instant::now();
        let trace = headwater_trace::open(&path)?;
        let seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        trace.check()?;
        let summary = trace.summary();
        println!(
            "{}: {} events in {:.3} s: {:.0} MB/s of the file, {:.2} million events/s; check and summary {:.3} s; \
             peak live {} bytes, reported reserved {:?}, {} initial events",
            trace.header.name,
            summary.events,
            seconds,
            file_bytes as f64 / seconds / 1e6,
            summary.events as f64 / seconds / 1e6,
            start.elapsed().as_secs_f64(),
            summary.peak_live_bytes,
            trace.header.reported.peak_reserved,
            trace.header.initial_events,
        );
    }
    let trace = headwater_trace::open(&path)?;
    let start = Instant::now();
    let file = hwt::write(&trace, Vec::new())?;
    let nanos = start.elapsed().as_secs_f64() * 1e9 / trace.events.len().max(1) as f64;
    println!("written as .hwt: {} bytes, {nanos:.0} ns an event", file.len());
    let start = Instant::now();
    let events = headwater_trace::read(&file[..], &Limits::default())?.events.len();
    let seconds = start.elapsed().as_secs_f64();
    let (speed, rate) = (file.len() as f64 / seconds / 1e6, events as f64 / seconds / 1e6);
    println!("read as .hwt: {seconds:.3} s: {speed:.0} MB/s, {rate:.2} million events/s");

    let content = std::fs::read(&path)?;
    if content.starts_with(&[0x80]) {
        for _ in 0..repeats.max(1) {
            let start = Instant::now();
            let pickle = headwater_trace::pickle::parse(&content, &Limits::default())?;
            let seconds = start.elapsed().as_secs_f64();
            let (containers, speed) = (pickle.containers(), file_bytes as f64 / seconds / 1e6);
            println!("the pickle alone: {containers} containers in {seconds:.3} s: {speed:.0} MB/s");
        }
    }
    Ok(())
}
