//! Where a miss goes: the place with the fewest bytes missing.
//!
//! Candidates are the gaps of the request's region, and views that nobody needs count as gaps. A free range in front of a gap is part of the place, and the one behind it
//! too where the whole gap is filled. The tail is a gap like the others and preferred among equals: what is mapped there splits
//! nothing. The scan is linear in the gaps, of which a program has some hundreds; a miss costs the driver 60 us and more.

use std::ops::Range;

use super::Core;
use super::extents::Region;
use crate::caching::classic::blocks::State;
use crate::caching::classic::{BlockId, Tag};

/// A place for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) extent: usize,
    /// The free range in front of the gap.
    pub(super) before: Option<BlockId>,
    /// The whole gap.
    pub(super) gap: Range<u64>,
    /// How much of the gap must be filled, from its beginning.
    pub(super) missing_bytes: u64,
    /// The free range behind the gap, and how much of it is needed.
    pub(super) behind: Option<(BlockId, u64)>,
}

impl Core {
    /// Whether work of stream `tag` may use a free range now.
    pub(super) fn may_use(&self, id: BlockId, tag: Tag) -> bool {
        let block = &self.blocks[id];
        let allowed = block.tag == tag || self.tags.is_finished(block.tag, block.given_back_at);
        block.state == State::Free && allowed
    }

    /// The place in `region` where `bytes` need the least to be mapped. Nothing where the region's addresses have run out.
    pub(super) fn best_place(&self, region: Region, bytes: u64, tag: Tag) -> Option<Place> {
        let mut best: Option<((u64, bool, u64), Place)> = None;
        for (number, extent) in self.extents.iter().enumerate().filter(|(_, extent)| extent.region == region)
        {
            for gap in self.gaps_and_views(number) {
                let Some(place) = self.place_at(number, gap, bytes, tag) else { continue };
                let is_inner = place.gap.end != extent.end();
                let order = (place.missing_bytes, is_inner, place.gap.start);
                if best.as_ref().is_none_or(|(least, _)| order < *least) {
                    best = Some((order, place));
                }
            }
        }
        best.map(|(_, place)| place)
    }

    /// The gaps of an extent, with the views beside them that can be removed: what may come to be mapped anew.
    fn gaps_and_views(&self, extent: usize) -> Vec<Range<u64>> {
        let gaps = self.extents[extent].gaps();
        let removable =
            self.views.iter().filter(|(_, view)| view.extent == extent && self.is_removable(view));
        let mut all: Vec<Range<u64>> =
            gaps.chain(removable.map(|(address, view)| address..address + view.bytes)).collect();
        all.sort_unstable_by_key(|range| range.start);
        all.dedup_by(|next, range| {
            let joins = range.end == next.start;
            range.end = if joins { next.end } else { range.end };
            joins
        });
        all
    }

    fn place_at(&self, extent: usize, gap: Range<u64>, bytes: u64, tag: Tag) -> Option<Place> {
        let usable = |id: &BlockId| self.blocks[*id].segment.0 as usize == extent && self.may_use(*id, tag);
        let before = self.by_address.range(..gap.start).next_back().map(|(_, id)| *id);
        let ends_here = |id: &BlockId| self.blocks[*id].ptr + self.blocks[*id].bytes == gap.start;
        let before = before.filter(ends_here).filter(usable);
        let before_bytes = before.map_or(0, |id| self.blocks[id].bytes);
        let gap_bytes = gap.end - gap.start;
        // Where the range in front is enough there would have been no miss, unless a driver call failed meanwhile.
        let short_bytes = bytes.saturating_sub(before_bytes).max(1);
        let missing_bytes = short_bytes.next_multiple_of(self.granularity_bytes);
        if missing_bytes <= gap_bytes {
            return Some(Place { extent, before, gap, missing_bytes, behind: None });
        }
        let behind = self.by_address.get(&gap.end).copied().filter(usable)?;
        let behind_bytes = short_bytes - gap_bytes;
        let place =
            Place { extent, before, gap, missing_bytes: gap_bytes, behind: Some((behind, behind_bytes)) };
        (self.blocks[behind].bytes >= behind_bytes).then_some(place)
    }
}
