//! Pinned blocks that data passes through on its way between GPU and disk.
//!
//! They are set aside when the engine starts: the way to disk is taken when host memory is full, so there would be none to be
//! had then. A move takes two at least and half of them at most, and gives them back in bounded time, since it waits for
//! nothing but copies and transfers while it has them; so waiting for blocks here ends, and no deadlock goes through it.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::TierError;
use crate::host::HostBuffer;

/// A move needs one block to fill while the other empties.
const BLOCKS_MIN: usize = 2;

#[derive(Debug)]
pub(crate) struct Staging {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<HostBuffer>,
    blocks: usize,
}

impl Staging {
    pub(crate) fn new(blocks: Vec<HostBuffer>) -> Self {
        let state = State { blocks: blocks.len(), idle: blocks };
        Self { state: Mutex::new(state), returned: Condvar::new() }
    }

    /// Blocks for one move; waits for other moves to return theirs.
    ///
    /// # Errors
    /// [`TierError::BadSetting`] where too few are left to work with: a driver that failed kept them.
    pub(crate) fn take(&self) -> Result<Vec<HostBuffer>, TierError> {
        let mut state = self.state.lock();
        loop {
            if state.blocks < BLOCKS_MIN {
                return Err(TierError::bad_setting(
                    "staging_blocks",
                    format!("{} are left of it", state.blocks),
                ));
            }
            let most = (state.blocks / 2).max(BLOCKS_MIN);
            if state.idle.len() >= BLOCKS_MIN {
                let left = state.idle.len().saturating_sub(most);
                return Ok(state.idle.split_off(left));
            }
            // With a limit only so that blocks lost meanwhile are noticed.
            self.returned.wait_for(&mut state, Duration::from_millis(100));
        }
    }

    pub(crate) fn give_back(&self, blocks: Vec<HostBuffer>) {
        self.state.lock().idle.extend(blocks);
        self.returned.notify_all();
    }

    /// Takes note that blocks are not coming back.
    pub(crate) fn forget(&self, blocks: usize) {
        self.state.lock().blocks -= blocks;
        self.returned.notify_all();
    }

    /// Lets all idle blocks go.
    pub(crate) fn close(&self) -> Vec<HostBuffer> {
        let mut state = self.state.lock();
        let idle = std::mem::take(&mut state.idle);
        state.blocks -= idle.len();
        idle
    }
}
