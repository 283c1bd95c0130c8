//! A pool's state, taken and restored: what `torch.compile` needs between the branches of a tree of graphs.

use std::ffi::c_void;

use headwater::graph::capture::PoolCheckpoint;

use super::device_memory::{DeviceMemory, MemoryError};
use super::pools::PoolKey;

/// The blocks that a pool had at one moment.
#[derive(Debug)]
pub struct PoolState {
    pub(super) key: PoolKey,
    checkpoint: PoolCheckpoint,
}

/// Who is told what restoring a state changed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CheckpointVisitor {
    /// Passed back with every call.
    pub context: *mut c_void,
    /// Called with every block that was held before.
    pub freed: unsafe extern "C" fn(*mut c_void, u64),
    /// Called with every block that is held now. A block that was held all the while is in both, as in PyTorch: its former holder
    /// gives way to the new one.
    pub allocated: unsafe extern "C" fn(*mut c_void, u64),
}

impl DeviceMemory {
    /// The pool's state now.
    ///
    /// # Errors
    /// Where there is no such pool.
    pub fn pool_state(&self, key: PoolKey) -> Result<PoolState, MemoryError> {
        let handle = self.pool(key).ok_or(MemoryError::NoSuchPool(key))?;
        Ok(PoolState { key, checkpoint: self.graphs().checkpoint(&handle)? })
    }

    /// Puts the pool back into that state.
    ///
    /// # Safety
    /// Blocks that are held now and were not then are not used or given back by their holders any more. The visitor's functions
    /// can be called with its context.
    ///
    /// # Errors
    /// Where the pool is no more, or cannot be brought back; then nothing has changed and nobody was told anything.
    pub unsafe fn restore_pool(
        &self,
        state: &PoolState,
        visitor: &CheckpointVisitor,
    ) -> Result<(), MemoryError> {
        let handle = self.pool(state.key).ok_or(MemoryError::NoSuchPool(state.key))?;
        let before = self.graphs().checkpoint(&handle)?;
        // SAFETY: the caller's promise.
        unsafe {
            self.graphs().restore(&handle, &state.checkpoint)?;
            before.blocks().for_each(|ptr| (visitor.freed)(visitor.context, ptr.raw()));
            state.checkpoint.blocks().for_each(|ptr| (visitor.allocated)(visitor.context, ptr.raw()));
        }
        Ok(())
    }
}
