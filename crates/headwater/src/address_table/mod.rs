//! From an address to what lies there, without a lock.
//!
//! Device memory comes in pages of 2 MiB, and a page belongs to one thing (a segment, an arena). The table is a tree of two
//! levels over page numbers: 2^13 roots of 2^14 leaves cover the 48-bit address space that hosts and devices share. A look-up
//! is three dependent loads. A leaf (128 KiB, 32 GiB of addresses) is made on first use and stays until the table goes, so a
//! reader never meets freed memory.
//!
//! The table holds pointers and owns nothing behind them. What it points to must stay readable for as long as anybody may
//! look up: keep such things in memory that is reused for its own kind only, and let each say which addresses it is about.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// What one entry covers: the granularity of device memory.
pub(crate) const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;

const PAGE_SHIFT: u32 = 21;
const LEAF_SHIFT: u32 = 14;
const ADDRESS_BITS: u32 = 48;
const ROOTS: usize = 1 << (ADDRESS_BITS - PAGE_SHIFT - LEAF_SHIFT);
const LEAVES: usize = 1 << LEAF_SHIFT;

type Leaf<T> = [AtomicPtr<T>; LEAVES];

/// Which `T` a page belongs to.
pub(crate) struct AddressTable<T> {
    roots: Box<[AtomicPtr<Leaf<T>>; ROOTS]>,
    /// Where nothing was ever inserted, all roots have this one in common.
    empty: *mut Leaf<T>,
}

impl<T> AddressTable<T> {
    pub(crate) fn new() -> Self {
        let empty = new_leaf();
        let roots = Box::leak((0..ROOTS).map(|_| AtomicPtr::new(empty)).collect::<Box<[_]>>());
        // SAFETY: the slice has just as many elements, and came out of a box.
        let roots = unsafe { Box::from_raw(ptr::from_mut(roots).cast()) };
        Self { roots, empty }
    }

    /// What the page around `address` belongs to.
    #[inline(always)]
    pub(crate) fn get(&self, address: u64) -> Option<NonNull<T>> {
        let page = (address >> PAGE_SHIFT) as usize;
        let leaf = self.roots.get(page >> LEAF_SHIFT)?.load(Ordering::Acquire);
        // SAFETY: a leaf, once published, stays until the table is dropped, which `&self` rules out.
        let leaf = unsafe { &*leaf };
        NonNull::new(leaf[page & (LEAVES - 1)].load(Ordering::Acquire))
    }

    /// Lets `bytes` from `base` on, both multiples of [`PAGE_BYTES`], belong to `owner`. Says whether they lie within the
    /// address space; if not, nothing is changed.
    pub(crate) fn insert(&self, base: u64, bytes: u64, owner: NonNull<T>) -> bool {
        self.set(base, bytes, owner.as_ptr())
    }

    /// Lets the pages belong to nobody again.
    pub(crate) fn remove(&self, base: u64, bytes: u64) {
        self.set(base, bytes, ptr::null_mut());
    }

    fn set(&self, base: u64, bytes: u64, owner: *mut T) -> bool {
        let pages = base >> PAGE_SHIFT..base.saturating_add(bytes) >> PAGE_SHIFT;
        if pages.end > 1 << (ADDRESS_BITS - PAGE_SHIFT) {
            return false;
        }
        for page in pages {
            let leaf = self.leaf(page as usize >> LEAF_SHIFT);
            leaf[page as usize & (LEAVES - 1)].store(owner, Ordering::Release);
        }
        true
    }

    /// The leaf at `root`, made if need be. Of two threads that make it, one finds itself late and takes the other's.
    fn leaf(&self, root: usize) -> &Leaf<T> {
        let place = &self.roots[root];
        let mut leaf = place.load(Ordering::Acquire);
        if leaf == self.empty {
            let fresh = new_leaf();
            let placed = place.compare_exchange(self.empty, fresh, Ordering::AcqRel, Ordering::Acquire);
            leaf = placed.map_or_else(
                |earlier| {
                    // SAFETY: nobody else has seen the fresh one.
                    unsafe { free_leaf(fresh) };
                    earlier
                },
                |_| fresh,
            );
        }
        // SAFETY: as in `get`.
        unsafe { &*leaf }
    }
}

// SAFETY: it hands out pointers, and what is done with them is its user's to answer for; all else is atomic.
unsafe impl<T: Send + Sync> Send for AddressTable<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for AddressTable<T> {}

fn new_leaf<T>() -> *mut Leaf<T> {
    let leaf: Box<[AtomicPtr<T>]> = (0..LEAVES).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
    Box::into_raw(leaf).cast()
}

/// # Safety
/// It is a leaf from [`new_leaf`] that nobody uses any more.
unsafe fn free_leaf<T>(leaf: *mut Leaf<T>) {
    // SAFETY: the caller's promise; a boxed slice of that many elements is a boxed array.
    drop(unsafe { Box::from_raw(leaf) });
}

impl<T> Drop for AddressTable<T> {
    fn drop(&mut self) {
        for root in self.roots.iter_mut() {
            let leaf = *root.get_mut();
            if leaf != self.empty {
                // SAFETY: with `&mut self` nobody reads it any more, and no two roots have the same.
                unsafe { free_leaf(leaf) };
            }
        }
        // SAFETY: as above; it is in no root that was freed.
        unsafe { free_leaf(self.empty) };
    }
}

impl<T> fmt::Debug for AddressTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaves = self.roots.iter().filter(|root| root.load(Ordering::Relaxed) != self.empty).count();
        f.debug_struct("AddressTable").field("leaves", &leaves).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7f00_0000_0000;

    #[test]
    fn every_address_of_a_range_is_found_and_none_beside_it() {
        let (table, mut owner) = (AddressTable::<u32>::new(), 7);
        let owner = NonNull::from(&mut owner);
        // Across the border of two leaves.
        let base = BASE + ((LEAVES as u64) << PAGE_SHIFT) - PAGE_BYTES;
        assert!(table.insert(base, 3 * PAGE_BYTES, owner));
        for address in [base, base + 1, base + PAGE_BYTES, base + 3 * PAGE_BYTES - 1] {
            assert_eq!(table.get(address), Some(owner), "{address:#x}");
        }
        for address in [base - 1, base + 3 * PAGE_BYTES, 0, 1, u64::MAX, 1 << 48, (1 << 48) - 1] {
            assert_eq!(table.get(address), None, "{address:#x}");
        }
        table.remove(base + PAGE_BYTES, PAGE_BYTES);
        assert_eq!(table.get(base), Some(owner));
        assert_eq!(table.get(base + PAGE_BYTES), None);
    }

    #[test]
    fn a_range_beyond_the_address_space_is_refused_whole() {
        let (table, mut owner) = (AddressTable::<u32>::new(), 7);
        let owner = NonNull::from(&mut owner);
        assert!(!table.insert((1 << 48) - PAGE_BYTES, 2 * PAGE_BYTES, owner));
        assert_eq!(table.get((1 << 48) - PAGE_BYTES), None);
        assert!(table.insert((1 << 48) - PAGE_BYTES, PAGE_BYTES, owner));
    }

    #[test]
    fn threads_that_make_the_same_leaf_agree_on_one() {
        let (table, mut owner) = (AddressTable::<u32>::new(), 7);
        let owner = NonNull::from(&mut owner).as_ptr() as usize;
        std::thread::scope(|scope| {
            for page in 0..8 {
                let table = &table;
                scope.spawn(move || {
                    let owner = NonNull::new(owner as *mut u32).unwrap();
                    table.insert(BASE + page * PAGE_BYTES, PAGE_BYTES, owner)
                });
            }
        });
        assert!((0..8).all(|page| table.get(BASE + page * PAGE_BYTES).is_some()));
    }
}
