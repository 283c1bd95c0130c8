//! Search and carve: from a request to a live block.

use headwater_driver::DevicePtr;

use super::blocks::{Block, State};
use super::segments::{Segment, SegmentId};
use super::{BlockId, Core, InactiveChange, Tag, Wanted};
use crate::config::MIN_BLOCK_BYTES;
use crate::stats::PoolKind;

/// How many blocks too small for any alignment are tried for a fitting address, before one is taken that surely fits.
const ALIGNMENT_TRIES: usize = 8;
/// How many of another stream's blocks are looked at for one that is finished.
const FINISHED_TRIES: usize = 8;

/// A block of another stream that would do once the stream is known to have finished with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its stream.
    pub(crate) tag: Tag,
    /// The mark to reach.
    pub(crate) given_back_at: u64,
}

impl Core {
    /// Serves a request from the free blocks of its own stream, or of none.
    pub(crate) fn take(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        // Only collection looks at ages; without it the clock need not tick.
        if self.garbage_collection_threshold.is_some() {
            self.index_mut(wanted.pool).searches += 1;
        }
        let id = self.best_fit(wanted, tag).or_else(|| self.best_fit(wanted, Tag::ANY))?;
        let mut change = InactiveChange::default();
        self.unlist(id, &mut change);
        Some(self.carve(id, wanted, tag, change))
    }

    /// Serves a request from blocks of other streams that are known to be finished there: the smallest that fits.
    pub(crate) fn take_finished(&mut self, wanted: &Wanted, tag: Tag) -> Option<DevicePtr> {
        let index = self.index(wanted.pool);
        let finished = |other: Tag| {
            let mut fitting = index.at_least(other, wanted.padded_bytes).take(FINISHED_TRIES);
            fitting.find(|(bytes, id)| {
                self.rules.may_serve(wanted.padded_bytes, *bytes)
                    && self.tags.is_finished(other, self.blocks[*id].given_back_at)
            })
        };
        let others = index.tags_with(wanted.padded_bytes).filter(|other| *other != tag);
        let (_, id) = others.filter_map(finished).min()?;
        let mut change = InactiveChange::default();
        self.unlist(id, &mut change);
        Some(self.carve(id, wanted, tag, change))
    }

    /// The best fits of other streams that may not be finished there, at most `most` of them.
    pub(crate) fn candidates(&self, wanted: &Wanted, tag: Tag, most: usize) -> Vec<Candidate> {
        let index = self.index(wanted.pool);
        let others = index.tags_with(wanted.padded_bytes).filter(|other| *other != tag && *other != Tag::ANY);
        let best = others.filter_map(|other| {
            let (bytes, id) = index.at_least(other, wanted.padded_bytes).next()?;
            let given_back_at = self.blocks[id].given_back_at;
            self.rules
                .may_serve(wanted.padded_bytes, bytes)
                .then_some(Candidate { tag: other, given_back_at })
        });
        best.take(most).collect()
    }

    fn best_fit(&self, wanted: &Wanted, tag: Tag) -> Option<BlockId> {
        let index = self.index(wanted.pool);
        if wanted.padded_bytes > wanted.block_bytes {
            // A block that begins at the right address needs no room for padding.
            let smaller = index.at_least(tag, wanted.block_bytes).take(ALIGNMENT_TRIES);
            for (bytes, id) in smaller.take_while(|(bytes, _)| *bytes < wanted.padded_bytes) {
                let padding_bytes = padding(self.blocks[id].ptr, wanted.alignment_bytes);
                let needed_bytes = padding_bytes + wanted.block_bytes;
                if needed_bytes <= bytes && self.rules.may_serve(wanted.block_bytes, bytes) {
                    return Some(id);
                }
            }
        }
        let (bytes, id) = index.at_least(tag, wanted.padded_bytes).next()?;
        self.rules.may_serve(wanted.padded_bytes, bytes).then_some(id)
    }

    /// Makes a block that is out of the index live, and splits off what is not needed of it.
    fn carve(&mut self, id: BlockId, wanted: &Wanted, tag: Tag, mut change: InactiveChange) -> DevicePtr {
        let pool = self.pool_of(id);
        let block = &self.blocks[id];
        let inner_offset = padding(block.ptr, wanted.alignment_bytes);
        // Whole block units, so that the rest begins at one.
        let needed_bytes =
            (inner_offset + wanted.block_bytes).next_multiple_of(MIN_BLOCK_BYTES).min(block.bytes);
        let rest_bytes = block.bytes - needed_bytes;
        if self.rules.should_split(pool, needed_bytes, rest_bytes) {
            let rest = self.blocks.split(id, needed_bytes);
            self.list(rest, &mut change);
        }
        let block = &mut self.blocks[id];
        block.tag = tag;
        block.state = State::Live;
        block.requested_bytes = wanted.requested_bytes;
        block.inner_offset = inner_offset;
        let (ptr, bytes) = (block.outer_ptr(), block.bytes);
        self.live.insert(ptr, id);
        change.apply(&mut self.stats, pool);
        self.count_live(pool, bytes, wanted.requested_bytes);
        ptr
    }

    fn count_live(&mut self, pool: PoolKind, bytes: u64, requested_bytes: u64) {
        let oversize = self.rules.is_oversize(bytes);
        let stats = &mut self.stats;
        stats.allocation.increase(pool, 1);
        stats.allocated_bytes.increase(pool, bytes);
        stats.requested_bytes.increase(pool, requested_bytes);
        stats.active.increase(pool, 1);
        stats.active_bytes.increase(pool, bytes);
        if oversize {
            stats.oversize_allocations.increase(1);
        }
    }

    /// Sets `bytes` aside under the limit, for a segment that the driver is about to be asked for. Where the limit is in
    /// the way nothing changes.
    pub(crate) fn promise(&mut self, bytes: u64) -> bool {
        let held_bytes = self.stats.reserved_bytes.all.current.saturating_add(self.promised_bytes);
        let fits = self.limit_bytes.is_none_or(|limit| held_bytes.saturating_add(bytes) <= limit);
        if fits {
            self.promised_bytes = self.promised_bytes.saturating_add(bytes);
        }
        fits
    }

    /// The driver gave nothing.
    pub(crate) fn withdraw(&mut self, bytes: u64) {
        self.promised_bytes = self.promised_bytes.saturating_sub(bytes);
    }

    pub(crate) fn promised_bytes(&self) -> u64 {
        self.promised_bytes
    }

    /// Takes over a promised segment that begins at `base`, and serves the request it was made for.
    pub(crate) fn admit(&mut self, base: DevicePtr, bytes: u64, wanted: &Wanted, tag: Tag) -> DevicePtr {
        self.withdraw(bytes);
        let segment = SegmentId(base.raw());
        let id = self.blocks.insert(Block::new(base.raw(), bytes, segment, tag));
        let pool = wanted.pool;
        self.segments.insert(segment, Segment { bytes, pool, tag, first: id, offered: false });
        let stats = &mut self.stats;
        stats.num_device_alloc += 1;
        stats.segment.increase(pool, 1);
        stats.reserved_bytes.increase(pool, bytes);
        if self.rules.is_oversize(bytes) {
            stats.oversize_segments.increase(1);
        }
        self.carve(id, wanted, tag, InactiveChange::default())
    }
}

/// How far from `ptr` the next multiple of `alignment_bytes` is.
fn padding(ptr: u64, alignment_bytes: u64) -> u64 {
    ptr.next_multiple_of(alignment_bytes) - ptr
}
