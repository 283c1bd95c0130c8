//! Slabs cut into blocks.
//!
//! Blocks come from the oldest slab that has some, so that younger slabs run empty and can be given back. A request climbs a
//! ladder: free blocks; blocks whose last device use has finished; a new slab, pinned outside of the lock; what another thread
//! is just pinning or checking; the oldest use still under way, waited for. How many blocks there can be is the space's
//! capacity, and a claim within it is what a caller comes with, so the ladder ends in a block or in a driver's error.

use std::sync::Arc;

use headwater::AllocError;
use headwater_driver::{CaptureStatus, Driver, ErrorClass, Stream};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::blocks::{BlockRef, Pending, SlabState};
use super::buffer::HostBuffer;
use super::config::PinnedConfig;
use super::supply::Inner;
use super::uses::{Events, Use, Uses};
use crate::error::TierError;
use crate::reservation::{Claim, Ledger, OverPolicy};

/// Pinned blocks of one HOST space. Cheap to clone; all clones are the same pool.
#[derive(Clone, Debug)]
pub struct PinnedPool {
    inner: Arc<Inner>,
}

/// What a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedUse {
    /// Slabs pinned.
    pub slabs: usize,
    /// What is pinned.
    pub pinned_bytes: u64,
    /// What is ready to be handed out.
    pub free_bytes: u64,
    /// What was given back and may still be used by a device.
    pub pending_bytes: u64,
}

/// Where the sampled pages of a pool are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementReport {
    /// Pages asked about, in slabs that were bound to the node.
    pub pages_sampled: usize,
    /// Those that are there.
    pub pages_on_node: usize,
    /// Slabs that were bound to no node.
    pub slabs_anywhere: usize,
}

impl PinnedPool {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        ledger: Arc<Ledger>,
        config: PinnedConfig,
        node: u32,
    ) -> Result<Self, TierError> {
        config.check()?;
        let events = Events::new(driver.clone());
        let (state, changed) = (Mutex::default(), Condvar::new());
        let initial_slabs = config.initial_slabs;
        let pool = Self { inner: Arc::new(Inner { driver, events, ledger, config, node, state, changed }) };
        for _ in 0..initial_slabs {
            let state = pool.inner.state.lock();
            // An error drops the pool, which frees what was made.
            let Some(blocks) = pool.inner.room_for_slab(&state) else { break };
            drop(pool.inner.grow(state, blocks)?);
        }
        Ok(pool)
    }

    /// The size of a block.
    pub fn block_bytes(&self) -> u64 {
        self.inner.config.block_bytes
    }

    /// `bytes` in whole blocks.
    pub fn rounded_bytes(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.block_bytes()).unwrap_or(u64::MAX)
    }

    /// What the pool has.
    pub fn usage(&self) -> PinnedUse {
        let (state, block_bytes) = (self.inner.state.lock(), self.block_bytes());
        PinnedUse {
            slabs: state.slabs.len(),
            pinned_bytes: state.blocks * block_bytes,
            free_bytes: state.free_blocks * block_bytes,
            pending_bytes: state.pending_blocks * block_bytes,
        }
    }

    /// Asks the system where the pages of slabs bound to a node are.
    ///
    /// # Errors
    /// [`TierError::System`] where it does not tell.
    pub fn verify_placement(&self) -> Result<PlacementReport, TierError> {
        let mut report = PlacementReport::default();
        let state = self.inner.state.lock();
        for SlabState { slab, .. } in state.slabs.values() {
            match slab.placement() {
                None => report.slabs_anywhere += 1,
                Some(asked) => {
                    let (there, sampled) = asked?;
                    report.pages_on_node += there;
                    report.pages_sampled += sampled;
                }
            }
        }
        Ok(report)
    }

    /// Gives whole free slabs back to the system, the youngest first, as long as `keep_bytes` stay pinned. Says how
    /// much that was. Slow, and waits for device work, as freeing pinned memory does: not for hot paths.
    ///
    /// # Errors
    /// [`TierError::Driver`]; what was given back before stays given back.
    pub fn shrink(&self, keep_bytes: u64) -> Result<u64, TierError> {
        let inner = &self.inner;
        let mut state = inner.check_pending(inner.state.lock()).state;
        let keep_blocks = keep_bytes.div_ceil(self.block_bytes());
        let mut freed_bytes = 0;
        loop {
            let blocks = state.blocks;
            let is_spare = |slab: &SlabState| {
                slab.free.len() == slab.blocks as usize && blocks - u64::from(slab.blocks) >= keep_blocks
            };
            let spare = state.slabs.iter().rev().find(|(_, slab)| is_spare(slab)).map(|(id, _)| *id);
            let Some((id, spare)) = spare.and_then(|id| Some((id, state.slabs.remove(&id)?))) else {
                return Ok(freed_bytes);
            };
            // Its blocks count as there until they are gone, so that nobody pins others in their place meanwhile.
            state.free_blocks -= u64::from(spare.blocks);
            state.busy += 1;
            let SlabState { slab, blocks, free } = spare;
            let bytes = slab.bytes();
            let freed = MutexGuard::unlocked(&mut state, || {
                // SAFETY: all of its blocks were free: no buffer holds one, and their last device uses had finished.
                unsafe { slab.free(&*inner.driver) }
            });
            state.busy -= 1;
            let failed = match freed {
                Ok(()) => {
                    state.blocks -= u64::from(blocks);
                    freed_bytes += bytes;
                    None
                }
                Err((slab, error)) => {
                    state.free_blocks += u64::from(blocks);
                    state.slabs.insert(id, SlabState { slab, blocks, free });
                    Some(error)
                }
            };
            inner.changed.notify_all();
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    /// A buffer of `bytes`, paid for by `claim`.
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        claim: Claim,
        over: OverPolicy,
    ) -> Result<HostBuffer, TierError> {
        let blocks = self.take(bytes.div_ceil(self.block_bytes()))?;
        Ok(HostBuffer::new(self.clone(), blocks, bytes, claim, over))
    }

    /// Takes `count` blocks that nothing uses.
    pub(super) fn take(&self, count: u64) -> Result<Vec<BlockRef>, TierError> {
        let inner = &self.inner;
        let mut state = inner.state.lock();
        let (mut refused, mut unasked) = (None, None);
        loop {
            if state.free_blocks >= count {
                return Ok(state.take_free(count, self.block_bytes()));
            }
            let checked = inner.check_pending(state);
            (state, unasked) = (checked.state, checked.failure.or(unasked));
            if checked.found {
                continue;
            }
            // Once the driver has refused to pin more, only what is pinned already can help.
            if refused.is_none()
                && let Some(blocks) = inner.room_for_slab(&state)
            {
                match inner.grow(state, blocks) {
                    Ok(after) => state = after,
                    Err(error) => {
                        refused = Some(error);
                        state = inner.state.lock();
                    }
                }
            } else if state.busy > 0 {
                // Somebody is in a driver call that ends, and says so.
                inner.changed.wait(&mut state);
            } else if !state.pending.is_empty() {
                state = inner.wait_for_oldest(state)?;
            } else {
                let wanted_bytes = count * self.block_bytes();
                let remedy =
                    "trim or give back buffers that were claimed for fewer bytes, or raise capacity_bytes";
                let short = || TierError::NoRoom(Box::new(inner.ledger.shortage(wanted_bytes, remedy)));
                drop(state);
                return Err(refused.or(unasked).unwrap_or_else(short));
            }
        }
    }

    /// Takes blocks back that `uses` may still use.
    pub(super) fn give_back(&self, blocks: Vec<BlockRef>, uses: Uses) {
        if blocks.is_empty() {
            return;
        }
        let mut state = self.inner.state.lock();
        if uses.is_empty() {
            state.put_free(&blocks);
        } else {
            state.pending_blocks += blocks.len() as u64;
            state.pending.push_back(Pending { uses, blocks });
        }
        drop(state);
        self.inner.changed.notify_all();
    }

    /// Whether marks in `stream` can be asked about: in a captured stream they are points of a graph.
    pub(super) fn check_not_capturing(&self, stream: Stream) -> Result<(), TierError> {
        match self.inner.driver.capture_status(stream) {
            Ok(CaptureStatus::None) => Ok(()),
            Ok(_) => Err(AllocError::StreamCapturing { stream }.into()),
            // A driver without capture captures nothing.
            Err(error) if matches!(error.class(), ErrorClass::NotSupported | ErrorClass::Unavailable) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Marks what `stream` has to do by now.
    pub(super) fn mark(&self, stream: Stream) -> Result<Arc<Use>, TierError> {
        Ok(self.inner.events.mark(stream)?)
    }
}
