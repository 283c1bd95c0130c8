//! The trait that all allocators share, and the words of its methods.
//!
//! The raw form is the base: an address goes out, the address comes back. It is what foreign callers (C, PyTorch, CuPy)
//! can use, and it costs nothing: [`Request`] is a small `Copy` value and nothing is allocated on the host. The owned
//! forms, [`Block`](crate::Block) and [`DeviceVec`](crate::DeviceVec), are thin values on top.
//!
//! One allocator serves one device. It is used from any thread, as `Arc<dyn Allocator>` or by its own type.

use std::fmt::Debug;
use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};

use crate::current_stream::current_stream;
use crate::error::AllocError;
use crate::stats::{DeviceStats, Differences};

/// The alignment that a request has where it names none: what `cuMemAlloc` promises, so no caller expects less.
pub const DEFAULT_ALIGNMENT_BYTES: u64 = 256;

/// The largest alignment a request can have: a page of device memory. No hardware rule asks for more.
pub const MAX_ALIGNMENT_BYTES: u64 = 2 << 20;

/// The largest request: the user half of a 48-bit address space, which host and devices share.
pub const MAX_REQUEST_BYTES: u64 = 1 << 47;

/// What an allocator is asked for.
///
/// ```
/// use headwater::Request;
/// use headwater_driver::{DeviceId, Stream};
/// let request = Request::new(3000, Stream::legacy_default(DeviceId(0))).aligned_to(4096);
/// assert_eq!(request.bytes, 3000);
/// assert_eq!(request.alignment_bytes, 4096);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How much. Zero is answered with [`DevicePtr::NULL`], which can be given back like any other.
    pub bytes: u64,
    /// The address is a multiple of this: a power of two up to [`MAX_ALIGNMENT_BYTES`].
    pub alignment_bytes: u64,
    /// The stream that uses the memory first. The block belongs to it: memory given back on this stream may be handed
    /// out again while earlier work in it still runs, because later work in it waits its turn anyway.
    pub stream: Stream,
}

impl Request {
    /// `bytes` for use in `stream`, with the default alignment.
    #[inline]
    pub const fn new(bytes: u64, stream: Stream) -> Self {
        Self { bytes, alignment_bytes: DEFAULT_ALIGNMENT_BYTES, stream }
    }

    /// `bytes` for use in the calling thread's current stream of `device`.
    #[inline]
    pub fn on_current_stream(bytes: u64, device: DeviceId) -> Self {
        Self::new(bytes, current_stream(device))
    }

    /// The same request with another alignment.
    #[inline]
    #[must_use]
    pub const fn aligned_to(mut self, alignment_bytes: u64) -> Self {
        self.alignment_bytes = alignment_bytes;
        self
    }

    /// Whether an allocator of `device` can take the request up at all. Every allocator asks this first.
    ///
    /// # Errors
    /// [`AllocError::WrongDevice`], [`AllocError::BadAlignment`] or [`AllocError::TooLarge`].
    #[inline]
    pub fn check(&self, device: DeviceId) -> Result<(), AllocError> {
        check_stream(self.stream, device)?;
        let alignment_bytes = self.alignment_bytes;
        if !alignment_bytes.is_power_of_two() || alignment_bytes > MAX_ALIGNMENT_BYTES {
            return Err(AllocError::BadAlignment { alignment_bytes, max_bytes: MAX_ALIGNMENT_BYTES });
        }
        if self.bytes > MAX_REQUEST_BYTES {
            return Err(AllocError::TooLarge { requested_bytes: self.bytes, max_bytes: MAX_REQUEST_BYTES });
        }
        Ok(())
    }
}

/// Whether `stream` can be used with memory of `device`.
///
/// # Errors
/// [`AllocError::WrongDevice`].
#[inline]
pub fn check_stream(stream: Stream, device: DeviceId) -> Result<(), AllocError> {
    if stream.device() == device { Ok(()) } else { Err(AllocError::WrongDevice { stream, device }) }
}

/// What an allocator knows about one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockFacts {
    /// Its first address.
    pub ptr: DevicePtr,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What it takes up, rounding and alignment included.
    pub allocated_bytes: u64,
    /// The stream it belongs to.
    pub stream: Stream,
    /// What it is doing.
    pub state: BlockState,
}

impl BlockFacts {
    /// The facts of one block.
    pub const fn new(
        ptr: DevicePtr,
        requested_bytes: u64,
        allocated_bytes: u64,
        stream: Stream,
        state: BlockState,
    ) -> Self {
        Self { ptr, requested_bytes, allocated_bytes, stream, state }
    }
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockState {
    /// A caller holds it.
    Live,
    /// It was given back, and cannot be handed out or returned to the driver yet.
    Pending,
    /// It is ready to be handed out.
    Cached,
}

/// A source of device memory.
///
/// Every method can be called from any thread. None holds a lock across a driver call, so a slow call of one thread
/// does not stop the others' hits. A failed call leaves the accounting exact and nothing leaked.
///
/// ```
/// use headwater::{AllocError, Allocator, Request};
/// use headwater_driver::{DevicePtr, Stream};
///
/// /// Any allocator will do.
/// fn scratch(allocator: &dyn Allocator, bytes: u64) -> Result<DevicePtr, AllocError> {
///     allocator.allocate(Request::new(bytes, Stream::legacy_default(allocator.device())))
/// }
/// ```
pub trait Allocator: Debug + Send + Sync {
    /// The policy's name: `direct`, `binned`, `classic`, `paged`. An adaptor has the name of what it wraps.
    fn name(&self) -> &'static str;

    /// The driver behind it.
    fn driver(&self) -> &Arc<dyn Driver>;

    /// The device whose memory it gives out.
    fn device(&self) -> DeviceId;

    /// Gives out memory. Its content is undefined. Work in the request's stream may use it at once; work in any other
    /// stream is ordered after that stream by the caller, and announced with [`record_stream`](Self::record_stream).
    ///
    /// Legal while streams are being captured, in every mode.
    ///
    /// # Errors
    /// What [`Request::check`] says; [`AllocError::OutOfMemory`]; [`AllocError::Driver`].
    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError>;

    /// Takes a block back. Work that was queued before in its own stream and in recorded streams may still use it.
    /// [`DevicePtr::NULL`] is taken back as often as one likes.
    ///
    /// # Safety
    /// The block is the caller's to give back: no [`Block`](crate::Block) or [`DeviceVec`](crate::DeviceVec) owns it,
    /// because their safe methods would then touch memory that is somebody else's. (An address that names no block at
    /// all is not dangerous: it is an error.)
    ///
    /// # Errors
    /// [`AllocError::ForeignPointer`], [`AllocError::InsideBlock`], [`AllocError::AlreadyGivenBack`];
    /// [`AllocError::Driver`], and then the caller still holds the block.
    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError>;

    /// Takes a block back for a caller who cannot be told that it failed, such as a destructor. Where the driver
    /// refuses, the block is no longer the caller's all the same: the allocator owes it to the driver, shows it as
    /// pending, and tries again in later calls.
    ///
    /// # Safety
    /// As for [`give_back`](Self::give_back).
    ///
    /// # Errors
    /// Bad input only, as [`give_back`](Self::give_back) names it.
    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError>;

    /// Announces that work in `stream` uses the block too: after give-back it is not handed out again before the work
    /// that `stream` has by then is finished. The block's own stream needs no announcement.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back) for the address; [`AllocError::WrongDevice`].
    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError>;

    /// Returns to the driver everything that no caller holds and no stream uses, and says how many bytes that was.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where the driver refused some of it; the rest is returned nevertheless.
    fn empty_cache(&self) -> Result<u64, AllocError>;

    /// The block that contains `ptr`, which need not be its first address.
    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts>;

    /// What is counted, as it stands. At rest the figures add up to the byte.
    fn stats(&self) -> DeviceStats;

    /// Lets every peak of the statistics start again from now.
    fn reset_peaks(&self);

    /// Lets every total of the statistics start again from zero.
    fn reset_totals(&self);

    /// Walks everything there is and compares it with what is counted. Stops the allocator meanwhile: for tests, and
    /// for those in doubt.
    ///
    /// # Errors
    /// Everything that does not add up.
    fn reconcile(&self) -> Result<(), Differences>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(0);
    const STREAM: Stream = Stream::legacy_default(DEVICE);

    #[test]
    fn a_request_is_small_and_copied() {
        assert!(size_of::<Request>() <= 32);
        assert!(size_of::<Result<DevicePtr, AllocError>>() <= 40);
    }

    #[test]
    fn bad_requests_are_named() {
        let check = |request: Request| request.check(DEVICE);
        assert_eq!(check(Request::new(0, STREAM)), Ok(()));
        assert_eq!(check(Request::new(MAX_REQUEST_BYTES, STREAM).aligned_to(1)), Ok(()));
        assert!(matches!(
            check(Request::new(MAX_REQUEST_BYTES + 1, STREAM)),
            Err(AllocError::TooLarge { .. })
        ));
        for alignment_bytes in [0, 3, 768, 2 * MAX_ALIGNMENT_BYTES, u64::MAX] {
            let answer = check(Request::new(1, STREAM).aligned_to(alignment_bytes));
            assert!(matches!(answer, Err(AllocError::BadAlignment { .. })), "{alignment_bytes}");
        }
        let elsewhere = Stream::legacy_default(DeviceId(1));
        assert_eq!(
            check(Request::new(1, elsewhere)),
            Err(AllocError::WrongDevice { stream: elsewhere, device: DEVICE })
        );
    }
}
