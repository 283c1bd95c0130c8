//! Blocks for other processes: which handles are behind one, and blocks that have handles of their own.
//!
//! Handles of live blocks are neither moved nor released, so an exported block needs nothing more than to stay live: its
//! give-back is put off until the last export ends (`sharing/pins.rs`).
//!
//! Handles are private unless they have to be otherwise, because those that can be exported cost more in every call
//! (docs/sharing.md): those of `allocate_shareable` can be, and with the setting `shareable` all. The engine writes down which
//! ones they are, so that an export says what is wrong with a block without asking the driver, and memory that comes back from
//! sleep can be exported as before. A handle keeps its kind when its block is given back and others use it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, DriverError, Handle};
use smallvec::SmallVec;

use super::Core;
use super::carry_out::Pager;
use super::commit::{Done, Fate};
use super::extents::Region;
use super::plan::{Fill, Piece, Plan, Source};
use super::policy::handle_cap_bytes;
use crate::allocator::{Allocator, Request};
use crate::caching::CachingAllocator;
use crate::caching::classic::{Tag, Wanted};
use crate::caching::growth::{Grown, Refusal};
use crate::caching::history::Action;
use crate::caching::ladder::Climb;
use crate::sharing::{BlockNote, ExportedBlock, HANDLES_MAX, Neighbours, ReceivedBlock};
use crate::sharing::{ImportedBlock, ShareError};
use crate::{AllocError, stats::PoolKind};

/// The memory behind a live block.
#[derive(Debug)]
struct Behind {
    handles: Vec<(Handle, u64)>,
    /// Where the caller's address is, counted from the beginning of the first handle.
    offset_bytes: u64,
    requested_bytes: u64,
    /// What the block has of the handles.
    block_bytes: u64,
}

impl Behind {
    fn mapped_bytes(&self) -> u64 {
        self.handles.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Finds out whether memory can be made for export at all, before everything depends on it.
pub(super) fn check(
    driver: &dyn Driver,
    device: DeviceId,
    granularity_bytes: u64,
) -> Result<(), DriverError> {
    match driver.handle_create_exportable(device, granularity_bytes) {
        Ok(handle) => driver.handle_release(handle),
        // It would have been made, were there room.
        Err(error) if error.is_out_of_memory() => Ok(()),
        Err(error) => Err(error),
    }
}

impl Core {
    fn behind(&self, ptr: DevicePtr) -> Result<Behind, AllocError> {
        let block = &self.blocks[self.find_live(ptr)?];
        let (mut at, end) = (block.ptr, block.ptr + block.bytes);
        let mut behind = Behind {
            handles: Vec::new(),
            offset_bytes: 0,
            requested_bytes: block.requested_bytes,
            block_bytes: block.bytes,
        };
        while at < end {
            let id = self.handle_at(block.segment.0 as usize, at);
            let mapped = id.and_then(|id| self.handles.get(id));
            // A live block that does not sleep has memory behind every byte.
            let (Some(mapped), true) = (mapped, mapped.is_some_and(|mapped| mapped.handle.is_some())) else {
                return Err(AllocError::Asleep { ptr });
            };
            if behind.handles.is_empty() {
                behind.offset_bytes = ptr.raw() - mapped.address;
            }
            behind.handles.extend(mapped.handle.map(|handle| (handle, mapped.bytes)));
            at = mapped.end();
        }
        Ok(behind)
    }

    /// New handles, and a block that fills them. As with every plan, what it will create is promised under the limit.
    fn plan_whole_handles(&mut self, wanted: &Wanted, tag: Tag) -> Plan {
        let bytes = wanted.padded_bytes;
        let gap =
            self.extents.iter().enumerate().filter(|(_, extent)| extent.region == Region::Long).find_map(
                |(number, extent)| {
                    let mut gaps = extent.gaps();
                    gaps.find(|gap| gap.end - gap.start >= bytes).map(|gap| (number, gap.start))
                },
            );
        let Some((extent, start)) = gap else { return Plan::NoAddresses };
        if bytes > self.growable_bytes() {
            return Plan::OverLimit;
        }
        let cap_bytes = handle_cap_bytes(self.peak_reserved_bytes.max(bytes), self.granularity_bytes);
        let mut pieces = Vec::new();
        let mut at = start;
        while at < start + bytes {
            let piece_bytes = cap_bytes.min(start + bytes - at);
            pieces.push(Piece { address: at, bytes: piece_bytes, source: Source::Create });
            at += piece_bytes;
        }
        self.promised_bytes += bytes;
        self.extents[extent].take_gap(&(start..at));
        Plan::Fill(Fill {
            extent,
            held: SmallVec::new(),
            pieces,
            promised_bytes: bytes,
            tag,
            wanted: *wanted,
        })
    }
}

impl CachingAllocator {
    /// Allocates a block that can be exported, and has its handles for itself, so that nothing else is exported with it. It is a block like others
    /// otherwise, rounded up to whole pages (2 MiB); its memory is new, and joins the cache when it is given back.
    ///
    /// # Errors
    /// As [`allocate`](Allocator::allocate), and [`ShareError::NotPaged`]; the driver's `NotSupported` where the device or the
    /// container allows no export.
    pub fn allocate_shareable(&self, request: Request) -> Result<DevicePtr, ShareError> {
        request.check(self.device)?;
        let granularity_bytes = match self.state.lock().core.paged() {
            Some(core) => core.granularity_bytes,
            None => return Err(ShareError::NotPaged),
        };
        let bytes = request.bytes.max(1).next_multiple_of(granularity_bytes);
        let wanted = Wanted {
            requested_bytes: request.bytes,
            block_bytes: bytes,
            padded_bytes: bytes,
            alignment_bytes: request.alignment_bytes,
            pool: PoolKind::LargePool,
        };
        let climb = Climb { wanted, stream: request.stream };
        self.do_chores(usize::MAX, usize::MAX)?;
        let mut refusal = match self.make_whole_handles(&climb)? {
            Ok(ptr) => return Ok(ptr),
            Err(refusal) => refusal,
        };
        // What is cached makes way: first as much as is needed, then everything; then whoever was told of shortages.
        for step in 0..3 {
            let has_changed = match step {
                0 => self.release_at_least(bytes).0 > 0,
                1 => self.empty_cache()? > 0,
                _ => self.call_back(&climb, refusal),
            };
            if has_changed {
                match self.make_whole_handles(&climb)? {
                    Ok(ptr) => return Ok(ptr),
                    Err(other) => refusal = other,
                }
            }
        }
        Err(self.out_of_memory(&climb, refusal, false).into())
    }

    fn make_whole_handles(&self, climb: &Climb) -> Result<Grown, AllocError> {
        for may_reserve in [true, false] {
            let plan = {
                let mut state = self.state.lock();
                let tag = state.tag_of(climb.stream);
                let Some(core) = state.core.paged_mut() else { return Ok(Err(Refusal::Device)) };
                core.plan_whole_handles(&climb.wanted, tag)
            };
            match plan {
                Plan::Fill(fill) => return self.carry_out_whole_handles(fill, climb),
                Plan::OverLimit => return Ok(Err(Refusal::Limit)),
                _ if may_reserve => self.reserve_arena(climb.wanted.padded_bytes)?,
                _ => {}
            }
        }
        Ok(Err(Refusal::Device))
    }

    fn carry_out_whole_handles(&self, fill: Fill, climb: &Climb) -> Result<Grown, AllocError> {
        let (done, error) = self.with_pager(|pager| Pager { makes_exportable: true, ..*pager }.fill(&fill));
        let mut state = self.state.lock();
        let ptr = state.core.paged_mut().and_then(|core| {
            let ptr = core.commit_fill(fill, &done)?;
            core.exportable.extend(done.iter().filter_map(placed));
            Some(ptr)
        });
        match (ptr, error) {
            (Some(ptr), _) => {
                state.core.stats_mut().misses += 1;
                let (bytes, stream) = (climb.wanted.padded_bytes, climb.stream);
                state.history.note(Action::SegmentMap, ptr, bytes, stream);
                state.history.note(Action::Alloc, ptr, climb.wanted.requested_bytes, stream);
                Ok(Ok(ptr))
            }
            (None, Some(error)) if !error.is_out_of_memory() => Err(error.into()),
            (None, _) => Ok(Err(Refusal::Device)),
        }
    }

    /// Lets other processes use the live block at `ptr`, for as long as the result lives. The same block can be exported several
    /// times. Legal during capture.
    ///
    /// # Errors
    /// Bad addresses, as [`give_back`](Allocator::give_back) names them; [`ShareError::NotPaged`]; [`ShareError::Private`] where
    /// the block's memory was not made for it; [`ShareError::Exposes`] where the block does not fill its handles and
    /// `neighbours` does not allow that; [`ShareError::TooManyHandles`]; [`ShareError::Driver`].
    pub fn export(
        self: &Arc<Self>,
        ptr: DevicePtr,
        neighbours: Neighbours,
    ) -> Result<ExportedBlock, ShareError> {
        let pci_address = self.driver.device_properties(self.device)?.pci_address;
        let (behind, note) = {
            let mut state = self.state.lock();
            if state.core.paged().is_none() {
                return Err(ShareError::NotPaged);
            }
            // It comes back to the engine, where its give-back can be put off.
            state.keep_out_of_caches(&[ptr])?;
            let core = state.core.paged().ok_or(ShareError::NotPaged)?;
            let behind = core.behind(ptr)?;
            if behind.handles.len() > HANDLES_MAX {
                return Err(ShareError::TooManyHandles { ptr, handles: behind.handles.len() });
            }
            let is_exportable = |(handle, _): &(Handle, u64)| core.exportable.contains(handle);
            if !self.config.shareable() && !behind.handles.iter().all(is_exportable) {
                return Err(ShareError::Private { ptr });
            }
            let (block_bytes, exported_bytes) = (behind.block_bytes, behind.mapped_bytes());
            if neighbours == Neighbours::Refused && block_bytes != exported_bytes {
                return Err(ShareError::Exposes { ptr, block_bytes, exported_bytes });
            }
            let handles = behind.handles.iter().map(|(_, bytes)| *bytes).collect();
            let note = BlockNote::new(behind.requested_bytes, behind.offset_bytes, &pci_address, handles)?;
            // Under the lock: from here on it cannot be put to sleep.
            self.pins.pin(ptr)?;
            (behind, note)
        };
        let fds = behind.handles.iter().map(|(handle, _)| self.driver.handle_export(*handle));
        match fds.collect::<Result<Vec<OwnedFd>, _>>() {
            Ok(fds) => Ok(ExportedBlock::new(Arc::clone(self), ptr, note, fds)),
            Err(error) => {
                self.end_export(ptr);
                Err(error.into())
            }
        }
    }

    /// Maps a block of another process, for this allocator's device and the peers that have access to its memory. It is not part
    /// of this allocator's accounts: the memory is the other process's.
    ///
    /// # Errors
    /// As [`ImportedBlock::map`].
    pub fn import(
        &self,
        received: &ReceivedBlock,
        stream: headwater_driver::Stream,
    ) -> Result<ImportedBlock, ShareError> {
        let access = self.access.lock().clone();
        ImportedBlock::map_for(Arc::clone(&self.driver), self.device, &access, received, stream)
    }

    pub(crate) fn end_export(&self, ptr: DevicePtr) {
        if self.pins.unpin(ptr) {
            // A block of ours is always taken back.
            let _ = self.take_back(ptr);
        }
    }
}

/// The new handle of a piece that was carried out.
fn placed(done: &Done) -> Option<Handle> {
    match done {
        Done::New(Fate { placed, .. }) => *placed,
        _ => None,
    }
}

#[cfg(test)]
mod tests;
