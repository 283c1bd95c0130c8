//! From an address to its ticket, without a lock.
//!
//! Blocks of the caching allocator have any size and begin at any multiple of 512 bytes, so a table by page would need a place
//! for each of 4096 beginnings. Instead: an open hash table of (address, ticket), twice as large as it is full at the most, with
//! linear probing. A look-up is a multiplication and two loads.
//!
//! **One writer, any number of readers.** Entries come and go under the engine's lock ([`Writer`]); readers take none. What a
//! reader finds is a hint: while entries move up to close a gap, it may miss one that is there, or pair an address with the
//! ticket that was beside it. The ticket's word has the address in it, so the wrong ticket does not match; and who finds
//! nothing asks again under the lock, where the answer is exact. That is why no version counter and no second look is needed.
//!
//! A table that became too small is replaced by one of twice the size and kept until the allocator goes, because a reader may
//! be in it: all of them together are as large as the present one.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::ticket::Ticket;
use crate::thread_cache::sync::{AtomicPtr, AtomicU64, Ordering};

/// The entries of the first table.
const ENTRIES_MIN: usize = if cfg!(all(loom, test)) { 4 } else { 1024 };

/// How far a reader looks. The writer looks as far as it takes; at half full one in a thousand entries is further away.
const READER_STEPS: usize = 16;

/// How many tickets are made at once.
const TICKETS_AT_ONCE: usize = if cfg!(all(loom, test)) { 2 } else { 64 };

#[derive(Debug)]
struct Entry {
    /// 0 where there is none.
    address: AtomicU64,
    ticket: AtomicPtr<Ticket>,
}

struct Table {
    entries: Box<[Entry]>,
    /// A place is found in the high bits of a product.
    shift: u32,
}

impl Table {
    /// A table of `entries`, a power of two.
    fn new(entries: usize) -> Self {
        let entry = |_| Entry { address: AtomicU64::new(0), ticket: AtomicPtr::new(ptr::null_mut()) };
        Self { shift: u64::BITS - entries.ilog2(), entries: (0..entries).map(entry).collect() }
    }

    /// Where an address belongs: Fibonacci hashing, which spreads multiples well.
    #[inline(always)]
    fn home(&self, address: u64) -> usize {
        (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    #[inline(always)]
    fn entry(&self, place: usize) -> &Entry {
        &self.entries[place & (self.entries.len() - 1)]
    }

    /// The place of an address, or the first free one. For the writer.
    fn place_of(&self, address: u64) -> usize {
        let mut place = self.home(address);
        loop {
            let there = self.entry(place).address.load(Ordering::Relaxed);
            if there == address || there == 0 {
                return place & (self.entries.len() - 1);
            }
            place += 1;
        }
    }

    fn put(&self, address: u64, ticket: *mut Ticket) {
        let entry = self.entry(self.place_of(address));
        // The ticket first: who sees the address sees it.
        entry.ticket.store(ticket, Ordering::Release);
        entry.address.store(address, Ordering::Release);
    }

    /// Takes an entry out, and moves those up that belong before the gap.
    fn remove(&self, address: u64) {
        let mut gap = self.place_of(address);
        let (mask, mut place) = (self.entries.len() - 1, gap);
        loop {
            place = (place + 1) & mask;
            let there = self.entry(place).address.load(Ordering::Relaxed);
            if there == 0 {
                break;
            }
            // How far it is from home, and how far the gap is from here.
            let strayed = place.wrapping_sub(self.home(there)) & mask;
            if strayed >= place.wrapping_sub(gap) & mask {
                let ticket = self.entry(place).ticket.load(Ordering::Relaxed);
                self.entry(gap).ticket.store(ticket, Ordering::Release);
                self.entry(gap).address.store(there, Ordering::Release);
                gap = place;
            }
        }
        self.entry(gap).address.store(0, Ordering::Release);
    }
}

/// The readers' side.
pub(crate) struct Directory {
    table: AtomicPtr<Table>,
}

impl Directory {
    /// An empty directory, and the right to change it.
    pub(crate) fn new() -> (Arc<Self>, Writer) {
        let first = Box::new(Table::new(ENTRIES_MIN));
        let directory = Arc::new(Self { table: AtomicPtr::new(ptr::from_ref(&*first).cast_mut()) });
        let writer = Writer {
            directory: directory.clone(),
            tables: vec![first],
            count: 0,
            chunks: Vec::new(),
            spare: Vec::new(),
        };
        (directory, writer)
    }

    /// The ticket of the block that callers know by `address`: a hint, see above. Good for as long as the [`Writer`] lives.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64) -> Option<NonNull<Ticket>> {
        // SAFETY: tables are kept by the writer, which lives as long as anybody looks up.
        let table = unsafe { &*self.table.load(Ordering::Acquire) };
        let home = table.home(address);
        for place in home..home + READER_STEPS {
            let entry = table.entry(place);
            let there = entry.address.load(Ordering::Acquire);
            if there == address {
                return NonNull::new(entry.ticket.load(Ordering::Acquire)).filter(|_| address != 0);
            }
            if there == 0 {
                return None;
            }
        }
        None
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").finish_non_exhaustive()
    }
}

/// The right to change a directory, and everything it consists of. Behind the engine's lock.
pub(crate) struct Writer {
    directory: Arc<Directory>,
    /// All tables there ever were; the last is in use. Boxed: readers have pointers to them.
    #[expect(clippy::vec_box, reason = "a table stays where it is while the list of them grows")]
    tables: Vec<Box<Table>>,
    count: usize,
    /// All tickets.
    chunks: Vec<Box<[Ticket]>>,
    /// Those that are not out.
    spare: Vec<NonNull<Ticket>>,
}

// SAFETY: the pointers are to tickets in `chunks`, which may be used from any thread.
unsafe impl Send for Writer {}

impl Writer {
    fn table(&self) -> &Table {
        self.tables.last().expect("there is a table from the beginning")
    }

    /// A ticket for the block that callers know by `address`, which has none. Its fields are to be filled in, and its word set
    /// last.
    pub(crate) fn issue(&mut self, address: u64) -> &Ticket {
        if 2 * (self.count + 1) > self.table().entries.len() {
            self.grow();
        }
        let ticket = self.spare.pop().unwrap_or_else(|| self.make_tickets());
        self.count += 1;
        self.table().put(address, ticket.as_ptr());
        // SAFETY: tickets live as long as `self`.
        unsafe { ticket.as_ref() }
    }

    /// The ticket of the block at `address`.
    pub(crate) fn get(&self, address: u64) -> Option<&Ticket> {
        let table = self.table();
        let entry = table.entry(table.place_of(address));
        let found = address != 0 && entry.address.load(Ordering::Relaxed) == address;
        // SAFETY: tickets live as long as `self`.
        found.then(|| unsafe { &*entry.ticket.load(Ordering::Relaxed) })
    }

    /// Takes a ticket in. Its word says already that there is no block.
    pub(crate) fn take_in(&mut self, address: u64) {
        let table = self.table();
        let entry = table.entry(table.place_of(address));
        if address == 0 || entry.address.load(Ordering::Relaxed) != address {
            return;
        }
        let ticket = NonNull::new(entry.ticket.load(Ordering::Relaxed));
        table.remove(address);
        self.count -= 1;
        self.spare.extend(ticket);
    }

    /// All tickets that are out, with their addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Ticket)> {
        self.table().entries.iter().filter_map(|entry| {
            let address = entry.address.load(Ordering::Relaxed);
            // SAFETY: tickets live as long as `self`.
            (address != 0).then(|| (address, unsafe { &*entry.ticket.load(Ordering::Relaxed) }))
        })
    }

    /// How many tickets are out.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[cold]
    fn grow(&mut self) {
        let larger = Box::new(Table::new(2 * self.table().entries.len()));
        for entry in &self.table().entries {
            let address = entry.address.load(Ordering::Relaxed);
            if address != 0 {
                larger.put(address, entry.ticket.load(Ordering::Relaxed));
            }
        }
        let place = ptr::from_ref(&*larger).cast_mut();
        self.tables.push(larger);
        self.directory.table.store(place, Ordering::Release);
    }

    #[cold]
    fn make_tickets(&mut self) -> NonNull<Ticket> {
        let chunk: Box<[Ticket]> = (0..TICKETS_AT_ONCE).map(|_| Ticket::new()).collect();
        let mut fresh = chunk.iter().map(NonNull::from);
        let first = fresh.next().expect("a chunk has tickets");
        self.spare.extend(fresh.rev());
        self.chunks.push(chunk);
        first
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.table().entries.len();
        f.debug_struct("Writer").field("tickets", &self.count).field("entries", &entries).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))] // under the model checker, atomics are good for models only
mod tests {
    use super::*;
    use crate::caching::front::ticket::Doing;

    const BASE: u64 = 0x7f00_0000_0000;

    fn issue(writer: &mut Writer, address: u64) {
        writer.issue(address).set(address, Doing::Live);
    }

    #[test]
    fn what_was_issued_is_found_and_nothing_else_also_after_growth_and_removals() {
        let (directory, mut writer) = Directory::new();
        let address = |number: u64| BASE + number * 512;
        for number in 0..5000 {
            issue(&mut writer, address(number));
        }
        for number in (0..5000).step_by(3) {
            writer.take_in(address(number));
        }
        assert_eq!(writer.len(), 5000 - 1667);
        let mut missed = 0;
        for number in 0..5000 {
            let exact = writer.get(address(number));
            assert_eq!(exact.is_some(), number % 3 != 0, "{number}");
            assert!(exact.is_none_or(|ticket| ticket.is_live_at(address(number))));
            let hint = directory.find(address(number));
            missed += u32::from(hint.is_none() && exact.is_some());
            assert!(hint.is_none() || exact.is_some());
        }
        assert!(missed < 50, "readers may miss some, but few: {missed}");
        assert!(directory.find(0).is_none() && writer.get(0).is_none());
        assert!(directory.find(address(5000)).is_none() && directory.find(BASE + 1).is_none());
        assert_eq!(writer.iter().count(), writer.len());
    }

    #[test]
    fn tickets_are_used_again() {
        let (_directory, mut writer) = Directory::new();
        for round in 0..1000 {
            issue(&mut writer, BASE + round * 512);
            writer.take_in(BASE + round * 512);
        }
        assert_eq!((writer.len(), writer.chunks.len(), writer.tables.len()), (0, 1, 1));
        writer.take_in(BASE);
        assert_eq!(writer.len(), 0, "an address without a ticket changes nothing");
    }
}
