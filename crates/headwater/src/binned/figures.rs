//! What is counted: the pool's part of it, the sums over all threads, and the comparison with what is there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_driver::DevicePtr;
use parking_lot::Mutex;

use super::AllStopped;
use super::cache::{ClassCount, StraightBytes};
use super::classes::Classes;
use super::depot::Depot;
use super::pool::Pool;
use super::segment::Record;
use crate::stats::{DeviceStats, Differences, PoolKind, Stat, WalkedTotals};
use crate::thread_cache::State;

/// How many addresses that went back to the driver are remembered, to tell a second give-back from a foreign pointer.
const REMEMBERED: usize = 1024;

/// Blocks of size classes belong to no pool in the sense of the caching allocator.
const POOL: PoolKind = PoolKind::All;

/// What happened between the pool and the driver. In cache lines of its own: what lies beside it is read on every hit.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Ledger {
    limit_bytes: Option<u64>,
    /// What the driver gave, and what it is being asked for at this moment. The limit is on this.
    charged_bytes: AtomicU64,
    reserved_bytes: AtomicU64,
    reserved_bytes_peak: AtomicU64,
    segments: AtomicU64,
    segments_peak: AtomicU64,
    reserved_bytes_in: AtomicU64,
    reserved_bytes_out: AtomicU64,
    segments_in: AtomicU64,
    segments_out: AtomicU64,
    retries: AtomicU64,
    looks: AtomicU64,
    ooms: AtomicU64,
    oom_rejections: AtomicU64,
    owed: AtomicU64,
    returned: Mutex<VecDeque<DevicePtr>>,
    /// All totals at the last reset.
    before_reset: Mutex<DeviceStats>,
}

impl Ledger {
    pub(super) fn new(limit_bytes: Option<u64>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            limit_bytes,
            charged_bytes: zero(),
            reserved_bytes: zero(),
            reserved_bytes_peak: zero(),
            segments: zero(),
            segments_peak: zero(),
            reserved_bytes_in: zero(),
            reserved_bytes_out: zero(),
            segments_in: zero(),
            segments_out: zero(),
            retries: zero(),
            looks: zero(),
            ooms: zero(),
            oom_rejections: zero(),
            owed: zero(),
            returned: Mutex::default(),
            before_reset: Mutex::default(),
        }
    }

    /// Sets `bytes` aside, unless the limit forbids it.
    pub(super) fn promise(&self, bytes: u64) -> bool {
        let limit_bytes = self.limit_bytes.unwrap_or(u64::MAX);
        let within = |charged: u64| charged.checked_add(bytes).filter(|wanted| *wanted <= limit_bytes);
        // Relaxed: the count publishes nothing, and an update sees the latest value in any order.
        self.charged_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// The driver did not give what was promised, or has it again.
    pub(super) fn withdraw(&self, bytes: u64) {
        self.charged_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The driver gave what was promised. Under the lock of the class that has it.
    pub(super) fn admit(&self, bytes: u64) {
        let now = self.reserved_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.reserved_bytes_peak.fetch_max(now, Ordering::Relaxed);
        let now = self.segments.fetch_add(1, Ordering::Relaxed) + 1;
        self.segments_peak.fetch_max(now, Ordering::Relaxed);
        self.reserved_bytes_in.fetch_add(bytes, Ordering::Relaxed);
        self.segments_in.fetch_add(1, Ordering::Relaxed);
    }

    /// The driver has it again. Under the lock of the class that had it.
    pub(super) fn returned(&self, bytes: u64) {
        self.reserved_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.segments.fetch_sub(1, Ordering::Relaxed);
        self.reserved_bytes_out.fetch_add(bytes, Ordering::Relaxed);
        self.segments_out.fetch_add(1, Ordering::Relaxed);
        self.withdraw(bytes);
    }

    pub(super) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// How often other threads and streams were searched for blocks, without pressure.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    pub(super) fn count_oom(&self, over_limit: bool) {
        self.ooms.fetch_add(1, Ordering::Relaxed);
        self.oom_rejections.fetch_add(u64::from(over_limit), Ordering::Relaxed);
    }

    pub(super) fn count_owed(&self) {
        self.owed.fetch_add(1, Ordering::Relaxed);
    }

    /// A block that is about to leave the address table.
    pub(super) fn remember(&self, ptr: DevicePtr) {
        let mut returned = self.returned.lock();
        if returned.len() == REMEMBERED {
            returned.pop_front();
        }
        returned.push_back(ptr);
    }

    pub(super) fn was_returned(&self, ptr: DevicePtr) -> bool {
        self.returned.lock().contains(&ptr)
    }
}

/// The statistics of one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// The size of its blocks.
    pub block_bytes: u64,
    /// Requests served from a cache.
    pub hits: u64,
    /// Requests that needed the driver.
    pub misses: u64,
    /// Blocks that callers hold.
    pub in_use_blocks: u64,
    /// Blocks that were given back and wait for a stream.
    pub pending_blocks: u64,
    /// Blocks that are ready, in threads' caches and in the depot.
    pub cached_blocks: u64,
    /// What rounding takes up in the blocks that callers hold.
    pub wasted_bytes: u64,
    /// What the driver gave for this class.
    pub reserved_bytes: u64,
    /// Requests and give-backs that a thread's own cache could not serve, so that it went to what all threads share. The
    /// share of them in all calls is how often threads can be in each other's way.
    pub depot_visits: u64,
}

/// The sums over all threads.
#[derive(Debug)]
struct Sums {
    classes: Vec<ClassCount>,
    straight: StraightBytes,
}

impl Sums {
    fn total(&self, of: impl Fn(&ClassCount) -> u64) -> u64 {
        self.classes.iter().map(of).sum()
    }

    /// A total of bytes: blocks times their class's size, and `straight` bytes.
    fn total_bytes(&self, classes: Classes, straight: u64, of: impl Fn(&ClassCount) -> u64) -> u64 {
        let sized = self.classes.iter().enumerate().take(self.classes.len() - 1);
        sized.map(|(class, count)| of(count) * classes.bytes(class)).sum::<u64>() + straight
    }
}

impl Pool {
    /// The sums; the peaks are up to date afterwards.
    fn sums(&self, stopped: &mut AllStopped<'_>) -> Sums {
        let mut sums = Sums {
            classes: vec![ClassCount::default(); self.depots.len()],
            straight: StraightBytes::default(),
        };
        stopped.each(|_, cache| {
            self.peaks.absorb(cache);
            for (class, sum) in sums.classes.iter_mut().enumerate() {
                let count = cache.class_count(class);
                sum.tally.add(&count.tally);
                sum.pended = sum.pended.wrapping_add(count.pended);
                sum.unpended = sum.unpended.wrapping_add(count.unpended);
                sum.depot_visits += count.depot_visits;
            }
            sums.straight.handed_out += cache.straight.handed_out;
            sums.straight.given_back += cache.straight.given_back;
            sums.straight.pended += cache.straight.pended;
            sums.straight.unpended += cache.straight.unpended;
        });
        sums
    }

    pub(super) fn stats(&self) -> DeviceStats {
        let sums = self.caches.stop(|stopped| self.sums(stopped));
        let mut stats = self.totals(&sums);
        since(&mut stats, &self.ledger.before_reset.lock());
        stats
    }

    /// The statistics as if no total had ever been reset.
    fn totals(&self, sums: &Sums) -> DeviceStats {
        let (classes, straight, ledger) = (self.classes, sums.straight, &self.ledger);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let peaks = self.peaks.values();
        let left = |count: &ClassCount| count.tally.given_back + count.unpended - count.pended;
        let mut stats = DeviceStats::default();
        stats.allocation.all = stat(
            sums.total(|count| count.tally.handed_out),
            sums.total(|count| count.tally.given_back),
            peaks.blocks,
        );
        stats.requested_bytes.all = stat(
            sums.total(|count| count.tally.requested_bytes_out),
            sums.total(|count| count.tally.requested_bytes_back),
            peaks.requested_bytes,
        );
        let out_bytes = sums.total_bytes(classes, straight.handed_out, |count| count.tally.handed_out);
        let back_bytes = sums.total_bytes(classes, straight.given_back, |count| count.tally.given_back);
        stats.allocated_bytes.all = stat(out_bytes, back_bytes, peaks.allocated_bytes);
        stats.active.all =
            stat(sums.total(|count| count.tally.handed_out), sums.total(left), peaks.active_blocks);
        let straight_left = straight.given_back + straight.unpended - straight.pended;
        let left_bytes = sums.total_bytes(classes, straight_left, left);
        stats.active_bytes.all = stat(out_bytes, left_bytes, peaks.active_bytes);
        stats.segment.all =
            stat(read(&ledger.segments_in), read(&ledger.segments_out), read(&ledger.segments_peak));
        stats.reserved_bytes.all = stat(
            read(&ledger.reserved_bytes_in),
            read(&ledger.reserved_bytes_out),
            read(&ledger.reserved_bytes_peak),
        );
        stats.misses = self.depots.iter().map(|depot| read(&depot.misses)).sum();
        stats.hits = stats.allocation.all.allocated.saturating_sub(stats.misses);
        stats.num_device_alloc = read(&ledger.segments_in);
        stats.num_device_free = read(&ledger.segments_out);
        stats.num_alloc_retries = read(&ledger.retries);
        stats.num_ooms = read(&ledger.ooms);
        stats.num_oom_rejections = read(&ledger.oom_rejections);
        stats.num_owed_give_backs = read(&ledger.owed);
        stats
    }

    pub(super) fn class_stats(&self) -> Vec<ClassStats> {
        let (sums, held) = self.caches.stop(|stopped| (self.sums(stopped), self.held()));
        self.classes
            .in_use()
            .map(|class| {
                let (count, (blocks, reserved_bytes)) = (&sums.classes[class], held[class]);
                let block_bytes = self.classes.bytes(class);
                let misses = self.depots[class].misses.load(Ordering::Relaxed);
                let in_use_blocks = count.tally.handed_out - count.tally.given_back;
                let pending_blocks = count.pended - count.unpended;
                let requested_bytes = count.tally.requested_bytes_out - count.tally.requested_bytes_back;
                ClassStats {
                    block_bytes,
                    hits: count.tally.handed_out.saturating_sub(misses),
                    misses,
                    in_use_blocks,
                    pending_blocks,
                    cached_blocks: blocks.saturating_sub(in_use_blocks + pending_blocks),
                    wasted_bytes: (in_use_blocks * block_bytes).saturating_sub(requested_bytes),
                    reserved_bytes,
                    depot_visits: count.depot_visits,
                }
            })
            .collect()
    }

    /// By class, how many blocks there are and what they were cut out of.
    fn held(&self) -> Vec<(u64, u64)> {
        let held = |depot: &Depot| {
            let shelf = depot.lock();
            let owed = shelf.owed.iter().map(|owed| owed.segment);
            shelf.segments.iter().copied().chain(owed).fold((0, 0), |(blocks, bytes), segment| {
                (blocks + segment.records().count() as u64, bytes + segment.reserved_bytes())
            })
        };
        self.depots.iter().map(held).collect()
    }

    pub(super) fn reset_peaks(&self) {
        self.caches.stop(|stopped| {
            self.sums(stopped);
            self.peaks.reset();
        });
        let ledger = &self.ledger;
        for (now, peak) in
            [(&ledger.reserved_bytes, &ledger.reserved_bytes_peak), (&ledger.segments, &ledger.segments_peak)]
        {
            peak.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(super) fn reset_totals(&self) {
        let sums = self.caches.stop(|stopped| self.sums(stopped));
        *self.ledger.before_reset.lock() = self.totals(&sums);
    }

    /// Stops every thread and every class, walks all blocks, and compares.
    pub(super) fn reconcile(&self) -> Result<(), Differences> {
        self.caches.stop(|stopped| {
            let shelves: Vec<_> = self.depots.iter().map(Depot::lock).collect();
            let mut walked = WalkedTotals::default();
            for shelf in &shelves {
                for segment in
                    shelf.segments.iter().copied().chain(shelf.owed.iter().map(|owed| owed.segment))
                {
                    walked.segment.add(POOL, 1);
                    walked.reserved_bytes.add(POOL, segment.reserved_bytes());
                    for record in segment.records() {
                        walk_block(&mut walked, record);
                    }
                }
            }
            let stats = self.totals(&self.sums(stopped));
            stats.reconcile(&walked)
        })
    }
}

fn walk_block(walked: &mut WalkedTotals, record: &Record) {
    let block_bytes = record.segment().block_bytes();
    let state = record.word.read().1;
    let is_live = matches!(state, State::Live | State::Offered);
    if is_live || state == State::Pending {
        walked.active.add(POOL, 1);
        walked.active_bytes.add(POOL, block_bytes);
    }
    if is_live {
        walked.allocation.add(POOL, 1);
        walked.allocated_bytes.add(POOL, block_bytes);
        walked.requested_bytes.add(POOL, record.requested_bytes());
    }
}

/// A count that rose by `risen`, fell by `fallen`, and was `peak` at the highest.
fn stat(risen: u64, fallen: u64, peak: u64) -> Stat {
    let mut stat = Stat::default();
    stat.increase(risen);
    stat.decrease(fallen);
    stat.peak = peak.max(stat.current);
    stat
}

/// Takes from every total what it was `before`.
fn since(stats: &mut DeviceStats, before: &DeviceStats) {
    for (array, before) in [
        (&mut stats.allocation, &before.allocation),
        (&mut stats.active, &before.active),
        (&mut stats.segment, &before.segment),
        (&mut stats.allocated_bytes, &before.allocated_bytes),
        (&mut stats.active_bytes, &before.active_bytes),
        (&mut stats.reserved_bytes, &before.reserved_bytes),
        (&mut stats.requested_bytes, &before.requested_bytes),
    ] {
        array.all.allocated -= before.all.allocated;
        array.all.freed -= before.all.freed;
    }
    for (counter, before) in [
        (&mut stats.hits, before.hits),
        (&mut stats.misses, before.misses),
        (&mut stats.num_device_alloc, before.num_device_alloc),
        (&mut stats.num_device_free, before.num_device_free),
        (&mut stats.num_alloc_retries, before.num_alloc_retries),
        (&mut stats.num_ooms, before.num_ooms),
        (&mut stats.num_oom_rejections, before.num_oom_rejections),
        (&mut stats.num_owed_give_backs, before.num_owed_give_backs),
    ] {
        *counter -= before;
    }
}
