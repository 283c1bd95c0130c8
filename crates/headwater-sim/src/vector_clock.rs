//! Vector clocks: what one actor knows about the progress of the others.
//!
//! An actor is anything whose own actions are ordered: a stream, a host thread. It counts its actions. A clock holds, for
//! each actor, how many of that actor's actions are ordered before the holder's next one. Two actions are ordered exactly
//! when the clock of one covers the other (Mattern 1989, Fidge 1988); that is all the race detector of `shadow.rs` asks.
//!
//! Clocks are sparse and sorted by actor: a program has few streams that know of each other, so most clocks stay inline.

use smallvec::SmallVec;

/// Something whose own actions are ordered: a stream or a host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Actor(pub(crate) u32);

/// For each actor, how many of its actions are ordered before now. Actors that are absent count as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VectorClock {
    /// Sorted by actor; no zeroes, so that equal clocks are equal values.
    times: SmallVec<[(Actor, u64); 4]>,
}

impl VectorClock {
    /// The clock of one who has seen nothing.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Counts one more action of `actor` and returns its time; the first is 1.
    pub(crate) fn tick(&mut self, actor: Actor) -> u64 {
        match self.place(actor) {
            Ok(at) => {
                self.times[at].1 += 1;
                self.times[at].1
            }
            Err(at) => {
                self.times.insert(at, (actor, 1));
                1
            }
        }
    }

    /// Afterwards, everything `other` covers is covered here too: the least clock above both.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        for &(actor, time) in &other.times {
            match self.place(actor) {
                Ok(at) => self.times[at].1 = self.times[at].1.max(time),
                Err(at) => self.times.insert(at, (actor, time)),
            }
        }
    }

    /// How many actions of `actor` are ordered before now.
    pub(crate) fn get(&self, actor: Actor) -> u64 {
        self.place(actor).map_or(0, |at| self.times[at].1)
    }

    /// Whether `actor`'s action number `time` is ordered before now.
    pub(crate) fn covers(&self, actor: Actor, time: u64) -> bool {
        time <= self.get(actor)
    }

    fn place(&self, actor: Actor) -> Result<usize, usize> {
        self.times.binary_search_by_key(&actor, |&(known, _)| known)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clock(times: &[(u32, u64)]) -> VectorClock {
        let mut clock = VectorClock::new();
        for &(actor, time) in times {
            for _ in 0..time {
                clock.tick(Actor(actor));
            }
        }
        clock
    }

    fn clocks() -> impl Strategy<Value = VectorClock> {
        proptest::collection::vec((0u32..8, 1u64..6), 0..8).prop_map(|times| clock(&times))
    }

    fn joined(a: &VectorClock, b: &VectorClock) -> VectorClock {
        let mut both = a.clone();
        both.join(b);
        both
    }

    fn is_below(a: &VectorClock, b: &VectorClock) -> bool {
        (0..8).all(|actor| b.covers(Actor(actor), a.get(Actor(actor))))
    }

    #[test]
    fn an_action_is_covered_from_its_tick_on() {
        let mut clock = VectorClock::new();
        assert!(!clock.covers(Actor(3), 1));
        assert_eq!(clock.tick(Actor(3)), 1);
        assert_eq!(clock.tick(Actor(3)), 2);
        assert!(clock.covers(Actor(3), 2) && !clock.covers(Actor(3), 3));
        assert!(clock.covers(Actor(4), 0), "what never happened hinders nobody");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn join_is_the_least_upper_bound(a in clocks(), b in clocks(), other in clocks()) {
            let both = joined(&a, &b);
            prop_assert!(is_below(&a, &both) && is_below(&b, &both));
            if is_below(&a, &other) && is_below(&b, &other) {
                prop_assert!(is_below(&both, &other));
            }
            prop_assert_eq!(is_below(&both, &other), is_below(&a, &other) && is_below(&b, &other));
        }

        #[test]
        fn join_does_not_care_for_order_or_repetition(a in clocks(), b in clocks(), c in clocks()) {
            prop_assert_eq!(joined(&a, &b), joined(&b, &a));
            prop_assert_eq!(joined(&joined(&a, &b), &c), joined(&a, &joined(&b, &c)));
            prop_assert_eq!(joined(&a, &a), a);
        }
    }
}
