//! Plans: what a miss asks of the driver, decided and reserved under the lock.
//!
//! A plan speaks for everything it touches: the free ranges at its place and the handles it takes are out of every index, its
//! addresses are in no gap, and the bytes it will create are promised under the limit. So other threads go on meanwhile,
//! and two plans never meet. What becomes of a plan is in `commit.rs`.
//!
//! Missing bytes come from three sources. *Regrowth*: up to the highest amount ever reserved (or live, where that
//! is more) new handles are made at once; it costs the peak nothing, and taking would cost more. *Taking*: whole-free handles
//! from anywhere, the largest that still fits first, so that few are needed; where only larger ones are left, a part of the
//! smallest. *Growth* for the rest.

use std::ops::Range;

use headwater_driver::Handle;
use smallvec::SmallVec;

use super::extents::Region;
use super::handles::HandleId;
use super::policy::{CUT_MIN_BYTES, RESTLESS_SHARE, RETIRING_MAX, handle_cap_bytes};
use super::take::CutPoint;
use super::{Core, Loose};
use crate::caching::classic::blocks::State;
use crate::caching::classic::{BlockId, Tag, Wanted};

/// A handle that is spoken for, and the free blocks on it.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) handle: Handle,
    pub(crate) range: Range<u64>,
    pub(super) id: HandleId,
    pub(super) extent: usize,
    pub(super) blocks: SmallVec<[BlockId; 2]>,
    /// The latest give-back on it that the request's own stream may still be working on.
    pub(super) tick: Option<u64>,
}

impl Taken {
    /// Whether its old mapping must stay for now.
    pub(crate) fn keeps_mapping(&self) -> bool {
        self.tick.is_some()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Where the memory of a piece comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A new handle.
    Create,
    /// A handle that is mapped nowhere.
    Loose(Handle),
    /// All of a handle from elsewhere.
    Take(Taken),
    /// The front of a handle from elsewhere, which is made anew as two.
    Part(Taken),
}

/// One handle's worth of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) source: Source,
}

/// A gap to be filled.
#[derive(Debug)]
pub(crate) struct Fill {
    pub(super) extent: usize,
    /// Free ranges at both ends, held back.
    pub(super) held: SmallVec<[BlockId; 2]>,
    pub(crate) pieces: Vec<Piece>,
    pub(super) promised_bytes: u64,
    pub(super) tag: Tag,
    pub(super) wanted: Wanted,
}

impl Fill {
    /// How much new memory the driver is asked for.
    pub(crate) fn new_bytes(&self) -> u64 {
        self.promised_bytes
    }

    /// Whether handles are taken whose old mappings have to stay for now.
    pub(crate) fn keeps_mappings(&self) -> bool {
        let keeps = |piece: &Piece| matches!(&piece.source, Source::Take(taken) if taken.keeps_mapping());
        self.pieces.iter().any(keeps)
    }
}

/// A handle to be cut in two where it is.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) taken: Taken,
    pub(crate) front_bytes: u64,
}

/// What to do for a request.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Nothing: it can be served as it is.
    Serve,
    /// Cut, then serve.
    Cut(Cut),
    /// Cutting would help, but the stream may still use the handle.
    CutLater,
    /// Fill a gap, then serve.
    Fill(Fill),
    /// The limit allows no such thing.
    OverLimit,
    /// The region has no addresses left.
    NoAddresses,
}

impl Core {
    /// Plans for a request that [`take`](Core::take) did not serve.
    pub(crate) fn plan(&mut self, wanted: &Wanted, tag: Tag) -> Plan {
        let region = self.region_for(wanted);
        if let Some((id, found_in)) = self.fitting(wanted, tag) {
            return match self.cut_point(id, wanted).filter(|_| found_in == region) {
                None => Plan::Serve,
                Some(point) => self.plan_cut(point),
            };
        }
        self.plan_fill(region, wanted, tag)
    }

    /// Whether a search would serve the request, cut or not.
    pub(crate) fn has_fit(&self, wanted: &Wanted, tag: Tag) -> bool {
        self.fitting(wanted, tag).is_some()
    }

    /// A plan is not carried out after all.
    pub(crate) fn abandon(&mut self, fill: Fill) {
        let done: Vec<_> = fill.pieces.iter().map(super::carry_out::not_begun).collect();
        self.commit_fill(fill, &done);
    }

    fn plan_cut(&mut self, point: CutPoint) -> Plan {
        if !self.can_be_remade(point.handle) {
            return Plan::CutLater;
        }
        match self.speak_for(point.handle, Tag::ANY) {
            Some(taken) => Plan::Cut(Cut { taken, front_bytes: point.front_bytes }),
            None => Plan::CutLater,
        }
    }

    fn plan_fill(&mut self, region: Region, wanted: &Wanted, tag: Tag) -> Plan {
        let Some(place) = self.best_place(region, wanted.padded_bytes, tag) else { return Plan::NoAddresses };
        let mut held: SmallVec<[BlockId; 2]> = SmallVec::new();
        if let Some(before) = place.before {
            self.unlist(before);
            held.push(before);
        }
        if let Some((behind, bytes)) = place.behind {
            // No more than is needed: handles further on may be taken.
            self.unlist(behind);
            if bytes < self.blocks[behind].bytes {
                let rest = self.split(behind, bytes);
                self.list(rest);
            }
            held.push(behind);
        }
        for id in &held {
            self.hold(*id);
        }
        let room_bytes = place.gap.end - place.gap.start;
        let mut filling = Filling {
            at: place.gap.start,
            missing_bytes: place.missing_bytes,
            room_bytes,
            pieces: Vec::new(),
        };
        let growable_bytes = self.growable_bytes();
        self.fill_from_loose(&mut filling);
        self.fill_from_elsewhere(&mut filling, wanted, tag, growable_bytes);
        if filling.missing_bytes > growable_bytes {
            for Piece { bytes, source, .. } in filling.pieces {
                match source {
                    Source::Create => {}
                    Source::Loose(handle) => self.loose.push(Loose { handle, bytes }),
                    Source::Take(taken) | Source::Part(taken) => self.untake(taken),
                }
            }
            held.into_iter().for_each(|id| self.let_go(id));
            return Plan::OverLimit;
        }
        let promised_bytes = filling.missing_bytes;
        let cap_bytes = match region {
            Region::Small => self.granularity_bytes,
            _ => handle_cap_bytes(self.peak_reserved_bytes, self.granularity_bytes),
        };
        while filling.missing_bytes > 0 {
            filling.add(filling.missing_bytes.min(cap_bytes), Source::Create);
        }
        self.promised_bytes += promised_bytes;
        self.extents[place.extent].take_gap(&(place.gap.start..filling.at));
        let pieces = filling.pieces;
        Plan::Fill(Fill { extent: place.extent, held, pieces, promised_bytes, tag, wanted: *wanted })
    }

    /// What may still be created under the limit.
    pub(super) fn growable_bytes(&self) -> u64 {
        let held_bytes = self.reserved_bytes().saturating_add(self.promised_bytes);
        let room = self.limit_bytes.map_or(u64::MAX, |limit| limit.saturating_sub(held_bytes));
        room / self.granularity_bytes * self.granularity_bytes
    }

    fn fill_from_loose(&mut self, filling: &mut Filling) {
        while let Some(place) = self.loose.iter().position(|loose| loose.bytes <= filling.missing_bytes) {
            let Loose { handle, bytes } = self.loose.swap_remove(place);
            filling.add(bytes, Source::Loose(handle));
        }
    }

    /// Takes handles from elsewhere for what may not be created at once.
    fn fill_from_elsewhere(&mut self, filling: &mut Filling, wanted: &Wanted, tag: Tag, growable_bytes: u64) {
        let live_bytes = self.stats.requested_bytes.all.current + wanted.requested_bytes;
        let mut peak_bytes = self.peak_reserved_bytes.max(self.peak_live_bytes).max(live_bytes);
        if self.lifetimes.missed(wanted.padded_bytes, self.peak_live_bytes) {
            peak_bytes = peak_bytes.max(self.peak_live_bytes + self.peak_live_bytes / RESTLESS_SHARE);
        }
        let held_bytes = self.reserved_bytes() + self.promised_bytes;
        let regrow_bytes =
            peak_bytes.saturating_sub(held_bytes) / self.granularity_bytes * self.granularity_bytes;
        let mut due_bytes = filling.missing_bytes.saturating_sub(regrow_bytes.min(growable_bytes));
        while due_bytes > 0 {
            let most_bytes = due_bytes.min(filling.room_bytes);
            let fitting = self.handles.whole_free_up_to(most_bytes).find(|id| self.can_be_taken(*id, tag));
            if let Some(id) = fitting {
                let Some(taken) = self.speak_for(id, tag) else { return };
                due_bytes -= taken.bytes();
                filling.add(taken.bytes(), Source::Take(taken));
                continue;
            }
            let Some((id, is_part)) = self.larger_handle(due_bytes, filling.room_bytes, tag) else { return };
            let Some(taken) = self.speak_for(id, tag) else { return };
            let (bytes, source) = match is_part {
                true => (due_bytes, Source::Part(taken)),
                false => (taken.bytes(), Source::Take(taken)),
            };
            filling.add(bytes, source);
            return;
        }
    }

    /// The smallest handle of more than `due_bytes` that can be had, and whether only a part of it is taken.
    fn larger_handle(&self, due_bytes: u64, room_bytes: u64, tag: Tag) -> Option<(HandleId, bool)> {
        for id in self.handles.whole_free_above(due_bytes) {
            let bytes = self.handles.get(id)?.bytes;
            if bytes - due_bytes >= CUT_MIN_BYTES && self.can_be_remade(id) {
                return Some((id, true));
            }
            if bytes <= room_bytes && self.can_be_taken(id, tag) {
                return Some((id, false));
            }
        }
        None
    }

    /// Whether a whole-free handle can be mapped elsewhere for stream `tag`.
    fn can_be_taken(&self, id: HandleId, tag: Tag) -> bool {
        let free = self.blocks_on(id);
        let usable = !free.is_empty() && free.iter().all(|id| self.may_use(*id, tag));
        // One whose old mapping has to stay adds to the list of those.
        usable && (self.is_finished(&free) || self.retiring.len() < RETIRING_MAX)
    }

    /// Whether a whole-free handle can be released: nothing uses it any more, at this or any former address.
    pub(super) fn can_be_remade(&self, id: HandleId) -> bool {
        let handle = self.handles.get(id).and_then(|mapped| mapped.handle);
        let is_aliased = handle.is_none_or(|handle| self.old_mappings.contains_key(&handle));
        !is_aliased && self.handles.is_whole_free(id) && self.is_finished(&self.blocks_on(id))
    }

    fn is_finished(&self, free: &[BlockId]) -> bool {
        free.iter().all(|id| {
            let block = &self.blocks[*id];
            self.tags.is_finished(block.tag, block.given_back_at)
        })
    }

    /// The blocks that have a part of a handle.
    pub(super) fn blocks_on(&self, id: HandleId) -> SmallVec<[BlockId; 2]> {
        let Some(mapped) = self.handles.get(id) else { return SmallVec::new() };
        let first = self.by_address.range(..=mapped.address).next_back().map(|(_, id)| *id);
        let chain = std::iter::successors(first, |id| self.blocks[*id].next);
        chain.take_while(|id| self.blocks[*id].ptr < mapped.end()).collect()
    }

    /// Takes a whole-free handle out of every index, with the free ranges on it.
    pub(super) fn speak_for(&mut self, id: HandleId, tag: Tag) -> Option<Taken> {
        let mapped = *self.handles.get(id)?;
        let (range, handle) = (mapped.range(), mapped.handle?);
        let mut tick = None;
        let mut blocks = SmallVec::new();
        for mut block in self.blocks_on(id) {
            self.unlist(block);
            if self.blocks[block].ptr < range.start {
                let rest = self.split(block, range.start - self.blocks[block].ptr);
                self.list(block);
                block = rest;
            }
            let end = self.blocks[block].ptr + self.blocks[block].bytes;
            if end > range.end {
                let rest = self.split(block, range.end - self.blocks[block].ptr);
                self.list(rest);
            }
            let part = &mut self.blocks[block];
            part.state = State::Offered;
            if part.tag == tag && !self.tags.is_finished(tag, part.given_back_at) {
                tick = tick.max(Some(part.given_back_at));
            }
            blocks.push(block);
        }
        self.change_use(mapped.extent, range.clone(), true);
        Some(Taken { handle, range, id, extent: mapped.extent, blocks, tick })
    }

    /// Holds a free range back that is out of the index.
    fn hold(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.state = State::Offered;
        let (extent, range) = (block.segment.0 as usize, block.ptr..block.ptr + block.bytes);
        self.change_use(extent, range, true);
    }

    /// A range that was held back is free again.
    pub(super) fn let_go(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let (extent, range) = (block.segment.0 as usize, block.ptr..block.ptr + block.bytes);
        self.change_use(extent, range, false);
        self.settle(id);
    }

    /// A handle that was spoken for stays where it is.
    pub(super) fn untake(&mut self, taken: Taken) {
        taken.blocks.into_iter().for_each(|id| self.let_go(id));
    }
}

/// A gap while it is being planned for.
struct Filling {
    at: u64,
    missing_bytes: u64,
    room_bytes: u64,
    pieces: Vec<Piece>,
}

impl Filling {
    fn add(&mut self, bytes: u64, source: Source) {
        self.pieces.push(Piece { address: self.at, bytes, source });
        self.at += bytes;
        self.missing_bytes = self.missing_bytes.saturating_sub(bytes);
        self.room_bytes = self.room_bytes.saturating_sub(bytes);
    }
}
