//! The part behind the engine's lock: a ticket for every block that goes out, and blocks taken back by it.

use std::ptr::NonNull;

use headwater_driver::DevicePtr;
use smallvec::SmallVec;

use super::counts::{Amounts, Counts, Ledger};
use super::directory::Writer;
use super::ticket::{Doing, Issue, Ticket, units_of};
use super::{InHand, Slot};
use crate::AllocError;
use crate::allocator::DEFAULT_ALIGNMENT_BYTES;
use crate::caching::classic::{Tag, Wanted};
use crate::caching::state::{Due, State as Engine};
use crate::thread_cache::StreamKey;

/// The tickets that are out, and what threads have told.
#[derive(Debug)]
pub(in crate::caching) struct Office {
    pub(super) writer: Writer,
    pub(super) ledger: Ledger,
    is_on: bool,
}

/// For whom a block is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    /// The key of the stream.
    pub(super) stream: u64,
    pub(super) slot: *const Slot,
    /// Whether it may be kept by a thread when it comes back.
    pub(super) is_kept: bool,
    /// How many requests the thread has made.
    pub(super) born_at: u32,
}

impl Office {
    pub(super) fn new(writer: Writer, is_on: bool) -> Self {
        Self { writer, ledger: Ledger::default(), is_on }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The ticket of the block that callers know by `ptr`.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<NonNull<Ticket>> {
        self.writer.get(ptr.raw()).map(NonNull::from)
    }

    /// Whether a thread keeps the block that callers know by `ptr`, or has it on its way.
    pub(super) fn is_in_cache(&self, ptr: DevicePtr) -> bool {
        self.writer.get(ptr.raw()).is_some_and(Ticket::is_in_cache)
    }
}

impl Engine {
    /// A block that the engine has just handed out gets its ticket.
    pub(super) fn issue(&mut self, ptr: DevicePtr, wanted: &Wanted, holder: Holder) {
        if !self.office.is_on {
            return;
        }
        let Some((id, block)) = self.core.find_live(ptr).ok().and_then(|id| Some((id, self.core.block(id)?)))
        else {
            return;
        };
        let is_plain = wanted.alignment_bytes <= DEFAULT_ALIGNMENT_BYTES && holder.is_kept;
        let units = if is_plain { units_of(wanted.block_bytes) } else { 0 };
        let issue = Issue {
            stream: holder.stream,
            owner: holder.slot,
            block_bytes: block.bytes,
            requested_bytes: wanted.requested_bytes,
            units,
            pool: self.core.pool_of(id),
        };
        let ticket = self.office.writer.issue(ptr.raw());
        ticket.fill_in(&issue);
        ticket.set_life(holder.born_at);
        // What cannot be kept takes the way of what other streams use.
        ticket.set(ptr.raw(), if units > 0 { Doing::Live } else { Doing::Special });
        self.office.ledger.note_peaks(self.core.stats());
    }

    /// A thread tells what it has done. Before the engine does anything for it.
    pub(super) fn absorb(&mut self, counts: Counts) {
        self.office.ledger.absorb(counts, self.core.stats());
        self.core.count_hits(counts.hits());
    }

    /// Takes blocks over from thread caches. Returns the streams to be marked.
    #[must_use]
    pub(super) fn pass_on(&mut self, in_hand: &InHand) -> SmallVec<[Tag; 2]> {
        let mut to_mark = SmallVec::new();
        for ticket in in_hand.iter() {
            let ptr = ticket.ptr();
            ticket.set(ptr.raw(), Doing::Gone);
            self.core.set_life(ptr, u64::from(ticket.life()));
            self.take_in(ptr, ticket.pool_place());
            // It was live for the engine, with no other users: nothing to record.
            if let Ok((_, mark)) = self.give_back(ptr) {
                to_mark.extend(mark.filter(|tag| !to_mark.contains(tag)));
            }
        }
        to_mark
    }

    /// Takes a ticket in whose block is about to be given back to the engine.
    fn take_in(&mut self, ptr: DevicePtr, pool_place: usize) {
        let Ok(id) = self.core.find_live(ptr) else { return };
        if let Some(block) = self.core.block(id) {
            self.office.ledger.pass_on(pool_place, Amounts::one(block.bytes, block.requested_bytes));
        }
        self.office.writer.take_in(ptr.raw());
    }

    /// Takes back what a caller holds, or says what is wrong with the address.
    pub(in crate::caching) fn give_back_held(&mut self, ptr: DevicePtr) -> Result<Due, AllocError> {
        if !self.office.is_on {
            return self.give_back(ptr);
        }
        let device = self.device();
        self.find_held(ptr)?;
        // Blocks that the engine gave out by another way have none.
        let Some(ticket) = self.office.writer.get(ptr.raw()) else { return self.give_back(ptr) };
        let held = [Doing::Special, Doing::Live];
        let taken = held.into_iter().any(|doing| ticket.exchange(ptr.raw(), doing, Doing::Gone));
        if !taken {
            return Err(AllocError::AlreadyGivenBack { ptr });
        }
        let (user, pool_place) = (ticket.user(), ticket.pool_place());
        self.office.ledger.take_back(pool_place, Amounts::of(ticket));
        if user != 0 {
            let tag = self.tag_of(StreamKey(user).stream(device));
            self.core.add_use(ptr, tag)?;
        }
        self.take_in(ptr, pool_place);
        self.give_back(ptr)
    }

    /// Whether a caller holds a block at `ptr`, and else what is wrong with the address.
    pub(in crate::caching) fn find_held(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        let found = self.core.find_live(ptr);
        let in_cache = match found {
            Ok(_) => self.office.is_in_cache(ptr),
            Err(AllocError::InsideBlock { block, .. }) => self.office.is_in_cache(block),
            Err(_) => false,
        };
        if in_cache { Err(AllocError::AlreadyGivenBack { ptr }) } else { found.map(|_| ()) }
    }

    /// Lets blocks that callers hold come back to the engine and to no cache, and their further users be announced to it. Bad
    /// input changes nothing.
    pub(in crate::caching) fn keep_out_of_caches(&mut self, ptrs: &[DevicePtr]) -> Result<(), AllocError> {
        ptrs.iter().try_for_each(|ptr| self.find_held(*ptr))?;
        let device = self.device();
        for ptr in ptrs {
            let Some(ticket) = self.office.writer.get(ptr.raw()) else { continue };
            if !ticket.exchange(ptr.raw(), Doing::Live, Doing::Special) && ticket.is_in_cache() {
                // Given back a moment ago.
                return Err(AllocError::AlreadyGivenBack { ptr: *ptr });
            }
            let user = ticket.user();
            if user != 0 {
                ticket.set_user(0);
                let tag = self.tag_of(StreamKey(user).stream(device));
                self.core.add_use(*ptr, tag)?;
            }
        }
        Ok(())
    }

    /// A stream is about to go, and its name may come to mean another one: no cache may confuse the two. What tickets have
    /// noted about it goes to the engine, where it keeps its number.
    pub(super) fn lose_stream(&mut self, key: u64, tag: Tag) {
        let mut used = Vec::new();
        for (address, ticket) in self.office.writer.iter() {
            if ticket.stream() == key {
                ticket.lose_stream();
                ticket.exchange(address, Doing::Live, Doing::Special);
            }
            if ticket.user() == key {
                ticket.set_user(0);
                used.push(DevicePtr::new(address));
            }
        }
        for ptr in used {
            // It is live, so it can have a user.
            let _ = self.core.add_use(ptr, tag);
        }
    }
}
