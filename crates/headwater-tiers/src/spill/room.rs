//! Making room: victims are chosen and moved down, in the thread that calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater::{Allocator, OutOfMemoryReport};

use super::core::Core;
use super::metrics::add;
use super::victims::choose;
use crate::allocation::{OomAction, OomPolicy};
use crate::error::TierError;
use crate::manager::Strategy;
use crate::reservation::Reservation;
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

/// How often an allocator that has run out is asked again. Each time something was moved out of its way.
const RETRIES_MAX: u32 = 8;

impl Core {
    /// Moves data out of `space` until `needed_bytes` are freed or nothing more can go. Says how much was freed.
    pub(crate) fn make_room(&self, space: SpaceId, needed_bytes: u64) -> u64 {
        let (mut freed_bytes, mut tried) = (0, BTreeSet::new());
        while freed_bytes < needed_bytes {
            let now = self.now_ticks();
            let victims =
                self.nodes().iter().filter_map(|node| node.as_victim(space, now)).collect::<Vec<_>>();
            let untried =
                victims.into_iter().filter(|victim| victim.bytes > 0 && !tried.contains(&victim.id));
            let chosen = choose(&*self.config.policy, untried.collect(), needed_bytes - freed_bytes);
            if chosen.is_empty() {
                break;
            }
            for victim in chosen {
                tried.insert(victim.id);
                let Some(node) = self.node(victim.id) else { continue };
                // A victim that could not be moved is where it was, and counted as failed; others may do.
                freed_bytes += node.spill(space).unwrap_or(0);
            }
        }
        freed_bytes
    }

    /// Reserves, and makes the room itself where no mover does.
    pub(crate) fn reserve(
        &self,
        strategy: &Strategy,
        bytes: u64,
        wait: &Wait,
    ) -> Result<Reservation, TierError> {
        if !self.config.background {
            if let Some(reservation) = self.tiers.request_reservation_or_null(strategy, bytes)? {
                return Ok(reservation);
            }
            for space in self.tiers.spaces_for(strategy) {
                let usage = space.usage();
                let room_bytes = usage.limit_bytes.saturating_sub(usage.used_bytes());
                self.make_room(space.id(), bytes.saturating_sub(room_bytes));
                if let Some(reservation) = self.tiers.request_reservation_or_null(strategy, bytes)? {
                    return Ok(reservation);
                }
            }
        }
        self.tiers.request_reservation(strategy, bytes, wait)
    }

    /// What an allocator of `device` is to call when it has run out of memory.
    pub(crate) fn failure_callback(
        self: &Arc<Self>,
        space: SpaceId,
    ) -> impl Fn(&OutOfMemoryReport) -> bool + Send + Sync + 'static {
        let core = Arc::downgrade(self);
        move |report| core.upgrade().is_some_and(|core| core.help(space, report.requested_bytes))
    }

    /// Whether room was made for an allocator that has run out.
    fn help(&self, space: SpaceId, requested_bytes: u64) -> bool {
        add(&self.counters.callbacks, 1);
        let has_helped = self.make_room(space, requested_bytes) > 0;
        add(&self.counters.callbacks_helped, u64::from(has_helped));
        has_helped
    }
}

/// Spills when the device itself runs out although the accounts had room, as it does where memory is fragmented or
/// somebody else uses the device too.
pub(crate) struct MakeRoom<'a> {
    pub(crate) core: &'a Core,
    pub(crate) space: SpaceId,
}

impl OomPolicy for MakeRoom<'_> {
    fn out_of_memory(
        &self,
        allocator: &dyn Allocator,
        report: &OutOfMemoryReport,
        attempt: u32,
    ) -> OomAction {
        debug_assert_eq!(self.space.tier(), Tier::Gpu);
        if attempt > RETRIES_MAX {
            return OomAction::GiveUp;
        }
        // What was freed may sit in the allocator's cache in pieces that do not fit.
        let helped = self.core.help(self.space, report.requested_bytes);
        let emptied = allocator.empty_cache().is_ok_and(|bytes| bytes > 0);
        if helped || emptied { OomAction::Retry } else { OomAction::GiveUp }
    }
}
