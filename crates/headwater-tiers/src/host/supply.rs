//! Where a pool's blocks come from: slabs that are pinned, and blocks that devices are done with.
//!
//! The lock is never held across a driver call. Who makes or checks blocks takes them out of the state, notes that it is
//! busy, and comes back; others that find nothing meanwhile wait for it rather than give up.

use std::collections::VecDeque;
use std::sync::Arc;

use headwater_driver::Driver;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::blocks::{SlabState, State};
use super::config::PinnedConfig;
use super::slab::Slab;
use super::uses::Events;
use crate::error::TierError;
use crate::reservation::Ledger;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) events: Arc<Events>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) config: PinnedConfig,
    pub(super) node: u32,
    pub(super) state: Mutex<State>,
    /// Blocks came free, or nobody is busy any more.
    pub(super) changed: Condvar,
}

/// What a look at the pending blocks found.
pub(super) struct Checked<'a> {
    pub(super) state: MutexGuard<'a, State>,
    pub(super) found: bool,
    pub(super) failure: Option<TierError>,
}

impl Inner {
    /// How many blocks another slab may have; `None` where the capacity is pinned.
    pub(super) fn room_for_slab(&self, state: &State) -> Option<u32> {
        let blocks_max = self.ledger.account().capacity_bytes / self.config.block_bytes;
        let room = blocks_max.saturating_sub(state.blocks);
        // At most `blocks_per_slab`, so the cast loses nothing.
        Some(room.min(u64::from(self.config.blocks_per_slab)) as u32).filter(|blocks| *blocks > 0)
    }

    /// Pins a slab of `blocks`, outside of the lock.
    pub(super) fn grow<'a>(
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
    pub(super) fn check_pending<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Checked<'a> {
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
    pub(super) fn wait_for_oldest<'a>(
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
