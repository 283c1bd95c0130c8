//! The books of memory that is put away behind live blocks: addresses stay, physical memory goes and comes back.
//!
//! A handle can go where every block on it sleeps or is free and finished. Handles at the edges, shared with blocks that stay
//! awake, remain. A sleeping block is counted neither as live nor as reserved; its address is its own all the while.

use std::ops::Range;

use headwater_driver::{DevicePtr, Handle};

use super::Core;
use super::handles::HandleId;
use crate::AllocError;
use crate::caching::classic::BlockId;
use crate::caching::classic::blocks::State;
use crate::stats::PoolKind;

/// A handle that sleeps, or is about to.
#[derive(Clone, Debug)]
pub(crate) struct Bed {
    pub(super) id: HandleId,
    pub(crate) range: Range<u64>,
    pub(crate) handle: Handle,
    /// Whether the memory can be exported: what comes back must be as good.
    pub(crate) is_exportable: bool,
    /// What of it belongs to sleeping blocks, and has contents.
    pub(crate) contents: Vec<Range<u64>>,
    /// Where the contents are saved, counted from the beginning of what the group saved.
    pub(crate) saved_at: u64,
    /// Whether its memory is at its address, though the group as a whole still sleeps: waking failed and could not be undone.
    pub(crate) is_back: bool,
}

impl Bed {
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Blocks that sleep together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(super) blocks: Vec<BlockId>,
    /// Free ranges on the handles, held back.
    pub(super) held: Vec<BlockId>,
    pub(crate) beds: Vec<Bed>,
}

impl Core {
    /// Holds the blocks at `ptrs` and the handles that can go with them. Bad input changes nothing.
    pub(crate) fn lay_down(&mut self, ptrs: &[DevicePtr]) -> Result<Group, AllocError> {
        let mut blocks = ptrs.iter().map(|ptr| self.find_live(*ptr)).collect::<Result<Vec<_>, _>>()?;
        blocks.sort_unstable();
        blocks.dedup();
        let mut handles: Vec<HandleId> = blocks.iter().flat_map(|id| self.handles_under(*id)).collect();
        handles.sort_unstable();
        handles.dedup();
        let mut group = Group { blocks, ..Group::default() };
        let mut saved_at = 0;
        for id in handles {
            if let Some(bed) = self.make_bed(id, &mut group) {
                let contents_bytes: u64 = bed.contents.iter().map(|range| range.end - range.start).sum();
                group.beds.push(Bed { saved_at, ..bed });
                saved_at += contents_bytes;
            }
        }
        for id in &group.blocks {
            self.count_block(*id, false);
            self.asleep.insert(*id);
        }
        Ok(group)
    }

    fn handles_under(&self, id: BlockId) -> Vec<HandleId> {
        let block = &self.blocks[id];
        let (mut at, end) = (block.ptr, block.ptr + block.bytes);
        let mut found = Vec::new();
        while at < end {
            let Some(id) = self.handle_at(block.segment.0 as usize, at) else { break };
            found.push(id);
            at = self.handles.get(id).map_or(end, |mapped| mapped.end());
        }
        found
    }

    /// A handle that can go, with the free ranges on it held back.
    fn make_bed(&mut self, id: HandleId, group: &mut Group) -> Option<Bed> {
        let mapped = *self.handles.get(id)?;
        let handle = mapped.handle.filter(|handle| !self.views.has(*handle))?;
        let on_it = self.blocks_on(id);
        let may_go = |id: &BlockId| {
            let block = &self.blocks[*id];
            let is_idle = block.state == State::Free && self.tags.is_finished(block.tag, block.given_back_at);
            is_idle || group.held.contains(id) || group.blocks.binary_search(id).is_ok()
        };
        if !on_it.iter().all(may_go) {
            return None;
        }
        let mut contents = Vec::new();
        for mut id in on_it {
            let block = &self.blocks[id];
            let (start, end) = (block.ptr.max(mapped.address), (block.ptr + block.bytes).min(mapped.end()));
            if block.state == State::Live {
                contents.push(start..end);
                continue;
            }
            self.unlist(id);
            if self.blocks[id].ptr < start {
                let rest = self.split(id, start - self.blocks[id].ptr);
                self.list(id);
                id = rest;
            }
            if self.blocks[id].ptr + self.blocks[id].bytes > end {
                let rest = self.split(id, end - start);
                self.list(rest);
            }
            self.blocks[id].state = State::Offered;
            self.change_use(mapped.extent, start..end, true);
            group.held.push(id);
        }
        let is_exportable = self.exportable.contains(&handle);
        Some(Bed { id, range: mapped.range(), handle, is_exportable, contents, saved_at: 0, is_back: false })
    }

    /// A bed's memory went to the driver, or came back as `handle`.
    pub(crate) fn set_bed(&mut self, bed: &mut Bed, handle: Option<Handle>) {
        let Some(mapped) = self.handles.get_mut(bed.id) else { return };
        mapped.handle = handle;
        bed.is_back = handle.is_some();
        let (extent, bytes) = (mapped.extent, mapped.bytes);
        let pool: PoolKind = self.extents[extent].region.pool();
        match handle {
            None => {
                self.exportable.remove(&bed.handle);
                self.uncount(pool, bytes);
                self.stats.num_device_free += 1;
            }
            Some(handle) => {
                bed.handle = handle;
                if bed.is_exportable {
                    self.exportable.insert(handle);
                }
                self.count(pool, bytes);
                self.stats.num_device_alloc += 1;
            }
        }
    }

    /// Promises the memory of a group under the limit.
    pub(crate) fn promise(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.growable_bytes();
        self.promised_bytes += if fits { bytes } else { 0 };
        fits
    }

    /// The promise is over.
    pub(crate) fn withdraw(&mut self, bytes: u64) {
        self.promised_bytes -= bytes;
    }

    /// A handle could not be mapped back or released: it is used for the next miss.
    pub(crate) fn keep_loose(&mut self, handle: Handle, bytes: u64) {
        self.loosen(handle, bytes);
        self.stats.num_device_alloc += 1;
    }

    /// All of a group's memory is there again.
    pub(crate) fn get_up(&mut self, group: Group) {
        for id in group.blocks {
            self.asleep.remove(&id);
            self.count_block(id, true);
        }
        group.held.into_iter().for_each(|id| self.let_go(id));
    }

    fn count_block(&mut self, id: BlockId, is_awake: bool) {
        let pool = self.region_of(id).pool();
        let block = &self.blocks[id];
        let (bytes, requested_bytes) = (block.bytes, block.requested_bytes);
        let stats = &mut self.stats;
        for (array, amount) in [
            (&mut stats.allocation, 1),
            (&mut stats.allocated_bytes, bytes),
            (&mut stats.requested_bytes, requested_bytes),
            (&mut stats.active, 1),
            (&mut stats.active_bytes, bytes),
        ] {
            if is_awake { array.increase(pool, amount) } else { array.decrease(pool, amount) }
        }
    }
}
