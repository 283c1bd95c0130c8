//! Who goes when room is needed.

use std::fmt::Debug;

use crate::tier::SpaceId;

/// Something that could go: it is in the space that needs room, and nobody uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Victim {
    /// Its number.
    pub id: u64,
    /// Where it is.
    pub space: SpaceId,
    /// What its going would free.
    pub bytes: u64,
    /// Its owner's priority; higher stays longer.
    pub priority: i32,
    /// How many accesses of anything there were since it was last used.
    pub idle: u64,
    /// How often it has been moved back up so far: what was wanted back is likely to be wanted again.
    pub restores: u32,
}

/// Chooses victims.
pub trait VictimPolicy: Debug + Send + Sync {
    /// Sorts `victims` so that the first is the first to go.
    fn sort(&self, victims: &mut [Victim]);
}

/// The lowest priority first; within one, what has been idle longest for what it costs to move.
///
/// A move costs about as much as [`FIXED_COST_BYTES`](Self::FIXED_COST_BYTES) more bytes than it moves (stream, events, allocation,
/// file), so small things are worth less, and what was wanted back before is worth less for each time.
#[derive(Clone, Copy, Debug, Default)]
pub struct PriorityThenColdest;

impl PriorityThenColdest {
    /// What a move costs whatever its size: 20 us at 50 GB/s.
    pub const FIXED_COST_BYTES: u64 = 1 << 20;

    /// How much its going is worth: idle time by the share of the cost that frees something.
    fn worth(victim: &Victim) -> u128 {
        let bytes = u128::from(victim.bytes);
        let cost = bytes + u128::from(Self::FIXED_COST_BYTES);
        (u128::from(victim.idle) + 1) * bytes * 1024 / cost / (1 + u128::from(victim.restores))
    }
}

impl VictimPolicy for PriorityThenColdest {
    fn sort(&self, victims: &mut [Victim]) {
        victims.sort_by_key(|victim| (victim.priority, std::cmp::Reverse(Self::worth(victim)), victim.id));
    }
}

/// The victims that free `needed_bytes`, by the policy's order; all of them where they do not.
///
/// The last one is right-sized: where a smaller victim of the same priority is enough for the rest, it goes instead, so that a
/// few missing bytes do not move the largest buffer there is.
pub(crate) fn choose(policy: &dyn VictimPolicy, mut victims: Vec<Victim>, needed_bytes: u64) -> Vec<Victim> {
    policy.sort(&mut victims);
    let mut freed_bytes = 0;
    for last in 0..victims.len() {
        let rest_bytes = needed_bytes - freed_bytes;
        if victims[last].bytes < rest_bytes {
            freed_bytes += victims[last].bytes;
            continue;
        }
        let priority = victims[last].priority;
        let fits = |victim: &Victim| victim.priority == priority && victim.bytes >= rest_bytes;
        let tightest = (last..victims.len())
            .filter(|index| fits(&victims[*index]))
            .min_by_key(|index| victims[*index].bytes);
        victims.swap(last, tightest.unwrap_or(last));
        victims.truncate(last + 1);
        break;
    }
    victims
}

#[cfg(test)]
mod tests {
    use headwater_driver::DeviceId;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn victim(id: u64, mib: u64, priority: i32, idle: u64) -> Victim {
        let space = SpaceId::gpu(DeviceId(0));
        Victim { id, space, bytes: mib * MIB, priority, idle, restores: 0 }
    }

    fn ids(victims: Vec<Victim>, needed_mib: u64) -> Vec<u64> {
        choose(&PriorityThenColdest, victims, needed_mib * MIB).iter().map(|victim| victim.id).collect()
    }

    #[test]
    fn low_priority_goes_first_then_what_is_cold() {
        let all = vec![victim(1, 8, 0, 5), victim(2, 8, -1, 0), victim(3, 8, 0, 9)];
        assert_eq!(ids(all.clone(), 8), [2]);
        assert_eq!(ids(all.clone(), 16), [2, 3]);
        assert_eq!(ids(all, 100), [2, 3, 1], "all go where all are not enough");
        assert_eq!(ids(Vec::new(), 1), [0; 0]);
    }

    #[test]
    fn the_last_one_is_right_sized_but_never_of_higher_priority() {
        let all = vec![victim(1, 64, 0, 9), victim(2, 4, 0, 5), victim(3, 2, 0, 1), victim(4, 3, 1, 9)];
        assert_eq!(ids(all.clone(), 3), [2]);
        assert_eq!(ids(all, 65), [1, 3]);
    }

    #[test]
    fn what_was_wanted_back_and_what_is_tiny_stay_longer() {
        let mut wanted = victim(1, 8, 0, 9);
        wanted.restores = 4;
        let mut all = vec![wanted, victim(2, 8, 0, 5)];
        PriorityThenColdest.sort(&mut all);
        assert_eq!(all[0].id, 2);
        let mut tiny = victim(3, 0, 0, 9);
        tiny.bytes = 4096;
        let mut all = vec![tiny, victim(4, 8, 0, 5)];
        PriorityThenColdest.sort(&mut all);
        assert_eq!(all[0].id, 4);
    }
}
