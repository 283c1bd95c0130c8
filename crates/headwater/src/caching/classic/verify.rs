//! The walk over everything: every byte of every segment is in exactly one block, and everything counted is there.

use super::blocks::State;
use super::{BlockId, Core};
use crate::stats::{Differences, PoolKind, WalkedTotals};

/// What a walk found wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Defect {
    /// The statistics do not equal what is there.
    #[error("{0}")]
    Counts(Differences),
    /// The tables contradict each other.
    #[error("{0}")]
    Structure(String),
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Defect> {
    if holds { Ok(()) } else { Err(Defect::Structure(what())) }
}

impl Core {
    /// Walks everything.
    pub(crate) fn verify(&self) -> Result<(), Defect> {
        let mut end_of_last = 0;
        let (mut blocks, mut live, mut free) = (0, 0, 0);
        for (id, segment) in self.segments.iter() {
            ensure(id.0 >= end_of_last, || format!("segment {:#x} overlaps the one before it", id.0))?;
            end_of_last = id.0 + segment.bytes;
            let (mut at, mut previous, mut last) = (id.0, None, None);
            for block_id in self.chain(segment.first) {
                self.verify_block(block_id, previous, at)?;
                let block = &self.blocks[block_id];
                ensure(block.segment == id, || {
                    format!("{block:?} says it is in another segment than {:#x}", id.0)
                })?;
                at += block.bytes;
                blocks += 1;
                live += usize::from(block.state == State::Live);
                free += usize::from(block.state == State::Free);
                if let Some(last) = last {
                    self.verify_merged(last, block_id)?;
                }
                (previous, last) = (Some(block_id), Some(block_id));
            }
            ensure(at == end_of_last, || format!("the blocks of segment {:#x} end at {at:#x}", id.0))?;
        }
        ensure(blocks == self.blocks.len(), || {
            format!("{} blocks, {blocks} in segments", self.blocks.len())
        })?;
        ensure(live == self.live.len(), || {
            format!("{live} live blocks, {} known by address", self.live.len())
        })?;
        let listed = self.small.len() + self.large.len();
        ensure(free == listed, || format!("{free} free blocks, {listed} in the index"))?;
        self.stats.reconcile(&self.walked_totals()).map_err(Defect::Counts)
    }

    fn verify_block(&self, id: BlockId, previous: Option<BlockId>, at: u64) -> Result<(), Defect> {
        let block = &self.blocks[id];
        ensure(block.ptr == at && block.bytes > 0, || format!("{block:?} is not at {at:#x}"))?;
        ensure(block.previous == previous, || format!("{block:?} is not linked to the block before it"))?;
        let fits = block.inner_offset + block.requested_bytes <= block.bytes;
        ensure(fits, || format!("{block:?} is smaller than what was asked for"))?;
        let by_address = self.live.get(&block.outer_ptr()) == Some(&id);
        match block.state {
            State::Live => {
                ensure(by_address, || format!("{block:?} is live and not known by its address"))?;
                ensure(block.waits == 0, || format!("{block:?} is live and waits"))
            }
            State::Free => {
                let pool = self.pool_of(id);
                let mut listed = self.index(pool).at_least(block.tag, block.bytes);
                let listed = listed.any(|(_, listed)| listed == id);
                ensure(listed, || format!("{block:?} is free and not in the index"))?;
                ensure(block.waits == 0 && block.uses.is_empty(), || format!("{block:?} is free and waits"))
            }
            State::Pending => ensure(block.uses.is_empty(), || format!("{block:?} waits and has uses")),
            State::Offered => {
                let segment = self.segments.get(block.segment);
                let offered = segment.is_some_and(|segment| segment.offered);
                ensure(offered, || format!("{block:?} is offered without its segment"))
            }
        }
    }

    /// Two free neighbours of one stream would be one block.
    fn verify_merged(&self, first: BlockId, second: BlockId) -> Result<(), Defect> {
        let (first, second) = (&self.blocks[first], &self.blocks[second]);
        let both_free = first.state == State::Free && second.state == State::Free;
        ensure(!(both_free && first.tag == second.tag), || format!("{first:?} and {second:?} are not merged"))
    }

    /// What is there, counted anew.
    pub(crate) fn walked_totals(&self) -> WalkedTotals {
        let mut walked = WalkedTotals::default();
        for (_, segment) in self.segments.iter() {
            let pool = segment.pool;
            walked.segment.add(pool, 1);
            walked.reserved_bytes.add(pool, segment.bytes);
            walked.oversize_segments += u64::from(self.rules.is_oversize(segment.bytes));
            for id in self.chain(segment.first) {
                self.add_block(&mut walked, id, pool);
            }
        }
        walked
    }

    fn add_block(&self, walked: &mut WalkedTotals, id: BlockId, pool: PoolKind) {
        let block = &self.blocks[id];
        match block.state {
            State::Free | State::Offered => {
                if block.is_split() {
                    walked.inactive_split.add(pool, 1);
                    walked.inactive_split_bytes.add(pool, block.bytes);
                }
                return;
            }
            State::Live => {
                walked.allocation.add(pool, 1);
                walked.allocated_bytes.add(pool, block.bytes);
                walked.requested_bytes.add(pool, block.requested_bytes);
                walked.oversize_allocations += u64::from(self.rules.is_oversize(block.bytes));
            }
            State::Pending => {}
        }
        walked.active.add(pool, 1);
        walked.active_bytes.add(pool, block.bytes);
    }
}
