//! A real trace that comes with the program, so that there is something to look at with no file at hand.

use crate::error::Result;
use crate::limits::Limits;
use crate::model::Trace;

/// `montecarlo`: a portfolio simulation in float64 with PyTorch on an H200, recorded for this project.
const MONTECARLO: &[u8] = include_bytes!("../testdata/montecarlo.trace.gz");

/// What a real PyTorch program asked for: a portfolio simulation of 16 to 100 assets on 20,000 to 400,000 paths. Its
/// allocator reserved two and a half times what it held.
///
/// ```
/// let trace = headwater_trace::bundled_trace()?;
/// assert_eq!(trace.summary().allocs, 15_781);
/// # Ok::<(), headwater_trace::TraceError>(())
/// ```
///
/// # Errors
/// None that can happen: the file is part of the program.
pub fn bundled_trace() -> Result<Trace> {
    crate::read(MONTECARLO, &Limits::default())
}
