//! Slabs cut into blocks.
//!
//! Blocks come from the oldest slab that has some, so that younger slabs run empty and can be given back. A request climbs a
//! ladder: free blocks; blocks whose last device use has finished; a new slab, pinned outside of the lock; what another thread
//! is just pinning or checking; the oldest use still under way, waited for. How many blocks there can be is the space's
//! capacity, and a claim within it is what a caller comes with, so the ladder ends in a block or in a driver's error.
//!
//! The lock is never held across a driver call. Who makes or checks blocks takes them out of the state, notes that it is
//! busy, and comes back; others that find nothing meanwhile wait for it rather than give up.

use std::collections::VecDeque;
use std::sync::Arc;

use headwater::AllocError;
use headwater_driver::{CaptureStatus, Driver, ErrorClass, Stream};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::blocks::{BlockRef, Pending, SlabState, State};
use super::buffer::HostBuffer;
use super::config::PinnedConfig;
use super::slab::Slab;
use super::uses::{Events, Use, Uses};
use crate::error::TierError;
use crate::reservation::{Claim, Ledger, OverPolicy};

/// Pinned blocks of one HOST space. Cheap to clone; all clones are the same pool.
#[derive(Clone, Debug)]
pub struct PinnedPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    events: Arc<Events>,
    ledger: Arc<Ledger>,
    config: PinnedConfig,
    node: u32,
    state: Mutex<State>,
    /// Blocks came free, or nobody is busy any more.
    changed: Condvar,
}

/// What a look at the pending blocks found.
struct Checked<'a> {
    state: MutexGuard<'a, State>,
    found: bool,
    failure: Option<TierError>,
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

impl Inner {
    /// How many blocks another slab may have; `None` where the capacity is pinned.
    fn room_for_slab(&self, state: &State) -> Option<u32> {
        let blocks_max = self.ledger.account().capacity_bytes / self.config.block_bytes;
        let room = blocks_max.saturating_sub(state.blocks);
        // At most `blocks_per_slab`, so the cast loses nothing.
        Some(room.min(u64::from(self.config.blocks_per_slab)) as u32).filter(|blocks| *blocks > 0)
    }

    /// Pins a slab of `blocks`, outside of the lock.
    fn grow<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        blocks: u32,
    ) -> Result<MutexGuard<'a, State>, TierError> {
        state.blocks += u64::from(blocks);
        state.busy += 1;
        let bytes = u64::from(blocks) * self.config.block_bytes;
        let made = MutexGuard::unlocked(&mut state, || {
            Slab::make(&*self.driver, bytes, self.config.placement, self.node)
        });
        state.busy -= 1;
        let answer = match made {
            Ok(slab) => {
                let id = state.next_slab;
                state.next_slab += 1;
                state.free_blocks += u64::from(blocks);
                // Handed out from the front of the slab.
                let free = (0..blocks).rev().collect();
                state.slabs.insert(id, SlabState { slab, blocks, free });
                Ok(state)
            }
            Err(error) => {
                state.blocks -= u64::from(blocks);
                drop(state);
                Err(error)
            }
        };
        self.changed.notify_all();
        answer
    }

    /// Looks which pending blocks are free by now, outside of the lock. A use that cannot be asked about keeps its
    /// blocks pending, and does not stand in the way of others.
    fn check_pending<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Checked<'a> {
        if state.pending.is_empty() {
            return Checked { state, found: false, failure: None };
        }
        let taken = std::mem::take(&mut state.pending);
        state.busy += 1;
        let (mut finished, mut unfinished, mut failure) = (Vec::new(), VecDeque::new(), None);
        MutexGuard::unlocked(&mut state, || {
            for mut pending in taken {
                failure = pending.drop_finished_uses().err().or(failure.take());
                if pending.uses.is_empty() { finished.push(pending) } else { unfinished.push_back(pending) }
            }
        });
        state.busy -= 1;
        // Others may have added younger ones meanwhile.
        unfinished.append(&mut state.pending);
        state.pending = unfinished;
        for pending in &finished {
            state.pending_blocks -= pending.blocks.len() as u64;
            state.put_free(&pending.blocks);
        }
        self.changed.notify_all();
        Checked { state, found: !finished.is_empty(), failure: failure.map(TierError::from) }
    }

    /// Waits, outside of the lock, until the oldest pending blocks are free.
    fn wait_for_oldest<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, TierError> {
        let Some(oldest) = state.pending.pop_front() else { return Ok(state) };
        state.busy += 1;
        let waited = MutexGuard::unlocked(&mut state, || oldest.uses.iter().try_for_each(|used| used.wait()));
        state.busy -= 1;
        let answer = match waited {
            Ok(()) => {
                state.pending_blocks -= oldest.blocks.len() as u64;
                state.put_free(&oldest.blocks);
                Ok(state)
            }
            Err(error) => {
                state.pending.push_front(oldest);
                drop(state);
                Err(error.into())
            }
        };
        self.changed.notify_all();
        answer
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let mut all_finished = true;
        for pending in state.pending.drain(..) {
            all_finished &= pending.uses.iter().all(|used| used.wait().is_ok());
        }
        if !all_finished {
            // A device that cannot be asked may still be writing: leaked memory is better than somebody else's.
            std::mem::forget(std::mem::take(&mut state.slabs));
            return;
        }
        for SlabState { slab, .. } in std::mem::take(&mut state.slabs).into_values() {
            // SAFETY: buffers keep the pool alive, so there are none, and all device uses have finished.
            // A driver that refuses keeps the memory; there is nobody left to tell.
            let _ = unsafe { slab.free(&*self.driver) };
        }
    }
}
