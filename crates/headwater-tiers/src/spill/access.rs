//! Accesses: the bytes stay where they are for as long as one lives.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use headwater::Plain;
use headwater_driver::{DevicePtr, Stream};

use super::node::{Held, Node, Want};
use super::residence::{GpuBytes, HostBytes, Residence};
use crate::error::TierError;
use crate::waiting::Wait;

/// A pinned node.
struct Pin {
    node: Arc<Node>,
    /// There until dropped.
    held: Option<Held>,
}

impl Pin {
    fn new(node: &Arc<Node>, want: Want, writes: bool, wait: &Wait) -> Result<Self, TierError> {
        let held = node.pin(want, writes, wait)?;
        Ok(Self { node: node.clone(), held: Some(held) })
    }

    fn residence(&self) -> Option<&Residence> {
        match self.held.as_ref()? {
            Held::Shared(place) | Held::Alone(place) => Some(place),
        }
    }

    fn gpu(&self) -> Option<&GpuBytes> {
        match self.residence()? {
            Residence::Gpu(gpu) => Some(gpu),
            _ => None,
        }
    }

    fn host(&self) -> Option<&HostBytes> {
        match self.residence()? {
            Residence::Host(host) => Some(host),
            _ => None,
        }
    }

    fn host_mut(&mut self) -> Option<&mut HostBytes> {
        match self.held.as_mut()? {
            Held::Alone(place) => match Arc::get_mut(place)? {
                Residence::Host(host) => Some(host),
                _ => None,
            },
            Held::Shared(_) => None,
        }
    }

    fn lost(&self) -> TierError {
        TierError::Lost { id: self.node.id() }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.node.unpin(held);
        }
    }
}

/// Bytes pinned on a GPU, for work in one stream. The stream has been made to wait for whatever wrote them; work that is
/// queued in it while the access lives is what later moves and accesses wait for.
pub struct GpuAccess {
    pin: Pin,
    stream: Stream,
    writes: bool,
}

impl GpuAccess {
    pub(super) fn new(
        node: &Arc<Node>,
        stream: Stream,
        writes: bool,
        wait: &Wait,
    ) -> Result<Self, TierError> {
        let pin = Pin::new(node, Want::Gpu(stream.device()), writes, wait)?;
        let gpu = pin.gpu().ok_or_else(|| pin.lost())?;
        let uses = gpu.uses.lock().clone();
        uses.order(&*node.core.driver, stream, writes)?;
        for block in gpu.blocks.iter().filter(|block| !block.ptr().is_null() && block.stream() != stream) {
            block.record_stream(stream)?;
        }
        // An access from here on: what it leaves behind may replace the marks of those it was ordered after.
        Ok(Self { pin, stream, writes })
    }

    /// The address of part `part`; of the whole where there is only one.
    pub fn part_ptr(&self, part: usize) -> DevicePtr {
        self.pin.gpu().map_or(DevicePtr::NULL, |gpu| gpu.ptr(part))
    }

    /// The address.
    pub fn ptr(&self) -> DevicePtr {
        self.part_ptr(0)
    }

    /// How many bytes part `part` has.
    pub fn part_bytes(&self, part: usize) -> u64 {
        self.pin.node.layout.parts().get(part).map_or(0, |part| part.bytes)
    }

    /// How many bytes there are in all parts.
    pub fn bytes(&self) -> u64 {
        self.pin.node.layout.part_bytes()
    }

    /// The stream.
    pub fn stream(&self) -> Stream {
        self.stream
    }
}

impl Drop for GpuAccess {
    fn drop(&mut self) {
        if let Some(gpu) = self.pin.gpu() {
            // The lock is the access's own business: moves and writers are kept out by the pin.
            let mut uses = gpu.uses.lock().clone();
            uses.note(&self.pin.node.core.events, self.stream, self.writes);
            if self.writes {
                *gpu.uses.lock() = uses;
            } else {
                gpu.uses.lock().join(&uses, self.stream);
            }
        }
    }
}

impl fmt::Debug for GpuAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuAccess")
            .field("id", &self.pin.node.id())
            .field("stream", &self.stream)
            .field("writes", &self.writes)
            .finish()
    }
}

/// Bytes pinned in host memory, to be read.
pub struct HostRead<T: Plain = u8> {
    pin: Pin,
    _values: PhantomData<T>,
}

impl<T: Plain> HostRead<T> {
    pub(super) fn new(node: &Arc<Node>, wait: &Wait) -> Result<Self, TierError> {
        Ok(Self { pin: Pin::new(node, Want::Host, false, wait)?, _values: PhantomData })
    }

    /// Copies bytes of part `part` from `offset` on.
    ///
    /// # Errors
    /// [`TierError::OutOfRange`].
    pub fn read_at(&self, part: usize, offset: u64, into: &mut [u8]) -> Result<(), TierError> {
        let host = self.pin.host().ok_or_else(|| self.pin.lost())?;
        host.read_at(&self.pin.node.layout, part, offset, into)
    }

    /// All values of part `part`.
    ///
    /// # Errors
    /// [`TierError::OutOfRange`] where there is no such part.
    pub fn part_to_vec(&self, part: usize) -> Result<Vec<T>, TierError> {
        let bytes = self.pin.node.layout.parts().get(part).map_or(0, |part| part.bytes);
        let mut values = vec![T::ZERO; bytes as usize / size_of::<T>().max(1)];
        self.read_at(part, 0, bytes_of_mut(&mut values))?;
        Ok(values)
    }

    /// All values.
    ///
    /// # Errors
    /// [`TierError::Lost`].
    pub fn to_vec(&self) -> Result<Vec<T>, TierError> {
        self.part_to_vec(0)
    }
}

impl<T: Plain> fmt::Debug for HostRead<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostRead").field("id", &self.pin.node.id()).finish()
    }
}

/// Bytes pinned in host memory, to be written by one.
pub struct HostWrite<T: Plain = u8> {
    pin: Pin,
    _values: PhantomData<T>,
}

impl<T: Plain> HostWrite<T> {
    pub(super) fn new(node: &Arc<Node>, wait: &Wait) -> Result<Self, TierError> {
        Ok(Self { pin: Pin::new(node, Want::Host, true, wait)?, _values: PhantomData })
    }

    /// Copies bytes into part `part` from `offset` on.
    ///
    /// # Errors
    /// [`TierError::OutOfRange`].
    pub fn write_at(&mut self, part: usize, offset: u64, from: &[u8]) -> Result<(), TierError> {
        let (lost, node) = (self.pin.lost(), self.pin.node.clone());
        self.pin.host_mut().ok_or(lost)?.write_at(&node.layout, part, offset, from)
    }

    /// Copies values to the front.
    ///
    /// # Errors
    /// [`TierError::OutOfRange`] where there are more than there is room for.
    pub fn copy_from_slice(&mut self, values: &[T]) -> Result<(), TierError> {
        self.write_at(0, 0, bytes_of(values))
    }
}

impl<T: Plain> fmt::Debug for HostWrite<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostWrite").field("id", &self.pin.node.id()).finish()
    }
}

/// The bytes of plain values.
pub(super) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain values have no padding, so all of their bytes are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every pattern of bits is a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
