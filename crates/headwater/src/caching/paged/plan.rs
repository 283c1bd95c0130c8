//! Plans: what a miss asks of the driver, decided and reserved under the lock.
//!
//! A plan speaks for everything it touches: the free ranges at its place and the handles it takes are out of every index, its
//! addresses are in no gap, and the bytes it will create are promised under the limit. So other threads go on meanwhile,
//! and two plans never meet. What becomes of a plan is in `commit.rs`.
//!
//! Missing bytes come from four sources. *Views*: a former place of handles that are free as a whole now, where nothing has to
//! be done (`views.rs`). *Regrowth*: up to the highest amount ever reserved (or live, where that is more) new handles are
//! made at once; it costs the peak nothing. *Taking*: whole-free handles from anywhere, the largest that still fits first, so
//! that few are needed (`sources.rs`). *Growth* for the rest.

use std::ops::Range;

use headwater_driver::{DevicePtr, Handle};
use smallvec::SmallVec;

use super::extents::Region;
use super::handles::HandleId;
use super::place::Place;
use super::policy::{handle_cap_bytes, new_handle_bytes};
use super::{Core, Loose};
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
    /// Whether its old mapping stays, as a view of it.
    pub(super) keeps_view: bool,
}

impl Taken {
    /// Whether its old mapping stays for now.
    pub(crate) fn keeps_mapping(&self) -> bool {
        self.keeps_view
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
    /// A handle from elsewhere that has a view at the piece's address: it is mapped there already.
    View(Taken),
}

/// One handle's worth of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) source: Source,
}

/// A place to be filled.
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

    /// Whether it leaves views behind that the stream may still be working on.
    pub(crate) fn leaves_unfinished_views(&self) -> bool {
        let is_unfinished =
            |piece: &Piece| matches!(&piece.source, Source::Take(taken) if taken.tick.is_some());
        self.pieces.iter().any(is_unfinished)
    }

    /// The pieces for which the driver is asked to map something.
    pub(crate) fn mapped_pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| !matches!(piece.source, Source::View(_)))
    }
}

/// What to do for a request.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Nothing: it can be served as it is.
    Serve,
    /// Remove views, whose addresses are needed, and plan again.
    Clear(Vec<(DevicePtr, u64)>),
    /// Fill a place, then serve.
    Fill(Fill),
    /// The limit allows no such thing.
    OverLimit,
    /// The region has no addresses left.
    NoAddresses,
}

impl Core {
    /// Plans for a request that [`take`](Core::take) did not serve.
    pub(crate) fn plan(&mut self, wanted: &Wanted, tag: Tag) -> Plan {
        if self.fitting(wanted, tag).is_some() {
            return Plan::Serve;
        }
        let region = self.region_for(wanted, tag);
        if let Some(revival) = self.revivable_place(region, wanted.padded_bytes, tag) {
            return Plan::Fill(self.plan_revival(revival, wanted, tag));
        }
        let Some(place) = self.best_place(region, wanted.padded_bytes, tag) else { return Plan::NoAddresses };
        let in_the_way = self.clear_views(place.gap.start..place.gap.start + place.missing_bytes);
        if in_the_way.is_empty() {
            self.plan_fill(region, place, wanted, tag)
        } else {
            Plan::Clear(in_the_way)
        }
    }

    /// A plan is not carried out after all.
    pub(crate) fn abandon(&mut self, fill: Fill) {
        let done: Vec<_> = fill.pieces.iter().map(super::carry_out::not_begun).collect();
        self.commit_fill(fill, &done);
    }

    fn plan_fill(&mut self, region: Region, place: Place, wanted: &Wanted, tag: Tag) -> Plan {
        let held = self.hold_ends(place.before, place.behind);
        // Views further on are not in the way, and stay.
        let room_bytes = self.extents[place.extent].gap_bytes(place.gap.start).unwrap_or(place.missing_bytes);
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
                    Source::Take(taken) | Source::View(taken) => self.untake(taken),
                }
            }
            held.into_iter().for_each(|id| self.let_go(id));
            return Plan::OverLimit;
        }
        let promised_bytes = filling.missing_bytes;
        let cap_bytes = handle_cap_bytes(self.peak_reserved_bytes, self.granularity_bytes);
        while filling.missing_bytes > 0 {
            let bytes = match region {
                Region::Small => self.granularity_bytes,
                _ => new_handle_bytes(filling.missing_bytes, cap_bytes),
            };
            filling.add(bytes, Source::Create);
        }
        self.promised_bytes += promised_bytes;
        self.extents[place.extent].take_gap(&(place.gap.start..filling.at));
        let pieces = filling.pieces;
        Plan::Fill(Fill { extent: place.extent, held, pieces, promised_bytes, tag, wanted: *wanted })
    }

    /// Holds the free ranges at both ends of a place back; of the one behind no more than is needed, because handles further
    /// on may be taken.
    pub(super) fn hold_ends(
        &mut self,
        before: Option<BlockId>,
        behind: Option<(BlockId, u64)>,
    ) -> SmallVec<[BlockId; 2]> {
        let mut held: SmallVec<[BlockId; 2]> = SmallVec::new();
        if let Some(before) = before {
            self.unlist(before);
            held.push(before);
        }
        if let Some((behind, bytes)) = behind {
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
        held
    }

    /// What may still be created under the limit.
    pub(super) fn growable_bytes(&self) -> u64 {
        let held_bytes = self.reserved_bytes().saturating_add(self.promised_bytes);
        let room = self.limit_bytes.map_or(u64::MAX, |limit| limit.saturating_sub(held_bytes));
        room / self.granularity_bytes * self.granularity_bytes
    }
}

/// A gap while it is being planned for.
pub(super) struct Filling {
    pub(super) at: u64,
    pub(super) missing_bytes: u64,
    pub(super) room_bytes: u64,
    pub(super) pieces: Vec<Piece>,
}

impl Filling {
    pub(super) fn add(&mut self, bytes: u64, source: Source) {
        self.pieces.push(Piece { address: self.at, bytes, source });
        self.at += bytes;
        self.missing_bytes = self.missing_bytes.saturating_sub(bytes);
        self.room_bytes = self.room_bytes.saturating_sub(bytes);
    }
}
