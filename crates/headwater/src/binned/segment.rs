//! Segments and the records of their blocks.
//!
//! A segment is one `cuMemAlloc`, cut into blocks of one class. Each block has a record of one cache line; both are
//! reached from an address without a lock (`address_table`), also by threads that hold an address that is no longer theirs.
//! Therefore a segment's bookkeeping is never freed while the pool lives: a segment that went back to the driver leaves its
//! records to the next one of its class, and a word with another address in it tells a late reader that it is late.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use headwater_driver::DevicePtr;

use super::Slot;
use super::depot::Block;
use crate::address_table::PAGE_BYTES;
use crate::thread_cache::{State, Word};

/// Set in a record's owner where other streams use the block.
const HAS_USERS: usize = 1;

/// What is known about one block.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Record {
    pub(super) word: Word,
    /// What was asked for. Written by whoever hands the block out.
    requested_bytes: AtomicU64,
    /// The [key](crate::thread_cache::StreamKey) of the stream it belongs to.
    stream: AtomicU64,
    /// The first other stream that uses it, or 0. More of them are in the depot.
    user: AtomicU64,
    /// The thread slot that handed it out; and [`HAS_USERS`] in its lowest bit, so that one comparison sees both.
    owner: AtomicPtr<Slot>,
    segment: NonNull<Segment>,
}

// SAFETY: `segment` points to what lives as long as the record, and is only read. The rest is atomic.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Record {
    #[inline(always)]
    pub(super) fn segment(&self) -> &Segment {
        // SAFETY: records are part of their segment's bookkeeping, which is freed as a whole.
        unsafe { self.segment.as_ref() }
    }

    #[inline(always)]
    pub(super) fn requested_bytes(&self) -> u64 {
        self.requested_bytes.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn set_requested_bytes(&self, bytes: u64) {
        self.requested_bytes.store(bytes, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn stream(&self) -> u64 {
        self.stream.load(Ordering::Relaxed)
    }

    /// Puts the block, which is in hand, into the cache of a thread.
    pub(super) fn move_to(&self, owner: &Slot, stream: u64) {
        self.stream.store(stream, Ordering::Relaxed);
        self.owner.store(std::ptr::from_ref(owner).cast_mut(), Ordering::Relaxed);
    }

    /// Whether the block is the slot's, and no other stream uses it.
    #[inline(always)]
    pub(super) fn is_simply_owned_by(&self, slot: &Slot) -> bool {
        std::ptr::eq(self.owner.load(Ordering::Relaxed), slot)
    }

    /// The slot that handed it out. Slots stay as long as the pool.
    pub(super) fn owner(&self) -> *const Slot {
        self.owner.load(Ordering::Relaxed).map_addr(|address| address & !HAS_USERS)
    }

    pub(super) fn has_users(&self) -> bool {
        self.owner.load(Ordering::Relaxed).addr() & HAS_USERS != 0
    }

    /// Notes `stream` as a user. Says whether it is noted; if not, there is another in the only place.
    #[inline]
    pub(super) fn add_user(&self, stream: u64) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        if owner.addr() & HAS_USERS != 0 {
            return self.user.load(Ordering::Acquire) == stream;
        }
        let marked = owner.map_addr(|address| address | HAS_USERS);
        let first = self.owner.compare_exchange(owner, marked, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if first {
            self.user.store(stream, Ordering::Release);
        }
        first
    }

    /// Takes the first user out; 0 where there is none.
    pub(super) fn take_user(&self) -> u64 {
        self.owner.store(self.owner().cast_mut(), Ordering::Relaxed);
        self.user.swap(0, Ordering::AcqRel)
    }

    /// The first address.
    #[inline(always)]
    pub(super) fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.word.address())
    }
}

/// One piece of the driver's memory.
#[derive(Debug)]
pub(super) struct Segment {
    /// Where blocks begin, a multiple of [`PAGE_BYTES`]; 0 where the segment is not in use.
    base: AtomicU64,
    /// What the driver gave, to be given back to it.
    driver_base: AtomicU64,
    /// What the driver was asked for.
    reserved_bytes: AtomicU64,
    /// The size of a block; of a segment that goes straight through, what it takes up.
    block_bytes: AtomicU64,
    /// A record is found at the offset shifted by this much: no two blocks are nearer to each other.
    index_shift: u32,
    class: u32,
    blocks: u32,
    records: Box<[Record]>,
    free_blocks: FreeBlocks,
}

/// How many blocks are in the depot. Changed under the depot's lock, and in a cache line of its own: what lies beside it is
/// read on every hit.
#[derive(Debug)]
#[repr(align(128))]
struct FreeBlocks(AtomicU32);

impl Segment {
    /// The bookkeeping of a segment with `blocks` blocks of `block_bytes`; leaked, to be freed by
    /// [`free_bookkeeping`](Self::free_bookkeeping).
    pub(super) fn new(class: usize, blocks: u64, block_bytes: u64) -> NonNull<Self> {
        let index_shift = block_bytes.ilog2();
        let records = if blocks == 1 { 1 } else { ((blocks * block_bytes) >> index_shift) + 1 };
        let segment = NonNull::from(Box::leak(Box::new(Self {
            base: AtomicU64::new(0),
            driver_base: AtomicU64::new(0),
            reserved_bytes: AtomicU64::new(0),
            block_bytes: AtomicU64::new(block_bytes),
            index_shift: if blocks == 1 { 63 } else { index_shift },
            class: class as u32,
            blocks: blocks as u32,
            records: Box::default(),
            free_blocks: FreeBlocks(AtomicU32::new(0)),
        })));
        let record = |_| Record {
            word: Word::gone(),
            requested_bytes: AtomicU64::new(0),
            stream: AtomicU64::new(0),
            user: AtomicU64::new(0),
            owner: AtomicPtr::new(std::ptr::null_mut()),
            segment,
        };
        let records = (0..records).map(record).collect();
        // SAFETY: nobody else knows the segment yet.
        unsafe { (*segment.as_ptr()).records = records };
        segment
    }

    /// Frees the bookkeeping.
    ///
    /// # Safety
    /// It came from [`new`](Self::new), and nobody uses it or its records any more.
    pub(super) unsafe fn free_bookkeeping(segment: NonNull<Self>) {
        // SAFETY: the caller's promise; `new` leaked a box.
        drop(unsafe { Box::from_raw(segment.as_ptr()) });
    }

    /// Puts the driver's memory under the bookkeeping: `reserved_bytes` at `driver_base`, of which blocks use what begins at
    /// the first multiple of a page. All blocks are in hand of the caller afterwards.
    pub(super) fn begin(&self, driver_base: u64, reserved_bytes: u64, block_bytes: u64) {
        let base = driver_base.next_multiple_of(PAGE_BYTES);
        self.driver_base.store(driver_base, Ordering::Relaxed);
        self.reserved_bytes.store(reserved_bytes, Ordering::Relaxed);
        self.block_bytes.store(block_bytes, Ordering::Relaxed);
        self.free_blocks.0.store(0, Ordering::Relaxed);
        for block in 0..u64::from(self.blocks) {
            let address = base + block * block_bytes;
            let record = &self.records[((address - base) >> self.index_shift) as usize];
            record.word.set(address, State::Cached);
        }
        self.base.store(base, Ordering::Release);
    }

    /// The memory goes back to the driver: no address names a block of it any more.
    pub(super) fn end(&self) {
        self.base.store(0, Ordering::Relaxed);
        self.records.iter().for_each(|record| record.word.set(0, State::Gone));
    }

    /// The first block, which is the only one of a segment that goes straight through.
    pub(super) fn only_block(&self) -> Block {
        Block(NonNull::from(&self.records[0]))
    }

    /// The record that a block at `address` would have. Whether it has, the record's word tells.
    #[inline(always)]
    pub(super) fn record_at(&self, address: u64) -> Option<&Record> {
        let offset = address.wrapping_sub(self.base.load(Ordering::Relaxed));
        self.records.get((offset >> self.index_shift) as usize)
    }

    /// The record of the block around `address`.
    pub(super) fn record_around(&self, address: u64) -> Option<&Record> {
        let (base, block_bytes) = (self.base(), self.block_bytes());
        let block = address.checked_sub(base)? / block_bytes;
        let record = self.record_at(base + block * block_bytes)?;
        (record.word.address() == base + block * block_bytes).then_some(record)
    }

    /// All records that have a block.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.word.address() != 0)
    }

    pub(super) fn base(&self) -> u64 {
        self.base.load(Ordering::Relaxed)
    }

    pub(super) fn driver_base(&self) -> DevicePtr {
        DevicePtr::new(self.driver_base.load(Ordering::Relaxed))
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// What lies in pages of the segment's own: all of it but what alignment took.
    pub(super) fn paged_bytes(&self) -> u64 {
        (u64::from(self.blocks) * self.block_bytes()).next_multiple_of(PAGE_BYTES)
    }

    #[inline(always)]
    pub(super) fn block_bytes(&self) -> u64 {
        self.block_bytes.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn class(&self) -> usize {
        self.class as usize
    }

    /// Counts blocks that came to the depot, or left it.
    pub(super) fn count_free(&self, came: bool) {
        let free = self.free_blocks.0.load(Ordering::Relaxed);
        self.free_blocks.0.store(if came { free + 1 } else { free - 1 }, Ordering::Relaxed);
    }

    /// Whether all blocks are in the depot.
    pub(super) fn is_free(&self) -> bool {
        self.free_blocks.0.load(Ordering::Relaxed) == self.blocks
    }
}
