//! What thread caches do to the statistics.
//!
//! For the engine, a block that a thread keeps is live, with the size that was asked for when the engine handed it out. The truth
//! is the engine's figure plus what went out of caches, less what came back to them, plus what caches gave to the engine (which
//! takes it off its own figure then). Each thread counts for itself, inside its latch, and tells the [`Ledger`] whenever it
//! needs the engine's lock; who reads statistics stops all threads and lets them tell first. So figures read at rest are exact.
//!
//! A peak needs the sum over all threads at every moment, which threads that share nothing do not have. Each keeps how far its
//! own level has moved since it last told, and how far up that went. With one thread that is exact. With several, a peak
//! can be wrong by what the others have moved since they told, which is less than what their caches may hold.

use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

use super::ticket::Ticket;
use crate::stats::{DeviceStats, PoolKind, Stat, StatArray, WalkedTotals};

/// A number of blocks, what they take up, and what was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) blocks: i64,
    pub(crate) bytes: i64,
    pub(crate) requested_bytes: i64,
}

impl Amounts {
    /// One block.
    #[inline(always)]
    pub(crate) fn one(bytes: u64, requested_bytes: u64) -> Self {
        // Sizes are below 2^48.
        Self { blocks: 1, bytes: bytes as i64, requested_bytes: requested_bytes as i64 }
    }

    /// A block as its ticket has it.
    #[inline(always)]
    pub(crate) fn of(ticket: &Ticket) -> Self {
        Self::one(ticket.block_bytes(), ticket.requested_bytes())
    }

    /// The larger of each.
    fn raise_to(&mut self, other: Self) {
        self.blocks = self.blocks.max(other.blocks);
        self.bytes = self.bytes.max(other.bytes);
        self.requested_bytes = self.requested_bytes.max(other.requested_bytes);
    }

    /// Negative where one of them is larger than in `most`.
    #[inline(always)]
    fn above(self, most: Self) -> i64 {
        (most.blocks - self.blocks)
            | (most.bytes - self.bytes)
            | (most.requested_bytes - self.requested_bytes)
    }
}

impl Add for Amounts {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            bytes: self.bytes + other.bytes,
            requested_bytes: self.requested_bytes + other.requested_bytes,
        }
    }
}

impl Neg for Amounts {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self { blocks: -self.blocks, bytes: -self.bytes, requested_bytes: -self.requested_bytes }
    }
}

impl Sub for Amounts {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl AddAssign for Amounts {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Amounts {
    #[inline(always)]
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// Amounts of the small pool and of the large one, in this order.
type ByPool = [Amounts; 2];

fn sum(by_pool: &ByPool) -> Amounts {
    by_pool[0] + by_pool[1]
}

/// One figure of one pool, as far as a thread has not told it.
///
/// Not touched while one block goes out and comes back ([`Again`]): the compiler loads two numbers at once of which one was just
/// stored, and the processor waits when it does that (5 ns of a pair of 25, measured).
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    out: i64,
    back: i64,
    /// The furthest up that the difference went.
    most: i64,
}

impl Moves {
    #[inline(always)]
    fn now(&self) -> i64 {
        self.out - self.back
    }
}

/// The figures of one pool.
#[derive(Clone, Copy, Debug, Default)]
struct PoolMoves {
    blocks: Moves,
    bytes: Moves,
    requested_bytes: Moves,
}

impl PoolMoves {
    #[inline(always)]
    fn now(&self) -> Amounts {
        Amounts {
            blocks: self.blocks.now(),
            bytes: self.bytes.now(),
            requested_bytes: self.requested_bytes.now(),
        }
    }

    fn out(&self) -> Amounts {
        let Self { blocks, bytes, requested_bytes } = self;
        Amounts { blocks: blocks.out, bytes: bytes.out, requested_bytes: requested_bytes.out }
    }

    #[inline(always)]
    fn most(&self) -> Amounts {
        let Self { blocks, bytes, requested_bytes } = self;
        Amounts { blocks: blocks.most, bytes: bytes.most, requested_bytes: requested_bytes.most }
    }
}

/// What a thread has not told yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Of the small pool and of the large one.
    pools: [PoolMoves; 2],
    /// The furthest up that both together went.
    most_of_all: Amounts,
    again: Again,
}

/// One block that goes out and comes back, again and again: counted by two numbers, and entered when something else happens.
#[derive(Clone, Copy, Debug, Default)]
struct Again {
    amounts: Amounts,
    pool_place: usize,
    outs: i64,
    backs: i64,
}

impl Counts {
    /// A block comes back that may go out again.
    pub(crate) fn begin_again(&mut self, pool_place: usize, amounts: Amounts) {
        self.enter();
        self.again = Again { amounts, pool_place: pool_place & 1, outs: 0, backs: 1 };
    }

    /// That block goes out again, as it was. No level is higher than when it came back.
    #[inline(always)]
    pub(crate) fn hand_out_again(&mut self) {
        self.again.outs += 1;
    }

    /// It comes back again.
    #[inline(always)]
    pub(crate) fn take_back_again(&mut self) {
        self.again.backs += 1;
    }

    /// Enters what was counted of that block.
    fn enter(&mut self) {
        let Again { amounts, pool_place, outs, backs } = std::mem::take(&mut self.again);
        let moves = &mut self.pools[pool_place];
        for (moves, amount) in [
            (&mut moves.blocks, amounts.blocks),
            (&mut moves.bytes, amounts.bytes),
            (&mut moves.requested_bytes, amounts.requested_bytes),
        ] {
            moves.out += outs * amount;
            moves.back += backs * amount;
        }
    }

    /// A block of another thread comes back.
    pub(crate) fn take_back(&mut self, pool_place: usize, amounts: Amounts) {
        self.move_back(pool_place & 1, amounts);
    }

    /// It turns out that it had come back already.
    pub(crate) fn undo_take_back(&mut self, pool_place: usize, amounts: Amounts) {
        self.move_back(pool_place & 1, -amounts);
    }

    fn move_back(&mut self, pool_place: usize, amounts: Amounts) {
        let moves = &mut self.pools[pool_place];
        moves.blocks.back += amounts.blocks;
        moves.bytes.back += amounts.bytes;
        moves.requested_bytes.back += amounts.requested_bytes;
    }

    /// The counts with everything entered, from now on nothing.
    pub(crate) fn take(&mut self) -> Self {
        self.enter();
        std::mem::take(self)
    }

    /// A block goes to a caller.
    pub(crate) fn hand_out(&mut self, pool_place: usize, amounts: Amounts) {
        self.enter();
        let moves = &mut self.pools[pool_place & 1];
        moves.blocks.out += amounts.blocks;
        moves.bytes.out += amounts.bytes;
        moves.requested_bytes.out += amounts.requested_bytes;
        let now = self.pools[pool_place & 1].now();
        let of_all = now + self.pools[!pool_place & 1].now();
        // Mostly nothing is at its highest: one branch for all six.
        let above = now.above(self.pools[pool_place & 1].most()) | of_all.above(self.most_of_all);
        if above < 0 {
            self.raise(pool_place & 1);
        }
    }

    /// From what is stored, so that the hit path need not put it anywhere else.
    #[cold]
    #[inline(never)]
    fn raise(&mut self, pool_place: usize) {
        let (now, of_all) = (self.pools[pool_place].now(), self.pools[0].now() + self.pools[1].now());
        let moves = &mut self.pools[pool_place];
        moves.blocks.most = moves.blocks.most.max(now.blocks);
        moves.bytes.most = moves.bytes.most.max(now.bytes);
        moves.requested_bytes.most = moves.requested_bytes.most.max(now.requested_bytes);
        self.most_of_all.raise_to(of_all);
    }

    /// How many blocks went out.
    pub(crate) fn hits(&self) -> u64 {
        self.pools.iter().map(|moves| moves.blocks.out.unsigned_abs()).sum()
    }
}

/// The statistics that caches change, of one kind of pool.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    allocated: Amounts,
    active_blocks: i64,
    active_bytes: i64,
}

impl Level {
    fn of(stats: &DeviceStats, kind: PoolKind) -> Self {
        let now = |array: &StatArray| array.of(kind).current as i64;
        let allocated = Amounts {
            blocks: now(&stats.allocation),
            bytes: now(&stats.allocated_bytes),
            requested_bytes: now(&stats.requested_bytes),
        };
        Self { allocated, active_blocks: now(&stats.active), active_bytes: now(&stats.active_bytes) }
    }

    fn moved_by(mut self, amounts: Amounts) -> Self {
        self.allocated += amounts;
        self.active_blocks += amounts.blocks;
        self.active_bytes += amounts.bytes;
        self
    }

    fn raise_to(&mut self, other: &Self) {
        self.allocated.raise_to(other.allocated);
        self.active_blocks = self.active_blocks.max(other.active_blocks);
        self.active_bytes = self.active_bytes.max(other.active_bytes);
    }
}

/// What all threads have told. Behind the engine's lock.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What is to be added to the engine's figures of what there is now.
    net: ByPool,
    /// The same of its totals.
    risen: ByPool,
    fallen: ByPool,
    hits: u64,
    /// In the order of [`PoolKind::KINDS`].
    peaks: [Level; 3],
}

impl Ledger {
    fn net(&self, kind: PoolKind) -> Amounts {
        match kind {
            PoolKind::All => sum(&self.net),
            PoolKind::SmallPool => self.net[0],
            PoolKind::LargePool => self.net[1],
        }
    }

    /// Takes over what a thread has to tell, before the engine's figures change.
    pub(crate) fn absorb(&mut self, counts: Counts, stats: &DeviceStats) {
        let most = [counts.most_of_all, counts.pools[0].most(), counts.pools[1].most()];
        for (place, kind) in PoolKind::KINDS.into_iter().enumerate() {
            let highest = Level::of(stats, kind).moved_by(self.net(kind) + most[place]);
            self.peaks[place].raise_to(&highest);
        }
        for (place, moves) in counts.pools.iter().enumerate() {
            self.net[place] += moves.now();
            self.risen[place] += moves.out();
            self.fallen[place] += moves.out() - moves.now();
        }
        self.hits += counts.hits();
    }

    /// The engine's figures have risen.
    pub(crate) fn note_peaks(&mut self, stats: &DeviceStats) {
        for (place, kind) in PoolKind::KINDS.into_iter().enumerate() {
            let now = Level::of(stats, kind).moved_by(self.net(kind));
            self.peaks[place].raise_to(&now);
        }
    }

    /// A block that caches have as given back goes to the engine, which is about to take `engines` off its figures.
    pub(crate) fn pass_on(&mut self, pool_place: usize, engines: Amounts) {
        self.net[pool_place] += engines;
        self.fallen[pool_place] -= engines;
    }

    /// A caller's block goes straight to the engine: it is given back here first.
    pub(crate) fn take_back(&mut self, pool_place: usize, amounts: Amounts) {
        self.net[pool_place] -= amounts;
        self.fallen[pool_place] += amounts;
    }

    /// Lets the peaks start again from now.
    pub(crate) fn reset_peaks(&mut self, stats: &DeviceStats) {
        self.peaks = PoolKind::KINDS.map(|kind| Level::of(stats, kind).moved_by(self.net(kind)));
    }

    /// Lets the totals start again from zero. Nothing is in a cache.
    pub(crate) fn reset_totals(&mut self) {
        (self.risen, self.fallen, self.hits) = Default::default();
    }

    /// The engine's figures, put right.
    pub(crate) fn put_right(&self, mut stats: DeviceStats) -> DeviceStats {
        let parts = |amounts: &ByPool| [sum(amounts), amounts[0], amounts[1]];
        let (risen, fallen) = (parts(&self.risen), parts(&self.fallen));
        for (place, kind) in PoolKind::KINDS.into_iter().enumerate() {
            let (net, peak) = (self.net(kind), self.peaks[place]);
            let change = |array: &mut StatArray, part: fn(&Amounts) -> i64, peak: i64| {
                put_right(array, kind, [part(&net), part(&risen[place]), part(&fallen[place])], peak);
            };
            let blocks = |amounts: &Amounts| amounts.blocks;
            let bytes = |amounts: &Amounts| amounts.bytes;
            change(&mut stats.allocation, blocks, peak.allocated.blocks);
            change(&mut stats.allocated_bytes, bytes, peak.allocated.bytes);
            let requested_bytes = |amounts: &Amounts| amounts.requested_bytes;
            change(&mut stats.requested_bytes, requested_bytes, peak.allocated.requested_bytes);
            change(&mut stats.active, blocks, peak.active_blocks);
            change(&mut stats.active_bytes, bytes, peak.active_bytes);
        }
        stats.hits += self.hits;
        stats
    }
}

fn put_right(array: &mut StatArray, kind: PoolKind, [net, risen, fallen]: [i64; 3], peak: i64) {
    let stat: &mut Stat = match kind {
        PoolKind::All => &mut array.all,
        PoolKind::SmallPool => &mut array.small_pool,
        PoolKind::LargePool => &mut array.large_pool,
    };
    stat.current = stat.current.saturating_add_signed(net);
    stat.allocated = stat.allocated.saturating_add_signed(risen);
    stat.freed = stat.freed.saturating_add_signed(fallen);
    stat.peak = peak.unsigned_abs().max(stat.current);
}

/// Puts the engine's walk right by one ticket: what the caller holds of the block, less what the engine has of it.
pub(crate) fn put_walk_right(walked: &mut WalkedTotals, pool_place: usize, change: Amounts) {
    let pool = |tally: &mut crate::stats::Tally, amount: i64| {
        let part = if pool_place == 0 { &mut tally.small_pool } else { &mut tally.large_pool };
        *part = part.saturating_add_signed(amount);
        tally.all = tally.all.saturating_add_signed(amount);
    };
    pool(&mut walked.allocation, change.blocks);
    pool(&mut walked.allocated_bytes, change.bytes);
    pool(&mut walked.requested_bytes, change.requested_bytes);
    pool(&mut walked.active, change.blocks);
    pool(&mut walked.active_bytes, change.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: usize = 0;

    fn engine(blocks: u64, bytes: u64) -> DeviceStats {
        let mut stats = DeviceStats::default();
        for (array, amount) in [
            (&mut stats.allocation, blocks),
            (&mut stats.allocated_bytes, bytes),
            (&mut stats.requested_bytes, bytes),
            (&mut stats.active, blocks),
            (&mut stats.active_bytes, bytes),
        ] {
            array.increase(PoolKind::SmallPool, amount);
        }
        stats
    }

    #[test]
    fn a_block_that_goes_through_a_cache_is_counted_as_if_there_were_none() {
        let (mut ledger, mut counts) = (Ledger::default(), Counts::default());
        let mut stats = engine(2, 2048);
        ledger.note_peaks(&stats);
        // Both come back; one goes out again for less.
        counts.begin_again(SMALL, Amounts::one(1024, 1024));
        counts.begin_again(SMALL, Amounts::one(1024, 1024));
        counts.hand_out(SMALL, Amounts::one(1024, 1000));
        ledger.absorb(counts.take(), &stats);
        let seen = ledger.put_right(stats.clone());
        let (live, blocks) = (seen.requested_bytes.all, seen.allocation.small_pool);
        assert_eq!((live.current, live.peak, live.allocated, live.freed), (1000, 2048, 3048, 2048));
        assert_eq!((blocks.current, blocks.peak, blocks.allocated, blocks.freed), (1, 2, 3, 2));
        assert_eq!((seen.active_bytes.all.current, seen.hits), (1024, 1));
        // The other goes on to the engine.
        ledger.pass_on(SMALL, Amounts::one(1024, 1024));
        stats.allocation.decrease(PoolKind::SmallPool, 1);
        stats.requested_bytes.decrease(PoolKind::SmallPool, 1024);
        let seen = ledger.put_right(stats);
        let (live, blocks) = (seen.requested_bytes.all, seen.allocation.small_pool);
        assert_eq!((live.current, live.allocated, live.freed), (1000, 3048, 2048));
        assert_eq!((blocks.current, blocks.peak, blocks.freed), (1, 2, 2));
    }

    #[test]
    fn a_peak_between_two_tellings_is_seen() {
        let (mut ledger, mut counts) = (Ledger::default(), Counts::default());
        let stats = engine(3, 3072);
        counts.begin_again(SMALL, Amounts::one(1024, 1024));
        counts.begin_again(SMALL, Amounts::one(1024, 1024));
        ledger.absorb(counts.take(), &stats);
        ledger.reset_peaks(&stats);
        assert_eq!(ledger.put_right(stats.clone()).allocated_bytes.all.peak, 1024);
        let mut counts = Counts::default();
        counts.hand_out(SMALL, Amounts::one(1024, 600));
        counts.begin_again(SMALL, Amounts::one(1024, 600));
        ledger.absorb(counts.take(), &stats);
        let seen = ledger.put_right(stats);
        assert_eq!((seen.allocated_bytes.all.peak, seen.allocated_bytes.all.current), (2048, 1024));
        assert_eq!(seen.requested_bytes.all.peak, 1624);
    }
}
