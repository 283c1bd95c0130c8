//! How long blocks of each size live, counted in allocations.
//!
//! Training programs ask for the same sizes again and again, and a size's blocks mostly live alike: an activation until the
//! backward pass, a workspace until the next operator. A moving average tells the two apart well enough to keep them
//! in different regions. The memory is bounded: the size that was first seen longest ago is forgotten.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::policy::{LIFE_MEMORY, RESTLESS_MISSES, SHORT_LIFE_ALLOCATIONS, SIZES_REMEMBERED};

/// What is known of a size.
#[derive(Clone, Copy, Debug)]
struct Habit {
    /// The average life of its blocks.
    life: f32,
    /// How often it missed since live memory last had a new peak.
    misses: u32,
    /// That peak.
    peak_live_bytes: u64,
}

/// Habits by rounded size.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    habits: FxHashMap<u64, Habit>,
    /// Sizes in the order in which they were first seen.
    seen: VecDeque<u64>,
}

impl Lifetimes {
    /// Whether blocks of this size are expected to be given back soon. Of unknown sizes nothing is expected.
    pub(crate) fn is_short(&self, bytes: u64) -> bool {
        self.habits.get(&bytes).is_some_and(|habit| habit.life < SHORT_LIFE_ALLOCATIONS)
    }

    /// A block of this size lived for `allocations`.
    pub(crate) fn note(&mut self, bytes: u64, allocations: u64) {
        let life = allocations as f32;
        if let Some(habit) = self.habits.get_mut(&bytes) {
            habit.life = LIFE_MEMORY * habit.life + (1.0 - LIFE_MEMORY) * life;
            return;
        }
        if self.seen.len() == SIZES_REMEMBERED
            && let Some(oldest) = self.seen.pop_front()
        {
            self.habits.remove(&oldest);
        }
        self.habits.insert(bytes, Habit { life, misses: 0, peak_live_bytes: 0 });
        self.seen.push_back(bytes);
    }

    /// A request of this size missed. Says whether it does so again and again while the program needs no more than before: then
    /// memory is being moved in circles, and growing a little ends it.
    pub(crate) fn missed(&mut self, bytes: u64, peak_live_bytes: u64) -> bool {
        let Some(habit) = self.habits.get_mut(&bytes) else { return false };
        if habit.peak_live_bytes != peak_live_bytes {
            (habit.misses, habit.peak_live_bytes) = (0, peak_live_bytes);
        }
        habit.misses += 1;
        habit.misses >= RESTLESS_MISSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_by_what_their_blocks_did_and_long_until_then() {
        let mut lifetimes = Lifetimes::default();
        assert!(!lifetimes.is_short(512));
        lifetimes.note(512, 3);
        assert!(lifetimes.is_short(512));
        lifetimes.note(512, 1000);
        assert!(!lifetimes.is_short(512), "0.7 * 3 + 0.3 * 1000 is long");
        assert!(!lifetimes.is_short(1024));
    }

    #[test]
    fn the_oldest_sizes_are_forgotten() {
        let mut lifetimes = Lifetimes::default();
        for size in 0..=SIZES_REMEMBERED as u64 {
            lifetimes.note(size, 1);
        }
        assert!(!lifetimes.is_short(0) && lifetimes.is_short(1));
        assert_eq!(lifetimes.habits.len(), SIZES_REMEMBERED);
    }
}
