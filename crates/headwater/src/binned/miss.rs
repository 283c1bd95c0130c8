//! What a request does that its thread's cache cannot serve: the ladder.
//!
//! The order: the thread's mail; the depot's blocks of this stream and idle ones; blocks whose other users have finished;
//! what other threads hold and did not need lately, and blocks that another stream has finished with, where that is paid
//! for (`looks.rs`); the driver. Where the
//! limit or the device is in the way: everything that threads hold and everything that has finished, of every class; blocks
//! of another stream, which this stream is then made to wait for on the device; free segments of other classes back to the
//! driver; waiting for the oldest give-back; memory of just the requested size; and only then an error.
//!
//! An error of the driver on one of the middle steps is no reason to refuse a request that a later step can serve: what it
//! concerns stays where it is, and is tried again.

use std::sync::Arc;

use headwater_driver::{DevicePtr, DriverError, Stream};

use super::Slot;
use super::cache::InHand;
use super::depot::{Block, SegmentRef, StreamShelf};
use super::marks::{Mark, Marked};
use super::pool::{Pool, hand_out, receive};
use super::segment::Segment;
use crate::address_table::PAGE_BYTES;
use crate::allocator::Request;
use crate::capture_guard;
use crate::error::{AllocError, OutOfMemoryReport};
use crate::thread_cache::Free;
use crate::thread_cache::StreamKey;

/// The most blocks that a thread takes from the depot at once: half of what a bin has room for.
const REFILL_BLOCKS: u64 = 32;

/// How many other streams one miss asks about.
const STREAMS_ASKED: usize = 8;

/// From this size on the driver aligns what it gives to a page, and takes whole pages for it.
const STRAIGHT_BYTES_MIN: u64 = 1 << 20;

/// Why the pool cannot grow.
pub(super) enum Shortage {
    /// The limit is in the way.
    Limit,
    /// The device has not enough.
    Device,
    /// The driver has another reason.
    Driver(DriverError),
}

/// Who is to have a block of which class.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    slot: &'a Slot,
    /// What was asked for.
    bytes: u64,
    class: usize,
    stream: Stream,
    key: StreamKey,
}

impl Pool {
    /// Serves a request that was checked, is not empty and found nothing in its thread's cache.
    pub(super) fn miss(self: &Arc<Self>, request: &Request) -> Result<DevicePtr, AllocError> {
        let Some(class) = self.classes.aligned(request.bytes, request.alignment_bytes) else {
            return self.allocate_straight(request);
        };
        let slot = self.caches.attach(self);
        let key = StreamKey::new(request.stream, slot.thread());
        if slot.own(|cache| cache.bins.select(key.0))
            && let Some(ptr) = self.hit_class(slot, request, class)
        {
            return Ok(ptr);
        }
        self.take_mail(slot);
        if let Some(ptr) = self.hit_class(slot, request, class) {
            return Ok(ptr);
        }
        let wanted = Wanted { slot, bytes: request.bytes, class, stream: request.stream, key };
        let mut blocks = match self.find(wanted) {
            // A block of the class does not fit, but one of just this size may.
            Err(error) if error.is_out_of_memory() && request.bytes >= STRAIGHT_BYTES_MIN => {
                return self.allocate_exactly(request).ok_or(error);
            }
            found => found?,
        };
        // `find` returns at least one.
        let Some(first) = blocks.pop() else { return Err(self.out_of_memory(request.bytes, false)) };
        let (mut leaving, block_bytes) = (InHand::default(), self.classes.bytes(class));
        let ptr = slot.own(|cache| {
            let out = &mut |class, block| leaving.0.push((class, block));
            cache.bins.prepare(request.stream.raw(), key.0, class, out);
            for block in blocks {
                block.move_to(slot, key.0);
                if !cache.bins.keep(key.0, class, Free { address: block.word.address(), thing: block.0 }) {
                    leaving.0.push((class, block.0));
                }
            }
            first.move_to(slot, key.0);
            let ptr = hand_out(cache, first, class, block_bytes, request.bytes);
            cache.counts[class].depot_visits += 1;
            self.peaks.absorb(cache);
            ptr
        });
        self.put_in_depots(leaving, false);
        Ok(ptr)
    }

    /// One block or more, in hand, that nothing but the wanted stream still uses.
    fn find(&self, wanted: Wanted<'_>) -> Result<Vec<Block>, AllocError> {
        let Wanted { slot, class, .. } = wanted;
        if let Some(blocks) = self.take_from_depot(wanted) {
            return Ok(blocks);
        }
        // An error here: see the head of the file.
        if self.settle(slot, class).is_ok_and(|freed| freed > 0)
            && let Some(blocks) = self.take_from_depot(wanted)
        {
            return Ok(blocks);
        }
        if self.depots[class].lock().looks.pay()
            && let Some(blocks) = self.look_around(wanted)
        {
            return Ok(blocks);
        }
        match self.grow(class) {
            Ok(blocks) => Ok(self.keep_one_refill(wanted, blocks)),
            Err(shortage) => self.find_under_pressure(wanted, shortage),
        }
    }

    /// What other threads hold and did not need lately, and what other streams have finished with.
    fn look_around(&self, wanted: Wanted<'_>) -> Option<Vec<Block>> {
        self.ledger.count_look();
        self.collect_from_threads(Some(wanted.class), false);
        self.take_from_depot(wanted).or_else(|| {
            let from_streams = self.options.cross_stream_reuse.then(|| self.take_from_streams(wanted, false));
            from_streams.flatten()
        })
    }

    /// The second half of the ladder: the driver or the limit has said no.
    fn find_under_pressure(
        &self,
        wanted: Wanted<'_>,
        mut shortage: Shortage,
    ) -> Result<Vec<Block>, AllocError> {
        loop {
            if let Shortage::Driver(error) = shortage {
                return Err(error.into());
            }
            self.ledger.count_retry();
            self.collect_from_threads(None, true);
            for class in 0..self.depots.len() {
                // An error here: see the head of the file.
                let _ = self.settle(wanted.slot, class);
            }
            if let Some(blocks) = self.take_from_depot(wanted) {
                return Ok(blocks);
            }
            if self.options.cross_stream_reuse
                && let Some(blocks) = self.take_from_streams(wanted, true)
            {
                return Ok(blocks);
            }
            // What cannot be returned is owed, and does not help here.
            let _ = self.trim();
            shortage = match self.grow(wanted.class) {
                Ok(blocks) => return Ok(self.keep_one_refill(wanted, blocks)),
                Err(shortage) => shortage,
            };
            if !self.wait_for_oldest()? {
                return Err(match shortage {
                    Shortage::Driver(error) => error.into(),
                    Shortage::Limit => self.out_of_memory(wanted.bytes, true),
                    Shortage::Device => self.out_of_memory(wanted.bytes, false),
                });
            }
        }
    }

    /// How many blocks a thread takes at once: fewer of large ones, and no more than a part of what it may keep.
    fn refill_blocks(&self, class: usize) -> usize {
        let share_bytes = self.options.thread_cache_bytes / 16;
        (share_bytes / self.classes.bytes(class)).clamp(1, REFILL_BLOCKS) as usize
    }

    fn take_from_depot(&self, wanted: Wanted<'_>) -> Option<Vec<Block>> {
        let mut blocks = Vec::new();
        let count = self.refill_blocks(wanted.class);
        self.depots[wanted.class].lock().take(wanted.key, count, &mut blocks);
        (!blocks.is_empty()).then_some(blocks)
    }

    /// Takes a thread's share of blocks that nothing uses, and puts the rest in the depot.
    fn keep_one_refill(&self, wanted: Wanted<'_>, mut blocks: Vec<Block>) -> Vec<Block> {
        let rest = blocks.split_off(self.refill_blocks(wanted.class).min(blocks.len()));
        let mut shelf = self.depots[wanted.class].lock();
        rest.into_iter().rev().for_each(|block| shelf.put_idle(block));
        blocks
    }

    /// Blocks of other streams: those that have finished; or, with `wait`, any, with this stream made to wait.
    fn take_from_streams(&self, wanted: Wanted<'_>, wait: bool) -> Option<Vec<Block>> {
        let mut after = None;
        for _ in 0..STREAMS_ASKED {
            let taken = self.depots[wanted.class].lock().take_stream(after, wanted.key, wait);
            let (key, mut shelf) = taken?;
            after = Some(key);
            // An error here: see the head of the file.
            let mark = self.mark_all(wanted.slot, key, &mut shelf).ok().flatten();
            let free = mark.is_some_and(|mark| {
                self.marker.has_passed(&mark).unwrap_or(false)
                    || (wait && self.marker.hold_back(wanted.stream, &mark).unwrap_or(false))
            });
            let mut blocks = if free { std::mem::take(&mut shelf.marked) } else { Vec::new() };
            let passed = free && !wait;
            let rest = blocks.split_off(self.refill_blocks(wanted.class).min(blocks.len()));
            let mut depot = self.depots[wanted.class].lock();
            if passed {
                rest.into_iter().for_each(|block| depot.put_idle(block));
            } else {
                shelf.marked.extend(rest);
            }
            depot.put_stream(key, shelf);
            if !blocks.is_empty() {
                return Some(blocks);
            }
        }
        None
    }

    /// A mark after everything on the shelf, old where it covers something, else new.
    fn mark_all(
        &self,
        slot: &Slot,
        key: StreamKey,
        shelf: &mut StreamShelf,
    ) -> Result<Option<Mark>, DriverError> {
        if let (Some(mark), false) = (&shelf.mark, shelf.marked.is_empty()) {
            return Ok(Some(mark.clone()));
        }
        if !key.is_known_in(slot.thread()) {
            return Ok(None);
        }
        let Marked::At(mark) = self.marker.mark(key.stream(self.device))? else { return Ok(None) };
        shelf.marked.append(&mut shelf.unmarked);
        shelf.mark = Some(mark.clone());
        Ok(Some(mark))
    }

    /// Brings what threads hold and did not need since the last time into the depots; with `everything`, all they hold.
    pub(super) fn collect_from_threads(&self, class: Option<usize>, everything: bool) {
        let (mut leaving, mut outgoing) = (InHand::default(), Vec::new());
        self.caches.stop(|stopped| {
            stopped.each(|slot, cache| {
                self.peaks.absorb(cache);
                slot.inbox.take(|message| receive(cache, message, &mut leaving));
                outgoing.extend(cache.take_outgoing());
                let mut out = |class, block| leaving.0.push((class, block));
                if everything {
                    cache.bins.take_all(&mut out);
                } else {
                    cache.bins.take_surplus(class, &mut out);
                }
            });
            // With every thread stopped there is nothing left to send: all of it is received here.
            stopped.first(|_, cache| {
                for message in outgoing.drain(..).flat_map(|batch| batch.messages) {
                    receive(cache, message, &mut leaving);
                }
            });
        });
        self.put_in_depots(leaving, true);
    }

    /// A new segment of `class`; all of its blocks in hand.
    fn grow(&self, class: usize) -> Result<Vec<Block>, Shortage> {
        let (blocks, bytes) = self.classes.segment(class);
        let block_bytes = self.classes.bytes(class);
        let segment = self.new_segment(class, blocks, bytes, block_bytes)?;
        self.depots[class].count_miss();
        Ok(segment.records().map(|record| Block(std::ptr::NonNull::from(record))).collect())
    }

    /// Gets `bytes` from the driver under the bookkeeping of a segment, and puts it into the table.
    pub(super) fn new_segment(
        &self,
        class: usize,
        blocks: u64,
        bytes: u64,
        block_bytes: u64,
    ) -> Result<SegmentRef, Shortage> {
        let (driver_base, reserved_bytes) = self.ask_driver(bytes)?;
        let retired = self.depots[class].lock().retired.pop();
        let segment = retired.unwrap_or_else(|| SegmentRef(Segment::new(class, blocks, block_bytes)));
        segment.begin(driver_base.raw(), reserved_bytes, block_bytes);
        let mut shelf = self.depots[class].lock();
        if !self.table.insert(segment.base(), segment.paged_bytes(), segment.0) {
            // No driver gives such an address; should one, it is as good as none.
            segment.end();
            shelf.retired.push(segment);
            drop(shelf);
            let freed =
                capture_guard::relaxed(&*self.driver, || self.driver.mem_free(self.device, driver_base));
            self.ledger.withdraw(reserved_bytes);
            return Err(freed.map_or_else(Shortage::Driver, |()| Shortage::Device));
        }
        shelf.segments.push(segment);
        shelf.looks.grown();
        self.ledger.admit(reserved_bytes);
        Ok(segment)
    }

    /// Memory of at least `bytes` that begins at a page, or has room for it to: where it is, and what it takes.
    fn ask_driver(&self, bytes: u64) -> Result<(DevicePtr, u64), Shortage> {
        let base = self.ask_driver_for(bytes)?;
        if base.is_aligned_to(PAGE_BYTES) {
            return Ok((base, bytes));
        }
        // CUDA aligns what is 1 MiB or larger to 2 MiB, but promises 256 bytes. A driver that keeps to its promise only is
        // asked for a page more, so that blocks have pages of their own.
        let freed = capture_guard::relaxed(&*self.driver, || self.driver.mem_free(self.device, base));
        self.ledger.withdraw(bytes);
        freed.map_err(Shortage::Driver)?;
        let base = self.ask_driver_for(bytes + PAGE_BYTES)?;
        Ok((base, bytes + PAGE_BYTES))
    }

    fn ask_driver_for(&self, bytes: u64) -> Result<DevicePtr, Shortage> {
        if !self.ledger.promise(bytes) {
            return Err(Shortage::Limit);
        }
        capture_guard::relaxed(&*self.driver, || self.driver.mem_alloc(self.device, bytes)).map_err(|error| {
            self.ledger.withdraw(bytes);
            if error.is_out_of_memory() { Shortage::Device } else { Shortage::Driver(error) }
        })
    }

    /// The error at the end of the ladder.
    pub(super) fn out_of_memory(&self, requested_bytes: u64, over_limit: bool) -> AllocError {
        self.ledger.count_oom(over_limit);
        let mut report = OutOfMemoryReport::new(self.device, requested_bytes);
        report.fill_from(&self.stats());
        report.limit_bytes = self.options.limit_bytes;
        // Without an answer the report is still worth having.
        report.memory = self.driver.memory_info(self.device).ok();
        report.over_limit = over_limit;
        report.remedy = match over_limit {
            true => "raise `limit_bytes`, use finer size classes (`divisions`), or give memory back",
            false => {
                "give memory back, here or in the other programs on this device, or use finer size classes \
                 (`divisions`)"
            }
        };
        report.into()
    }
}

impl Pool {
    /// Marks the free blocks of the calling thread's own default stream, while it still can.
    pub(super) fn mark_own_default_stream(&self, slot: &Slot, class: usize) {
        let key = StreamKey::new(Stream::per_thread_default(self.device), slot.thread());
        let mut depot = self.depots[class].lock();
        let Some(mut taken) = depot.streams.remove(&key) else { return };
        taken.unmarked.iter().chain(&taken.marked).for_each(|block| block.segment().count_free(false));
        drop(depot);
        // An older mark covers less than all.
        taken.unmarked.append(&mut taken.marked);
        taken.mark = None;
        // What cannot be marked is of use to nobody but the driver.
        let _ = self.mark_all(slot, key, &mut taken);
        self.depots[class].lock().put_stream(key, taken);
    }
}
