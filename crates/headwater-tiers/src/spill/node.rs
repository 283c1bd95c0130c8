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

use headwater_driver::DeviceId;
use parking_lot::Mutex;

use super::core::Core;
use super::layout::Layout;
use super::moves::bytes_in;
use super::residence::Residence;
use super::ticket::Ticket;
use super::victims::Victim;
use crate::error::TierError;
use crate::space::{News, NotificationChannel, Notifier};
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

#[derive(Debug)]
pub(crate) struct Node {
    pub(super) id: u64,
    pub(super) core: Arc<Core>,
    pub(super) layout: Layout,
    pub(super) state: Mutex<State>,
    pub(super) channel: Arc<NotificationChannel>,
    _channel_alive: Notifier,
}

#[derive(Debug)]
pub(super) struct State {
    /// `None` while a move or a writer has them, and once the node is closed.
    pub(super) place: Option<Arc<Residence>>,
    pub(super) space: SpaceId,
    readers: u32,
    has_writer: bool,
    pub(super) moving: Option<Under>,
    pub(super) is_closed: bool,
    priority: i32,
    last_used: u64,
    pub(super) restores: u32,
}

/// A move under way.
#[derive(Debug)]
pub(super) struct Under {
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
    pub(super) fn take(self: &Arc<Self>, state: &mut State, is_spill: bool) -> Option<Ticket> {
        if state.readers > 0 || state.has_writer || state.moving.is_some() || state.is_closed {
            return None;
        }
        // A reader lets go of its share before it stops counting, so the bytes are nobody else's.
        let residence = Arc::into_inner(state.place.take()?)?;
        let cancel = Arc::new(AtomicBool::new(false));
        state.moving = Some(Under { is_spill, cancel: cancel.clone() });
        Some(Ticket::new(self.clone(), residence, cancel))
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

    pub(super) fn changed(&self) {
        self.channel.signal();
        self.core.kicks.signal();
        self.core.tasks.progress();
    }

    pub(super) fn in_use(&self) -> TierError {
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
