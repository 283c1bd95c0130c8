//! What becomes of plans, entered into the books.
//!
//! A plan that was carried out in part is committed in part: what is mapped is mapped, and whatever became of each handle has a
//! place here. So a failure in the middle leaves the books as exact as success does.

use headwater_driver::{DevicePtr, Handle};
use smallvec::SmallVec;

use super::handles::Mapped;
use super::plan::{Cut, Fill, Source, Taken};
use super::{Core, Loose, Retiring};
use crate::caching::classic::{BlockId, Tag, Wanted};
use crate::stats::PoolKind;

/// What became of one piece of memory at its new address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    /// The handle that is mapped there and can be used.
    pub(crate) placed: Option<Handle>,
    /// A handle that is mapped nowhere and could not be released.
    pub(crate) loose: Option<Handle>,
    /// A handle that is mapped there without access, and could not be unmapped.
    pub(crate) stuck: Option<Handle>,
}

impl Fate {
    /// Nothing is there.
    pub(crate) const ABSENT: Self = Self { placed: None, loose: None, stuck: None };
}

/// What became of a piece of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Its source was not touched, or is as it was; nothing is at the new address but what `Fate` says is stuck.
    Untouched(Fate),
    /// New or loose memory.
    New(Fate),
    /// A handle was moved, or came to be mapped nowhere.
    Moved {
        /// At the new address.
        fate: Fate,
        /// Whether a mapping is left at the old address that could not be removed.
        old_is_stuck: bool,
    },
    /// A handle was released, and made anew in two parts: at the new address, and behind it at the old one.
    Remade(Fate, Fate),
}

impl Core {
    /// Enters what became of a plan. The block, where all of it was carried out.
    pub(crate) fn commit_fill(&mut self, fill: Fill, done: &[Done]) -> Option<DevicePtr> {
        let Fill { extent, held, pieces, promised_bytes, tag, wanted } = fill;
        self.promised_bytes -= promised_bytes;
        let mut complete = true;
        let mut joined: SmallVec<[BlockId; 8]> = held.into_iter().collect();
        let held = joined.len();
        for (piece, done) in pieces.into_iter().zip(done) {
            let (fate, tick) = match (piece.source, *done) {
                (Source::Take(taken) | Source::Part(taken), Done::Untouched(fate)) => {
                    self.untake(taken);
                    (fate, 0)
                }
                (Source::Loose(handle), Done::Untouched(fate)) => {
                    self.loose.push(Loose { handle, bytes: piece.bytes });
                    (fate, 0)
                }
                (Source::Loose(_), Done::New(fate)) => {
                    // It was counted all the while; what is placed or loose now is counted again.
                    self.uncount(PoolKind::All, piece.bytes);
                    (fate, 0)
                }
                (Source::Take(taken) | Source::Part(taken), Done::Moved { fate, old_is_stuck }) => {
                    let (tick, bytes) = (taken.tick.unwrap_or(0), taken.bytes());
                    self.depart(taken, tag, old_is_stuck);
                    // All of it is mapped nowhere, also where only a part was to be had.
                    if let Some(handle) = fate.loose {
                        self.loosen(handle, bytes);
                    }
                    (Fate { loose: None, ..fate }, tick)
                }
                (Source::Part(taken), Done::Remade(front, rest)) => {
                    let (from, bytes) = (taken.range.start + piece.bytes, taken.bytes() - piece.bytes);
                    let taken_from = taken.extent;
                    self.depart(taken, tag, false);
                    self.stats.num_device_free += 1;
                    self.note_new(front);
                    self.note_new(rest);
                    self.extents[taken_from].take_gap_inside(&(from..from + bytes));
                    self.arrive_free(taken_from, from, bytes, rest);
                    (front, 0)
                }
                (_, Done::New(fate)) => {
                    self.note_new(fate);
                    (fate, 0)
                }
                // Sources and outcomes are of one kind: these do not come together.
                (_, Done::Untouched(fate) | Done::Moved { fate, .. } | Done::Remade(fate, _)) => (fate, 0),
            };
            complete &= fate.placed.is_some();
            joined.extend(self.arrive(extent, piece.address, piece.bytes, fate, tag, tick));
        }
        self.note_peak();
        if !complete {
            for (number, id) in joined.into_iter().enumerate() {
                if number < held { self.let_go(id) } else { self.settle(id) }
            }
            return None;
        }
        for id in &joined[..held] {
            let block = &self.blocks[*id];
            let range = block.ptr..block.ptr + block.bytes;
            self.change_use(extent, range, false);
        }
        Some(self.serve_joined(joined, &wanted, tag))
    }

    /// Makes one block of adjacent ones that are in no index, and serves the request from it. They must not meet other free
    /// ranges before: memory that is nobody's would become a neighbour's.
    fn serve_joined(&mut self, mut parts: SmallVec<[BlockId; 8]>, wanted: &Wanted, tag: Tag) -> DevicePtr {
        parts.sort_unstable_by_key(|id| self.blocks[*id].ptr);
        let first = parts[0];
        for part in &parts[1..] {
            debug_assert_eq!(self.blocks[first].next, Some(*part));
            self.absorb_next(first);
        }
        self.blocks[first].tag = tag;
        self.carve(first, wanted, tag, true)
    }

    /// Enters what became of a cut.
    pub(crate) fn commit_cut(&mut self, cut: Cut, done: Done) {
        let Cut { taken, front_bytes } = cut;
        let (extent, range) = (taken.extent, taken.range.clone());
        match done {
            Done::Remade(front, rest) => {
                self.depart(taken, Tag::ANY, false);
                self.stats.num_device_free += 1;
                self.note_new(front);
                self.note_new(rest);
                self.extents[extent].take_gap_inside(&range);
                let middle = range.start + front_bytes;
                self.arrive_free(extent, range.start, front_bytes, front);
                self.arrive_free(extent, middle, range.end - middle, rest);
                self.note_peak();
            }
            Done::Moved { fate, old_is_stuck } => {
                self.depart(taken, Tag::ANY, old_is_stuck);
                if let Some(handle) = fate.loose {
                    self.loosen(handle, range.end - range.start);
                }
            }
            Done::Untouched(_) | Done::New(_) => self.untake(taken),
        }
    }

    /// A handle is mapped nowhere, and still ours.
    pub(super) fn loosen(&mut self, handle: Handle, bytes: u64) {
        self.count(PoolKind::All, bytes);
        self.loose.push(Loose { handle, bytes });
        self.stats.num_owed_give_backs += 1;
    }

    fn note_new(&mut self, fate: Fate) {
        self.stats.num_device_alloc += u64::from(fate.placed.is_some() || fate.loose.is_some());
    }

    /// A handle that was spoken for is no longer where it was.
    pub(super) fn depart(&mut self, taken: Taken, tag: Tag, old_is_stuck: bool) {
        let bytes = taken.bytes();
        let Taken { handle, range, id, extent, blocks, tick } = taken;
        self.change_use(extent, range.clone(), false);
        blocks.into_iter().for_each(|block| self.remove_block(block));
        self.handles.remove(id);
        self.set_pages(extent, &range, None);
        self.uncount(self.extents[extent].region.pool(), bytes);
        if tick.is_some() || old_is_stuck {
            let (tag, tick) = if tick.is_some() { (tag, self.ticks) } else { (Tag::ANY, 0) };
            self.retire(range.start, Retiring { bytes, extent, handle, tag, tick, under_way: false });
        } else {
            self.extents[extent].add_gap(range);
        }
    }

    /// Enters what is at an address that was spoken for: a block that is in no index yet, or nothing.
    pub(super) fn arrive(
        &mut self,
        extent: usize,
        address: u64,
        bytes: u64,
        fate: Fate,
        tag: Tag,
        tick: u64,
    ) -> Option<BlockId> {
        if let Some(handle) = fate.loose {
            self.loosen(handle, bytes);
        }
        if let Some(handle) = fate.stuck {
            let retiring = Retiring { bytes, extent, handle, tag: Tag::ANY, tick: 0, under_way: false };
            self.retire(address, retiring);
            self.stats.num_owed_give_backs += 1;
        } else if let Some(handle) = fate.placed {
            let range = address..address + bytes;
            let mapped = Mapped { address, bytes, extent, handle: Some(handle), used_bytes: 0 };
            let id = self.handles.insert(mapped);
            self.set_pages(extent, &range, Some(id));
            self.count(self.extents[extent].region.pool(), bytes);
            return Some(self.insert_block(extent, address, bytes, tag, tick));
        } else {
            self.extents[extent].add_gap(address..address + bytes);
        }
        None
    }

    /// The same, and what is there is free.
    fn arrive_free(&mut self, extent: usize, address: u64, bytes: u64, fate: Fate) {
        if let Some(id) = self.arrive(extent, address, bytes, fate, Tag::ANY, 0) {
            self.settle(id);
        }
    }

    fn retire(&mut self, address: u64, retiring: Retiring) {
        *self.old_mappings.entry(retiring.handle).or_default() += 1;
        self.retiring.insert(address, retiring);
    }

    /// Old mappings whose streams have finished with them, to be removed. They are spoken for until
    /// [`retired`](Self::retired).
    pub(crate) fn begin_retiring(&mut self) -> Vec<(DevicePtr, u64)> {
        let tags = &self.tags;
        let due =
            self.retiring.iter_mut().filter(|(_, old)| !old.under_way && tags.is_finished(old.tag, old.tick));
        due.map(|(address, old)| {
            old.under_way = true;
            (DevicePtr::new(*address), old.bytes)
        })
        .collect()
    }

    /// An old mapping is gone, or the driver would not remove it.
    pub(crate) fn retired(&mut self, address: DevicePtr, is_gone: bool) {
        if !is_gone {
            if let Some(old) = self.retiring.get_mut(&address.raw()) {
                old.under_way = false;
            }
            self.stats.num_owed_give_backs += 1;
            return;
        }
        let Some(old) = self.retiring.remove(&address.raw()) else { return };
        if let Some(count) = self.old_mappings.get_mut(&old.handle) {
            *count -= 1;
            if *count == 0 {
                self.old_mappings.remove(&old.handle);
            }
        }
        self.extents[old.extent].add_gap(address.raw()..address.raw() + old.bytes);
    }

    /// The streams that old mappings wait for.
    pub(crate) fn retiring_tags(&self) -> Vec<(Tag, u64)> {
        let mut tags = std::collections::BTreeMap::new();
        for old in self.retiring.values().filter(|old| !self.tags.is_finished(old.tag, old.tick)) {
            let tick: &mut u64 = tags.entry(old.tag).or_default();
            *tick = old.tick.max(*tick);
        }
        tags.into_iter().collect()
    }

    pub(super) fn set_pages(
        &mut self,
        extent: usize,
        range: &std::ops::Range<u64>,
        id: Option<super::handles::HandleId>,
    ) {
        let (granularity_bytes, extent) = (self.granularity_bytes, &mut self.extents[extent]);
        let page = |address: u64| (address - extent.base) / granularity_bytes;
        let pages = page(range.start)..page(range.end);
        extent.pages.set(pages, id);
    }

    /// The driver's memory is more by a handle.
    pub(super) fn count(&mut self, pool: PoolKind, bytes: u64) {
        self.stats.segment.increase(pool, 1);
        self.stats.reserved_bytes.increase(pool, bytes);
    }

    /// And less.
    pub(super) fn uncount(&mut self, pool: PoolKind, bytes: u64) {
        self.stats.segment.decrease(pool, 1);
        self.stats.reserved_bytes.decrease(pool, bytes);
    }

    fn note_peak(&mut self) {
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(self.reserved_bytes());
    }
}
