//! A typed buffer that can be anywhere.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use headwater::Plain;
use headwater_driver::{DeviceId, Stream};

use super::access::{GpuAccess, HostRead, HostWrite};
use super::node::{Node, Want};
use crate::error::TierError;
use crate::tier::{SpaceId, Tier};
use crate::waiting::Wait;

/// Closes the node with the last handle.
#[derive(Debug)]
pub(super) struct Owner(pub(super) Arc<Node>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// `len` values whose bytes are in one tier at a time: on the GPU while used there, below when the room is needed for others.
/// Cheap to clone; the data goes with the last clone.
///
/// Nobody sees an address but through an access, which keeps the data where it is for as long as it lives.
pub struct SpillBuffer<T: Plain = u8> {
    pub(super) owner: Arc<Owner>,
    len: usize,
    _values: PhantomData<T>,
}

impl<T: Plain> Clone for SpillBuffer<T> {
    fn clone(&self) -> Self {
        Self { owner: self.owner.clone(), len: self.len, _values: PhantomData }
    }
}

impl<T: Plain> SpillBuffer<T> {
    pub(super) fn new(node: Arc<Node>, len: usize) -> Self {
        Self { owner: Arc::new(Owner(node)), len, _values: PhantomData }
    }

    fn node(&self) -> &Arc<Node> {
        &self.owner.0
    }

    /// Its number in the engine.
    pub fn id(&self) -> u64 {
        self.node().id()
    }

    /// How many values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are now.
    pub fn space(&self) -> SpaceId {
        self.node().space()
    }

    /// Who stays longer when room is needed: higher.
    pub fn set_priority(&self, priority: i32) {
        self.node().set_priority(priority);
    }

    /// Pins the data on the device of `stream` for work in it that only reads; moves it there first if need be.
    ///
    /// # Errors
    /// [`TierError::InUse`] or [`TierError::TimedOut`] when the patience ends; [`TierError::Cancelled`], [`TierError::RollBack`],
    /// [`TierError::SplitWork`]; [`TierError::NeverFits`]; [`TierError::Disk`], [`TierError::Driver`] where the move failed. Whatever
    /// failed, the data is where it was.
    pub fn read_on_gpu(&self, stream: Stream, wait: &Wait) -> Result<GpuAccess, TierError> {
        GpuAccess::new(self.node(), stream, false, wait)
    }

    /// The same for work that writes: nobody else has access meanwhile.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn write_on_gpu(&self, stream: Stream, wait: &Wait) -> Result<GpuAccess, TierError> {
        GpuAccess::new(self.node(), stream, true, wait)
    }

    /// Pins the data in host memory to be read; moves it there first if need be.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn read_on_host(&self, wait: &Wait) -> Result<HostRead<T>, TierError> {
        HostRead::new(self.node(), wait)
    }

    /// The same, to be written: nobody else has access meanwhile.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn write_on_host(&self, wait: &Wait) -> Result<HostWrite<T>, TierError> {
        HostWrite::new(self.node(), wait)
    }

    /// Moves the data up to `device` without using it yet.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn prefetch(&self, device: DeviceId, wait: &Wait) -> Result<(), TierError> {
        let held = self.node().pin(Want::Gpu(device), false, wait)?;
        self.node().unpin(held);
        Ok(())
    }

    /// Has it moved up to `device` in the background, as soon as there is room that nobody waits for; says whether the request
    /// was taken, which it is not where there are no movers or too many requests.
    pub fn prefetch_soon(&self, device: DeviceId) -> bool {
        self.node().core.prefetch_soon(self.node(), device)
    }

    /// Moves the data down to `tier`; nothing happens where it is there or below.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu).
    pub fn spill_to(&self, tier: Tier, wait: &Wait) -> Result<(), TierError> {
        self.node().spill_to(tier, wait)
    }

    /// Moves the data to one space: to another GPU, or to the memory of another NUMA node. Nothing happens where it is there.
    ///
    /// # Errors
    /// As [`read_on_gpu`](Self::read_on_gpu); [`TierError::NotThisTier`] from one DISK space to another, between which there is no
    /// way but through memory.
    pub fn move_to(&self, space: SpaceId, wait: &Wait) -> Result<(), TierError> {
        self.node().move_to(space, wait)
    }
}

impl<T: Plain> fmt::Debug for SpillBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = self.space();
        f.debug_struct("SpillBuffer")
            .field("id", &self.id())
            .field("len", &self.len)
            .field("space", &space)
            .finish()
    }
}
