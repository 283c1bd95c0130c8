//! Between the threads and the engine: everything that is not a hit.
//!
//! Locks are taken in one order: a thread's own slot, or all of them ([`ThreadCaches::stop`]); then the engine's. A thread
//! that has the engine's lock never waits for a slot.

use std::sync::atomic::Ordering;

use headwater_driver::{DevicePtr, Stream};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::bins::{NO_STREAM, SMALL_UNITS_MAX};
use super::counts::Amounts;
use super::office::Holder;
use super::post::Batch;
use super::ticket::{Doing, OWN_UNITS_MAX, Ticket, units_of};
use super::{Cache, HITS_A_LOOK, InHand, Slot};
use crate::AllocError;
use crate::allocator::Request;
use crate::caching::CachingAllocator;
use crate::caching::chores::{FILLS_A_CALL, QUESTIONS_A_CALL};
use crate::caching::classic::Tag;
use crate::caching::ladder::Climb;
use crate::caching::state::State as Engine;
use crate::config::MIN_BLOCK_BYTES;
use crate::thread_cache::{Message, StreamKey, Tenant, ThreadCaches};

/// How many blocks a thread takes out of its mail at once.
const MAIL_AT_ONCE: usize = 32;

/// So often do threads leave the hit path, all together, between two visits to all of them.
const TURNS_A_VISIT: u64 = 4096;

impl Cache {
    /// Takes everything out, what is on its way included.
    fn take_all(&mut self, slot: &Slot, leaving: &mut InHand) {
        slot.inbox.take(|message| leaving.extend(self.receive(message)));
        let outgoing: Vec<Batch> = self.outgoing.take().collect();
        self.receive_all(outgoing.into_iter().flat_map(|batch| batch.messages), leaving);
        leaving.append(&mut self.strays);
        self.bins.take_large(leaving);
        self.bins.take_small(leaving);
    }

    fn receive_all(&mut self, messages: impl Iterator<Item = Message<Ticket>>, leaving: &mut InHand) {
        messages.for_each(|message| leaving.extend(self.receive(message)));
    }

    /// Keeps what other threads have sent, as far as there is room.
    fn take_mail(&mut self, slot: &Slot, leaving: &mut InHand) {
        // No more than there is room for in a bin: the rest can wait where it is.
        slot.inbox.take_up_to(MAIL_AT_ONCE, |message| {
            if let Some(ticket) = self.receive(message)
                && !(self.bins.select(ticket.stream()) && self.bins.push(ticket))
            {
                leaving.push(ticket);
            }
        });
    }

    /// Tells what the thread has done, inside its latch so that nobody looks in between; and then has the engine's lock.
    fn tell<'a>(&mut self, allocator: &'a CachingAllocator) -> MutexGuard<'a, Engine> {
        self.slow_calls = self.slow_calls.wrapping_add(1);
        let mut state = allocator.state.lock();
        state.absorb(self.take_counts());
        state
    }
}

impl CachingAllocator {
    /// The calling thread's slot, made if need be.
    fn slot(&self) -> &Slot {
        let caches = &self.front.caches;
        caches.here().unwrap_or_else(|| match self.me.upgrade() {
            Some(me) => caches.attach(&me),
            // On its way out.
            None => caches.common(),
        })
    }

    /// Serves a request that was checked, is not empty and is no hit.
    pub(in crate::caching) fn allocate_beside_cache(
        &self,
        request: &Request,
        climb: &Climb,
    ) -> Result<DevicePtr, AllocError> {
        let slot = self.slot();
        let stream = StreamKey::new(request.stream, slot.thread()).0;
        let (mut leaving, mut is_look) = (InHand::default(), false);
        let has_mail = slot.inbox.has_mail();
        let hit = slot.own(|cache| {
            cache.last_back = std::ptr::null();
            is_look = cache.requests == cache.look_at;
            if is_look {
                cache.look_at = cache.requests.wrapping_add(HITS_A_LOOK);
            }
            if has_mail {
                cache.take_mail(slot, &mut leaving);
            }
            cache.bins.prepare(request.stream.raw(), stream, &mut leaving);
            let units = self.front.units(request);
            units.and_then(|units| cache.hand_out(request.stream.raw(), units, request.bytes))
        });
        if is_look {
            self.look()?;
        }
        if let Some(ptr) = hit {
            self.pass_on(&leaving);
            return Ok(ptr);
        }
        let is_kept = !self.rules.is_oversize(climb.wanted.block_bytes) && stream != NO_STREAM;
        self.ask_engine(slot, climb, Holder { stream, slot, is_kept, born_at: 0 }, leaving)
    }

    /// Serves a request from the engine, with what the thread keeps of that kind given to it first.
    fn ask_engine(
        &self,
        slot: &Slot,
        climb: &Climb,
        mut holder: Holder,
        mut leaving: InHand,
    ) -> Result<DevicePtr, AllocError> {
        let is_large = climb.wanted.padded_bytes > u64::from(SMALL_UNITS_MAX) * MIN_BLOCK_BYTES;
        let mut state = slot.own(|cache| {
            leaving.append(&mut cache.strays);
            if is_large {
                cache.bins.take_large(&mut leaving);
                cache.bins.note_large_request(holder.stream, units_of(climb.wanted.block_bytes));
            }
            cache.requests = cache.requests.wrapping_add(1);
            cache.look_at = cache.look_at.wrapping_add(1);
            holder.born_at = cache.requests;
            cache.tell(self)
        });
        let to_mark = state.pass_on(&leaving);
        if state.has_chores() || !to_mark.is_empty() {
            drop(state);
            self.mark_streams(&to_mark);
            self.do_chores(QUESTIONS_A_CALL, FILLS_A_CALL)?;
            state = self.state.lock();
        }
        let found = state.take(&climb.wanted, climb.stream);
        if let Some(ptr) = found {
            state.issue(ptr, &climb.wanted, holder);
        }
        drop(state);
        self.take_turn();
        if let Some(ptr) = found {
            return Ok(ptr);
        }
        // Nothing is mapped or asked of the driver before the engine has everything.
        self.collect();
        let mut state = self.state.lock();
        if let Some(ptr) = state.take(&climb.wanted, climb.stream) {
            state.issue(ptr, &climb.wanted, holder);
            return Ok(ptr);
        }
        drop(state);
        let ptr = self.climb(climb)?;
        self.state.lock().issue(ptr, &climb.wanted, holder);
        Ok(ptr)
    }

    /// Takes a block back that [`hit_back`](super::Front::hit_back) could not.
    pub(in crate::caching) fn give_back_beside_cache(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        if self.front.is_on()
            && let Some(ticket) = self.exact_ticket(ptr)
            && ticket.is_live_at(ptr.raw())
        {
            let slot = self.slot();
            let kept = if std::ptr::eq(ticket.owner(), slot) {
                self.keep(slot, ticket, ptr)
            } else if ticket.units() <= OWN_UNITS_MAX {
                Some(self.send_home(slot, ticket, ptr))
            } else {
                None
            };
            match kept {
                Some(true) => return Ok(()),
                Some(false) => return Err(AllocError::AlreadyGivenBack { ptr }),
                None => {}
            }
        }
        self.take_back(ptr)
    }

    /// The ticket of a block, also where a look without the lock misses it.
    fn exact_ticket(&self, ptr: DevicePtr) -> Option<&Ticket> {
        self.front.ticket(ptr).filter(|ticket| ticket.is_live_at(ptr.raw())).or_else(|| {
            let found = self.state.lock().office.find(ptr);
            // SAFETY: tickets live as long as the office, and that as long as the allocator that both are in.
            found.map(|ticket| unsafe { ticket.as_ref() })
        })
    }

    /// The thread's own block, for which there is no room or whose stream was not the one used last. Says whether it was live;
    /// nothing where it must go to the engine.
    fn keep(&self, slot: &Slot, ticket: &Ticket, ptr: DevicePtr) -> Option<bool> {
        let mut leaving = InHand::default();
        let kept = slot.own(|cache| {
            cache.last_back = std::ptr::null();
            if ticket.units() == 0 || !cache.bins.select(ticket.stream()) {
                return None;
            }
            let taken = cache.take_back_own(ticket, ptr.raw());
            if taken {
                cache.bins.make_room(ticket.units(), &mut leaving);
                if !cache.bins.push(ticket) {
                    cache.bins.note_back(ticket.stream(), ticket.units());
                    leaving.push(ticket);
                }
            }
            // What leaves may get its ticket used for another block.
            cache.last_back = std::ptr::null();
            Some(taken)
        });
        self.pass_on(&leaving);
        kept
    }

    /// A block of at most 1 MiB that another thread handed out: to that thread, by message. Says whether it was live.
    fn send_home(&self, slot: &Slot, ticket: &Ticket, ptr: DevicePtr) -> bool {
        let due = slot.own(|cache| {
            let owner = ticket.owner();
            let taken = ticket.exchange(ptr.raw(), Doing::Live, Doing::Sent);
            taken.then(|| {
                cache.counts.take_back(ticket.pool_place(), Amounts::of(ticket));
                cache.outgoing.post(owner, ticket)
            })
        });
        let Some(due) = due else { return false };
        if let Some(batch) = due {
            // SAFETY: slots live as long as the allocator.
            let owner = unsafe { batch.owner.as_ref() };
            if !owner.is_some_and(|owner| owner.inbox.send(&batch.messages)) {
                // It has ended, or has too much mail.
                let mut leaving = InHand::default();
                slot.own(|cache| cache.receive_all(batch.messages.into_iter(), &mut leaving));
                self.pass_on(&leaving);
            }
        }
        true
    }

    /// Gives blocks in hand to the engine.
    fn pass_on(&self, leaving: &InHand) {
        if leaving.is_empty() {
            return;
        }
        let to_mark = self.state.lock().pass_on(leaving);
        self.mark_streams(&to_mark);
        self.take_turn();
    }

    fn mark_streams(&self, tags: &SmallVec<[Tag; 2]>) {
        for tag in tags {
            // Without a mark their memory is found to be finished later.
            let _ = self.mark_stream(*tag);
        }
    }

    /// Looks after what waits for streams, as a call to the engine would.
    fn look(&self) -> Result<(), AllocError> {
        self.take_turn();
        if self.state.lock().has_chores() {
            self.do_chores(QUESTIONS_A_CALL, FILLS_A_CALL)?;
        }
        Ok(())
    }

    fn take_turn(&self) {
        if self.front.turns.fetch_add(1, Ordering::Relaxed) % TURNS_A_VISIT == TURNS_A_VISIT - 1 {
            self.visit();
        }
    }

    /// Gives to the engine what threads keep that have made no call since the last visit.
    pub(in crate::caching) fn visit(&self) {
        self.collect_from(|cache| {
            let now = (cache.requests, cache.slow_calls);
            std::mem::replace(&mut cache.seen, now) == now
        });
    }

    /// Gives everything that threads keep to the engine.
    pub(in crate::caching) fn collect(&self) {
        self.collect_from(|_| true);
    }

    fn collect_from(&self, is_due: impl Fn(&mut Cache) -> bool) {
        if !self.front.is_on() {
            return;
        }
        let to_mark = self.front.caches.stop(|stopped| {
            let (mut state, mut leaving) = (self.state.lock(), InHand::default());
            stopped.each(|slot, cache| {
                if is_due(cache) {
                    state.absorb(cache.take_counts());
                    cache.take_all(slot, &mut leaving);
                }
            });
            state.pass_on(&leaving)
        });
        self.mark_streams(&to_mark);
    }

    /// Forgets a stream in all caches and tickets, before its name may come to mean another one.
    pub(in crate::caching) fn leave_caches(&self, stream: Stream) {
        if !self.front.is_on() {
            return;
        }
        let key = StreamKey::new(stream, self.slot().thread()).0;
        let to_mark = self.front.caches.stop(|stopped| {
            let (mut state, mut leaving) = (self.state.lock(), InHand::default());
            stopped.each(|slot, cache| {
                state.absorb(cache.take_counts());
                cache.take_all(slot, &mut leaving);
                cache.bins.forget(key, &mut leaving);
            });
            let to_mark = state.pass_on(&leaving);
            let tag = state.tag_of(stream);
            state.lose_stream(key, tag);
            to_mark
        });
        self.mark_streams(&to_mark);
    }

    /// Notes another user of a block, where that takes no lock. Says whether it is noted.
    #[inline]
    pub(in crate::caching) fn note_user(&self, ptr: DevicePtr, stream: Stream) -> bool {
        let Some(ticket) = self.front.ticket(ptr) else { return false };
        if stream.is_per_thread_default() {
            return false;
        }
        let (address, key) = (ptr.raw(), stream.raw());
        match ticket.read() {
            (at, Doing::Live) if at == address => {
                if ticket.stream() == key {
                    return true;
                }
                let marked = ticket.exchange(address, Doing::Live, Doing::Special);
                if marked {
                    ticket.set_user(key);
                }
                marked
            }
            (at, Doing::Special) if at == address => ticket.user() == key,
            _ => false,
        }
    }

    /// Notes another user of a block under the lock.
    pub(in crate::caching) fn record_user(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        // The address first: bad input changes nothing.
        state.keep_out_of_caches(&[ptr])?;
        let tag = state.tag_of(stream);
        state.core.add_use(ptr, tag).map(|_| ())
    }
}

impl Tenant for CachingAllocator {
    type Cache = Cache;
    type Thing = Ticket;

    fn thread_caches(&self) -> &ThreadCaches<Cache, Ticket> {
        &self.front.caches
    }

    fn new_cache(&self) -> Cache {
        Cache::new(self.front.bytes_max)
    }

    fn thread_ends(&self, slot: &Slot) {
        let mut leaving = InHand::default();
        let mut state = slot.own(|cache| {
            slot.inbox.close(|message| leaving.extend(cache.receive(message)));
            cache.take_all(slot, &mut leaving);
            cache.bins.take_all_and_forget(&mut leaving);
            cache.tell(self)
        });
        let to_mark = state.pass_on(&leaving);
        drop(state);
        self.mark_streams(&to_mark);
    }
}
