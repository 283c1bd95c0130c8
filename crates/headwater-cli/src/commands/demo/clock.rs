//! The device's own time.

use std::time::Instant;

use headwater::Opened;
use headwater_sim::SimDriver;

/// Virtual on the simulated device, real otherwise.
pub(super) enum Clock<'o> {
    Virtual(&'o SimDriver),
    Real(Instant),
}

impl<'o> Clock<'o> {
    pub(super) fn of(opened: &'o Opened) -> Self {
        match &opened.sim {
            Some(sim) => Self::Virtual(sim),
            None => Self::Real(Instant::now()),
        }
    }

    pub(super) fn us(&self) -> f64 {
        match self {
            Self::Virtual(sim) => sim.now_ns() as f64 / 1e3,
            Self::Real(start) => start.elapsed().as_secs_f64() * 1e6,
        }
    }

    /// How the time is called.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Self::Virtual(_) => "virtual us",
            Self::Real(_) => "us",
        }
    }

    pub(super) fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }
}
