//! Bytes taken out of their node for a move, and the moves that take them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use headwater_driver::DeviceId;

use super::metrics::{MoveEnd, Route, add};
use super::moves::{Moving, bytes_in};
use super::node::{Node, Want};
use super::residence::Residence;
use crate::error::TierError;
use crate::manager::Strategy;
use crate::reservation::Reservation;
use crate::space::News;
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

impl Node {
    /// Moves the bytes down if they are in `from` and free to go. Says how much that freed there: nothing where they are not.
    pub(crate) fn spill(self: &Arc<Self>, from: SpaceId) -> Result<u64, TierError> {
        let ticket = {
            let mut state = self.state.lock();
            if state.space != from { None } else { self.take(&mut state, true) }
        };
        let Some(ticket) = ticket else { return Ok(0) };
        ticket.spill()
    }

    /// Moves the bytes up to `device` if they are free to go and there is room now. Says whether they were moved.
    pub(crate) fn restore_now(self: &Arc<Self>, device: DeviceId) -> Result<bool, TierError> {
        let to = SpaceId::gpu(device);
        let ticket = {
            let mut state = self.state.lock();
            if state.space == to { None } else { self.take(&mut state, false) }
        };
        let Some(ticket) = ticket else { return Ok(false) };
        let bytes = bytes_in(&self.core, &self.layout, Tier::Gpu);
        match self.core.tiers.request_reservation_or_null(&Strategy::Specific(to), bytes)? {
            Some(reservation) => ticket.go(&reservation, &|| false).map(|()| true),
            None => Ok(false),
        }
    }

    /// Moves the bytes down to `tier`, waiting for whoever uses them.
    pub(crate) fn spill_to(self: &Arc<Self>, tier: Tier, wait: &Wait) -> Result<(), TierError> {
        let is_there = |space: SpaceId| space.tier() >= tier;
        self.relocate(tier, is_there, |from| Strategy::Downgrade { from, to: Some(tier) }, wait)
    }

    /// Moves the bytes to `space`, waiting for whoever uses them.
    pub(crate) fn move_to(self: &Arc<Self>, space: SpaceId, wait: &Wait) -> Result<(), TierError> {
        self.relocate(space.tier(), |at| at == space, |_| Strategy::Specific(space), wait)
    }

    fn relocate(
        self: &Arc<Self>,
        tier: Tier,
        is_there: impl Fn(SpaceId) -> bool,
        strategy: impl Fn(SpaceId) -> Strategy,
        wait: &Wait,
    ) -> Result<(), TierError> {
        let wait = wait.begun_at(self.core.tiers.clock().now());
        // Before the first look, so that no change after it is missed.
        let mut listener = self.channel.listen();
        loop {
            let ticket = {
                let mut state = self.state.lock();
                if is_there(state.space) && state.moving.is_none() {
                    return Ok(());
                }
                self.take(&mut state, false)
            };
            if let Some(ticket) = ticket {
                let strategy = strategy(ticket.space());
                return ticket.go_by(&strategy, tier, &wait);
            }
            match listener.wait(&wait) {
                News::Notified => {}
                News::Cancelled => return Err(wait.explain(TierError::Cancelled)),
                News::ShutDown => return Err(TierError::ShutDown),
                News::TimedOut | News::Idle => return Err(self.in_use()),
            }
        }
    }
}

/// Bytes taken out for a move. Dropped, it puts them back where they were.
pub(crate) struct Ticket {
    node: Arc<Node>,
    residence: Option<Residence>,
    cancel: Arc<AtomicBool>,
}

impl Ticket {
    pub(super) fn new(node: Arc<Node>, residence: Residence, cancel: Arc<AtomicBool>) -> Self {
        Self { node, residence: Some(residence), cancel }
    }

    fn space(&self) -> SpaceId {
        self.residence.as_ref().map_or_else(|| self.node.space(), Residence::space)
    }

    /// Brings the bytes to where they are wanted; waits for room.
    pub(super) fn bring(self, want: Want, wait: &Wait) -> Result<(), TierError> {
        let from = self.space();
        let (strategy, tier) = match want {
            Want::Gpu(device) => (Strategy::Specific(SpaceId::gpu(device)), Tier::Gpu),
            Want::Host if from.tier() == Tier::Gpu => {
                (Strategy::Downgrade { from, to: Some(Tier::Host) }, Tier::Host)
            }
            Want::Host => (Strategy::Upgrade { from, to: Some(Tier::Host) }, Tier::Host),
        };
        self.go_by(&strategy, tier, wait)
    }

    fn go_by(self, strategy: &Strategy, tier: Tier, wait: &Wait) -> Result<(), TierError> {
        let core = self.node.core.clone();
        let bytes = bytes_in(&core, &self.node.layout, tier);
        let reservation = core.reserve(strategy, bytes, wait)?;
        self.go(&reservation, &|| wait.is_cancelled()).map(drop)
    }

    /// Moves the bytes down to whatever has room now. Says how much that freed.
    fn spill(self) -> Result<u64, TierError> {
        let (core, from) = (self.node.core.clone(), self.space());
        for tier in from.tier().below() {
            let bytes = bytes_in(&core, &self.node.layout, tier);
            let strategy = Strategy::Downgrade { from, to: Some(tier) };
            match core.tiers.request_reservation_or_null(&strategy, bytes) {
                Ok(Some(reservation)) => {
                    let freed_bytes = bytes_in(&core, &self.node.layout, from.tier());
                    return self.go(&reservation, &|| false).map(|()| freed_bytes);
                }
                Ok(None) | Err(TierError::NoCandidate { .. } | TierError::NeverFits(_)) => {}
                Err(error) => return Err(error),
            }
        }
        add(&core.counters.no_room_below, 1);
        Ok(0)
    }

    fn go(
        mut self,
        reservation: &Reservation,
        is_called_off: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), TierError> {
        let node = self.node.clone();
        let Some(source) = &mut self.residence else { return Err(TierError::Lost { id: node.id }) };
        let (from, to) = (source.tier(), reservation.space().tier());
        let cancel = self.cancel.clone();
        let is_cancelled = move || cancel.load(Ordering::Relaxed) || is_called_off();
        let moving =
            Moving { core: &node.core, id: node.id, layout: &node.layout, is_cancelled: &is_cancelled };
        let begun = Instant::now();
        add(&node.core.counters.moves_in_flight, 1);
        let moved = moving.go(source, reservation);
        node.core.counters.moves_in_flight.fetch_sub(1, Ordering::SeqCst);
        if let Some(route) = Route::between(from, to) {
            let end = match &moved {
                Ok(_) => MoveEnd::Done { bytes: node.layout.part_bytes() },
                Err(TierError::Cancelled) => MoveEnd::Cancelled,
                Err(_) => MoveEnd::Failed,
            };
            node.core.counters.note(route, end, begun.elapsed());
        }
        let old = self.residence.replace(moved?);
        self.put_back(to < from);
        // After the new place is known: whoever finds the room that this frees finds the bytes moved.
        drop(old);
        node.changed();
        Ok(())
    }

    fn put_back(&mut self, was_restore: bool) {
        let Some(residence) = self.residence.take() else { return };
        let node = &self.node;
        let closed = {
            let mut state = node.state.lock();
            state.moving = None;
            state.space = residence.space();
            state.restores = state.restores.saturating_add(u32::from(was_restore));
            if state.is_closed {
                Some(residence)
            } else {
                state.place = Some(Arc::new(residence));
                None
            }
        };
        drop(closed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.residence.is_some() {
            self.put_back(false);
            self.node.changed();
        }
    }
}
