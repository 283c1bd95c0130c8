//! One spillable thing: where its bytes are, who uses them, and whether they are on their way.
//!
//! The state is a small lock. Whoever needs the bytes for themselves (a move, a writer) takes them out of the state, works with no
//! lock held, and puts them back; readers share them by counting. So at any time the bytes are in exactly one of: the state, a
//! move's hands, a writer's hands. All changes are told to a channel, where those wait who cannot go on.
//!
//! An access that finds a spill under way calls it off: the bytes are still in the old place, and somebody wants them there or
//! higher.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use headwater_driver::DeviceId;
use parking_lot::Mutex;

use super::core::Core;
use super::layout::Layout;
use super::metrics::{MoveEnd, Route, add};
use super::moves::{Moving, bytes_in};
use super::residence::Residence;
use super::victims::Victim;
use crate::error::TierError;
use crate::manager::Strategy;
use crate::reservation::Reservation;
use crate::space::{News, NotificationChannel, Notifier};
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

#[derive(Debug)]
pub(crate) struct Node {
    id: u64,
    pub(super) core: Arc<Core>,
    pub(super) layout: Layout,
    state: Mutex<State>,
    channel: Arc<NotificationChannel>,
    _channel_alive: Notifier,
}

#[derive(Debug)]
struct State {
    /// `None` while a move or a writer has them, and once the node is closed.
    place: Option<Arc<Residence>>,
    space: SpaceId,
    readers: u32,
    has_writer: bool,
    moving: Option<Under>,
    is_closed: bool,
    priority: i32,
    last_used: u64,
    restores: u32,
}

/// A move under way.
#[derive(Debug)]
struct Under {
    /// Nobody wants the bytes where they go; only the room is wanted.
    is_spill: bool,
    cancel: Arc<AtomicBool>,
}

/// Where somebody wants the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Gpu(DeviceId),
    Host,
}

impl Want {
    fn is_met_by(self, residence: &Residence) -> bool {
        match self {
            Self::Gpu(device) => residence.space() == SpaceId::gpu(device),
            Self::Host => residence.tier() == Tier::Host,
        }
    }
}

/// The bytes, pinned where they are.
#[derive(Debug)]
pub(crate) enum Held {
    Shared(Arc<Residence>),
    Alone(Arc<Residence>),
}

enum Step {
    Have(Held),
    Move(Ticket),
    Wait,
}

impl Node {
    pub(crate) fn new(core: &Arc<Core>, layout: Layout, residence: Residence, priority: i32) -> Arc<Self> {
        let channel = NotificationChannel::new(core.tiers.clock().clone());
        let state = State {
            space: residence.space(),
            place: Some(Arc::new(residence)),
            readers: 0,
            has_writer: false,
            moving: None,
            is_closed: false,
            priority,
            last_used: core.tick(),
            restores: 0,
        };
        let node = Arc::new(Self {
            id: core.new_id(),
            core: core.clone(),
            layout,
            state: Mutex::new(state),
            _channel_alive: channel.notifier(),
            channel,
        });
        core.register(&node);
        core.kicks.signal();
        node
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn space(&self) -> SpaceId {
        self.state.lock().space
    }

    /// Where the bytes are, and how much they take there.
    pub(crate) fn tier_and_bytes(&self) -> (Tier, u64) {
        let tier = self.space().tier();
        (tier, bytes_in(&self.core, &self.layout, tier))
    }

    pub(crate) fn set_priority(&self, priority: i32) {
        self.state.lock().priority = priority;
    }

    /// The node as a victim, where it could be one of `space`.
    pub(crate) fn as_victim(&self, space: SpaceId, now: u64) -> Option<Victim> {
        let state = self.state.lock();
        let is_free = state.place.is_some() && state.readers == 0 && state.space == space;
        is_free.then(|| Victim {
            id: self.id,
            space,
            bytes: bytes_in(&self.core, &self.layout, space.tier()),
            priority: state.priority,
            idle: now.saturating_sub(state.last_used),
            restores: state.restores,
        })
    }

    /// Pins the bytes where they are wanted, and brings them there first if need be.
    pub(crate) fn pin(self: &Arc<Self>, want: Want, writes: bool, wait: &Wait) -> Result<Held, TierError> {
        let wait = wait.begun_at(self.core.tiers.clock().now());
        // Before the first look, so that no change after it is missed.
        let mut listener = self.channel.listen();
        loop {
            let step = self.step(want, writes)?;
            match step {
                Step::Have(held) => return Ok(held),
                Step::Move(ticket) => ticket.bring(want, &wait)?,
                Step::Wait => match listener.wait(&wait) {
                    News::Notified => {}
                    News::Cancelled => return Err(wait.explain(TierError::Cancelled)),
                    News::ShutDown => return Err(TierError::ShutDown),
                    News::TimedOut | News::Idle => return Err(self.in_use()),
                },
            }
        }
    }

    fn step(self: &Arc<Self>, want: Want, writes: bool) -> Result<Step, TierError> {
        let mut state = self.state.lock();
        if let Some(under) = &state.moving {
            if under.is_spill {
                under.cancel.store(true, Ordering::Relaxed);
            }
            return Ok(Step::Wait);
        }
        if state.has_writer || (writes && state.readers > 0) {
            return Ok(Step::Wait);
        }
        let Some(place) = &state.place else { return Err(TierError::Lost { id: self.id }) };
        if !want.is_met_by(place) {
            // Wanted where it goes, so nobody calls it off.
            return Ok(self.take(&mut state, false).map_or(Step::Wait, Step::Move));
        }
        state.last_used = self.core.tick();
        let held = if writes {
            state.has_writer = true;
            state.place.take().map(Held::Alone)
        } else {
            state.readers += 1;
            state.place.clone().map(Held::Shared)
        };
        held.map(Step::Have).ok_or(TierError::Lost { id: self.id })
    }

    /// Takes the bytes out for a move; `None` where they are not free to go.
    fn take(self: &Arc<Self>, state: &mut State, is_spill: bool) -> Option<Ticket> {
        if state.readers > 0 || state.has_writer || state.moving.is_some() || state.is_closed {
            return None;
        }
        // A reader lets go of its share before it stops counting, so the bytes are nobody else's.
        let residence = Arc::into_inner(state.place.take()?)?;
        let cancel = Arc::new(AtomicBool::new(false));
        state.moving = Some(Under { is_spill, cancel: cancel.clone() });
        Some(Ticket { node: self.clone(), residence: Some(residence), cancel })
    }

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
        let wait = wait.begun_at(self.core.tiers.clock().now());
        let mut listener = self.channel.listen();
        loop {
            let ticket = {
                let mut state = self.state.lock();
                if state.space.tier() >= tier && state.moving.is_none() {
                    return Ok(());
                }
                self.take(&mut state, false)
            };
            if let Some(ticket) = ticket {
                let strategy = Strategy::Downgrade { from: ticket.space(), to: Some(tier) };
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

    /// Ends an access.
    pub(crate) fn unpin(&self, held: Held) {
        let closed = {
            let mut state = self.state.lock();
            match held {
                Held::Shared(place) => {
                    // In this order: see `take`.
                    drop(place);
                    state.readers -= 1;
                    if state.is_closed && state.readers == 0 { state.place.take() } else { None }
                }
                Held::Alone(place) => {
                    state.has_writer = false;
                    if state.is_closed {
                        Some(place)
                    } else {
                        state.place = Some(place);
                        None
                    }
                }
            }
        };
        drop(closed);
        self.changed();
    }

    /// The owner is gone: the bytes go too, now or when those who use them are done.
    pub(crate) fn close(&self) {
        let closed = {
            let mut state = self.state.lock();
            state.is_closed = true;
            if let Some(under) = &state.moving {
                under.cancel.store(true, Ordering::Relaxed);
            }
            if state.readers == 0 { state.place.take() } else { None }
        };
        drop(closed);
        self.changed();
    }

    #[cfg(test)]
    pub(crate) fn is_move_called_off(&self) -> bool {
        self.state.lock().moving.as_ref().is_some_and(|under| under.cancel.load(Ordering::Relaxed))
    }

    fn changed(&self) {
        self.channel.signal();
        self.core.kicks.signal();
        self.core.tasks.progress();
    }

    fn in_use(&self) -> TierError {
        let state = self.state.lock();
        TierError::InUse {
            readers: state.readers,
            has_writer: state.has_writer,
            is_moving: state.moving.is_some(),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.core.unregister(self.id);
    }
}

/// Bytes taken out for a move. Dropped, it puts them back where they were.
pub(crate) struct Ticket {
    node: Arc<Node>,
    residence: Option<Residence>,
    cancel: Arc<AtomicBool>,
}

impl Ticket {
    fn space(&self) -> SpaceId {
        self.residence.as_ref().map_or_else(|| self.node.space(), Residence::space)
    }

    /// Brings the bytes to where they are wanted; waits for room.
    fn bring(self, want: Want, wait: &Wait) -> Result<(), TierError> {
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
