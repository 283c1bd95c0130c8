//! Memory that gives itself back.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use headwater_driver::{DevicePtr, Stream};

use crate::allocator::{Allocator, BlockState, Request};
use crate::error::AllocError;

/// A piece of device memory with one owner; it is given back when dropped.
///
/// `A` is how the block refers to its allocator. The default, `Arc<dyn Allocator>`, lets blocks live anywhere; with a
/// plain reference (`Block<&Direct>`) making and dropping one touches no reference count, which many threads would
/// share.
///
/// ```
/// use std::sync::Arc;
/// use headwater::{Allocator, Block, Direct, Request};
/// use headwater_driver::{DeviceId, Stream};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// # let driver = headwater_sim::SimDriver::new();
/// let allocator: Arc<dyn Allocator> = Arc::new(Direct::new(driver, DeviceId(0))?);
/// let stream = Stream::legacy_default(DeviceId(0));
///
/// let block = Block::allocate(allocator.clone(), Request::new(1 << 20, stream))?;
/// assert!(allocator.block_at(block.ptr()).is_some());
/// let ptr = block.ptr();
/// drop(block);
/// assert!(allocator.block_at(ptr).is_none());
/// # Ok(())
/// # }
/// ```
pub struct Block<A: Deref<Target: Allocator> = Arc<dyn Allocator>> {
    allocator: A,
    ptr: DevicePtr,
    bytes: u64,
    stream: Stream,
}

impl<A: Deref<Target: Allocator>> Block<A> {
    /// Asks `allocator` for memory.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`].
    #[inline]
    pub fn allocate(allocator: A, request: Request) -> Result<Self, AllocError> {
        let ptr = allocator.allocate(request)?;
        Ok(Self { allocator, ptr, bytes: request.bytes, stream: request.stream })
    }

    /// The first address; [`DevicePtr::NULL`] where the block is empty.
    #[inline]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// How many bytes were asked for.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The stream that the block belongs to.
    #[inline]
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// The allocator it came from.
    #[inline]
    pub fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Announces that work in `stream` uses the block too; see [`Allocator::record_stream`].
    ///
    /// # Errors
    /// [`AllocError::WrongDevice`].
    #[inline]
    pub fn record_stream(&self, stream: Stream) -> Result<(), AllocError> {
        self.allocator.record_stream(self.ptr, stream)
    }

    /// Gives the block back and says how it went, which dropping it cannot.
    ///
    /// # Errors
    /// Those of [`Allocator::give_back`], and the block with them, still whole.
    pub fn give_back(self) -> Result<(), (Self, AllocError)> {
        // SAFETY: the block is owned here, and nothing uses it after this: it is either forgotten or handed back whole.
        match unsafe { self.allocator.give_back(self.ptr) } {
            Ok(()) => {
                self.into_parts();
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// The bare address: from now on the caller gives it back, with [`Allocator::give_back`] or [`Block::from_raw`].
    #[inline]
    #[must_use = "the memory must be given back"]
    pub fn into_raw(self) -> DevicePtr {
        let ptr = self.ptr;
        self.into_parts();
        ptr
    }

    /// Owns what was given out as a bare address.
    ///
    /// # Safety
    /// The block is the caller's: no other `Block` owns it, and nobody else gives it back.
    ///
    /// # Errors
    /// [`AllocError::ForeignPointer`], [`AllocError::InsideBlock`] or [`AllocError::AlreadyGivenBack`] where `ptr` is
    /// not the first address of a live block; [`DevicePtr::NULL`], which belongs to no stream, is foreign too.
    pub unsafe fn from_raw(allocator: A, ptr: DevicePtr) -> Result<Self, AllocError> {
        match allocator.block_at(ptr) {
            Some(facts) if facts.state != BlockState::Live => Err(AllocError::AlreadyGivenBack { ptr }),
            Some(facts) if facts.ptr == ptr => {
                Ok(Self { allocator, ptr, bytes: facts.requested_bytes, stream: facts.stream })
            }
            Some(facts) => Err(AllocError::InsideBlock { ptr, block: facts.ptr }),
            None => Err(AllocError::ForeignPointer { ptr }),
        }
    }

    /// Takes the block apart without giving it back.
    fn into_parts(self) -> (A, DevicePtr) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the allocator reference is moved out exactly once.
        (unsafe { std::ptr::read(&this.allocator) }, this.ptr)
    }
}

impl<A: Deref<Target: Allocator>> Drop for Block<A> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the owner is going away, so nothing can use the block through it any more.
        let given_back = unsafe { self.allocator.give_back_or_owe(self.ptr) };
        // Only bad input is refused, and a block's address is good by construction.
        debug_assert!(given_back.is_ok(), "{given_back:?}");
    }
}

impl<A: Deref<Target: Allocator>> fmt::Debug for Block<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("ptr", &self.ptr)
            .field("bytes", &self.bytes)
            .field("stream", &self.stream)
            .field("allocator", &self.allocator.name())
            .finish()
    }
}
