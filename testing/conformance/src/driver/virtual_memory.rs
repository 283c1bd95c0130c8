//! Virtual memory management: addresses and physical memory as two things.

pub(super) mod life_cycle;
pub(super) mod refusals;
pub(super) mod sharing;

use super::list;
