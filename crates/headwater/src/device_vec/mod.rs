//! A typed buffer in device memory, with copies to and from host slices.
//!
//! The safe copies wait on the host until they are done, so no borrow ends while the device still uses it. They run
//! after everything that the buffer's own stream has been given by then, whichever stream they are asked to run in:
//! where it is another one, it waits for an event of the buffer's stream first (1.2 us of driver time, against 10 us
//! and more for the copy). The `unsafe` copies only queue the work, and leave all of that to the caller.
//!
//! A copy that the host waits for cannot be part of a graph, so the safe copies refuse a stream that is being
//! captured. The capture is not harmed by the question.

mod plain;
#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use headwater_driver::{CaptureStatus, DevicePtr, Driver, EventOptions, Stream};

pub use plain::Plain;

use crate::allocator::{Allocator, DEFAULT_ALIGNMENT_BYTES, MAX_REQUEST_BYTES, Request};
use crate::block::Block;
use crate::capture_guard;
use crate::error::AllocError;

/// `len` values of type `T` in device memory, given back when dropped.
///
/// ```
/// use std::sync::Arc;
/// use headwater::{Allocator, DeviceVec, Direct};
/// use headwater_driver::{DeviceId, Stream};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// # let driver = headwater_sim::SimDriver::new();
/// let allocator: Arc<dyn Allocator> = Arc::new(Direct::new(driver, DeviceId(0))?);
/// let stream = Stream::legacy_default(DeviceId(0));
///
/// let mut counts = DeviceVec::<u32>::zeroed(allocator, 3, stream)?;
/// assert_eq!(counts.to_vec(stream)?, [0, 0, 0]);
/// counts.copy_from_host(&[1, 2, 3], stream)?;
/// assert_eq!(counts.to_vec(stream)?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
pub struct DeviceVec<T: Plain, A: Deref<Target: Allocator> = Arc<dyn Allocator>> {
    block: Block<A>,
    len: usize,
    // Owns values of `T`, although not on the host.
    _values: PhantomData<T>,
}

impl<T: Plain, A: Deref<Target: Allocator>> DeviceVec<T, A> {
    /// Room for `len` values, for use in `stream`. What is in it is undefined until written, but reading it is no
    /// undefined behaviour: every pattern of bits is a value of `T`.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`].
    pub fn uninit(allocator: A, len: usize, stream: Stream) -> Result<Self, AllocError> {
        let bytes = (len as u64)
            .checked_mul(size_of::<T>() as u64)
            .ok_or(AllocError::TooLarge { requested_bytes: u64::MAX, max_bytes: MAX_REQUEST_BYTES })?;
        let alignment_bytes = DEFAULT_ALIGNMENT_BYTES.max(align_of::<T>() as u64);
        let block = Block::allocate(allocator, Request::new(bytes, stream).aligned_to(alignment_bytes))?;
        Ok(Self { block, len, _values: PhantomData })
    }

    /// `len` values whose bytes are all zero. The fill is queued in `stream` and not waited for; it may be captured.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`], and [`AllocError::Driver`].
    pub fn zeroed(allocator: A, len: usize, stream: Stream) -> Result<Self, AllocError> {
        let values = Self::uninit(allocator, len, stream)?;
        if values.bytes() > 0 {
            // SAFETY: the range is the whole block, which lives until it is given back; the fill is queued in the
            // block's own stream, and a give-back lets such work finish.
            unsafe { values.driver().fill_bytes(values.ptr(), 0, values.bytes(), stream)? };
        }
        Ok(values)
    }

    /// A copy of `values`.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`] and of [`copy_from_host`](Self::copy_from_host).
    pub fn from_slice(allocator: A, values: &[T], stream: Stream) -> Result<Self, AllocError> {
        let mut buffer = Self::uninit(allocator, values.len(), stream)?;
        buffer.copy_from_host(values, stream)?;
        Ok(buffer)
    }

    /// Copies all of `src`, which has as many values as the buffer, to the device, and waits for it.
    ///
    /// # Errors
    /// [`AllocError::LengthMismatch`], [`AllocError::WrongDevice`], [`AllocError::StreamCapturing`]: nothing was
    /// copied. [`AllocError::Driver`]: what the buffer holds is undefined.
    pub fn copy_from_host(&mut self, src: &[T], stream: Stream) -> Result<(), AllocError> {
        self.copy_and_wait(src.len(), stream, || {
            // SAFETY: `copy_and_wait` checked the length, and returns when the copy has finished.
            unsafe { self.queue_from_host(src.as_ptr(), stream) }
        })
    }

    /// Copies all values to `dst`, which has as many as the buffer, and waits for it.
    ///
    /// # Errors
    /// [`AllocError::LengthMismatch`], [`AllocError::WrongDevice`], [`AllocError::StreamCapturing`]: nothing was
    /// copied. [`AllocError::Driver`]: what `dst` holds is undefined, but still values of `T`.
    pub fn copy_to_host(&self, dst: &mut [T], stream: Stream) -> Result<(), AllocError> {
        self.copy_and_wait(dst.len(), stream, || {
            // SAFETY: `copy_and_wait` checked the length, and returns when the copy has finished.
            unsafe { self.queue_to_host(dst.as_mut_ptr(), stream) }
        })
    }

    /// All values, on the host.
    ///
    /// # Errors
    /// Those of [`copy_to_host`](Self::copy_to_host).
    pub fn to_vec(&self, stream: Stream) -> Result<Vec<T>, AllocError> {
        let mut values = vec![T::ZERO; self.len];
        self.copy_to_host(&mut values, stream)?;
        Ok(values)
    }

    /// Queues a copy of all of `src` to the device, in `stream`, and does not wait. It may be captured.
    ///
    /// # Safety
    /// `src` stays as it is until the copy has finished, and in every launch of a graph that captured it. `stream` is
    /// ordered after the work in other streams that uses the buffer.
    ///
    /// # Errors
    /// As [`copy_from_host`](Self::copy_from_host), but for captures.
    pub unsafe fn copy_from_host_async(&mut self, src: &[T], stream: Stream) -> Result<(), AllocError> {
        self.check_length(src.len())?;
        self.block.record_stream(stream)?;
        // SAFETY: the length is right; the rest is the caller's promise.
        unsafe { self.queue_from_host(src.as_ptr(), stream) }
    }

    /// Queues a copy of all values to `dst`, in `stream`, and does not wait. It may be captured.
    ///
    /// # Safety
    /// `dst` is valid, and nobody else touches it, until the copy has finished, and in every launch of a graph that
    /// captured it. `stream` is ordered after the work in other streams that writes the buffer.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host), but for captures.
    pub unsafe fn copy_to_host_async(&self, dst: &mut [T], stream: Stream) -> Result<(), AllocError> {
        self.check_length(dst.len())?;
        self.block.record_stream(stream)?;
        // SAFETY: the length is right; the rest is the caller's promise.
        unsafe { self.queue_to_host(dst.as_mut_ptr(), stream) }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first value; [`DevicePtr::NULL`] where there are no bytes.
    pub fn ptr(&self) -> DevicePtr {
        self.block.ptr()
    }

    /// How many bytes the values take.
    pub fn bytes(&self) -> u64 {
        self.block.bytes()
    }

    /// The memory behind the buffer.
    pub fn block(&self) -> &Block<A> {
        &self.block
    }

    /// The memory behind the buffer, no longer typed.
    pub fn into_block(self) -> Block<A> {
        self.block
    }

    /// Announces that work in `stream` uses the buffer too; see [`Allocator::record_stream`].
    ///
    /// # Errors
    /// [`AllocError::WrongDevice`].
    pub fn record_stream(&self, stream: Stream) -> Result<(), AllocError> {
        self.block.record_stream(stream)
    }

    fn driver(&self) -> &dyn Driver {
        self.block.allocator().driver().as_ref()
    }

    fn check_length(&self, host: usize) -> Result<(), AllocError> {
        if host == self.len { Ok(()) } else { Err(AllocError::LengthMismatch { host, device: self.len }) }
    }

    /// # Safety
    /// `src` has `self.len` values, and the rest of the contract of [`headwater_driver::Copies`].
    unsafe fn queue_from_host(&self, src: *const T, stream: Stream) -> Result<(), AllocError> {
        // SAFETY: the block is ours and as long as the values; `src` is the caller's promise. A plain type has no
        // padding, so every byte that is read is initialised.
        unsafe { self.driver().copy_to_device(self.ptr(), src.cast(), self.bytes(), stream) }
            .map_err(AllocError::from)
    }

    /// # Safety
    /// `dst` has room for `self.len` values, and the rest of the contract of [`headwater_driver::Copies`].
    unsafe fn queue_to_host(&self, dst: *mut T, stream: Stream) -> Result<(), AllocError> {
        // SAFETY: the block is ours and as long as the values; `dst` is the caller's promise. Every pattern of bits is
        // a value of a plain type.
        unsafe { self.driver().copy_to_host(dst.cast(), self.ptr(), self.bytes(), stream) }
            .map_err(AllocError::from)
    }

    /// Everything around a copy that the host waits for.
    fn copy_and_wait(
        &self,
        host_len: usize,
        stream: Stream,
        copy: impl FnOnce() -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        self.check_length(host_len)?;
        crate::allocator::check_stream(stream, self.block.allocator().device())?;
        if self.bytes() == 0 {
            return Ok(());
        }
        let (driver, own) = (self.driver(), self.block.stream());
        // The buffer's own stream too: waiting for an event of it would draw `stream` into its capture.
        for stream in [stream, own] {
            if driver.capture_status(stream)? != CaptureStatus::None {
                return Err(AllocError::StreamCapturing { stream });
            }
        }
        order_after(driver, stream, own)?;
        copy()?;
        // Relaxed: somebody else's capture must not be lost because this thread waits for its own stream.
        let waited = capture_guard::relaxed(driver, || driver.stream_synchronize(stream));
        if let Err(error) = waited {
            // The copy may still be under way: the block must not be handed out again before it has finished.
            self.block.record_stream(stream)?;
            return Err(error.into());
        }
        Ok(())
    }
}

/// Makes later work in `stream` wait for what `earlier` has been given by now.
fn order_after(driver: &dyn Driver, stream: Stream, earlier: Stream) -> Result<(), AllocError> {
    if stream == earlier {
        return Ok(());
    }
    let event = driver.event_create(earlier.device(), EventOptions::default())?;
    let ordered = driver.event_record(event, earlier).and_then(|()| driver.stream_wait_event(stream, event));
    // A wait that is queued outlives its event.
    let destroyed = driver.event_destroy(event);
    Ok(ordered.and(destroyed)?)
}

impl<T: Plain, A: Deref<Target: Allocator>> fmt::Debug for DeviceVec<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVec")
            .field("type", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("block", &self.block)
            .finish()
    }
}
