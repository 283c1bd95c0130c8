//! Data for reports without a replay: a crude placement of any trace, and a made-up training program.
//!
//! The placement is no policy of Headwater. It exists so that the page can be tested and looked at by itself.

// Each program that includes this file uses a part of it.
#![allow(dead_code, unreachable_pub, unused_imports, clippy::unwrap_used)]

mod placement;
mod training;

use headwater_trace::Trace;
use headwater_trace::report::ReportData;

use placement::Placement;
pub use training::training;

const MIB: u64 = 1 << 20;

/// Where new memory comes from when nothing fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// A segment for each miss: 2 MiB for small requests, 20 MiB for medium ones, else rounded to 2 MiB.
    Segments,
    /// One arena that grows at its end by 2 MiB spans.
    Arena,
    /// A segment for each request, given back with it.
    Direct,
}

/// A page's data for `trace` under each growth.
pub fn report(trace: &Trace, growths: &[Growth]) -> ReportData {
    let mut data = ReportData::of_trace(trace);
    data.policies = growths.iter().map(|&growth| Placement::new(growth).run(trace)).collect();
    data
}
