//! Physical memory: which handle is mapped where, and how much of each is in use.
//!
//! A table of handles by number, and a page table for each extent of addresses, so that the handles behind a range are found
//! in as many steps as there are handles. Each handle counts its bytes in use. At zero it is *whole-free* and listed by
//! size: what a miss may take. The count is kept up at every take and give-back; no search over blocks is needed for it.

use std::collections::BTreeSet;
use std::ops::Range;

use headwater_driver::Handle;

/// A handle's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HandleId(u32);

/// One piece of physical memory with an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Which extent the address is in.
    pub(crate) extent: usize,
    /// Nothing while its memory is asleep.
    pub(crate) handle: Option<Handle>,
    /// Bytes that are not free: live, pending, or spoken for by a driver call that is under way.
    pub(crate) used_bytes: u64,
}

impl Mapped {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.address..self.end()
    }

    /// Free bytes that cannot go anywhere, because the rest of the handle is in use.
    pub(crate) fn stranded_bytes(&self) -> u64 {
        if self.used_bytes == 0 { 0 } else { self.bytes - self.used_bytes }
    }
}

/// How the free parts of partly used handles changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StrandedChange {
    pub(crate) handles: i64,
    pub(crate) bytes: i64,
}

/// All handles.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    slots: Vec<Option<Mapped>>,
    vacant: Vec<HandleId>,
    /// By size, then address.
    whole_free: BTreeSet<(u64, u64, HandleId)>,
}

impl Handles {
    pub(crate) fn get(&self, id: HandleId) -> Option<&Mapped> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: HandleId) -> Option<&mut Mapped> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    pub(crate) fn insert(&mut self, mapped: Mapped) -> HandleId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // At 2 MiB each, 2^32 handles are far beyond any address space.
            HandleId((self.slots.len() - 1) as u32)
        });
        self.slots[id.0 as usize] = Some(mapped);
        if mapped.used_bytes == 0 && mapped.handle.is_some() {
            self.whole_free.insert((mapped.bytes, mapped.address, id));
        }
        id
    }

    pub(crate) fn remove(&mut self, id: HandleId) -> Option<Mapped> {
        let mapped = self.slots.get_mut(id.0 as usize)?.take()?;
        self.whole_free.remove(&(mapped.bytes, mapped.address, id));
        self.vacant.push(id);
        Some(mapped)
    }

    /// Counts `bytes` of the handle as in use, or as free again.
    pub(crate) fn change_use(&mut self, id: HandleId, bytes: u64, in_use: bool) -> StrandedChange {
        let Some(mapped) = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return StrandedChange::default();
        };
        let before = mapped.stranded_bytes();
        let key = (mapped.bytes, mapped.address, id);
        if in_use {
            if mapped.used_bytes == 0 {
                self.whole_free.remove(&key);
            }
            mapped.used_bytes += bytes;
            debug_assert!(mapped.used_bytes <= mapped.bytes);
        } else {
            debug_assert!(mapped.used_bytes >= bytes);
            mapped.used_bytes = mapped.used_bytes.saturating_sub(bytes);
            if mapped.used_bytes == 0 && mapped.handle.is_some() {
                self.whole_free.insert(key);
            }
        }
        let after = mapped.stranded_bytes();
        StrandedChange {
            handles: i64::from(after > 0) - i64::from(before > 0),
            bytes: after as i64 - before as i64,
        }
    }

    /// Whole-free handles of at most `bytes`, the largest and highest first.
    pub(crate) fn whole_free_up_to(&self, bytes: u64) -> impl Iterator<Item = HandleId> + '_ {
        self.whole_free.range(..(bytes + 1, 0, HandleId(0))).rev().map(|(_, _, id)| *id)
    }

    /// Whole-free handles of more than `bytes`, the smallest first.
    pub(crate) fn whole_free_above(&self, bytes: u64) -> impl Iterator<Item = HandleId> + '_ {
        self.whole_free.range((bytes + 1, 0, HandleId(0))..).map(|(_, _, id)| *id)
    }

    /// All whole-free handles, by size and address.
    pub(crate) fn whole_free(&self) -> impl DoubleEndedIterator<Item = HandleId> + '_ {
        self.whole_free.iter().map(|(_, _, id)| *id)
    }

    pub(crate) fn is_whole_free(&self, id: HandleId) -> bool {
        self.get(id).is_some_and(|mapped| self.whole_free.contains(&(mapped.bytes, mapped.address, id)))
    }

    pub(crate) fn whole_free_len(&self) -> usize {
        self.whole_free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (HandleId, &Mapped)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(place, slot)| slot.as_ref().map(|mapped| (HandleId(place as u32), mapped)))
    }
}

/// Which handle is behind each page of an extent.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    /// As long as the highest page ever mapped.
    pages: Vec<Option<HandleId>>,
}

impl PageTable {
    pub(crate) fn get(&self, page: u64) -> Option<HandleId> {
        self.pages.get(usize::try_from(page).ok()?).copied().flatten()
    }

    /// One beyond the highest page that ever had a handle.
    pub(crate) fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// How many pages have a handle.
    pub(crate) fn named(&self) -> u64 {
        self.pages.iter().flatten().count() as u64
    }

    pub(crate) fn set(&mut self, pages: Range<u64>, id: Option<HandleId>) {
        let (start, end) = (pages.start as usize, pages.end as usize);
        if self.pages.len() < end {
            self.pages.resize(end, None);
        }
        self.pages[start..end].fill(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(address: u64, bytes: u64) -> Mapped {
        let handle = Some(Handle::from_raw(headwater_driver::DeviceId(0), address));
        Mapped { address, bytes, extent: 0, handle, used_bytes: 0 }
    }

    #[test]
    fn a_handle_is_listed_as_whole_free_exactly_while_nothing_of_it_is_used() {
        let mut handles = Handles::default();
        let (small, large) = (handles.insert(mapped(0, 2)), handles.insert(mapped(8, 8)));
        assert_eq!(handles.whole_free_up_to(8).collect::<Vec<_>>(), [large, small]);
        assert_eq!(handles.change_use(large, 3, true), StrandedChange { handles: 1, bytes: 5 });
        assert_eq!(handles.whole_free().collect::<Vec<_>>(), [small]);
        assert_eq!(handles.change_use(large, 5, true), StrandedChange { handles: -1, bytes: -5 });
        assert_eq!(handles.change_use(large, 8, false), StrandedChange::default());
        assert_eq!(handles.whole_free_above(2).collect::<Vec<_>>(), [large]);
        handles.remove(large);
        assert!(handles.whole_free_above(2).next().is_none());
    }

    #[test]
    fn pages_name_their_handle() {
        let mut table = PageTable::default();
        table.set(2..4, Some(HandleId(7)));
        assert_eq!((table.get(1), table.get(3), table.get(4)), (None, Some(HandleId(7)), None));
        table.set(2..3, None);
        assert_eq!(table.get(2), None);
    }
}
