//! What the cases for allocators stand on, and their few words.

use std::fmt::{self, Debug};
use std::sync::Arc;

use headwater::{AllocError, Allocator, Block, Request};
use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};

use crate::case::{Failure, Ground, Outcome, Stop, judge};
use crate::check::{Check, all_bytes};
use crate::fixtures::{SPIN_US, StreamGuard};
use crate::kernels::TestKernels;

/// Makes a fresh allocator of the kind that is judged, with a limit on its reserved bytes or without.
pub type Make =
    dyn Fn(Arc<dyn Driver>, DeviceId, Option<u64>) -> Result<Arc<dyn Allocator>, AllocError> + Sync;

/// What a case stands on: a machine, and a way to make allocators on it.
#[derive(Clone, Copy)]
pub struct AllocatorGround<'g> {
    /// The machine.
    pub ground: &'g Ground,
    /// Makes allocators of the kind that is judged.
    pub make: &'g Make,
}

impl Debug for AllocatorGround<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocatorGround").field("ground", self.ground).finish_non_exhaustive()
    }
}

/// One behaviour that every allocator must show.
#[derive(Clone, Copy)]
pub struct AllocatorCase {
    /// Its name, area first: `blocks::live_blocks_do_not_overlap`.
    pub name: &'static str,
    /// What it is about: `blocks`.
    pub area: &'static str,
    pub(super) body: fn(&AllocatorGround<'_>) -> Check,
}

impl AllocatorCase {
    /// Runs the case, its cleanup included.
    pub fn run(&self, ground: &AllocatorGround<'_>) -> Outcome {
        judge(ground.ground, || (self.body)(ground))
    }
}

impl Debug for AllocatorCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AllocatorCase").field(&self.name).finish()
    }
}

/// A request that had to succeed and did not: `?` is an assertion, and knows its line.
impl From<AllocError> for Stop {
    #[track_caller]
    fn from(error: AllocError) -> Self {
        Self::Failed(Failure::new(format!("expected the allocator to succeed, got: {error}")))
    }
}

impl<'g> AllocatorGround<'g> {
    pub(super) fn driver(&self) -> &'g Arc<dyn Driver> {
        &self.ground.driver
    }

    pub(super) fn device(&self) -> DeviceId {
        self.ground.device
    }

    #[track_caller]
    pub(super) fn allocator(&self) -> Check<Arc<dyn Allocator>> {
        Ok((self.make)(Arc::clone(self.driver()), self.device(), None)?)
    }

    #[track_caller]
    pub(super) fn limited(&self, limit_bytes: u64) -> Check<Arc<dyn Allocator>> {
        Ok((self.make)(Arc::clone(self.driver()), self.device(), Some(limit_bytes))?)
    }

    #[track_caller]
    pub(super) fn stream(&self) -> Check<StreamGuard<'g>> {
        self.ground.stream()
    }

    #[track_caller]
    pub(super) fn block(&self, allocator: &Arc<dyn Allocator>, bytes: u64, stream: Stream) -> Check<Block> {
        Ok(Block::allocate(Arc::clone(allocator), Request::new(bytes, stream))?)
    }

    /// Loads the test kernels. Waits for running work, so cases do it first.
    #[track_caller]
    pub(super) fn kernels(&self) -> Check<Late> {
        Ok(Late(TestKernels::load(self.driver(), self.device())?))
    }
}

/// Work that is late: it keeps its stream busy, and writes at the end.
#[derive(Debug)]
pub(super) struct Late(TestKernels);

impl Late {
    /// Sets all words of a block after [`SPIN_US`]. Until then its stream is busy and the memory as it was.
    #[track_caller]
    pub(super) fn fill_late(&self, ptr: DevicePtr, bytes: u64, word: u32, stream: Stream) -> Check {
        // SAFETY: cases call this for live blocks, and an allocator keeps a block until the streams that it was used in
        // have finished. Whether that is so is what is judged: a failure is seen in the block that came too early.
        Ok(unsafe { self.0.fill_late(ptr, bytes / 4, word, SPIN_US, stream) }?)
    }

    /// Keeps a stream busy for [`SPIN_US`].
    #[track_caller]
    pub(super) fn spin(&self, stream: Stream) -> Check {
        Ok(self.0.spin(SPIN_US, stream)?)
    }
}

/// Gives back what the case holds as a bare address, or hands over an address that is nobody's.
#[track_caller]
pub(super) fn give_back(allocator: &Arc<dyn Allocator>, ptr: DevicePtr) -> Result<(), AllocError> {
    // SAFETY: cases that use bare addresses own them: no `Block` does. Other addresses name no live block.
    unsafe { allocator.give_back(ptr) }
}

/// Gives a block back, and it must succeed.
#[track_caller]
pub(super) fn ends(block: Block) -> Check {
    block.give_back().map_err(|(_, error)| error.into())
}

/// Sets every byte of a live block, in stream order.
#[track_caller]
pub(super) fn fill(
    allocator: &Arc<dyn Allocator>,
    ptr: DevicePtr,
    bytes: u64,
    value: u8,
    stream: Stream,
) -> Check {
    // SAFETY: the block is live, and allocators let queued work finish before they hand memory out again.
    Ok(unsafe { allocator.driver().fill_bytes(ptr, value, bytes, stream) }?)
}

/// Every byte of a live block is `value` when the work in `stream` so far has finished.
#[track_caller]
pub(super) fn holds(
    allocator: &Arc<dyn Allocator>,
    ptr: DevicePtr,
    bytes: u64,
    value: u8,
    stream: Stream,
) -> Check {
    let driver = allocator.driver();
    let mut content = vec![!value; bytes as usize];
    // SAFETY: the block is live, and the destination lives past the wait.
    unsafe { driver.copy_to_host(content.as_mut_ptr(), ptr, bytes, stream) }?;
    driver.stream_synchronize(stream)?;
    all_bytes("the block", value, &content)
}

/// The allocator refused, with exactly this error.
#[track_caller]
pub(super) fn refused<T: Debug>(answer: Result<T, AllocError>, expected: AllocError) -> Check {
    match answer {
        Err(error) if error == expected => Ok(()),
        answer => Err(Failure::new(format!("expected {expected:?}, got {answer:?}")).into()),
    }
}

/// With everything given back and the cache emptied, the accounts are at zero, and so is what the driver gave.
#[track_caller]
pub(super) fn is_empty(allocator: &Arc<dyn Allocator>) -> Check {
    allocator.empty_cache()?;
    super::accounts::Accounts::of(allocator).are_empty()
}
