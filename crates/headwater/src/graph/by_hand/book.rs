//! Which blocks there are, and which one serves a request. No lock, no driver.
//!
//! Every byte that the driver gave belongs to exactly one block. A block is *in use* or *available*, and an available one is
//! *fresh* (never handed out, so nobody knows its id) or *known*. A request is served by, in this order,
//! 1. the smallest known block that fits and wastes at most a quarter: same id, same address, as in the iteration before;
//! 2. the smallest fresh block that fits, cut to size; what is left over is fresh again, in front of an aligned address too;
//! 3. the smallest run of available neighbours that fits, made into one block and cut to size. The known blocks in it end,
//!    and their ids with them: only so can an iteration with other sizes use the memory of the last one;
//! 4. growth.
//!
//! Addresses, sizes and alignments are multiples of 256 bytes (what `cuMemAlloc` promises), so every cut leaves whole blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_driver::DevicePtr;
use rustc_hash::FxHashMap;

use super::{BlockId, GraphBlock};
use crate::graph::error::GraphError;
use crate::graph::fixed_memory::Grown;

/// What everything is a multiple of.
pub(super) const GRAIN_BYTES: u64 = 256;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: BlockId,
    extent_bytes: u64,
    requested_bytes: u64,
    in_use: bool,
    fresh: bool,
    /// Whether the block cannot be one with the one before it.
    walled: bool,
}

/// A request in whole grains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) requested_bytes: u64,
    pub(super) extent_bytes: u64,
    pub(super) alignment_bytes: u64,
}

impl Wanted {
    /// None where the size is beyond the address space.
    pub(super) fn new(requested_bytes: u64, alignment_bytes: u64) -> Option<Self> {
        let extent_bytes = requested_bytes.max(1).checked_next_multiple_of(GRAIN_BYTES)?;
        Some(Self { requested_bytes, extent_bytes, alignment_bytes: alignment_bytes.max(GRAIN_BYTES) })
    }

    /// What a piece of memory at any address needs to hold it.
    pub(super) fn worst_bytes(&self) -> u64 {
        self.extent_bytes + (self.alignment_bytes - GRAIN_BYTES)
    }

    /// Where in a piece it goes.
    fn place(&self, address: u64, bytes: u64) -> Option<u64> {
        let at = address.checked_next_multiple_of(self.alignment_bytes)?;
        (at.checked_add(self.extent_bytes)? <= address + bytes).then_some(at)
    }

    /// The largest block that may be used whole.
    fn acceptable_bytes(&self) -> u64 {
        self.extent_bytes.saturating_add(self.extent_bytes / 4)
    }
}

/// All blocks of a pool.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// By address; without gaps within a region.
    blocks: BTreeMap<u64, Entry>,
    addresses: FxHashMap<BlockId, u64>,
    /// Available blocks by extent and address.
    known: BTreeSet<(u64, u64)>,
    fresh: BTreeSet<(u64, u64)>,
    allocated_bytes: u64,
    in_use_bytes: u64,
    in_use_blocks: usize,
    requested_bytes: u64,
}

impl Book {
    /// Takes over memory from the driver as one fresh block.
    pub(super) fn admit(&mut self, grown: Grown) {
        self.allocated_bytes += grown.bytes;
        let before = self.blocks.range(..grown.base).next_back();
        let touches = before.is_some_and(|(address, entry)| address + entry.extent_bytes == grown.base);
        self.insert_fresh(grown.base, grown.bytes, grown.starts_region || !touches);
    }

    /// How many of the bytes just before `end` are available and can be one with what comes there.
    pub(super) fn available_bytes_before(&self, end: u64) -> u64 {
        let mut start = end;
        for (address, entry) in self.blocks.range(..end).rev() {
            if entry.in_use || address + entry.extent_bytes != start {
                break;
            }
            start = *address;
            if entry.walled {
                break;
            }
        }
        end - start
    }

    /// Serves a request from available blocks.
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<GraphBlock> {
        let address =
            self.take_known(wanted).or_else(|| self.take_fresh(wanted)).or_else(|| self.take_run(wanted))?;
        let entry = self.blocks.get_mut(&address)?;
        entry.requested_bytes = wanted.requested_bytes;
        entry.in_use = true;
        entry.fresh = false;
        self.in_use_bytes += entry.extent_bytes;
        self.in_use_blocks += 1;
        self.requested_bytes += wanted.requested_bytes;
        Some(facts(address, entry))
    }

    fn take_known(&mut self, wanted: &Wanted) -> Option<u64> {
        let fitting = self.known.range((wanted.extent_bytes, 0)..=(wanted.acceptable_bytes(), u64::MAX));
        let found = fitting.copied().find(|(_, address)| address.is_multiple_of(wanted.alignment_bytes))?;
        self.known.remove(&found);
        Some(found.1)
    }

    fn take_fresh(&mut self, wanted: &Wanted) -> Option<u64> {
        let mut fitting = self.fresh.range((wanted.extent_bytes, 0)..);
        let (address, at) =
            fitting.find_map(|(bytes, address)| Some((*address, wanted.place(*address, *bytes)?)))?;
        self.cut(address, at, wanted.extent_bytes);
        Some(at)
    }

    /// Makes the smallest run of available neighbours that fits into one block, and cuts it.
    fn take_run(&mut self, wanted: &Wanted) -> Option<u64> {
        let (start, end) = self.smallest_run(wanted)?;
        let run: Vec<u64> = self.blocks.range(start..end).map(|(address, _)| *address).collect();
        let walled = self.blocks.get(&start).is_some_and(|entry| entry.walled);
        for address in run {
            self.remove_available(address);
        }
        self.insert_fresh(start, end - start, walled);
        let at = wanted.place(start, end - start)?;
        self.cut(start, at, wanted.extent_bytes);
        Some(at)
    }

    /// A window over the blocks in the order of addresses: it grows at its end until it fits, and then shrinks at its start
    /// for as long as it does.
    fn smallest_run(&self, wanted: &Wanted) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        let mut starts: std::collections::VecDeque<u64> = std::collections::VecDeque::new();
        for (address, entry) in &self.blocks {
            if entry.in_use || entry.walled {
                starts.clear();
            }
            if entry.in_use {
                continue;
            }
            starts.push_back(*address);
            let end = address + entry.extent_bytes;
            while let Some(start) = starts.front().copied()
                && wanted.place(start, end - start).is_some()
            {
                if best.is_none_or(|(best_start, best_end)| end - start < best_end - best_start) {
                    best = Some((start, end));
                }
                starts.pop_front();
            }
        }
        best
    }

    /// Cuts `extent_bytes` at `at` out of the available block at `address`; what is left on both sides is fresh.
    fn cut(&mut self, address: u64, at: u64, extent_bytes: u64) {
        let Some(entry) = self.remove_available(address) else { return };
        let end = address + entry.extent_bytes;
        if at > address {
            self.insert_fresh(address, at - address, entry.walled);
        }
        let walled = entry.walled && at == address;
        let id = next_id();
        self.addresses.insert(id, at);
        self.blocks
            .insert(at, Entry { id, extent_bytes, requested_bytes: 0, in_use: false, fresh: false, walled });
        if at + extent_bytes < end {
            self.insert_fresh(at + extent_bytes, end - at - extent_bytes, false);
        }
    }

    fn insert_fresh(&mut self, address: u64, extent_bytes: u64, walled: bool) {
        let id = next_id();
        self.addresses.insert(id, address);
        self.fresh.insert((extent_bytes, address));
        self.blocks.insert(
            address,
            Entry { id, extent_bytes, requested_bytes: 0, in_use: false, fresh: true, walled },
        );
    }

    fn remove_available(&mut self, address: u64) -> Option<Entry> {
        let entry = self.blocks.remove(&address)?;
        self.addresses.remove(&entry.id);
        self.known.remove(&(entry.extent_bytes, address));
        self.fresh.remove(&(entry.extent_bytes, address));
        Some(entry)
    }

    /// The block called `id`, in use or available.
    pub(super) fn find(&self, id: BlockId) -> Result<GraphBlock, GraphError> {
        let address = self.addresses.get(&id).ok_or(GraphError::UnknownBlock { id })?;
        let entry = self.blocks.get(address).ok_or(GraphError::UnknownBlock { id })?;
        Ok(facts(*address, entry))
    }

    /// The block that contains `ptr`.
    pub(super) fn block_at(&self, ptr: DevicePtr) -> Option<GraphBlock> {
        let (address, entry) = self.blocks.range(..=ptr.raw()).next_back()?;
        (ptr.raw() - address < entry.extent_bytes).then(|| facts(*address, entry))
    }

    /// Makes a block available.
    pub(super) fn give_back(&mut self, id: BlockId) -> Result<(), GraphError> {
        let block = self.find(id)?;
        if !block.in_use {
            return Err(GraphError::AlreadyReturned { id });
        }
        self.make_available(block.ptr.raw());
        Ok(())
    }

    /// Makes all blocks available. Says how many were in use.
    pub(super) fn reset(&mut self) -> usize {
        let in_use: Vec<u64> =
            self.blocks.iter().filter(|(_, entry)| entry.in_use).map(|(address, _)| *address).collect();
        for address in &in_use {
            self.make_available(*address);
        }
        in_use.len()
    }

    fn make_available(&mut self, address: u64) {
        if let Some(entry) = self.blocks.get_mut(&address)
            && entry.in_use
        {
            entry.in_use = false;
            self.in_use_bytes -= entry.extent_bytes;
            self.in_use_blocks -= 1;
            self.requested_bytes -= entry.requested_bytes;
            self.known.insert((entry.extent_bytes, address));
        }
    }

    /// Forgets everything: the memory is gone.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn figures(&self) -> super::GraphPoolStats {
        super::GraphPoolStats {
            allocated_bytes: self.allocated_bytes,
            block_count: self.blocks.len(),
            in_use_bytes: self.in_use_bytes,
            in_use_blocks: self.in_use_blocks,
            requested_bytes: self.requested_bytes,
        }
    }

    /// Walks everything and compares: every byte in one block, every available block in one index, every count right.
    pub(super) fn verify(&self) -> Result<(), String> {
        let (mut total, mut in_use, mut used_blocks, mut requested, mut indexed) = (0, 0, 0, 0, 0);
        let mut end_before = None;
        for (address, entry) in &self.blocks {
            let end = address + entry.extent_bytes;
            if end_before.is_some_and(|before| before > *address) {
                return Err(format!("two blocks overlap at {address:#x}"));
            }
            if !entry.walled && end_before != Some(*address) {
                return Err(format!("the block at {address:#x} has nothing before it"));
            }
            if entry.extent_bytes == 0 || !entry.extent_bytes.is_multiple_of(GRAIN_BYTES) {
                return Err(format!("the block at {address:#x} has {} bytes", entry.extent_bytes));
            }
            if self.addresses.get(&entry.id) != Some(address) {
                return Err(format!("{} is not found by its id", entry.id));
            }
            let places = [&self.known, &self.fresh].map(|set| set.contains(&(entry.extent_bytes, *address)));
            if places != [!entry.in_use && !entry.fresh, !entry.in_use && entry.fresh] {
                return Err(format!("{} is in the wrong index", entry.id));
            }
            total += entry.extent_bytes;
            if entry.in_use {
                in_use += entry.extent_bytes;
                used_blocks += 1;
                requested += entry.requested_bytes;
            } else {
                indexed += 1;
            }
            end_before = Some(end);
        }
        let counted = (self.allocated_bytes, self.in_use_bytes, self.in_use_blocks, self.requested_bytes);
        let walked = (total, in_use, used_blocks, requested);
        if counted != walked || indexed != self.known.len() + self.fresh.len() {
            return Err(format!("counted {counted:?}, found {walked:?}"));
        }
        Ok(())
    }
}

fn facts(address: u64, entry: &Entry) -> GraphBlock {
    GraphBlock {
        id: entry.id,
        ptr: DevicePtr::new(address),
        bytes: entry.requested_bytes,
        extent_bytes: entry.extent_bytes,
        in_use: entry.in_use,
    }
}

fn next_id() -> BlockId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only that no two are the same matters.
    BlockId(NEXT.fetch_add(1, Ordering::Relaxed))
}
