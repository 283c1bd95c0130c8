//! Who may use freed memory next: streams, inside of captures and outside, and what is known of their order.
//!
//! Work in one stream runs in order, so what a stream freed it can use again at once; that is a lane. A stream has one lane outside of
//! captures and one in each capture: captured work does not run when it is given to the stream, so the two are not in one order.
//! Between the streams of one capture nothing is ordered unless the caller says so ([`Lanes::order`]), or the capture was asked
//! (`captured_order.rs`).

use std::collections::BTreeMap;

use headwater_driver::Stream;

use super::carver::Lane;
use crate::caching::threads::ThreadMark;

/// A capture, as far as memory goes: a route of the allocator, and the driver's number of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    pub(super) route: u64,
    pub(super) capture: u64,
}

/// A stream in a capture, or outside of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneKey {
    pub(super) scope: Option<Scope>,
    pub(super) stream: Stream,
    /// The per-thread default stream is another one in every thread.
    thread: u64,
}

impl LaneKey {
    pub(super) fn new(stream: Stream, scope: Option<Scope>) -> Self {
        let thread = if stream.is_per_thread_default() { ThreadMark::current().number } else { 0 };
        Self { scope, stream, thread }
    }

    /// The same stream in a capture.
    pub(super) fn inside(self, scope: Scope) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// The same stream outside of captures.
    pub(super) fn outside(self) -> Self {
        Self { scope: None, ..self }
    }

    /// Whether the calling thread means the same stream by its name.
    pub(super) fn is_within_reach(self) -> bool {
        self.thread == 0 || self.thread == ThreadMark::current().number
    }
}

/// The lanes in use.
#[derive(Debug)]
pub(super) struct Lanes {
    numbers: BTreeMap<LaneKey, Lane>,
    /// Of each lane, until when it has seen what others freed.
    seen: BTreeMap<Lane, BTreeMap<Lane, u64>>,
    next: u32,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { numbers: BTreeMap::new(), seen: BTreeMap::new(), next: Lane::ANYONE.0 + 1 }
    }
}

impl Lanes {
    /// The lane of `key`, made where there is none.
    pub(super) fn number(&mut self, key: LaneKey) -> Lane {
        *self.numbers.entry(key).or_insert_with(|| {
            let lane = Lane(self.next);
            self.next += 1;
            lane
        })
    }

    /// All lanes outside of captures.
    pub(super) fn outside(&self) -> impl Iterator<Item = (LaneKey, Lane)> + '_ {
        self.numbers.iter().filter(|(key, _)| key.scope.is_none()).map(|(key, lane)| (*key, *lane))
    }

    /// Takes out the lanes of a route.
    pub(super) fn close(&mut self, route: u64) -> Vec<Lane> {
        let of_route = |key: &LaneKey| key.scope.is_some_and(|scope| scope.route == route);
        let closed: Vec<Lane> =
            self.numbers.iter().filter(|(key, _)| of_route(key)).map(|(_, lane)| *lane).collect();
        self.numbers.retain(|key, _| !of_route(key));
        for lane in &closed {
            self.seen.remove(lane);
        }
        closed
    }

    /// Forgets lanes outside of captures in which nothing is free.
    pub(super) fn sweep(&mut self, is_needed: impl Fn(LaneKey, Lane) -> bool) {
        self.numbers.retain(|key, lane| key.scope.is_some() || is_needed(*key, *lane));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// What comes in `after` waits for all that is in `before` at time `now`, and for what that waited for.
    pub(super) fn order(&mut self, before: Lane, after: Lane, now: u64) {
        let inherited = self.seen.get(&before).cloned().unwrap_or_default();
        let seen = self.seen.entry(after).or_default();
        for (lane, until) in inherited.into_iter().chain([(before, now)]) {
            let known = seen.entry(lane).or_insert(until);
            *known = until.max(*known);
        }
    }

    /// What `lane` has seen of others, and until when.
    pub(super) fn seen_by(&self, lane: Lane) -> impl Iterator<Item = (Lane, u64)> + '_ {
        self.seen.get(&lane).into_iter().flatten().map(|(other, until)| (*other, *until))
    }

    /// Whether work in `after` comes after all that was in `before` at `time`.
    pub(super) fn has_seen(&self, after: Lane, before: Lane, time: u64) -> bool {
        after == before
            || self.seen.get(&after).and_then(|seen| seen.get(&before)).is_some_and(|until| *until >= time)
    }
}
