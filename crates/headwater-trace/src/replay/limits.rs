//! The smallest limit at which a program still fits.

use headwater::{OpenError, Opened};

use super::error::ReplayError;
use super::{Policy, Replay};
use crate::model::Trace;

/// Limits are looked for in steps of this: the granularity of device memory.
pub const LIMIT_STEP_BYTES: u64 = 2 << 20;

/// The smallest limit on reserved bytes, in steps of [`LIMIT_STEP_BYTES`], at which `policy` still serves every request
/// of the trace before event `until`.
///
/// Found by bisection between what is live at the peak and what the policy reserves with no limit, each try on a device
/// of its own from `open`. A policy need not be monotone: that a limit suffices does not strictly mean that every larger one
/// does. The answer is a limit that suffices, while the next smaller step was tried and does not, or is less than what is live.
///
/// # Errors
/// [`ReplayError::NeverFits`] where the device itself is too small; otherwise as [`Replay::run`].
pub fn find_limit(
    policy: Policy,
    trace: &Trace,
    until: Option<u64>,
    mut open: impl FnMut() -> Result<Opened, OpenError>,
) -> Result<u64, ReplayError> {
    let replay = Replay::new(policy).until(until);
    let free = replay.run(trace, &open()?)?;
    if let Some(ran_out) = free.ran_out {
        return Err(ReplayError::NeverFits { policy, event: ran_out.event });
    }
    let mut fits = |steps: u64| -> Result<bool, ReplayError> {
        let limited = replay.limit_bytes(Some(steps * LIMIT_STEP_BYTES));
        Ok(limited.run(trace, &open()?)?.ran_out.is_none())
    };
    let steps = |bytes: u64| bytes.div_ceil(LIMIT_STEP_BYTES);
    // What is live must fit, so anything less fails untried.
    let mut too_small = steps(free.figures.peak_live_bytes).saturating_sub(1);
    let mut enough = steps(free.figures.peak_reserved_bytes);
    while too_small + 1 < enough {
        let middle = too_small + (enough - too_small) / 2;
        match fits(middle)? {
            true => enough = middle,
            false => too_small = middle,
        }
    }
    Ok(enough * LIMIT_STEP_BYTES)
}
