//! What a thread has in its slot: free blocks, blocks of others on their way home, and its share of the statistics.
//!
//! Counts change together with the state of a block, inside the slot's latch. So with all latches held, the counts of all
//! threads add up to the states of all blocks, whatever else is under way.
//!
//! Peaks need a sum over all threads at every moment, which threads that share nothing do not have. Each keeps how far its own
//! level has moved since it last told, and how far up that went; it tells whenever it leaves the hit path
//! ([`Peaks::absorb`]). With one thread that is exact. With several, a peak can be wrong by what the others have moved
//! since, which is less than the bytes a cache may hold: no thread gets further without leaving the hit path.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, Ordering};

use super::Slot;
use super::segment::Record;
use crate::thread_cache::{Bins, Message, Tally};

/// How many blocks of one owner are sent together.
const BATCH_BLOCKS: usize = 16;

/// How many owners a thread collects for at once.
const BATCHES: usize = 4;

/// What happened to blocks of one class in one thread beside the hit path. All only rise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassCount {
    pub(super) tally: Tally,
    /// Given back, and waiting for streams; and no longer.
    pub(super) pended: u64,
    pub(super) unpended: u64,
    /// Calls that the thread's cache could not serve, in either direction.
    pub(super) depot_visits: u64,
}

/// What went straight through in one thread: its blocks have no common size, so bytes are counted. All only rise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StraightBytes {
    pub(super) handed_out: u64,
    pub(super) given_back: u64,
    pub(super) pended: u64,
    pub(super) unpended: u64,
}

/// How far something moved since it was last told, and the furthest up it was.
#[derive(Clone, Copy, Debug, Default)]
struct Drift {
    now: i64,
    most: i64,
}

impl Drift {
    #[inline(always)]
    fn up(&mut self, amount: u64) {
        self.now += amount as i64;
        // Rarely so, and then a branch is cheaper than a store every time.
        if self.now > self.most {
            self.most = self.now;
        }
    }

    #[inline(always)]
    fn down(&mut self, amount: u64) {
        self.now -= amount as i64;
    }
}

/// What one thread keeps.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) bins: Bins<Record>,
    /// By class; the last is for what goes straight through.
    pub(super) counts: Box<[ClassCount]>,
    pub(super) straight: StraightBytes,
    blocks: Drift,
    allocated_bytes: Drift,
    requested_bytes: Drift,
    outgoing: [Outgoing; BATCHES],
}

impl Cache {
    pub(super) fn new(block_bytes: Box<[u64]>, bytes_max: u64) -> Self {
        Self {
            counts: vec![ClassCount::default(); block_bytes.len() + 1].into(),
            bins: Bins::new(block_bytes, bytes_max),
            straight: StraightBytes::default(),
            blocks: Drift::default(),
            allocated_bytes: Drift::default(),
            requested_bytes: Drift::default(),
            outgoing: std::array::from_fn(|_| Outgoing::default()),
        }
    }

    /// A caller holds one block more.
    #[inline(always)]
    pub(super) fn rise(&mut self, block_bytes: u64, requested_bytes: u64) {
        self.blocks.up(1);
        self.allocated_bytes.up(block_bytes);
        self.requested_bytes.up(requested_bytes);
    }

    /// A caller holds one block less.
    #[inline(always)]
    pub(super) fn fall(&mut self, block_bytes: u64, requested_bytes: u64) {
        self.blocks.down(1);
        self.allocated_bytes.down(block_bytes);
        self.requested_bytes.down(requested_bytes);
    }

    /// Counts a block that goes out beside the hit path.
    pub(super) fn count_out(&mut self, class: usize, block_bytes: u64, requested_bytes: u64) {
        let tally = &mut self.counts[class].tally;
        tally.handed_out += 1;
        tally.requested_bytes_out += requested_bytes;
        self.rise(block_bytes, requested_bytes);
    }

    /// Counts a block that comes back beside the hit path.
    pub(super) fn count_back(&mut self, class: usize, block_bytes: u64, requested_bytes: u64) {
        let tally = &mut self.counts[class].tally;
        tally.given_back = tally.given_back.wrapping_add(1);
        tally.requested_bytes_back = tally.requested_bytes_back.wrapping_add(requested_bytes);
        self.fall(block_bytes, requested_bytes);
    }

    /// Takes back a [`count_back`](Self::count_back) of another thread that turned out to be of nothing.
    pub(super) fn uncount_back(&mut self, class: usize, block_bytes: u64, requested_bytes: u64) {
        let tally = &mut self.counts[class].tally;
        tally.given_back = tally.given_back.wrapping_sub(1);
        tally.requested_bytes_back = tally.requested_bytes_back.wrapping_sub(requested_bytes);
        self.rise(block_bytes, requested_bytes);
    }

    /// Everything counted of a class.
    pub(super) fn class_count(&self, class: usize) -> ClassCount {
        let mut count = self.counts[class];
        count.tally.add(&self.bins.tally(class));
        count
    }

    /// Puts a block of `owner` with others of the same, and returns those that are to be sent now.
    pub(super) fn post(&mut self, owner: *const Slot, message: Message<Record>) -> Option<Outgoing> {
        // Slots are 128 bytes or more apart.
        let place = owner as usize / 128 % BATCHES;
        let batch = &mut self.outgoing[place];
        let full = batch.messages.len() >= BATCH_BLOCKS;
        let due = (full || batch.owner != owner && !batch.messages.is_empty()).then(|| std::mem::take(batch));
        batch.owner = owner;
        if batch.messages.capacity() == 0 {
            batch.messages.reserve_exact(BATCH_BLOCKS);
        }
        batch.messages.push(message);
        due
    }

    /// Everything that waits to be sent.
    pub(super) fn take_outgoing(&mut self) -> impl Iterator<Item = Outgoing> + '_ {
        self.outgoing.iter_mut().filter(|batch| !batch.messages.is_empty()).map(std::mem::take)
    }
}

/// Blocks that a thread gave back for another.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) owner: *const Slot,
    pub(super) messages: Vec<Message<Record>>,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self { owner: std::ptr::null(), messages: Vec::new() }
    }
}

// SAFETY: the pointers are to slots and records, which may be used from any thread.
unsafe impl Send for Outgoing {}

/// Blocks in hand, by class.
#[derive(Debug, Default)]
pub(super) struct InHand(pub(super) Vec<(usize, NonNull<Record>)>);

/// One level over all threads, and the most it was.
#[derive(Debug, Default)]
struct Level {
    now: AtomicI64,
    peak: AtomicI64,
}

impl Level {
    /// Takes over what a thread has to tell. Returns where the level was at the highest.
    fn absorb(&self, drift: &mut Drift) -> i64 {
        let Drift { now, most } = std::mem::take(drift);
        let highest = self.now.fetch_add(now, Ordering::Relaxed) + most;
        self.peak.fetch_max(highest, Ordering::Relaxed);
        highest
    }

    fn peak(&self) -> u64 {
        u64::try_from(self.peak.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn reset(&self) {
        self.peak.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The peaks over all threads. In cache lines of their own: what lies beside them is read on every hit.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Peaks {
    blocks: Level,
    allocated_bytes: Level,
    requested_bytes: Level,
    /// Given back and waiting for streams; on top of the others where active blocks are counted.
    pending_blocks: AtomicI64,
    pending_bytes: AtomicI64,
    active_blocks_peak: AtomicI64,
    active_bytes_peak: AtomicI64,
}

/// The peaks as numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeakValues {
    pub(super) blocks: u64,
    pub(super) allocated_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) active_blocks: u64,
    pub(super) active_bytes: u64,
}

impl Peaks {
    /// Takes over what a thread has to tell.
    pub(super) fn absorb(&self, cache: &mut Cache) {
        let blocks = self.blocks.absorb(&mut cache.blocks);
        let allocated_bytes = self.allocated_bytes.absorb(&mut cache.allocated_bytes);
        self.requested_bytes.absorb(&mut cache.requested_bytes);
        self.note_active(blocks, allocated_bytes);
    }

    /// A block waits for streams from now on, or no longer. After the thread has [told](Self::absorb).
    pub(super) fn pend(&self, block_bytes: u64, from_now_on: bool) {
        let sign = if from_now_on { 1 } else { -1 };
        self.pending_blocks.fetch_add(sign, Ordering::Relaxed);
        self.pending_bytes.fetch_add(sign * block_bytes as i64, Ordering::Relaxed);
        self.note_active(
            self.blocks.now.load(Ordering::Relaxed),
            self.allocated_bytes.now.load(Ordering::Relaxed),
        );
    }

    fn note_active(&self, blocks: i64, allocated_bytes: i64) {
        let blocks = blocks + self.pending_blocks.load(Ordering::Relaxed);
        let bytes = allocated_bytes + self.pending_bytes.load(Ordering::Relaxed);
        self.active_blocks_peak.fetch_max(blocks, Ordering::Relaxed);
        self.active_bytes_peak.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(super) fn values(&self) -> PeakValues {
        let value = |peak: &AtomicI64| u64::try_from(peak.load(Ordering::Relaxed)).unwrap_or(0);
        PeakValues {
            blocks: self.blocks.peak(),
            allocated_bytes: self.allocated_bytes.peak(),
            requested_bytes: self.requested_bytes.peak(),
            active_blocks: value(&self.active_blocks_peak),
            active_bytes: value(&self.active_bytes_peak),
        }
    }

    /// Lets the peaks start again from now. After every thread has told.
    pub(super) fn reset(&self) {
        for level in [&self.blocks, &self.allocated_bytes, &self.requested_bytes] {
            level.reset();
        }
        self.active_blocks_peak.store(0, Ordering::Relaxed);
        self.active_bytes_peak.store(0, Ordering::Relaxed);
        self.note_active(
            self.blocks.now.load(Ordering::Relaxed),
            self.allocated_bytes.now.load(Ordering::Relaxed),
        );
    }
}
