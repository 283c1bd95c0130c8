//! Writes a sample report: `cargo run --example sample_report -- [TRACE | --training EVENTS] OUT.html`.
//!
//! The trace is placed by a crude best fit, not by an allocator of Headwater: this shows the page, not a policy. Without a
//! trace it is the recorded `montecarlo` of the test data.

#[path = "../tests/report_support/mod.rs"]
mod report_support;

use std::fs::File;
use std::io::BufWriter;

use headwater_trace::report::{describe_report, write_html};
use report_support::{Growth, report, training};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let montecarlo = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/montecarlo.trace.gz");
    let (trace, out) = match arguments.as_slice() {
        [out] => (headwater_trace::open(montecarlo)?, out),
        [flag, events, out] if flag == "--training" => (training(events.parse()?), out),
        [trace, out] => (headwater_trace::open(trace)?, out),
        _ => return Err("usage: sample_report [TRACE | --training EVENTS] OUT.html".into()),
    };
    let data = report(&trace, &[Growth::Segments, Growth::Arena, Growth::Direct]);
    write_html(&data, BufWriter::new(File::create(out)?))?;
    println!("{}\nwritten to {out}", describe_report(&data));
    Ok(())
}
