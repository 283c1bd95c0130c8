//! Virtual memory management: addresses and physical memory as two things.

pub(super) mod life_cycle;
pub(super) mod refusals;

use super::list;
