//! Per-thread caches in front of the engine: a pair of calls that finds its block here takes some nanoseconds, no lock and no
//! driver call.
//!
//! For the engine a block that a thread keeps is still live: its bytes stay where they are, and nobody else can have them. What
//! the block really is, its [`Ticket`] says: live, or in a cache. Whoever gives a block back changes the ticket's word, and takes
//! back what it says: a block is taken back once, whatever threads try (`ticket.rs`). A block that another stream uses, or that
//! is special in another way, is marked in the same word and goes to the engine.
//!
//! | where a free block is | who takes it | what that costs |
//! |---|---|---|
//! | in the thread's own bins (`bins.rs`) | requests of its stream and rounded size | some nanoseconds |
//! | given back by another thread, on its way home (`post.rs`) | the thread that handed it out | a batch at a time, no lock |
//! | with the engine | everybody | the lock, a search |
//!
//! **Coalescing.** What is kept here cannot merge with its neighbours. So a request for a large block that is not served here
//! first gives all large blocks of its thread to the engine, which then searches with everything in place; and before anything is
//! mapped or asked of the driver, what all threads keep goes there too. Driver calls are only ever made for a request that
//! memory as it really is cannot serve.
//!
//! **Not kept**: blocks that other streams use, with an alignment of their own, that are put to sleep, or of streams that are
//! gone; and nothing at all where memory is overwritten when given back, a history of events is kept, or caching is off: those
//! need to see every call.
//!
//! **Left alone.** Every 4096th hit of a thread looks after blocks that wait for streams, so a loop of nothing but hits does not
//! keep them waiting for ever. What a thread keeps that has made no call between two visits goes to the engine; visits are made
//! by the others' misses and by [`poll`](super::CachingAllocator::poll).
//!
//! | file | what |
//! |---|---|
//! | `ticket.rs`, `directory.rs` | what is known about a block, and finding it from its address |
//! | `bins.rs`, `post.rs` | what a thread keeps, and what it has for others |
//! | `counts.rs` | what that does to the statistics |
//! | `office.rs` | the part behind the engine's lock: issuing tickets, taking blocks back |
//! | `exchange.rs` | between the threads and the engine: what is not a hit |
//! | `view.rs` | being seen: everything as if there were no caches |

pub(super) mod bins;
pub(super) mod counts;
pub(super) mod directory;
mod exchange;
#[cfg(all(loom, test))]
mod loom_models;
pub(super) mod office;
mod post;
pub(super) mod ticket;
mod view;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use headwater_driver::{DeviceId, DevicePtr};

use crate::allocator::{DEFAULT_ALIGNMENT_BYTES, Request};
use crate::config::{MIN_BLOCK_BYTES, RoundupDivisions, round_size};
use crate::thread_cache::ThreadCaches;
use bins::{Bins, SMALL_UNITS_MAX};
use counts::{Amounts, Counts};
use directory::Directory;
use office::Office;
use post::Outgoing;
use ticket::{Doing, OWN_UNITS_MAX, Ticket};

pub(crate) type Slot = crate::thread_cache::Slot<Cache, Ticket>;

/// After so many hits a thread looks after what waits: rarely enough that one hit in a thousand never does.
const HITS_A_LOOK: u32 = 4096;

/// The most that a ticket can be for, in bytes: 2^32 units.
const TICKET_BYTES_MAX: u64 = MIN_BLOCK_BYTES << 31;

/// What one thread has in its slot.
#[derive(Debug)]
pub(crate) struct Cache {
    bins: Bins,
    counts: Counts,
    /// Requests of the thread so far: the clock of its blocks' lives.
    requests: u32,
    /// Where on that clock it looks after what waits.
    look_at: u32,
    /// How often the thread left the hit path.
    slow_calls: u32,
    /// Requests and slow calls as the last visitor saw them.
    seen: (u32, u32),
    /// The block that came back last, if no other went out since and it is kept still.
    last_back: *const Ticket,
    outgoing: Outgoing,
    /// Blocks in hand that found no place.
    strays: InHand,
}

// SAFETY: the pointer is to a ticket, and only compared.
unsafe impl Send for Cache {}

impl Cache {
    fn new(bytes_max: u64) -> Self {
        Self {
            bins: Bins::new(bytes_max),
            counts: Counts::default(),
            requests: 0,
            look_at: HITS_A_LOOK,
            slow_calls: 0,
            seen: (0, 0),
            last_back: std::ptr::null(),
            outgoing: Outgoing::default(),
            strays: InHand::default(),
        }
    }

    /// Hands out a block for a request of `requested_bytes`, which are so many units when rounded.
    #[inline(always)]
    fn hand_out(&mut self, name: u64, units: u32, requested_bytes: u64) -> Option<DevicePtr> {
        if self.requests == self.look_at {
            return None;
        }
        let ticket = self.bins.pop(name, units)?;
        self.requests = self.requests.wrapping_add(1);
        if units > SMALL_UNITS_MAX {
            ticket.set_life(self.requests);
        }
        let ptr = ticket.ptr();
        if std::ptr::eq(self.last_back, ticket) && requested_bytes == ticket.requested_bytes() {
            self.counts.hand_out_again();
        } else {
            self.last_back = std::ptr::null();
            ticket.set_requested_bytes(requested_bytes);
            let amounts = Amounts::one(ticket.block_bytes(), requested_bytes);
            self.counts.hand_out(ticket.pool_place(), amounts);
        }
        ticket.set(ptr.raw(), Doing::Live);
        Some(ptr)
    }

    /// Takes a live block that this thread handed out in hand, to keep it. Says whether it was live.
    #[inline(always)]
    fn take_back_own(&mut self, ticket: &Ticket, address: u64) -> bool {
        let taken = if ticket.units() <= OWN_UNITS_MAX {
            ticket.take_back_own(address)
        } else {
            ticket.exchange(address, Doing::Live, Doing::Kept)
        };
        if taken {
            if ticket.units() > SMALL_UNITS_MAX {
                ticket.set_life(self.requests.wrapping_sub(ticket.life()));
            }
            if std::ptr::eq(self.last_back, ticket) {
                self.counts.take_back_again();
            } else {
                self.counts.begin_again(ticket.pool_place(), Amounts::of(ticket));
                self.last_back = ticket;
            }
        }
        taken
    }

    /// What there is to tell, from now on nothing.
    fn take_counts(&mut self) -> Counts {
        self.last_back = std::ptr::null();
        self.counts.take()
    }
}

/// Blocks in hand: out of every bin, and not with the engine yet.
#[derive(Debug, Default)]
pub(crate) struct InHand(Vec<NonNull<Ticket>>);

// SAFETY: the pointers are to tickets, which may be used from any thread and live as long as the allocator.
unsafe impl Send for InHand {}

impl InHand {
    pub(crate) fn push(&mut self, ticket: &Ticket) {
        self.0.push(NonNull::from(ticket));
    }

    fn extend(&mut self, ticket: Option<&Ticket>) {
        self.0.extend(ticket.map(NonNull::from));
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
    }

    fn iter(&self) -> impl Iterator<Item = &Ticket> {
        // SAFETY: tickets live as long as the allocator, inside of whose calls these values are.
        self.0.iter().map(|ticket| unsafe { ticket.as_ref() })
    }
}

/// The threads' side.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) caches: ThreadCaches<Cache, Ticket>,
    directory: Arc<Directory>,
    /// Where sizes are rounded to more than multiples of the smallest block.
    divisions: Option<RoundupDivisions>,
    /// What a thread may keep. 0: there are no caches, and every call goes to the engine.
    bytes_max: u64,
    /// Counts what threads do beside the hit path: the clock of visits.
    turns: AtomicU64,
}

impl Front {
    /// Caches of `bytes_max` a thread, and their office behind the engine's lock.
    pub(super) fn new(bytes_max: u64, divisions: &RoundupDivisions) -> (Self, Office) {
        let (directory, writer) = Directory::new();
        let front = Self {
            // Threads that are on their way out keep nothing.
            caches: ThreadCaches::new(Cache::new(0)),
            directory,
            divisions: (*divisions != RoundupDivisions::OFF).then_some(*divisions),
            bytes_max,
            turns: AtomicU64::new(0),
        };
        (front, Office::new(writer, bytes_max > 0))
    }

    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// A block from the thread's own cache, for a request with the default alignment in the stream used last.
    #[inline(always)]
    pub(super) fn hit(&self, request: &Request, device: DeviceId) -> Option<DevicePtr> {
        let units = self.units(request)?;
        if request.stream.device() != device {
            return None;
        }
        let mut inside = self.caches.here()?.enter()?;
        inside.cache().hand_out(request.stream.raw(), units, request.bytes)
    }

    /// The rounded size of a request, where it can be served from a cache at all.
    #[inline(always)]
    fn units(&self, request: &Request) -> Option<u32> {
        let is_usual = request.alignment_bytes == DEFAULT_ALIGNMENT_BYTES
            && request.bytes.wrapping_sub(1) < TICKET_BYTES_MAX - MIN_BLOCK_BYTES;
        if !is_usual {
            return None;
        }
        let bytes = match &self.divisions {
            None => request.bytes + (MIN_BLOCK_BYTES - 1),
            Some(divisions) => round_size(request.bytes, divisions),
        };
        Some((bytes / MIN_BLOCK_BYTES) as u32)
    }

    /// A block back to the cache of the thread that handed it out. `None` where it is not that simple.
    #[inline(always)]
    pub(super) fn hit_back(&self, ptr: DevicePtr) -> Option<()> {
        let (address, ticket) = (ptr.raw(), self.ticket(ptr)?);
        let slot = self.caches.here()?;
        let mut inside = slot.enter()?;
        let cache = inside.cache();
        // Before the block is in hand these are hints. Whoever gives back a block that is somebody else's by now may find that
        // they were about another one.
        let (stream, units) = (ticket.stream(), ticket.units());
        if !std::ptr::eq(ticket.owner(), slot) || !cache.bins.has_room(stream, units) {
            return None;
        }
        if !cache.take_back_own(ticket, address) {
            return None;
        }
        if !cache.bins.put(ticket, stream, units) {
            cache.strays.push(ticket);
        }
        Some(())
    }

    /// The ticket of the block that callers know by `ptr`, if it is found: a hint, until its word has been compared.
    #[inline(always)]
    fn ticket(&self, ptr: DevicePtr) -> Option<&Ticket> {
        // SAFETY: tickets live as long as the office, and that as long as the allocator that both are in.
        Some(unsafe { self.directory.find(ptr.raw())?.as_ref() })
    }
}
