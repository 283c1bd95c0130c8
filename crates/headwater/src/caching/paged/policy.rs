//! The numbers of the paged backing, each with its reason.
//!
//! They were found by replaying eleven recorded programs, with their sizes as they are and jittered, against the measured costs of an H200. Two bars pull against
//! each other: memory wasted at the peak, and time spent in the driver. Driver time is per handle, whatever its size, so few
//! large handles are cheap; but a handle can be used elsewhere only when all of it is free, so small ones waste less.

use crate::config::MIB;

/// Requests up to this size live in a region of their own. Few of them are worth a handle's cost, and spread among large
/// blocks each would keep a large handle from ever being free as a whole.
pub(crate) const SMALL_MAX_BYTES: u64 = 256 << 10;

/// New handles are at most this share of the most that was ever reserved: a program of any size is then made of some
/// hundreds of them, and what one block strands of a handle is a fraction of a percent.
pub(crate) const HANDLE_SHARE: u64 = 500;
/// The least that a new handle may be limited to. Below it, creating costs more than what is wasted is worth.
pub(crate) const HANDLE_CAP_MIN_BYTES: u64 = 8 * MIB;
/// The most that a new handle may be limited to. Above it, what one block strands of a handle weighs too much.
pub(crate) const HANDLE_CAP_MAX_BYTES: u64 = 48 * MIB;

/// Blocks whose size usually lives for fewer allocations than this are kept apart from the others: they come and go
/// together, and the handles behind them are free again as a whole.
pub(crate) const SHORT_LIFE_ALLOCATIONS: f32 = 100.0;
/// How much of a habit's life is remembered when another block of it ends.
pub(crate) const LIFE_MEMORY: f32 = 0.7;
/// How many habits are remembered. A training step has some hundreds; programs whose shapes change have new ones in every step.
pub(crate) const HABITS_REMEMBERED: usize = 16_384;
/// Of how many streams the last requests are remembered.
pub(crate) const STREAMS_FOLLOWED: usize = 64;

/// Waste matters near the peak alone: where live memory is above this share of its peak, a request does not go where blocks
/// of another kind lie, but has handles moved to where it belongs.
pub(crate) const NEAR_PEAK_PERCENT: u64 = 90;
/// Unless it would take more handles than this: what is saved is about one.
pub(crate) const CROSS_HANDLES: u64 = 4;

/// How many old mappings are kept. Each costs addresses, and some bytes of books.
pub(crate) const VIEWS_MAX: usize = 1024;

/// How many other streams are asked whether they have finished, when one runs short.
pub(crate) const STREAMS_ASKED: usize = 8;
/// After another stream asked for its memory, a stream marks its progress for this many give-backs.
pub(crate) const INTEREST_GIVE_BACKS: u32 = 1024;
/// While it does, an event is recorded for every so many give-backs or bytes, whichever comes first: 0.4 us each (measured).
pub(crate) const MARK_GIVE_BACKS: u32 = 32;
/// See [`MARK_GIVE_BACKS`].
pub(crate) const MARK_BYTES: u64 = 64 * MIB;
/// How many events may be on the way, of all streams.
pub(crate) const MARKS_MAX: usize = 256;

/// After so many calls at the latest a block that waits for another stream is asked about again.
pub(crate) const PATIENCE_CALLS_MAX: u32 = 31;

/// The address space is this many times the device's memory: addresses are never the reason to refuse, and cost nothing.
pub(crate) const ARENA_TIMES_MEMORY: u64 = 64;
/// At most this many addresses are reserved at once: a process has 2^47, and may use several devices.
pub(crate) const ARENA_MAX_BYTES: u64 = 8 << 40;

/// A request that needs this much new memory asks the device first whether it has it, rather than create half of it in
/// vain.
pub(crate) const ASK_FIRST_BYTES: u64 = 256 * MIB;

/// What is missing, up to half as much again as a handle may be, is one handle: a small one behind a large one costs as much
/// as the large one.
pub(crate) fn new_handle_bytes(missing_bytes: u64, cap_bytes: u64) -> u64 {
    if missing_bytes <= cap_bytes + cap_bytes / 2 { missing_bytes } else { cap_bytes }
}

/// The largest new handle, for a program whose reserved memory peaked at `peak_reserved_bytes`.
pub(crate) fn handle_cap_bytes(peak_reserved_bytes: u64, granularity_bytes: u64) -> u64 {
    let share = (peak_reserved_bytes / HANDLE_SHARE).clamp(HANDLE_CAP_MIN_BYTES, HANDLE_CAP_MAX_BYTES);
    (share / granularity_bytes * granularity_bytes).max(granularity_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_more_than_a_handle_is_one_handle() {
        assert_eq!(new_handle_bytes(12 * MIB, 8 * MIB), 12 * MIB);
        assert_eq!(new_handle_bytes(14 * MIB, 8 * MIB), 8 * MIB);
    }

    #[test]
    fn the_cap_grows_with_the_program_between_its_bounds() {
        assert_eq!(handle_cap_bytes(0, 2 * MIB), 8 * MIB);
        assert_eq!(handle_cap_bytes(10_500 * MIB, 2 * MIB), 20 * MIB);
        assert_eq!(handle_cap_bytes(1 << 40, 2 * MIB), 48 * MIB);
        assert_eq!(handle_cap_bytes(0, 64 * MIB), 64 * MIB);
    }
}
