//! How long blocks live, by habit: the size of a request and of the two before it on its stream.
//!
//! Programs ask for the same sizes again and again, in the same order, and what an operator allocates mostly lives alike: an
//! activation until the backward pass, a workspace until the next operator. Size alone does not tell the two apart, because
//! many operators share their shapes; what was asked for just before does. (A prototype on
//! fsdp_streams, as recorded and with sizes jittered four ways: size alone wastes 1.65 % on average, with one request before it
//! 1.28 %, with two 0.88 %; longer histories did no better.)
//!
//! A moving average of lives, counted in allocations, says whether the next block of a habit is expected to be short-lived.
//! The memory is bounded: the habit that was first seen longest ago is forgotten.

use std::collections::VecDeque;
use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};

use super::policy::{HABITS_REMEMBERED, LIFE_MEMORY, SHORT_LIFE_ALLOCATIONS, STREAMS_FOLLOWED};
use crate::caching::classic::Tag;

/// A size with the two before it, as one number. That two share one is harmless: a block would lie in the other region.
pub(crate) type Habit = u64;

/// Lives by habit.
#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    lives: FxHashMap<Habit, f32>,
    /// Habits in the order in which they were first seen.
    seen: VecDeque<Habit>,
    /// The sizes of a stream's last two requests, the last first.
    last: FxHashMap<Tag, [u64; 2]>,
}

impl Lifetimes {
    /// The habit of a request of `bytes` that a stream makes now.
    pub(crate) fn habit(&self, tag: Tag, bytes: u64) -> Habit {
        let mut hasher = FxHasher::default();
        hasher.write_u64(bytes);
        for before in self.last.get(&tag).copied().unwrap_or_default() {
            hasher.write_u64(before);
        }
        hasher.finish()
    }

    /// A stream's request of `bytes` was served. Returns its habit.
    pub(crate) fn served(&mut self, tag: Tag, bytes: u64) -> Habit {
        let habit = self.habit(tag, bytes);
        if self.last.len() >= STREAMS_FOLLOWED && !self.last.contains_key(&tag) {
            // Which of so many streams to forget matters little: habits form again within three requests.
            self.last.clear();
        }
        let last = self.last.entry(tag).or_default();
        *last = [bytes, last[0]];
        habit
    }

    /// Whether a block is expected to be given back soon. Of unknown habits nothing is expected.
    pub(crate) fn is_short(&self, habit: Habit) -> bool {
        self.lives.get(&habit).is_some_and(|life| *life < SHORT_LIFE_ALLOCATIONS)
    }

    /// A block of this habit lived for `allocations`.
    pub(crate) fn note(&mut self, habit: Habit, allocations: u64) {
        let lived = allocations as f32;
        if let Some(life) = self.lives.get_mut(&habit) {
            *life = LIFE_MEMORY * *life + (1.0 - LIFE_MEMORY) * lived;
            return;
        }
        if self.seen.len() == HABITS_REMEMBERED
            && let Some(oldest) = self.seen.pop_front()
        {
            self.lives.remove(&oldest);
        }
        self.lives.insert(habit, lived);
        self.seen.push_back(habit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_are_short_by_what_their_blocks_did_and_long_until_then() {
        let mut lifetimes = Lifetimes::default();
        assert!(!lifetimes.is_short(512));
        lifetimes.note(512, 3);
        assert!(lifetimes.is_short(512));
        lifetimes.note(512, 1000);
        assert!(!lifetimes.is_short(512), "0.7 * 3 + 0.3 * 1000 is long");
        assert!(!lifetimes.is_short(1024));
    }

    #[test]
    fn one_size_has_as_many_habits_as_there_are_requests_before_it() {
        let mut lifetimes = Lifetimes::default();
        let habit_after = |lifetimes: &mut Lifetimes, before: [u64; 2]| {
            for bytes in before {
                lifetimes.served(Tag::ANY, bytes);
            }
            lifetimes.habit(Tag::ANY, 4096)
        };
        let activation = habit_after(&mut lifetimes, [1, 2]);
        let workspace = habit_after(&mut lifetimes, [2, 1]);
        assert_ne!(activation, workspace);
        assert_eq!(habit_after(&mut lifetimes, [1, 2]), activation);
    }

    #[test]
    fn the_oldest_habits_are_forgotten() {
        let mut lifetimes = Lifetimes::default();
        for habit in 0..=HABITS_REMEMBERED as u64 {
            lifetimes.note(habit, 1);
        }
        assert!(!lifetimes.is_short(0) && lifetimes.is_short(1));
        assert_eq!(lifetimes.lives.len(), HABITS_REMEMBERED);
    }
}
