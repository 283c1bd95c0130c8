//! What becomes of plans, entered into the books.
//!
//! A plan that was carried out in part is committed in part: what is mapped is mapped, and whatever became of each handle has a
//! place here. So a failure in the middle leaves the books as exact as success does.

use headwater_driver::{DevicePtr, Handle};
use smallvec::SmallVec;

use super::handles::Mapped;
use super::plan::{Fill, Source, Taken};
use super::views::View;
use super::{Core, Loose};
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
                (Source::Take(taken), Done::Untouched(fate)) => {
                    self.untake(taken);
                    (fate, 0)
                }
                (Source::View(taken), Done::Moved { .. }) => {
                    let (handle, tick) = (taken.handle, taken.tick.unwrap_or(0));
                    self.views.remove(piece.address);
                    self.depart(taken, tag, false);
                    (Fate { placed: Some(handle), ..Fate::ABSENT }, tick)
                }
                (Source::View(taken), _) => {
                    self.untake(taken);
                    self.views.set_under_way(piece.address, false);
                    complete = false;
                    continue;
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
                (Source::Take(taken), Done::Moved { fate, old_is_stuck }) => {
                    let (tick, bytes) = (taken.tick.unwrap_or(0), taken.bytes());
                    self.depart(taken, tag, old_is_stuck);
                    if let Some(handle) = fate.loose {
                        self.loosen(handle, bytes);
                    }
                    (Fate { loose: None, ..fate }, tick)
                }
                (_, Done::New(fate)) => {
                    self.note_new(fate);
                    (fate, 0)
                }
                // Sources and outcomes are of one kind: these do not come together.
                (_, Done::Untouched(fate) | Done::Moved { fate, .. }) => (fate, 0),
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
        let Taken { handle, range, id, extent, blocks, tick, keeps_view } = taken;
        self.change_use(extent, range.clone(), false);
        blocks.into_iter().for_each(|block| self.remove_block(block));
        self.handles.remove(id);
        self.set_pages(extent, &range, None);
        self.uncount(self.extents[extent].region.pool(), bytes);
        if keeps_view || old_is_stuck {
            let (tag, tick) = if tick.is_some() { (tag, self.ticks) } else { (Tag::ANY, 0) };
            let (has_access, since) = (!old_is_stuck, self.ticks);
            let (under_way, is_stuck) = (false, old_is_stuck);
            let view = View { bytes, extent, handle, tag, tick, has_access, under_way, is_stuck, since };
            self.views.insert(range.start, view);
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
            let (tag, since) = (Tag::ANY, self.ticks);
            let (has_access, under_way, is_stuck) = (false, false, true);
            let view = View { bytes, extent, handle, tag, tick: 0, has_access, under_way, is_stuck, since };
            self.views.insert(address, view);
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
