//! The pool: its parts, and the two paths that nearly all calls take.
//!
//! *Hit, out*: the class of the size, the thread's slot, the bin of stream and class, its top block; the block's word becomes
//! live. *Hit, back*: the address's segment, the block's record; its word says that this is a live block and its first
//! address; the owner is this thread and nobody else uses it; it goes on top of its bin. No lock, no driver call, no atomic
//! exchange. Everything that does not fit returns `None` here and is sorted out in the slow paths.

use std::ptr::NonNull;
use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};

use super::cache::{Cache, InHand, Outgoing, Peaks};
use super::classes::Classes;
use super::depot::{Block, Depot};
use super::figures::Ledger;
use super::marks::Marker;
use super::options::BinnedOptions;
use super::segment::{Record, Segment};
use super::{Slot, deferred};
use crate::address_table::AddressTable;
use crate::allocator::{DEFAULT_ALIGNMENT_BYTES, Request};
use crate::error::AllocError;
use crate::thread_cache::StreamKey;
use crate::thread_cache::{Free, Message, State, Tenant, ThreadCaches};

/// Everything that the threads share.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) device: DeviceId,
    pub(super) classes: Classes,
    pub(super) options: BinnedOptions,
    pub(super) caches: ThreadCaches<Cache, Record>,
    pub(super) table: AddressTable<Segment>,
    /// By class; the last is for what goes straight through.
    pub(super) depots: Box<[Depot]>,
    pub(super) marker: Marker,
    pub(super) peaks: Peaks,
    pub(super) ledger: Ledger,
}

impl Pool {
    pub(super) fn new(driver: Arc<dyn Driver>, device: DeviceId, options: BinnedOptions) -> Self {
        let classes = Classes::new(options.divisions);
        let count = classes.count();
        Self {
            marker: Marker::new(driver.clone(), device),
            driver,
            device,
            classes,
            options,
            // Threads that are on their way out keep nothing.
            caches: ThreadCaches::new(Cache::new(classes.all_bytes(), 0)),
            table: AddressTable::new(),
            depots: (0..=count).map(|_| Depot::default()).collect(),
            peaks: Peaks::default(),
            ledger: Ledger::new(options.limit_bytes),
        }
    }

    /// The number of the class of what goes straight through.
    pub(super) fn straight_class(&self) -> usize {
        self.depots.len() - 1
    }

    /// A block from the thread's own cache, for a request with the default alignment in the stream used last.
    #[inline(always)]
    pub(super) fn hit(&self, request: &Request) -> Option<DevicePtr> {
        let class = self.classes.of(request.bytes)?;
        if request.stream.device() != self.device || request.alignment_bytes != DEFAULT_ALIGNMENT_BYTES {
            return None;
        }
        self.hit_class(self.caches.here()?, request, class)
    }

    /// The same, for a request that was checked and has a class.
    #[inline(always)]
    pub(super) fn hit_class(&self, slot: &Slot, request: &Request, class: usize) -> Option<DevicePtr> {
        let mut inside = slot.enter()?;
        let cache = inside.cache();
        // SAFETY: the class is one of `self.classes`, for which the bins were made.
        let found = unsafe { cache.bins.hand_out(request.stream.raw(), class, request.bytes) };
        let (free, block_bytes) = found?;
        let block = Block(free.thing);
        block.set_requested_bytes(request.bytes);
        block.word.set(free.address, State::Live);
        cache.rise(block_bytes, request.bytes);
        Some(DevicePtr::new(free.address))
    }

    /// A block back to the thread's own cache. `None` where it is not that simple.
    #[inline(always)]
    pub(super) fn hit_back(&self, ptr: DevicePtr) -> Option<()> {
        if self.options.race_checks {
            return None;
        }
        let (segment, record) = self.record_at(ptr)?;
        let slot = self.caches.here()?;
        let mut inside = slot.enter()?;
        let (cache, address) = (inside.cache(), ptr.raw());
        if !record.word.is_live_at(address) || !record.is_simply_owned_by(slot) {
            return None;
        }
        let (free, requested_bytes) = (Free { address, thing: record.into() }, record.requested_bytes());
        let class = segment.class();
        if class == self.straight_class() {
            return None;
        }
        // SAFETY: a segment's class is one of `self.classes`, for which the bins were made, or the last, which it is not.
        let kept = unsafe { cache.bins.give_back(record.stream(), class, free, requested_bytes) };
        let block_bytes = kept?;
        record.word.set(address, State::Cached);
        cache.fall(block_bytes, requested_bytes);
        Some(())
    }

    /// The record that a block at `ptr` would have.
    #[inline(always)]
    pub(super) fn record_at(&self, ptr: DevicePtr) -> Option<(&Segment, &Record)> {
        let segment = self.table.get(ptr.raw())?;
        // SAFETY: a segment's bookkeeping is not freed before the pool is dropped.
        let segment = unsafe { segment.as_ref() };
        Some((segment, segment.record_at(ptr.raw())?))
    }

    /// The record of the live block that starts at `ptr`, or what is wrong with the address.
    #[inline]
    fn live_at(&self, ptr: DevicePtr) -> Result<&Record, AllocError> {
        match self.record_at(ptr) {
            Some((_, record)) if record.word.is_live_at(ptr.raw()) => Ok(record),
            _ => Err(self.what_is_wrong_with(ptr)),
        }
    }

    /// Takes back what [`hit_back`](Self::hit_back) could not.
    #[inline(never)]
    pub(super) fn give_back_slowly(self: &Arc<Self>, ptr: DevicePtr, owe: bool) -> Result<(), AllocError> {
        let slot = self.caches.attach(self);
        let record = self.live_at(ptr)?;
        let class = record.segment().class();
        if class == self.straight_class() {
            return self.give_back_straight(slot, ptr, owe);
        }
        if record.has_users() {
            self.give_back_used(slot, record, ptr)
        } else if record.is_simply_owned_by(slot) {
            self.give_back_to_full_cache(slot, record, ptr)
        } else {
            self.give_back_to_owner(slot, record, ptr)
        }
    }

    /// The thread's own block, for which its cache has no room or no bin yet, or where races are to be found.
    fn give_back_to_full_cache(
        &self,
        slot: &Slot,
        record: &Record,
        ptr: DevicePtr,
    ) -> Result<(), AllocError> {
        let segment = record.segment();
        let (class, block_bytes, stream) = (segment.class(), segment.block_bytes(), record.stream());
        let mut leaving = InHand::default();
        let given_back = slot.own(|cache| {
            let word = &record.word;
            let was_live = match self.options.race_checks {
                true => word.give_back_foreign(ptr.raw(), State::Cached),
                false => word.give_back_own(ptr.raw(), State::Cached),
            };
            if !was_live {
                return false;
            }
            cache.count_back(class, block_bytes, record.requested_bytes());
            self.peaks.absorb(cache);
            let out = &mut |class, block| leaving.0.push((class, block));
            let name = StreamKey(stream).stream(self.device).raw();
            cache.bins.prepare(name, stream, class, out);
            cache.bins.make_room(stream, class, out);
            let free = Free { address: ptr.raw(), thing: record.into() };
            if !cache.bins.keep(stream, class, free) {
                leaving.0.push((class, free.thing));
            }
            cache.counts[class].depot_visits += u64::from(!leaving.0.is_empty());
            true
        });
        self.put_in_depots(leaving, false);
        if given_back { Ok(()) } else { Err(AllocError::AlreadyGivenBack { ptr }) }
    }

    /// A block that another thread handed out: to that thread, by message.
    fn give_back_to_owner(&self, slot: &Slot, record: &Record, ptr: DevicePtr) -> Result<(), AllocError> {
        let segment = record.segment();
        let note = record.requested_bytes();
        let due = slot.own(|cache| {
            if !record.word.give_back_foreign(ptr.raw(), State::Sent) {
                return Err(AllocError::AlreadyGivenBack { ptr });
            }
            cache.count_back(segment.class(), segment.block_bytes(), note);
            Ok(cache.post(record.owner(), Message { about: record, note }))
        })?;
        if let Some(due) = due {
            self.send(slot, due);
        }
        Ok(())
    }

    /// A block that other streams use: it waits for them.
    fn give_back_used(&self, slot: &Slot, record: &Record, ptr: DevicePtr) -> Result<(), AllocError> {
        let segment = record.segment();
        let (class, block_bytes) = (segment.class(), segment.block_bytes());
        slot.own(|cache| {
            // By exchange also in the owner: nothing is gained by the quicker way here.
            if !record.word.give_back_foreign(ptr.raw(), State::Pending) {
                return Err(AllocError::AlreadyGivenBack { ptr });
            }
            cache.count_back(class, block_bytes, record.requested_bytes());
            cache.counts[class].pended += 1;
            self.peaks.absorb(cache);
            self.peaks.pend(block_bytes, true);
            Ok(())
        })?;
        let mut shelf = self.depots[class].lock();
        let mut users = shelf.more_users.remove(&ptr.raw()).unwrap_or_default();
        users.push(StreamKey(record.take_user()));
        users.sort_unstable();
        users.dedup();
        shelf.unrecorded.push((Block(NonNull::from(record)), users));
        if shelf.unrecorded.len() >= deferred::UNRECORDED_MAX {
            drop(shelf);
            // What cannot be recorded now stays where it is and is tried again; `process_deferred` tells why.
            let _ = self.settle(slot, class);
        }
        Ok(())
    }

    /// Sends a batch to its owner, or to the depot where the owner has gone or has too much mail.
    pub(super) fn send(&self, slot: &Slot, batch: Outgoing) {
        // SAFETY: slots live as long as the pool.
        if unsafe { batch.owner.as_ref() }.is_some_and(|owner| owner.inbox.send(&batch.messages)) {
            return;
        }
        let mut leaving = InHand::default();
        slot.own(|cache| batch.messages.iter().for_each(|message| receive(cache, *message, &mut leaving)));
        self.put_in_depots(leaving, false);
    }

    /// Takes the mail of the calling thread's slot into its cache.
    pub(super) fn take_mail(&self, slot: &Slot) {
        if !slot.inbox.has_mail() {
            return;
        }
        let mut leaving = InHand::default();
        slot.own(|cache| {
            let mut arrived = InHand::default();
            slot.inbox.take(|message| receive(cache, message, &mut arrived));
            for (class, record) in arrived.0 {
                let block = Block(record);
                let free = Free { address: block.word.address(), thing: record };
                if !cache.bins.keep(block.stream(), class, free) {
                    leaving.0.push((class, record));
                }
            }
        });
        self.put_in_depots(leaving, false);
    }

    /// Puts blocks in hand where every thread finds them; `surplus` where whoever had them does not need them.
    pub(super) fn put_in_depots(&self, mut blocks: InHand, surplus: bool) {
        blocks.0.sort_unstable_by_key(|(class, _)| *class);
        for run in blocks.0.chunk_by(|one, other| one.0 == other.0) {
            let mut shelf = self.depots[run[0].0].lock();
            run.iter().for_each(|(_, record)| shelf.put(Block(*record), surplus));
        }
    }

    /// Notes another user of a live block.
    #[inline]
    pub(super) fn record_stream(self: &Arc<Self>, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        let record = self.live_at(ptr)?;
        let thread = if stream.is_per_thread_default() { self.caches.attach(self).thread() } else { 0 };
        let user = StreamKey::new(stream, thread);
        if user.0 != record.stream() && !record.add_user(user.0) {
            let mut shelf = self.depots[record.segment().class()].lock();
            let users = shelf.more_users.entry(ptr.raw()).or_default();
            if !users.contains(&user) {
                users.push(user);
            }
        }
        Ok(())
    }

    /// Why no live block starts at `ptr`.
    #[cold]
    pub(super) fn what_is_wrong_with(&self, ptr: DevicePtr) -> AllocError {
        match self.block_around(ptr) {
            Some(record) => match record.word.read() {
                (block, State::Live) if block != ptr.raw() => {
                    AllocError::InsideBlock { ptr, block: DevicePtr::new(block) }
                }
                (block, State::Live) if block == ptr.raw() => AllocError::AlreadyGivenBack { ptr },
                (block, state) if block == ptr.raw() && state != State::Gone => {
                    AllocError::AlreadyGivenBack { ptr }
                }
                _ => AllocError::ForeignPointer { ptr },
            },
            None if self.ledger.was_returned(ptr) => AllocError::AlreadyGivenBack { ptr },
            None => AllocError::ForeignPointer { ptr },
        }
    }

    /// The record of the block around `ptr`.
    pub(super) fn block_around(&self, ptr: DevicePtr) -> Option<&Record> {
        let segment = self.table.get(ptr.raw())?;
        // SAFETY: as in `record_at`.
        unsafe { segment.as_ref() }.record_around(ptr.raw())
    }
}

/// Lets a block in hand be a caller's.
pub(super) fn hand_out(
    cache: &mut Cache,
    block: Block,
    class: usize,
    block_bytes: u64,
    requested_bytes: u64,
) -> DevicePtr {
    let address = block.word.address();
    block.set_requested_bytes(requested_bytes);
    block.word.set(address, State::Live);
    cache.count_out(class, block_bytes, requested_bytes);
    DevicePtr::new(address)
}

/// Takes the block that a message is about in hand; or, where the owner had taken it back in the same moment, corrects what
/// the sender counted.
pub(super) fn receive(cache: &mut Cache, message: Message<Record>, arrived: &mut InHand) {
    let Some(record) = NonNull::new(message.about.cast_mut()) else { return };
    let block = Block(record);
    let class = block.segment().class();
    if block.word.receive() {
        arrived.0.push((class, record));
    } else {
        cache.uncount_back(class, block.segment().block_bytes(), message.note);
    }
}

impl Tenant for Pool {
    type Cache = Cache;
    type Thing = Record;

    fn thread_caches(&self) -> &ThreadCaches<Cache, Record> {
        &self.caches
    }

    fn new_cache(&self) -> Cache {
        Cache::new(self.classes.all_bytes(), self.options.thread_cache_bytes)
    }

    fn thread_ends(&self, slot: &Slot) {
        let (mut leaving, mut outgoing) = (InHand::default(), Vec::new());
        slot.own(|cache| {
            slot.inbox.close(|message| receive(cache, message, &mut leaving));
            cache.bins.take_all_and_forget(&mut |class, block| leaving.0.push((class, block)));
            outgoing.extend(cache.take_outgoing());
            self.peaks.absorb(cache);
        });
        outgoing.into_iter().for_each(|batch| self.send(slot, batch));
        self.put_in_depots(leaving, true);
        self.leave_default_stream(slot);
    }
}
