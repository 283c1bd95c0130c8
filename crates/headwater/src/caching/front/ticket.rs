//! A ticket: what is known about one block without the engine's lock, for as long as a caller or a thread has it.
//!
//! The engine issues a ticket with every block it hands out, and takes it in when the block comes back to it. In between the
//! block may go through thread caches any number of times: for the engine it is live all the while, and the ticket says what
//! it really is. Tickets live in memory that holds nothing else before the allocator goes, so a late reader meets a ticket, of
//! this block or of another; which one, the word tells.
//!
//! A block that other streams use, or that cannot be kept for another reason, has a mark in its word beside the address
//! ([`Doing::Special`]): it does not match what the hit path expects, and goes to the engine.
//!
//! **Who takes a live block back.** A thread that did not hand it out, by an exchange: of several, one succeeds. The thread that did,
//! by an exchange where the block is above [`OWN_UNITS_MAX`], and by a plain store where it is not: an exchange waits for every
//! store before it, and is a third of a pair (6 of 21 ns, measured). A plain store can hide the exchange of another thread that gives
//! back the same block *in the same nanoseconds*. Then both are told that it worked, the other's message is found to be about a
//! block that was not sent, and is dropped: the block is taken back exactly once. That is why such blocks never go from
//! another thread straight to the engine. A second give-back that comes after the first, in any thread, is always refused.
//!
//! While the word says live, the fields are the block's; whoever changes the word to another state has the block in hand
//! and may change them.

use std::ptr;

use headwater_driver::DevicePtr;

use super::Slot;
use crate::config::MIN_BLOCK_BYTES;
use crate::stats::PoolKind;
use crate::thread_cache::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::thread_cache::{State, Word};

/// In the word, above the 48 bits of an address: the block is not to be kept.
const SPECIAL: u64 = 1 << 48;

/// Up to 1 MiB the thread that handed a block out takes it back by a plain store.
pub(crate) const OWN_UNITS_MAX: u32 = ((1 << 20) / MIN_BLOCK_BYTES) as u32;

/// What the block of a ticket is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// A caller holds it.
    Live,
    /// A caller holds it, and it goes to the engine when it comes back.
    Special,
    /// A thread keeps it.
    Kept,
    /// It is on its way to the thread that handed it out.
    Sent,
    /// There is no block.
    Gone,
}

/// What is known about one block. Alone in its cache lines: neighbours are other threads'.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Ticket {
    /// The address that callers know, and what the block is doing.
    word: Word,
    /// The ticket below it in its bin.
    next: AtomicPtr<Ticket>,
    /// The [key](crate::thread_cache::StreamKey) of the stream it belongs to; 0 where that stream is gone.
    stream: AtomicU64,
    /// The slot of the thread that it was handed out by.
    owner: AtomicPtr<Slot>,
    /// What the block takes up.
    block_bytes: AtomicU64,
    /// What was asked for the last time.
    requested_bytes: AtomicU64,
    /// The rounded size of the requests that it serves, in units of the smallest block; 0 where it is never kept.
    units: AtomicU32,
    is_small_pool: AtomicBool,
    /// How many requests its thread had made when it was handed out; when it came back, how many it had lived for.
    life: AtomicU32,
    /// The first other stream that uses it, or 0. More of them are with the engine.
    user: AtomicU64,
}

/// What a ticket is issued with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issue {
    pub(crate) stream: u64,
    pub(crate) owner: *const Slot,
    pub(crate) block_bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) units: u32,
    pub(crate) pool: PoolKind,
}

impl Ticket {
    pub(crate) fn new() -> Self {
        Self {
            word: Word::gone(),
            next: AtomicPtr::new(ptr::null_mut()),
            stream: AtomicU64::new(0),
            owner: AtomicPtr::new(ptr::null_mut()),
            block_bytes: AtomicU64::new(0),
            requested_bytes: AtomicU64::new(0),
            units: AtomicU32::new(0),
            is_small_pool: AtomicBool::new(false),
            life: AtomicU32::new(0),
            user: AtomicU64::new(0),
        }
    }

    /// Fills in everything but the word.
    pub(crate) fn fill_in(&self, issue: &Issue) {
        self.stream.store(issue.stream, Ordering::Relaxed);
        self.owner.store(issue.owner.cast_mut(), Ordering::Relaxed);
        self.block_bytes.store(issue.block_bytes, Ordering::Relaxed);
        self.requested_bytes.store(issue.requested_bytes, Ordering::Relaxed);
        self.units.store(issue.units, Ordering::Relaxed);
        self.is_small_pool.store(issue.pool == PoolKind::SmallPool, Ordering::Relaxed);
        self.user.store(0, Ordering::Relaxed);
    }

    /// The address and what the block is doing.
    #[inline]
    pub(crate) fn read(&self) -> (u64, Doing) {
        let (marked, state) = self.word.read();
        let doing = match state {
            State::Live if marked & SPECIAL != 0 => Doing::Special,
            State::Live => Doing::Live,
            State::Cached => Doing::Kept,
            State::Sent => Doing::Sent,
            _ => Doing::Gone,
        };
        (marked & !SPECIAL, doing)
    }

    /// Whether no caller holds the block.
    pub(crate) fn is_in_cache(&self) -> bool {
        matches!(self.read().1, Doing::Kept | Doing::Sent)
    }

    /// Whether this is the block at `address`, live and nothing special.
    #[inline(always)]
    pub(crate) fn is_live_at(&self, address: u64) -> bool {
        self.word.is_live_at(address)
    }

    /// Sets what the block does. For whoever has it in hand.
    #[inline(always)]
    pub(crate) fn set(&self, address: u64, doing: Doing) {
        let (address, state) = worded(address, doing);
        self.word.set(address, state);
    }

    /// Changes what the block at `address` does. Of several threads that do, one succeeds.
    #[inline(always)]
    pub(crate) fn exchange(&self, address: u64, from: Doing, to: Doing) -> bool {
        self.word.exchange(worded(address, from), worded(address, to))
    }

    /// The thread that handed the block out takes it back, by a plain store. Says whether it was live.
    #[inline(always)]
    pub(crate) fn take_back_own(&self, address: u64) -> bool {
        self.word.give_back_own(address, State::Cached)
    }

    /// Whoever received the message about a sent block takes it in hand. Says whether there was a block to take.
    pub(crate) fn receive(&self) -> bool {
        self.word.receive()
    }

    #[inline(always)]
    pub(crate) fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.word.address() & !SPECIAL)
    }

    #[inline(always)]
    pub(crate) fn next(&self) -> *const Ticket {
        self.next.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_next(&self, next: *const Ticket) {
        self.next.store(next.cast_mut(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn stream(&self) -> u64 {
        self.stream.load(Ordering::Relaxed)
    }

    /// The stream is gone, and its name may come to mean another one.
    pub(crate) fn lose_stream(&self) {
        self.stream.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn owner(&self) -> *const Slot {
        self.owner.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn requested_bytes(&self) -> u64 {
        self.requested_bytes.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_requested_bytes(&self, bytes: u64) {
        self.requested_bytes.store(bytes, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn units(&self) -> u32 {
        self.units.load(Ordering::Relaxed)
    }

    /// The place of its pool in counts that are kept by pool.
    #[inline(always)]
    pub(crate) fn pool_place(&self) -> usize {
        usize::from(!self.is_small_pool.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_life(&self, life: u32) {
        self.life.store(life, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn user(&self) -> u64 {
        self.user.load(Ordering::Acquire)
    }

    /// Notes the first other stream that uses the block, for whoever has just made the word say so.
    #[inline(always)]
    pub(crate) fn set_user(&self, user: u64) {
        self.user.store(user, Ordering::Release);
    }
}

#[inline(always)]
fn worded(address: u64, doing: Doing) -> (u64, State) {
    match doing {
        Doing::Live => (address, State::Live),
        Doing::Special => (address | SPECIAL, State::Live),
        Doing::Kept => (address, State::Cached),
        Doing::Sent => (address, State::Sent),
        Doing::Gone => (address, State::Gone),
    }
}

/// The rounded size of a request in units of the smallest block, where a ticket can hold it.
#[inline(always)]
pub(crate) fn units_of(block_bytes: u64) -> u32 {
    u32::try_from(block_bytes / MIN_BLOCK_BYTES).unwrap_or(0)
}
