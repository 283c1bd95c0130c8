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
    /// Movers that are at work.
    busy: AtomicU64,
    /// For each mover, the last change it knew of when it looked and found nothing to do.
    idle_since: Vec<AtomicU64>,
}

impl Shared {
    fn for_movers(count: usize) -> Self {
        let never = || AtomicU64::new(u64::MAX);
        Self { idle_since: std::iter::repeat_with(never).take(count).collect(), ..Self::default() }
    }

    /// Whether no mover is at work, and each has looked since change number `progress` and found nothing to do. A mover that has
    /// not had its turn on a busy machine may still make the room that all wait for.
    fn is_idle(&self, progress: u64) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
            && self.idle_since.iter().all(|since| since.load(Ordering::SeqCst) == progress)
    }
}

impl Movers {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, TierError> {
        let mut spaces: Vec<&Space> =
            core.tiers.spaces().iter().filter(|space| space.tier() != Tier::Disk).collect();
        if !core.config.background {
            spaces.clear();
        }
        let mut movers = Self { threads: Vec::new(), shared: Arc::new(Shared::for_movers(spaces.len())) };
        let spawn = |name: String, body: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name).spawn(body);
            spawned.map_err(|error| TierError::system("starting a mover", &error))
        };
        for (mover, space) in spaces.into_iter().enumerate() {
            let (space, weak, shared) = (space.clone(), Arc::downgrade(core), movers.shared.clone());
            let body = Box::new(move || work(&space, &weak, &shared, mover));
            movers.threads.push(spawn("headwater-mover".into(), body)?);
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

fn work(space: &Space, core: &Weak<Core>, shared: &Shared, mover: usize) {
    let (mut is_active, mut back_off) = (false, 1);
    let Some(mut listener) = core.upgrade().map(|core| core.kicks.listen()) else { return };
    while !shared.is_closing.load(Ordering::SeqCst) {
        let Some(engine) = core.upgrade() else { return };
        shared.busy.fetch_add(1, Ordering::SeqCst);
        // Before the look: what changes from here on may have been missed.
        let progress = engine.tasks.changes();
        let needed_bytes = needed_bytes(space, &mut is_active);
        let freed_bytes = if needed_bytes > 0 { engine.make_room(space.id(), needed_bytes) } else { 0 };
        let has_restored = space.tier() == Tier::Gpu && engine.prefetch(space);
        let found_nothing = freed_bytes == 0 && !has_restored;
        if let Some(since) = shared.idle_since.get(mover).filter(|_| found_nothing) {
            since.store(progress, Ordering::SeqCst);
        }
        shared.busy.fetch_sub(1, Ordering::SeqCst);
        if !found_nothing {
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
        let is_idle = shared.is_idle(engine.tasks.changes());
        if !is_idle && engine.tasks.all_wait() {
            // They look again, and the next look here knows what they found.
            engine.kicks.signal();
        }
        seen = engine.tasks.look(seen, is_idle && moves == 0);
        let patience = engine.config.deadlock_patience;
        drop(engine);
        std::thread::park_timeout(patience);
    }
}
