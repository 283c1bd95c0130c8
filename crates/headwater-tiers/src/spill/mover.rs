//! Movers: one thread for every space that has something below it, and one that watches over the tasks.
//!
//! A mover begins when use reaches the trigger and goes on until it is down to the stop. Besides, it makes the room that requests
//! in the queue wait for, whatever the use is, and brings up what was asked for ahead of its use. It sleeps until it is told that something changed, and looks by itself now and then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::core::Core;
use crate::error::TierError;
use crate::space::{News, Space};
use crate::tier::Tier;
use crate::waiting::Wait;

/// The longest that a mover that found nothing to move sleeps unasked, in polls.
const BACK_OFF_MAX: u32 = 8;

#[derive(Debug)]
pub(crate) struct Movers {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    is_closing: AtomicBool,
    /// Movers that have work, or have not looked since the last change.
    busy: AtomicU64,
}

impl Movers {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, TierError> {
        let mut movers = Self { threads: Vec::new(), shared: Arc::default() };
        let spawn = |name: String, body: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name).spawn(body);
            spawned.map_err(|error| TierError::system("starting a mover", &error))
        };
        if core.config.background {
            for space in core.tiers.spaces().iter().filter(|space| space.tier() != Tier::Disk) {
                let (space, weak, shared) = (space.clone(), Arc::downgrade(core), movers.shared.clone());
                let body = Box::new(move || work(&space, &weak, &shared));
                movers.threads.push(spawn("headwater-mover".into(), body)?);
            }
        }
        let (weak, shared) = (Arc::downgrade(core), movers.shared.clone());
        movers.threads.push(spawn("headwater-watch".into(), Box::new(move || watch(&weak, &shared)))?);
        Ok(movers)
    }

    /// Ends all threads. Moves under way are seen through.
    pub(crate) fn stop(&mut self, core: &Core) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        core.kicks.signal();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A mover only ends by returning; there is nobody left to tell if not.
            let _ = thread.join();
        }
    }
}

/// How much is to be moved out of `space` now.
fn needed_bytes(space: &Space, is_active: &mut bool) -> u64 {
    let (usage, marks) = (space.usage(), space.thresholds());
    let used_bytes = usage.used_bytes();
    if marks.should_downgrade(used_bytes, usage.capacity_bytes) {
        *is_active = true;
    }
    if marks.should_stop_downgrading(used_bytes, usage.capacity_bytes) {
        *is_active = false;
    }
    let above_stop_bytes =
        if *is_active { marks.amount_to_downgrade(used_bytes, usage.capacity_bytes) } else { 0 };
    let room_bytes = usage.limit_bytes.saturating_sub(used_bytes);
    above_stop_bytes.max(usage.waiting_bytes.saturating_sub(room_bytes))
}

fn work(space: &Space, core: &Weak<Core>, shared: &Shared) {
    let (mut is_active, mut back_off) = (false, 1);
    let Some(mut listener) = core.upgrade().map(|core| core.kicks.listen()) else { return };
    while !shared.is_closing.load(Ordering::SeqCst) {
        let Some(engine) = core.upgrade() else { return };
        shared.busy.fetch_add(1, Ordering::SeqCst);
        let needed_bytes = needed_bytes(space, &mut is_active);
        let freed_bytes = if needed_bytes > 0 { engine.make_room(space.id(), needed_bytes) } else { 0 };
        let has_restored = space.tier() == Tier::Gpu && engine.prefetch(space);
        shared.busy.fetch_sub(1, Ordering::SeqCst);
        if freed_bytes > 0 || has_restored {
            engine.tasks.progress();
            back_off = 1;
            continue;
        }
        back_off = if needed_bytes > 0 { (back_off * 2).min(BACK_OFF_MAX) } else { 1 };
        let wait = Wait::at_most(engine.config.poll * back_off);
        // Not held while asleep: the engine's owner may go.
        drop(engine);
        if listener.wait(&wait) == News::ShutDown {
            return;
        }
        // A storm of small changes is looked at once a millisecond at most.
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn watch(core: &Weak<Core>, shared: &Shared) {
    let mut seen = None;
    while !shared.is_closing.load(Ordering::SeqCst) {
        let Some(engine) = core.upgrade() else { return };
        let moves = engine.counters.moves_in_flight.load(Ordering::SeqCst);
        let is_quiet = shared.busy.load(Ordering::SeqCst) == 0 && moves == 0;
        seen = engine.tasks.look(seen, is_quiet);
        let patience = engine.config.deadlock_patience;
        drop(engine);
        std::thread::park_timeout(patience);
    }
}
