//! The walk over everything: every address and every page of physical memory is in exactly one place, and everything counted is
//! there.

use std::collections::BTreeMap;

use super::Core;
use crate::caching::classic::BlockId;
use crate::caching::classic::blocks::State;
use crate::stats::{PoolKind, WalkedTotals};

type Verdict = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

impl Core {
    /// Walks everything.
    pub(crate) fn verify(&self) -> Verdict {
        self.verify_blocks()?;
        self.verify_handles()?;
        self.verify_addresses()?;
        self.stats.reconcile(&self.walked_totals()).map_err(|differences| differences.to_string())
    }

    fn verify_blocks(&self) -> Verdict {
        let (mut live, mut free) = (0, 0);
        let mut last: Option<BlockId> = None;
        for (address, id) in &self.by_address {
            let block = self.blocks.get(*id).ok_or_else(|| format!("no block for {address:#x}"))?;
            ensure(block.ptr == *address && block.bytes > 0, || format!("{block:?} is not at {address:#x}"))?;
            let before = last.map(|id| &self.blocks[id]);
            let is_beside = before.is_some_and(|before| {
                before.ptr + before.bytes == *address && before.segment == block.segment
            });
            ensure(before.is_none_or(|before| before.ptr + before.bytes <= *address), || {
                format!("{block:?} overlaps the block before it")
            })?;
            let linked = (block.previous, last.and_then(|id| self.blocks[id].next));
            let expected = if is_beside { (last, Some(*id)) } else { (None, None) };
            ensure(linked == expected, || format!("{block:?} is not linked to the block before it"))?;
            self.verify_block(*id)?;
            if is_beside
                && before.is_some_and(|before| before.state == State::Free && before.tag == block.tag)
            {
                ensure(block.state != State::Free, || format!("{block:?} is not merged"))?;
            }
            live += usize::from(block.state == State::Live);
            free += usize::from(block.state == State::Free);
            last = Some(*id);
        }
        ensure(self.blocks.len() == self.by_address.len(), || "a block has no address".to_owned())?;
        ensure(live == self.live.len(), || {
            format!("{live} live blocks, {} known by address", self.live.len())
        })?;
        let listed: usize = self.free.iter().map(|index| index.len()).sum();
        ensure(free == listed, || format!("{free} free blocks, {listed} in the index"))
    }

    fn verify_block(&self, id: BlockId) -> Verdict {
        let block = &self.blocks[id];
        let fits = block.inner_offset + block.requested_bytes <= block.bytes;
        ensure(fits, || format!("{block:?} is smaller than what was asked for"))?;
        match block.state {
            State::Live => {
                let by_address = self.live.get(&block.outer_ptr()) == Some(&id);
                ensure(by_address && block.waits == 0, || {
                    format!("{block:?} is live and not known, or waits")
                })
            }
            State::Free => {
                let index = &self.free[self.region_of(id).place()];
                let listed = index.at_least(block.tag, block.bytes).any(|(_, listed)| listed == id);
                ensure(listed && block.waits == 0 && block.uses.is_empty(), || {
                    format!("{block:?} is free, and not in the index or waits")
                })
            }
            State::Pending => ensure(block.uses.is_empty(), || format!("{block:?} waits and has uses")),
            State::Offered => Ok(()),
        }
    }

    /// Every handle counts what is used of it, and its pages name it and nobody else's do.
    fn verify_handles(&self) -> Verdict {
        let mut used: BTreeMap<_, u64> = BTreeMap::new();
        for id in self.by_address.values() {
            let block = &self.blocks[*id];
            let (mut at, end) = (block.ptr, block.ptr + block.bytes);
            while at < end {
                let handle = self.handle_at(block.segment.0 as usize, at);
                let handle = handle.ok_or_else(|| format!("{block:?} has no memory at {at:#x}"))?;
                let mapped = self.handles.get(handle).ok_or_else(|| format!("{handle:?} does not exist"))?;
                let until = mapped.end().min(end);
                *used.entry(handle).or_default() += if block.state == State::Free { 0 } else { until - at };
                at = until;
            }
        }
        let (mut whole_free, mut pages) = (0, 0);
        for (id, mapped) in self.handles.iter() {
            let counted = used.remove(&id).unwrap_or(u64::MAX);
            ensure(counted == mapped.used_bytes, || format!("{mapped:?}: {counted} bytes are used"))?;
            whole_free += usize::from(mapped.used_bytes == 0 && mapped.handle.is_some());
            let extent = &self.extents[mapped.extent];
            ensure(extent.contains(mapped.address) && mapped.end() <= extent.end(), || {
                format!("{mapped:?} is not in its extent")
            })?;
            for address in mapped.range().step_by(self.granularity_bytes as usize) {
                pages += 1;
                ensure(self.handle_at(mapped.extent, address) == Some(id), || {
                    format!("the page at {address:#x} does not name {mapped:?}")
                })?;
            }
        }
        ensure(whole_free == self.handles.whole_free_len(), || {
            format!("{whole_free} handles are free as a whole")
        })?;
        let named: u64 = self.extents.iter().map(|extent| extent.pages.named()).sum();
        ensure(named == pages, || format!("{named} pages are named, {pages} mapped"))
    }

    /// Mapped addresses, gaps and views do not overlap. What a driver call has is in none of them.
    fn verify_addresses(&self) -> Verdict {
        let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
        let mapped = self.handles.iter().map(|(_, mapped)| mapped.range());
        let gaps = self.extents.iter().flat_map(|extent| extent.gaps());
        let views = self.views.iter().map(|(address, view)| address..address + view.bytes);
        for range in mapped.chain(gaps).chain(views) {
            taken
                .insert(range.start, range.end)
                .map_or(Ok(()), |_| Err(format!("{:#x} is twice", range.start)))?;
        }
        let mut end_of_last = 0;
        for (start, end) in taken {
            ensure(start >= end_of_last, || format!("{start:#x} is in two places"))?;
            end_of_last = end;
        }
        ensure(self.views.add_up(), || format!("{} views, and handles count others", self.views.len()))
    }

    /// What is there, counted anew.
    pub(crate) fn walked_totals(&self) -> WalkedTotals {
        let mut walked = WalkedTotals::default();
        for (_, mapped) in self.handles.iter().filter(|(_, mapped)| mapped.handle.is_some()) {
            let pool = self.extents[mapped.extent].region.pool();
            walked.segment.add(pool, 1);
            walked.reserved_bytes.add(pool, mapped.bytes);
        }
        for (_, mapped) in self.handles.iter().filter(|(_, mapped)| mapped.stranded_bytes() > 0) {
            let pool = self.extents[mapped.extent].region.pool();
            walked.inactive_split.add(pool, 1);
            walked.inactive_split_bytes.add(pool, mapped.stranded_bytes());
        }
        for loose in &self.loose {
            walked.segment.add(PoolKind::All, 1);
            walked.reserved_bytes.add(PoolKind::All, loose.bytes);
        }
        for id in self.by_address.values().filter(|id| !self.asleep.contains(id)) {
            let block = &self.blocks[*id];
            let pool = self.region_of(*id).pool();
            if block.state == State::Live {
                walked.allocation.add(pool, 1);
                walked.allocated_bytes.add(pool, block.bytes);
                walked.requested_bytes.add(pool, block.requested_bytes);
            }
            if matches!(block.state, State::Live | State::Pending) {
                walked.active.add(pool, 1);
                walked.active_bytes.add(pool, block.bytes);
            }
        }
        walked
    }
}
