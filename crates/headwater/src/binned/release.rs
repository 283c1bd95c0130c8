//! Memory on its way back to the driver.
//!
//! `cuMemFree` waits until the device has finished all work, so nothing needs to be known about streams here. It may also
//! refuse: then the segment is owed, and offered again in later calls.
//!
//! A segment leaves the address table before it is offered: the moment the driver has it, another thread may be given the
//! same addresses.

use std::sync::Arc;

use headwater_driver::{DevicePtr, DriverError};

use super::Slot;
use super::classes::SEGMENT_UNIT_BYTES;
use super::depot::{Block, Owed, SegmentRef};
use super::miss::Shortage;
use super::pool::{Pool, hand_out};
use crate::allocator::Request;
use crate::capture_guard;
use crate::error::AllocError;
use crate::thread_cache::State;
use crate::thread_cache::StreamKey;

impl Pool {
    /// Returns every segment that is wholly in its depot. Says how many bytes that was, and the last refusal.
    pub(super) fn trim(&self) -> (u64, Option<DriverError>) {
        let (mut returned_bytes, mut refusal) = (0, None);
        for class in 0..self.depots.len() {
            let owed = {
                let mut shelf = self.depots[class].lock();
                shelf.owe_free_segments();
                shelf.owed.iter().map(|owed| owed.segment).collect::<Vec<_>>()
            };
            for segment in owed {
                match self.offer(class, segment) {
                    Ok(bytes) => returned_bytes += bytes,
                    Err(error) => refusal = Some(error),
                }
            }
        }
        (returned_bytes, refusal)
    }

    /// Offers an owed segment to the driver, unless another thread does. Says how many bytes went.
    fn offer(&self, class: usize, segment: SegmentRef) -> Result<u64, DriverError> {
        {
            let mut shelf = self.depots[class].lock();
            let ours = shelf.owed.iter_mut().find(|owed| owed.segment == segment && !owed.offered);
            let Some(owed) = ours else { return Ok(0) };
            owed.offered = true;
            self.table.remove(segment.base(), segment.paged_bytes());
        }
        let freed = self.free(segment);
        let bytes = segment.reserved_bytes();
        if freed.is_ok() {
            self.end_pending_of(segment);
        }
        let mut shelf = self.depots[class].lock();
        match freed {
            Ok(()) => {
                shelf.owed.retain(|owed| owed.segment != segment);
                segment.end();
                shelf.retired.push(segment);
                self.ledger.returned(bytes);
                Ok(bytes)
            }
            Err(error) => {
                // Back under its addresses, which are still ours.
                self.table.insert(segment.base(), segment.paged_bytes(), segment.0);
                let owed = shelf.owed.iter_mut().filter(|owed| owed.segment == segment);
                owed.for_each(|owed| owed.offered = false);
                self.ledger.count_owed();
                Err(error)
            }
        }
    }

    fn free(&self, segment: SegmentRef) -> Result<(), DriverError> {
        capture_guard::relaxed(&*self.driver, || self.driver.mem_free(self.device, segment.driver_base()))
    }

    /// Blocks that waited in a segment wait no longer: the driver has it.
    fn end_pending_of(&self, segment: SegmentRef) {
        let waits = |record: &&super::segment::Record| record.word.read().1 == State::Pending;
        let waiting: Vec<_> = segment.records().filter(waits).map(|record| Block(record.into())).collect();
        // Any slot will do to count in; the common one is never stopped for long.
        self.end_pending(self.caches.common(), segment.class(), &waiting);
    }

    /// Serves a request beyond the largest class: memory of its own.
    pub(super) fn allocate_straight(self: &Arc<Self>, request: &Request) -> Result<DevicePtr, AllocError> {
        let class = self.straight_class();
        let slot = self.caches.attach(self);
        // Segments begin at a page, which is the largest alignment there is.
        let bytes = request.bytes.next_multiple_of(SEGMENT_UNIT_BYTES);
        let grow = || self.new_segment(class, 1, bytes, bytes);
        let mut segment = grow();
        while let Err(shortage) = segment {
            if let Shortage::Driver(error) = shortage {
                return Err(error.into());
            }
            self.ledger.count_retry();
            self.collect_from_threads(None, true);
            for class in 0..class {
                // What it concerns stays where it is, and is tried again.
                let _ = self.settle(slot, class);
            }
            // What cannot be returned is owed, and does not help here.
            let (returned_bytes, _) = self.trim();
            segment = grow();
            if segment.is_err() && returned_bytes == 0 && !self.wait_for_oldest()? {
                let over_limit = matches!(segment, Err(Shortage::Limit));
                return Err(self.out_of_memory(request.bytes, over_limit));
            }
        }
        let Ok(segment) = segment else { return Err(self.out_of_memory(request.bytes, false)) };
        Ok(self.hand_out_straight(slot, segment, request))
    }

    /// Serves a request with memory of just its size, for the last attempt before it is refused.
    pub(super) fn allocate_exactly(self: &Arc<Self>, request: &Request) -> Option<DevicePtr> {
        let class = self.straight_class();
        let segment = self.new_segment(class, 1, request.bytes, request.bytes).ok()?;
        Some(self.hand_out_straight(self.caches.attach(self), segment, request))
    }

    fn hand_out_straight(&self, slot: &Slot, segment: SegmentRef, request: &Request) -> DevicePtr {
        let (class, bytes) = (self.straight_class(), segment.block_bytes());
        self.depots[class].count_miss();
        let key = StreamKey::new(request.stream, slot.thread());
        let block = segment.only_block();
        slot.own(|cache| {
            block.move_to(slot, key.0);
            let ptr = hand_out(cache, block, class, bytes, request.bytes);
            cache.straight.handed_out += bytes;
            self.peaks.absorb(cache);
            ptr
        })
    }

    /// Takes back what went straight through: the driver has it at once, or refuses. Then the caller still holds it; or, with
    /// `owe`, it is pending and offered again in later calls.
    pub(super) fn give_back_straight(
        &self,
        slot: &Slot,
        ptr: DevicePtr,
        owe: bool,
    ) -> Result<(), AllocError> {
        let class = self.straight_class();
        let record = match self.record_at(ptr) {
            Some((_, record)) if record.word.give_back_foreign(ptr.raw(), State::Offered) => record,
            _ => return Err(self.what_is_wrong_with(ptr)),
        };
        let segment = SegmentRef(record.segment().into());
        record.take_user();
        self.ledger.remember(ptr);
        {
            let mut shelf = self.depots[class].lock();
            shelf.more_users.remove(&ptr.raw());
            shelf.segments.retain(|other| *other != segment);
            shelf.owed.push(Owed { segment, offered: true });
            self.table.remove(segment.base(), segment.paged_bytes());
        }
        let freed = self.free(segment);
        let bytes = segment.block_bytes();
        if freed.is_ok() || owe {
            slot.own(|cache| {
                let state = if freed.is_ok() { State::Cached } else { State::Pending };
                record.word.set(ptr.raw(), state);
                cache.count_back(class, bytes, record.requested_bytes());
                cache.straight.given_back += bytes;
                self.peaks.absorb(cache);
                if freed.is_err() {
                    cache.counts[class].pended += 1;
                    cache.straight.pended += bytes;
                    self.peaks.pend(bytes, true);
                }
            });
        }
        let mut shelf = self.depots[class].lock();
        match freed {
            Ok(()) => {
                shelf.owed.retain(|owed| owed.segment != segment);
                segment.end();
                shelf.retired.push(segment);
                self.ledger.returned(segment.reserved_bytes());
                Ok(())
            }
            Err(error) => {
                self.table.insert(segment.base(), segment.paged_bytes(), segment.0);
                if owe {
                    let owed = shelf.owed.iter_mut().filter(|owed| owed.segment == segment);
                    owed.for_each(|owed| owed.offered = false);
                    self.ledger.count_owed();
                    return Ok(());
                }
                shelf.owed.retain(|owed| owed.segment != segment);
                shelf.segments.push(segment);
                record.word.set(ptr.raw(), State::Live);
                Err(error.into())
            }
        }
    }

    /// The calling thread ends: whoever comes after it cannot record in its default stream any more.
    pub(super) fn leave_default_stream(&self, slot: &Slot) {
        for class in 0..self.depots.len() {
            let mine = {
                let shelf = self.depots[class].lock();
                let blocks = shelf.streams.keys().any(|key| key.thread() == Some(slot.thread()));
                let users = shelf.unrecorded.iter().flat_map(|(_, users)| users);
                blocks || users.into_iter().any(|key| key.thread() == Some(slot.thread()))
            };
            if mine {
                // What cannot be recorded is stuck, and goes back to the driver when the cache is emptied.
                let _ = self.settle(slot, class);
                self.mark_own_default_stream(slot, class);
            }
        }
    }
}

impl Drop for Pool {
    /// Returns everything, also what callers still hold: with the pool gone, nobody could.
    fn drop(&mut self) {
        for class in 0..self.depots.len() {
            let shelf = self.depots[class].get_mut();
            let segments = std::mem::take(&mut shelf.segments);
            let owed = std::mem::take(&mut shelf.owed).into_iter().map(|owed| owed.segment);
            let held: Vec<SegmentRef> = segments.into_iter().chain(owed).collect();
            let retired = std::mem::take(&mut shelf.retired);
            for segment in &held {
                // There is nobody left to tell, and the next segment may still go.
                let _ = self.free(*segment);
            }
            for segment in held.into_iter().chain(retired) {
                // SAFETY: with `&mut self` nobody else uses the pool, and no block leaves it.
                unsafe { super::segment::Segment::free_bookkeeping(segment.0) };
            }
        }
    }
}
