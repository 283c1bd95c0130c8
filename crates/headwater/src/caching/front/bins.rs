//! What one thread keeps: recently given back blocks by stream and exact rounded size, the latest on top.
//!
//! **Small blocks** (up to [`SMALL_MAX_BYTES`]) are in bins, one for each multiple of 512 bytes: a list through the tickets
//! themselves, so a block goes in and out with two stores and a bin is 16 bytes.
//!
//! **Of large blocks** one is kept, and only where a size comes and goes: after just that size was asked for [`HABIT`] times in a row as
//! the first large request after it was given back. The first large request of another size ends that, and the block goes to
//! the engine before the engine searches (`exchange.rs`). The line between the two is that of the paged backing's regions, because
//! what differs is what keeping a block costs: a small one keeps a few KiB from merging, a large one whole handles from being
//! free, and the place where the engine would have put the next one. Kept without such a habit, one block raised the
//! fragmentation of a recorded training run from 0.79 % to 1.30 %, and a steady loop never came to rest.
//!
//! A thread works in a few streams, and mostly in one at a time, so the hit path looks at the bins of the stream used last and
//! at no other; a change of stream is a step aside ([`Bins::select`]). Bounded in bytes, streams and blocks a bin. A bin that is full gives up its older half; a thread that has too many bytes, the largest small blocks until it has
//! half of what it may: the next time is then far away.

use std::ptr::{self, NonNull};

use super::InHand;
use super::ticket::Ticket;
use crate::caching::paged::policy::SMALL_MAX_BYTES;
use crate::config::MIN_BLOCK_BYTES;

/// The largest small block, in units.
pub(crate) const SMALL_UNITS_MAX: u32 = (SMALL_MAX_BYTES / MIN_BLOCK_BYTES) as u32;

/// The most blocks in one bin.
const BIN_BLOCKS_MAX: u32 = 128;

/// How often a large size comes and goes before its block is kept.
const HABIT: u32 = 16;

/// The most streams with bins in one thread. One more, and the one unused for longest is emptied.
const STREAMS_MAX: usize = 16;

/// The key of no stream. Should a stream have this number, nothing is kept for it.
pub(crate) const NO_STREAM: u64 = u64::MAX;

/// The name of no stream: CUDA's null stream has another name here.
const NO_NAME: u64 = 0;

/// A stack of tickets, linked through themselves.
#[derive(Clone, Copy, Debug)]
struct Bin {
    top: *const Ticket,
    blocks: u32,
}

const EMPTY: Bin = Bin { top: ptr::null(), blocks: 0 };

/// The bins of one stream.
#[derive(Debug)]
struct StreamBins {
    /// The stream as this thread names it.
    name: u64,
    /// What tells the stream from all others, whoever asks.
    key: u64,
    /// By units; the first is not used. Out of a box, and back into it when dropped; a pointer, because `Bins` has another to the
    /// same.
    bins: NonNull<[Bin]>,
    /// When it was last selected, by the clock of `Bins`.
    used_at: u64,
}

impl StreamBins {
    fn new(name: u64, key: u64) -> Self {
        let bins = vec![EMPTY; SMALL_UNITS_MAX as usize + 1].into_boxed_slice();
        Self { name, key, bins: NonNull::from(Box::leak(bins)), used_at: 0 }
    }

    fn bins(&mut self) -> &mut [Bin] {
        // SAFETY: it points to a box's content that lives as long as this; and the hit path, which has a pointer to it too,
        // needs `&mut Bins`, which is borrowed as long as this is.
        unsafe { self.bins.as_mut() }
    }
}

impl Drop for StreamBins {
    fn drop(&mut self) {
        // SAFETY: it came out of a box in `new`, and goes back once.
        drop(unsafe { Box::from_raw(self.bins.as_ptr()) });
    }
}

/// The large size that comes and goes.
#[derive(Clone, Copy, Debug)]
struct Large {
    /// Its stream and size.
    key: u64,
    units: u32,
    /// How often in a row it was asked for as the first after it was given back.
    times: u32,
    /// Whether it was given back last.
    is_back: bool,
    /// The block that is kept, or none.
    ticket: *const Ticket,
}

const NO_LARGE: Large = Large { key: NO_STREAM, units: 0, times: 0, is_back: false, ticket: ptr::null() };

/// Everything one thread keeps.
#[derive(Debug)]
pub(crate) struct Bins {
    /// The stream used last: its name, its key, and the first of its bins.
    name: u64,
    key: u64,
    current: NonNull<Bin>,
    streams: Vec<StreamBins>,
    small_bytes: u64,
    large_bytes: u64,
    bytes_max: u64,
    large: Large,
    /// Counts changes of the stream.
    clock: u64,
}

// SAFETY: the pointers are to tickets in hand, which may be used from any thread and live as long as the allocator.
unsafe impl Send for Bins {}

impl Bins {
    /// No blocks, and room for `bytes_max` of small ones and one large one. Without room nothing is ever kept.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            name: NO_NAME,
            key: NO_STREAM,
            current: NonNull::dangling(),
            streams: Vec::new(),
            small_bytes: 0,
            large_bytes: 0,
            bytes_max,
            large: NO_LARGE,
            clock: 0,
        }
    }

    /// A block of the stream used last, if that is the one called `name`, for requests of so many units.
    #[inline(always)]
    pub(crate) fn pop(&mut self, name: u64, units: u32) -> Option<&Ticket> {
        if self.name != name {
            return None;
        }
        if units > SMALL_UNITS_MAX {
            return self.pop_large(units);
        }
        // SAFETY: with a name there are bins, one for every number of units that is small.
        let bin = unsafe { self.current.add(units as usize).as_mut() };
        // SAFETY: what is in a bin is in hand, and tickets live as long as the allocator.
        let ticket = unsafe { bin.top.as_ref() }?;
        bin.top = ticket.next();
        bin.blocks -= 1;
        self.small_bytes -= ticket.block_bytes();
        Some(ticket)
    }

    #[inline(always)]
    fn pop_large(&mut self, units: u32) -> Option<&Ticket> {
        if self.large.units != units || self.large.key != self.key {
            return None;
        }
        let kept = std::mem::replace(&mut self.large.ticket, ptr::null());
        // SAFETY: as in `pop`.
        let ticket = unsafe { kept.as_ref() }?;
        (self.large_bytes, self.large.is_back) = (0, false);
        Some(ticket)
    }

    /// A large request goes to the engine.
    pub(crate) fn note_large_request(&mut self, key: u64, units: u32) {
        let is_habit = self.large.is_back && self.large.key == key && self.large.units == units;
        let times = if is_habit { self.large.times.saturating_add(1) } else { 0 };
        self.large = Large { key, units, times, is_back: false, ..self.large };
    }

    /// A block goes to the engine, for want of room.
    pub(crate) fn note_back(&mut self, key: u64, units: u32) {
        if units > SMALL_UNITS_MAX {
            self.large.is_back = self.large.key == key && self.large.units == units;
        }
    }

    /// Whether a block of the stream used last could be kept.
    #[inline(always)]
    pub(crate) fn has_room(&self, key: u64, units: u32) -> bool {
        if self.key != key || units == 0 {
            return false;
        }
        if units > SMALL_UNITS_MAX {
            let large = &self.large;
            return large.times >= HABIT
                && large.units == units
                && large.key == key
                && large.ticket.is_null();
        }
        // SAFETY: with a key there are bins, one for every number of units that is small.
        let bin = unsafe { self.current.add(units as usize).as_ref() };
        self.small_bytes < self.bytes_max && bin.blocks < BIN_BLOCKS_MAX
    }

    /// Keeps a block in hand, where the stream used last is its own and there is room. Says whether.
    pub(crate) fn push(&mut self, ticket: &Ticket) -> bool {
        let (key, units) = (ticket.stream(), ticket.units());
        self.has_room(key, units) && self.put(ticket, key, units)
    }

    /// The same for a block of this stream and size, for which [`has_room`](Self::has_room) has just said that there is room; where
    /// the block turns out to be another it is not kept.
    #[inline(always)]
    pub(crate) fn put(&mut self, ticket: &Ticket, key: u64, units: u32) -> bool {
        if self.key != key || ticket.stream() != key || ticket.units() != units {
            return false;
        }
        if units > SMALL_UNITS_MAX {
            (self.large.ticket, self.large.is_back) = (ticket, true);
            self.large_bytes = ticket.block_bytes();
            return true;
        }
        // SAFETY: as in `has_room`, which was asked about the same stream and size.
        let bin = unsafe { self.current.add(units as usize).as_mut() };
        ticket.set_next(bin.top);
        bin.top = ticket;
        bin.blocks += 1;
        self.small_bytes += ticket.block_bytes();
        true
    }

    /// Makes the stream with this `key` the one used last, if it has bins here. Says whether.
    pub(crate) fn select(&mut self, key: u64) -> bool {
        if self.key == key {
            return true;
        }
        let Some(place) = self.streams.iter().position(|stream| stream.key == key) else { return false };
        self.clock += 1;
        let stream = &mut self.streams[place];
        stream.used_at = self.clock;
        (self.name, self.key, self.current) = (stream.name, key, stream.bins.cast());
        true
    }

    /// Makes the stream the one used last, with bins. What must leave for it goes to `leaving`.
    pub(crate) fn prepare(&mut self, name: u64, key: u64, leaving: &mut InHand) {
        if self.bytes_max == 0 || self.select(key) {
            return;
        }
        if self.streams.len() == STREAMS_MAX {
            let oldest = self.streams.iter().min_by_key(|stream| stream.used_at).map(|stream| stream.key);
            oldest.into_iter().for_each(|key| self.forget(key, leaving));
        }
        self.streams.push(StreamBins::new(name, key));
        self.select(key);
    }

    /// Makes room for a small block: the older half of its bin leaves where that is full; and where the thread has too many
    /// bytes, the largest small blocks until it has half of what it may.
    pub(crate) fn make_room(&mut self, units: u32, leaving: &mut InHand) {
        if units > SMALL_UNITS_MAX {
            return;
        }
        let key = self.key;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) {
            let bin = &mut stream.bins()[units as usize];
            if bin.blocks >= BIN_BLOCKS_MAX {
                self.small_bytes -= bin.keep_latest(BIN_BLOCKS_MAX / 2, leaving);
            }
        }
        if self.small_bytes < self.bytes_max {
            return;
        }
        for units in (1..=SMALL_UNITS_MAX as usize).rev() {
            for stream in &mut self.streams {
                if self.small_bytes > self.bytes_max / 2 {
                    self.small_bytes -= stream.bins()[units].keep_latest(0, leaving);
                }
            }
        }
    }

    /// Takes out the large block.
    pub(crate) fn take_large(&mut self, leaving: &mut InHand) {
        let kept = std::mem::replace(&mut self.large.ticket, ptr::null());
        // SAFETY: as in `pop`.
        unsafe { kept.as_ref() }.into_iter().for_each(|ticket| leaving.push(ticket));
        self.large_bytes = 0;
    }

    /// Takes out the small blocks of all streams.
    pub(crate) fn take_small(&mut self, leaving: &mut InHand) {
        for bin in self.streams.iter_mut().flat_map(|stream| stream.bins().iter_mut()) {
            self.small_bytes -= bin.keep_latest(0, leaving);
        }
    }

    /// Takes out the blocks of one stream, and forgets it.
    pub(crate) fn forget(&mut self, key: u64, leaving: &mut InHand) {
        if self.large.key == key {
            self.take_large(leaving);
            self.large = NO_LARGE;
        }
        if let Some(place) = self.streams.iter().position(|stream| stream.key == key) {
            let mut stream = self.streams.swap_remove(place);
            for bin in stream.bins() {
                self.small_bytes -= bin.keep_latest(0, leaving);
            }
        }
        if self.key == key {
            (self.name, self.key, self.current) = (NO_NAME, NO_STREAM, NonNull::dangling());
        }
    }

    /// Takes out everything and forgets all streams: for a thread that ends.
    pub(crate) fn take_all_and_forget(&mut self, leaving: &mut InHand) {
        self.take_large(leaving);
        self.take_small(leaving);
        self.streams.clear();
        self.large = NO_LARGE;
        (self.name, self.key, self.current) = (NO_NAME, NO_STREAM, NonNull::dangling());
    }

    /// Everything that is kept, for the walk.
    pub(crate) fn walk(&mut self, mut each: impl FnMut(&Ticket)) {
        let tops = self.streams.iter_mut().flat_map(|stream| stream.bins().iter().map(|bin| bin.top));
        for mut at in tops {
            // SAFETY: as in `pop`.
            while let Some(ticket) = unsafe { at.as_ref() } {
                each(ticket);
                at = ticket.next();
            }
        }
        // SAFETY: as in `pop`.
        unsafe { self.large.ticket.as_ref() }.into_iter().for_each(&mut each);
    }

    /// What is kept, as it was counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.small_bytes + self.large_bytes
    }
}

impl Bin {
    /// Takes out all but the `count` that came last, and says how many bytes that were.
    fn keep_latest(&mut self, count: u32, leaving: &mut InHand) -> u64 {
        let (mut kept, mut bytes, mut last, mut at) = (0, 0, None::<&Ticket>, self.top);
        // SAFETY: as in `Bins::pop`.
        while let Some(ticket) = unsafe { at.as_ref() } {
            at = ticket.next();
            if kept < count {
                kept += 1;
                last = Some(ticket);
            } else {
                bytes += ticket.block_bytes();
                leaving.push(ticket);
            }
        }
        match last {
            Some(last) => last.set_next(ptr::null()),
            None => self.top = ptr::null(),
        }
        self.blocks = kept;
        bytes
    }
}

#[cfg(test)]
#[cfg(not(loom))] // under the model checker, atomics are good for models only
mod tests {
    use super::super::ticket::Issue;
    use super::*;
    use crate::stats::PoolKind;

    const UNIT: u64 = MIN_BLOCK_BYTES;

    fn ticket(stream: u64, units: u32) -> Ticket {
        let ticket = Ticket::new();
        let bytes = u64::from(units) * UNIT;
        ticket.fill_in(&Issue {
            stream,
            owner: ptr::null(),
            block_bytes: bytes,
            requested_bytes: bytes,
            units,
            pool: PoolKind::SmallPool,
        });
        ticket
    }

    #[test]
    fn the_latest_block_of_just_the_stream_and_size_comes_out() {
        let mut bins = Bins::new(1 << 20);
        let mut leaving = InHand::default();
        let tickets = [ticket(7, 2), ticket(7, 2), ticket(7, 3), ticket(9, 2)];
        bins.prepare(9, 9, &mut leaving);
        assert!(bins.push(&tickets[3]));
        bins.prepare(7, 7, &mut leaving);
        assert!(tickets[..3].iter().all(|ticket| bins.push(ticket)));
        assert!(!bins.push(&tickets[3]), "not the stream used last");
        assert!(bins.pop(9, 2).is_none() && bins.pop(7, 4).is_none());
        assert!(ptr::eq(bins.pop(7, 2).unwrap(), &tickets[1]));
        assert!(ptr::eq(bins.pop(7, 2).unwrap(), &tickets[0]));
        assert!(bins.pop(7, 2).is_none());
        assert!(bins.select(9) && !bins.select(8));
        assert!(ptr::eq(bins.pop(9, 2).unwrap(), &tickets[3]));
        assert_eq!((bins.bytes(), leaving.len()), (3 * UNIT, 0));
    }

    #[test]
    fn a_full_bin_gives_up_its_older_half_and_too_many_bytes_the_largest() {
        let mut bins = Bins::new(40 * UNIT);
        let mut leaving = InHand::default();
        bins.prepare(7, 7, &mut leaving);
        let small: Vec<Ticket> = (0..39).map(|_| ticket(7, 1)).collect();
        assert!(small.iter().all(|ticket| bins.push(ticket)));
        let large = ticket(7, 30);
        assert!(bins.push(&large), "the last one may exceed");
        assert!(!bins.push(&ticket(7, 1)));
        bins.make_room(1, &mut leaving);
        assert_eq!((leaving.len(), bins.bytes()), (1 + 39, 0), "the largest first, and whole bins");

        let mut bins = Bins::new(1 << 20);
        bins.prepare(7, 7, &mut leaving);
        let blocks: Vec<Ticket> = (0..BIN_BLOCKS_MAX).map(|_| ticket(7, 1)).collect();
        assert!(blocks.iter().all(|ticket| bins.push(ticket)));
        assert!(!bins.has_room(7, 1) && bins.has_room(7, 2));
        let mut leaving = InHand::default();
        bins.make_room(1, &mut leaving);
        assert_eq!(leaving.len(), BIN_BLOCKS_MAX as usize / 2);
        assert!(ptr::eq(bins.pop(7, 1).unwrap(), blocks.last().unwrap()), "the latest stay");
    }

    #[test]
    fn a_large_block_is_kept_where_its_size_comes_and_goes() {
        let units = SMALL_UNITS_MAX + 1;
        let (mut bins, mut leaving) = (Bins::new(1), InHand::default());
        bins.prepare(7, 7, &mut leaving);
        let block = ticket(7, units);
        for _ in 0..=HABIT {
            assert!(!bins.push(&block));
            bins.note_back(7, units);
            bins.note_large_request(7, units);
        }
        assert!(bins.push(&block) && !bins.has_room(7, units), "one, of any size");
        assert!(bins.pop(7, units + 1).is_none() && ptr::eq(bins.pop(7, units).unwrap(), &block));
        assert!(bins.push(&block));
        bins.note_large_request(7, units + 1);
        bins.take_large(&mut leaving);
        assert_eq!((leaving.len(), bins.bytes()), (1, 0));
        assert!(!bins.has_room(7, units) && !bins.has_room(7, units + 1), "another size ends it");
    }
}
