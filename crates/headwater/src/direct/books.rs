//! The accounts of the direct allocator: which addresses are out, what they take up, what is owed to the driver.
//!
//! Pure bookkeeping: no lock, no driver. [`Direct`](super::Direct) keeps it behind a mutex and makes its driver calls
//! between two visits, so every change comes in two halves, and the books are exact between them:
//!
//! - allocate: [`promise`](Books::promise) sets the bytes aside under the limit, then [`admit`](Books::admit) on
//!   success or [`withdraw`](Books::withdraw) on failure. Bytes under way count against the limit, so two threads at
//!   once cannot pass it.
//! - give back: [`offer`](Books::offer) takes the block out, so that a second give-back is refused at once, then
//!   [`taken`](Books::taken) on success, or [`keep`](Books::keep) or [`owe`](Books::owe) on failure. Its bytes stay
//!   counted until the driver has them. The driver may give the address out again before `taken`: the new block is then
//!   in the books under the same address already, and `taken` leaves it alone.

use std::collections::{BTreeMap, VecDeque};

use headwater_driver::{DevicePtr, Stream};

use crate::allocator::{BlockFacts, BlockState};
use crate::error::AllocError;
use crate::stats::{DeviceStats, Differences, PoolKind, WalkedTotals};

/// How many addresses are remembered after give-back. A second give-back within this many is named as such; a later one
/// is a foreign pointer, because the driver has no memory of it either.
const REMEMBERED: usize = 1024;

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// What the caller has.
    pub(super) ptr: DevicePtr,
    /// What the driver gave; below `ptr` where the alignment asked for more than the driver promises.
    pub(super) base: DevicePtr,
    /// What the caller asked for.
    pub(super) requested_bytes: u64,
    /// What the driver was asked for.
    pub(super) reserved_bytes: u64,
    pub(super) stream: Stream,
}

impl Entry {
    fn contains(&self, ptr: DevicePtr) -> bool {
        ptr >= self.ptr && ptr.raw() - self.ptr.raw() < self.requested_bytes
    }

    fn facts(&self, state: BlockState) -> BlockFacts {
        BlockFacts::new(self.ptr, self.requested_bytes, self.reserved_bytes, self.stream, state)
    }
}

#[derive(Debug)]
pub(super) struct Books {
    limit_bytes: Option<u64>,
    live: BTreeMap<DevicePtr, Entry>,
    owed: VecDeque<Entry>,
    /// Offered to the driver at this moment, and what they were before: live or pending. As many as there are threads
    /// in a driver call.
    offered: Vec<(Entry, BlockState)>,
    given_back: VecDeque<DevicePtr>,
    /// What the driver is being asked for at this moment.
    promised_bytes: u64,
    pub(super) stats: DeviceStats,
}

/// What the driver gives for one request belongs to no pool.
const POOL: PoolKind = PoolKind::All;

impl Books {
    pub(super) fn new(limit_bytes: Option<u64>) -> Self {
        Self {
            limit_bytes,
            live: BTreeMap::new(),
            owed: VecDeque::new(),
            offered: Vec::new(),
            given_back: VecDeque::new(),
            promised_bytes: 0,
            stats: DeviceStats::default(),
        }
    }

    pub(super) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Sets `bytes` aside, unless the limit forbids it.
    pub(super) fn promise(&mut self, bytes: u64) -> bool {
        // No overflow: a request ends at 2^47, and so does what a driver can have given.
        let wanted_bytes = self.stats.reserved_bytes.all.current + self.promised_bytes + bytes;
        let allowed = self.limit_bytes.is_none_or(|limit_bytes| wanted_bytes <= limit_bytes);
        if allowed {
            self.promised_bytes += bytes;
        }
        allowed
    }

    /// The driver did not give what was promised.
    pub(super) fn withdraw(&mut self, bytes: u64) {
        self.promised_bytes -= bytes;
    }

    /// The driver gave what was promised.
    pub(super) fn admit(&mut self, entry: Entry) {
        self.withdraw(entry.reserved_bytes);
        self.live.insert(entry.ptr, entry);
        let stats = &mut self.stats;
        stats.misses += 1;
        stats.num_device_alloc += 1;
        stats.segment.increase(POOL, 1);
        stats.reserved_bytes.increase(POOL, entry.reserved_bytes);
        stats.active.increase(POOL, 1);
        stats.active_bytes.increase(POOL, entry.reserved_bytes);
        stats.allocation.increase(POOL, 1);
        stats.allocated_bytes.increase(POOL, entry.reserved_bytes);
        stats.requested_bytes.increase(POOL, entry.requested_bytes);
    }

    /// Takes a live block out for the time that it is offered to the driver. Its bytes stay counted.
    pub(super) fn offer(&mut self, ptr: DevicePtr) -> Result<Entry, AllocError> {
        let entry = self.find(ptr)?;
        self.live.remove(&ptr);
        self.offered.push((entry, BlockState::Live));
        if self.given_back.len() == REMEMBERED {
            self.given_back.pop_front();
        }
        self.given_back.push_back(ptr);
        Ok(entry)
    }

    /// Takes out the block that is owed longest, to be offered again. Its bytes stay counted.
    pub(super) fn offer_owed(&mut self) -> Option<Entry> {
        let entry = self.owed.pop_front()?;
        self.offered.push((entry, BlockState::Pending));
        Some(entry)
    }

    /// The driver took what was offered.
    pub(super) fn taken(&mut self, entry: Entry) {
        if self.withdraw_offer(entry) == BlockState::Live {
            self.count_given_back(entry);
        }
        let stats = &mut self.stats;
        stats.num_device_free += 1;
        stats.active.decrease(POOL, 1);
        stats.active_bytes.decrease(POOL, entry.reserved_bytes);
        stats.segment.decrease(POOL, 1);
        stats.reserved_bytes.decrease(POOL, entry.reserved_bytes);
    }

    /// The driver refused, and the caller is told and keeps the block.
    pub(super) fn keep(&mut self, entry: Entry) {
        self.withdraw_offer(entry);
        // The address cannot be anybody else's by now: the driver still has it as allocated.
        self.live.insert(entry.ptr, entry);
    }

    /// The driver refused, and the caller is gone. To the end of the list: one stubborn block must not stop the others.
    pub(super) fn owe(&mut self, entry: Entry) {
        if self.withdraw_offer(entry) == BlockState::Live {
            self.count_given_back(entry);
            self.stats.num_owed_give_backs += 1;
        }
        self.owed.push_back(entry);
    }

    /// How many blocks are owed.
    pub(super) fn owed_blocks(&self) -> usize {
        self.owed.len()
    }

    /// The live block that starts at `ptr`, or what is wrong with the address.
    pub(super) fn find(&self, ptr: DevicePtr) -> Result<Entry, AllocError> {
        match self.live_around(ptr) {
            Some(entry) if entry.ptr == ptr => Ok(entry),
            Some(entry) => Err(AllocError::InsideBlock { ptr, block: entry.ptr }),
            None if self.given_back.contains(&ptr) || self.owed.iter().any(|owed| owed.ptr == ptr) => {
                Err(AllocError::AlreadyGivenBack { ptr })
            }
            None => Err(AllocError::ForeignPointer { ptr }),
        }
    }

    /// The block, live or given back but not with the driver yet, that contains `ptr`.
    pub(super) fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        if let Some(entry) = self.live_around(ptr) {
            return Some(entry.facts(BlockState::Live));
        }
        let mut pending = self.offered.iter().map(|(entry, _)| entry).chain(&self.owed);
        pending.find(|entry| entry.contains(ptr)).map(|entry| entry.facts(BlockState::Pending))
    }

    /// Compares what was counted with what is in the books.
    pub(super) fn reconcile(&self) -> Result<(), Differences> {
        let mut walked = WalkedTotals::default();
        let live = self.live.values().map(|entry| (*entry, BlockState::Live));
        let owed = self.owed.iter().map(|entry| (*entry, BlockState::Pending));
        for (entry, state) in live.chain(owed).chain(self.offered.iter().copied()) {
            walked.segment.add(POOL, 1);
            walked.reserved_bytes.add(POOL, entry.reserved_bytes);
            walked.active.add(POOL, 1);
            walked.active_bytes.add(POOL, entry.reserved_bytes);
            if state == BlockState::Live {
                walked.allocation.add(POOL, 1);
                walked.allocated_bytes.add(POOL, entry.reserved_bytes);
                walked.requested_bytes.add(POOL, entry.requested_bytes);
            }
        }
        self.stats.reconcile(&walked)
    }

    /// Closes the books: everything that is still out or owed.
    pub(super) fn take_everything(&mut self) -> Vec<Entry> {
        let live = std::mem::take(&mut self.live);
        live.into_values().chain(self.owed.drain(..)).collect()
    }

    fn count_given_back(&mut self, entry: Entry) {
        self.stats.allocation.decrease(POOL, 1);
        self.stats.allocated_bytes.decrease(POOL, entry.reserved_bytes);
        self.stats.requested_bytes.decrease(POOL, entry.requested_bytes);
    }

    /// Ends an offer, and says what the block was before it.
    fn withdraw_offer(&mut self, entry: Entry) -> BlockState {
        let place = self.offered.iter().position(|(offered, _)| *offered == entry);
        place.map_or(BlockState::Live, |place| self.offered.swap_remove(place).1)
    }

    fn live_around(&self, ptr: DevicePtr) -> Option<Entry> {
        let (_, entry) = self.live.range(..=ptr).next_back()?;
        entry.contains(ptr).then_some(*entry)
    }
}
