//! An allocator whose requests draw from the reservation that their stream or thread has.
//!
//! Foreign callers hand back bare addresses, on any stream and thread, so each address given out is kept with the claim
//! it holds. The table is in shards, by address, so that threads rarely meet; a shard's lock is never held across a
//! call to the allocator below.

use std::sync::Arc;

use headwater::allocator::{Allocator, BlockFacts, Request};
use headwater::stats::{DeviceStats, Differences};
use headwater::{AllocError, OutOfMemoryReport};
use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::oom::{FailAtOnce, OomPolicy, ask_with};
use super::tracker::{Attached, Source, Tracker, Tracking};
use crate::error::{Shortage, TierError};
use crate::reservation::{Claim, OverPolicy, Reservation};
use crate::space::Space;

/// Enough that sixteen threads seldom want the same one.
const SHARDS: usize = 64;

/// What becomes of requests whose stream or thread has no reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreserved {
    /// They are served up to the space's capacity.
    #[default]
    Allow,
    /// They fail.
    Refuse,
}

/// The memory of a GPU space as an [`Allocator`], for everything that takes one.
///
/// ```
/// use std::sync::Arc;
/// use headwater::{Allocator, Direct, Request};
/// use headwater_driver::{DeviceId, Stream};
/// use headwater_tiers::{GpuConfig, OverPolicy, ReservedAllocator, SpaceId, Tiers, TiersConfig, Tracking};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let driver = headwater_sim::SimDriver::new();
/// let direct = Arc::new(Direct::new(driver.clone(), DeviceId(0))?);
/// let tiers = Tiers::new(TiersConfig::default().driver(driver).gpu(GpuConfig::new(direct, 1 << 30)))?;
/// let space = tiers.space(SpaceId::gpu(DeviceId(0)))?;
/// let allocator = ReservedAllocator::new(&space, Tracking::PerStream)?;
///
/// let reservation = space.make_reservation_upto(1 << 20)?;
/// let stream = Stream::legacy_default(DeviceId(0));
/// let _attached = allocator.attach(stream, &reservation, OverPolicy::Fail)?;
/// let ptr = allocator.allocate(Request::new(1 << 20, stream))?;
/// assert_eq!(reservation.unused_bytes(), 0);
/// assert!(allocator.allocate(Request::new(1, stream)).is_err());
/// // SAFETY: nobody uses the block any more.
/// unsafe { allocator.give_back(ptr)? };
/// assert_eq!(reservation.unused_bytes(), 1 << 20);
/// # Ok(())
/// # }
/// ```
pub struct ReservedAllocator {
    space: Space,
    inner: Arc<dyn Allocator>,
    tracker: Arc<Tracker>,
    unreserved: Unreserved,
    oom: Box<dyn OomPolicy>,
    live: Box<[Mutex<FxHashMap<DevicePtr, Claim>>]>,
}

impl ReservedAllocator {
    /// The memory of `space`, which is on a GPU.
    ///
    /// # Errors
    /// [`TierError::NotThisTier`].
    pub fn new(space: &Space, tracking: Tracking) -> Result<Self, TierError> {
        Ok(Self {
            inner: space.allocator()?.clone(),
            space: space.clone(),
            tracker: Tracker::new(tracking),
            unreserved: Unreserved::default(),
            oom: Box::new(FailAtOnce),
            live: (0..SHARDS).map(|_| Mutex::default()).collect(),
        })
    }

    /// The same, with another answer to requests without a reservation.
    #[must_use]
    pub fn unreserved(mut self, unreserved: Unreserved) -> Self {
        self.unreserved = unreserved;
        self
    }

    /// The same, with another policy for when the memory below runs out.
    #[must_use]
    pub fn on_out_of_memory(mut self, policy: impl OomPolicy + 'static) -> Self {
        self.oom = Box::new(policy);
        self
    }

    /// Lets requests of `stream` (or, by thread, of the calling thread) draw from `reservation`. One at a time.
    ///
    /// # Errors
    /// [`TierError::AlreadyAttached`], [`TierError::WrongSpace`].
    pub fn attach(
        &self,
        stream: Stream,
        reservation: &Reservation,
        over: OverPolicy,
    ) -> Result<Attached, TierError> {
        let promise = reservation.promise();
        if !Arc::ptr_eq(promise.ledger(), self.space.ledger()) {
            return Err(TierError::WrongSpace { expected: self.space.id(), got: reservation.space() });
        }
        self.tracker.attach(stream, Source { promise: promise.clone(), over })
    }

    /// Allocates, with the tiers' own errors.
    ///
    /// # Errors
    /// As [`Space::allocate`]; [`TierError::OverReservation`] where there is no reservation and there must be one.
    pub fn allocate_reserved(&self, request: Request) -> Result<DevicePtr, TierError> {
        request.check(self.inner.device())?;
        if request.bytes == 0 {
            return Ok(self.inner.allocate(request)?);
        }
        let claim = self.claim(request)?;
        let ask = || self.inner.allocate(request);
        let ptr = ask_with(&*self.inner, request.bytes, &*self.oom, self.space.ledger(), ask)?;
        let former = self.shard(ptr).lock().insert(ptr, claim);
        debug_assert!(former.is_none(), "{ptr} was given out twice");
        Ok(ptr)
    }

    fn claim(&self, request: Request) -> Result<Claim, TierError> {
        match (self.tracker.source(request.stream), self.unreserved) {
            (Some(source), _) => Claim::within(&source.promise, request.bytes, source.over),
            (None, Unreserved::Allow) => self.space.claim_unreserved(request.bytes),
            (None, Unreserved::Refuse) => {
                let remedy = "attach a reservation to the stream or thread, or allow Unreserved::Allow";
                let shortage = Box::new(self.space.ledger().shortage(request.bytes, remedy));
                Err(TierError::OverReservation { reservation_bytes: 0, in_use_bytes: 0, shortage })
            }
        }
    }

    fn shard(&self, ptr: DevicePtr) -> &Mutex<FxHashMap<DevicePtr, Claim>> {
        // Blocks are 256-byte aligned at least; the multiplication spreads what lies above.
        let hash = (ptr.raw() >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.live[(hash >> 58) as usize % SHARDS]
    }

    /// Takes the claim out first: once the block is back, another thread may be given the same address.
    fn give_back_by(
        &self,
        ptr: DevicePtr,
        give_back: impl FnOnce() -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let claim = self.shard(ptr).lock().remove(&ptr);
        match give_back() {
            Ok(()) => {
                drop(claim);
                Ok(())
            }
            Err(error) => {
                if let Some(claim) = claim {
                    self.shard(ptr).lock().insert(ptr, claim);
                }
                Err(error)
            }
        }
    }

    /// A shortage of the tiers in the words of allocators.
    fn as_alloc_error(&self, error: TierError) -> AllocError {
        let report_of = |shortage: &Shortage| {
            let mut report = OutOfMemoryReport::new(self.inner.device(), shortage.requested_bytes);
            report.fill_from(&self.inner.stats());
            report.limit_bytes = Some(shortage.capacity_bytes);
            report.over_limit = true;
            report.remedy = shortage.remedy;
            report
        };
        match error {
            TierError::Alloc(error) | TierError::OutOfMemory { source: error, .. } => error,
            TierError::Driver(error) => AllocError::Driver(error),
            other => match other.shortage() {
                Some(shortage) => report_of(shortage).into(),
                None => {
                    let bytes =
                        if let TierError::ReservationGivenBack { bytes, .. } = other { bytes } else { 0 };
                    let mut report = OutOfMemoryReport::new(self.inner.device(), bytes);
                    report.remedy = "the reservation was given back, or the tiers are shut down: attach one that is alive";
                    report.into()
                }
            },
        }
    }
}

impl Allocator for ReservedAllocator {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        self.inner.driver()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        self.allocate_reserved(request).map_err(|error| self.as_alloc_error(error))
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        self.give_back_by(ptr, || unsafe { self.inner.give_back(ptr) })
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        self.give_back_by(ptr, || unsafe { self.inner.give_back_or_owe(ptr) })
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        self.inner.record_stream(ptr, stream)
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.inner.empty_cache()
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        self.inner.block_at(ptr)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn reset_peaks(&self) {
        self.inner.reset_peaks();
    }

    fn reset_totals(&self) {
        self.inner.reset_totals();
    }

    fn reconcile(&self) -> Result<(), Differences> {
        self.inner.reconcile()
    }
}

impl std::fmt::Debug for ReservedAllocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservedAllocator")
            .field("space", &self.space.id())
            .field("inner", &self.inner)
            .field("unreserved", &self.unreserved)
            .finish_non_exhaustive()
    }
}
