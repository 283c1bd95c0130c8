//! Which segments to return to the driver, and returning them.
//!
//! Only whole segments can go. The driver's plain free waits for all work on the device, so a free block may go while its
//! stream still works on it, and a block whose last use no event can answer may go too; nothing else could be more
//! certain. Returning takes three steps, because no lock is held while the driver works: a segment is *offered* (nobody
//! can take its blocks, its bytes still count), and then *returned* or, where the driver refused, *kept*.

use headwater_driver::DevicePtr;

use super::blocks::State;
use super::segments::{Segment, SegmentId};
use super::{BlockId, Core, InactiveChange, Tag, Wanted};

/// A segment on its way to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    segment: SegmentId,
    /// What is reserved for it.
    pub(crate) bytes: u64,
    /// The stream it was made for.
    pub(crate) tag: Tag,
    /// The time when it was offered: all given back up to there is finished once the driver has taken it.
    pub(crate) mark: u64,
}

impl Offer {
    /// Its first address.
    pub(crate) fn base(&self) -> DevicePtr {
        DevicePtr::new(self.segment.0)
    }
}

impl Core {
    /// Collection: offers cached large segments that were not used for long, where more than the threshold is reserved.
    ///
    /// The age of a segment is the number of searches since it became free. All of at least average age go, and again,
    /// until enough has been offered. PyTorch's rule.
    pub(crate) fn offer_garbage(&mut self) -> Vec<Offer> {
        let (Some(threshold), Some(limit)) = (self.garbage_collection_threshold, self.limit_bytes) else {
            return Vec::new();
        };
        let reserved_bytes = self.stats.reserved_bytes.all.current;
        let allowed_bytes = (threshold * limit as f64) as u64;
        let target_bytes = reserved_bytes.saturating_sub(allowed_bytes);
        let searches = self.large.searches;
        let whole = self.large.iter().filter(|(_, _, id)| !self.blocks[*id].is_split());
        let mut aged: Vec<_> =
            whole.map(|(_, bytes, id)| (searches - self.blocks[id].free_since, bytes, id)).collect();
        let mut total_age: u64 = aged.iter().map(|(age, ..)| age).sum();
        let (mut offered_bytes, mut offers) = (0, Vec::new());
        while offered_bytes < target_bytes && !aged.is_empty() {
            let average = total_age as f64 / aged.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) =
                aged.into_iter().partition(|(age, ..)| *age as f64 >= average);
            for (age, bytes, id) in &old {
                total_age -= age;
                offered_bytes += bytes;
                offers.extend(self.offer_block(*id));
            }
            aged = young;
        }
        offers
    }

    /// Offers the oversize cached segments of the request's stream that would be enough for it: the smallest single one
    /// that is, or the largest ones until it is. Nothing where all together are not enough. PyTorch's rule.
    pub(crate) fn offer_oversize(&mut self, wanted: &Wanted, tag: Tag) -> Vec<Offer> {
        let Some(max_split_bytes) = self.rules.max_split_bytes() else { return Vec::new() };
        let needed_bytes = wanted.padded_bytes.max(max_split_bytes);
        let index = self.index(wanted.pool);
        let is_whole = |(_, id): &(u64, BlockId)| !self.blocks[*id].is_split();
        let chosen: Vec<BlockId> = match index.at_least(tag, needed_bytes).find(is_whole) {
            Some((_, id)) => vec![id],
            None => {
                let mut sum_bytes = 0;
                let mut chosen = Vec::new();
                for (bytes, id) in index.at_least(tag, max_split_bytes).rev().filter(is_whole) {
                    if sum_bytes >= needed_bytes {
                        break;
                    }
                    sum_bytes += bytes;
                    chosen.push(id);
                }
                if sum_bytes < needed_bytes {
                    return Vec::new();
                }
                chosen
            }
        };
        chosen.into_iter().filter_map(|id| self.offer_block(id)).collect()
    }

    /// Offers every segment in which nothing is held and nothing is used; waits that no event can answer do not count.
    pub(crate) fn offer_all(&mut self) -> Vec<Offer> {
        // Not by the index: free neighbours of two streams are two blocks, and their segment can go all the same.
        let segments: Vec<SegmentId> = self.segments.iter().map(|(id, _)| id).collect();
        segments.into_iter().filter_map(|segment| self.offer_segment(segment)).collect()
    }

    /// Offers the segment of one free block that is all of it.
    pub(crate) fn offer_block(&mut self, id: BlockId) -> Option<Offer> {
        self.offer_segment(self.blocks[id].segment)
    }

    fn offer_segment(&mut self, id: SegmentId) -> Option<Offer> {
        let segment = self.segments.get(id).filter(|segment| self.may_go(segment))?;
        let (bytes, tag) = (segment.bytes, segment.tag);
        let blocks: Vec<BlockId> = self.chain(segment.first).collect();
        for block in blocks {
            if self.blocks[block].state == State::Free {
                // Still counted as it was: nothing has left yet.
                self.unlist(block, &mut InactiveChange::default());
                self.blocks[block].state = State::Offered;
            }
        }
        if let Some(segment) = self.segments.get_mut(id) {
            segment.offered = true;
        }
        Some(Offer { segment: id, bytes, tag, mark: self.ticks })
    }

    /// The driver took the segment. Returns the pending blocks that went with it.
    pub(crate) fn returned(&mut self, offer: &Offer) -> Vec<BlockId> {
        let Some(segment) = self.segments.remove(offer.segment) else { return Vec::new() };
        let pool = segment.pool;
        let (mut change, mut gone) = (InactiveChange::default(), Vec::new());
        let mut next = Some(segment.first);
        while let Some(block) = next.and_then(|id| self.blocks.remove(id)) {
            if block.state == State::Pending {
                self.stats.active.decrease(pool, 1);
                self.stats.active_bytes.decrease(pool, block.bytes);
                gone.extend(next);
            } else {
                change.remove(block.is_split(), block.bytes);
            }
            next = block.next;
        }
        change.apply(&mut self.stats, pool);
        let stats = &mut self.stats;
        stats.num_device_free += 1;
        stats.segment.decrease(pool, 1);
        stats.reserved_bytes.decrease(pool, segment.bytes);
        if self.rules.is_oversize(segment.bytes) {
            stats.oversize_segments.decrease(1);
        }
        self.tags.all_reached(offer.mark);
        gone
    }

    /// The driver refused the segment: its free blocks can be taken again, and it is offered again another time.
    pub(crate) fn kept(&mut self, offer: &Offer) {
        let Some(segment) = self.segments.get_mut(offer.segment) else { return };
        segment.offered = false;
        let (first, pool) = (segment.first, segment.pool);
        // One at a time: each may merge with a neighbour that became free meanwhile.
        while let Some(id) = self.first_offered(first) {
            let mut change = InactiveChange::default();
            let block = &mut self.blocks[id];
            block.state = State::Free;
            change.remove(block.is_split(), block.bytes);
            let id = self.merge(id, &mut change);
            self.list(id, &mut change);
            change.apply(&mut self.stats, pool);
        }
        self.stats.num_owed_give_backs += 1;
    }

    fn first_offered(&self, first: BlockId) -> Option<BlockId> {
        self.chain(first).find(|id| self.blocks[*id].state == State::Offered)
    }

    /// Whether nothing in a segment is held or used.
    fn may_go(&self, segment: &Segment) -> bool {
        let mut blocks = self.chain(segment.first).map(|id| &self.blocks[id]);
        !segment.offered && blocks.all(|block| block.state == State::Free || block.is_quarantined())
    }

    /// What could be returned to the driver now, of both pools.
    pub(crate) fn releasable_bytes(&self) -> u64 {
        let segments = self.segments.iter().map(|(_, segment)| segment);
        segments.filter(|segment| self.may_go(segment)).map(|segment| segment.bytes).sum()
    }
}
