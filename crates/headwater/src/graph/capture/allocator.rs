//! The allocator that knows about captures.

use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};

use super::common::{Common, LimitFollower};
use super::figures;
use super::handles::{PoolHandle, PoolId};
use super::private_pool::PrivatePool;
use super::retire::Patience;
use super::routes::Routes;
use crate::CachingAllocator;
use crate::allocator::{Allocator, BlockFacts, Request, check_stream};
use crate::error::AllocError;
use crate::graph::error::GraphError;
use crate::graph::fixed_memory::Source;
use crate::graph::shared_physical::SharedPhysical;
use crate::stats::{DeviceStats, Differences};

/// An allocator around another one, with private pools for captured graphs.
///
/// Requests of a stream that is being captured, and of streams that joined its capture, come from the capture's pool. All others go
/// to the allocator inside as before, at the cost of one load more.
///
/// ```
/// use headwater::caching::CachingAllocator;
/// use headwater::config::Config;
/// use headwater::graph::GraphAllocator;
/// use headwater::{Allocator, Block, Request};
/// use headwater_driver::{CaptureMode, Copies, DeviceId, StreamOptions, Streams};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// # let driver = headwater_sim::SimDriver::new();
/// let device = DeviceId(0);
/// let stream = driver.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
/// let caching = CachingAllocator::new(driver.clone(), device, Config::default())?;
/// let allocator = GraphAllocator::over_caching(&caching)?;
///
/// allocator.begin_capture(stream, CaptureMode::Global, None)?;
/// let scratch = Block::allocate(&*allocator, Request::new(1 << 20, stream))?;
/// // SAFETY: the graph keeps the memory, also after the block was given back.
/// unsafe { driver.fill_bytes(scratch.ptr(), 7, 1 << 20, stream)? };
/// drop(scratch);
/// let graph = allocator.end_capture(stream)?.instantiate()?;
/// for _ in 0..3 {
///     // SAFETY: the graph touches memory of its pool only, and runs alone.
///     unsafe { graph.launch(stream)? };
/// }
/// assert_eq!(allocator.pool_snapshots()[0].graphs, 1);
/// driver.stream_synchronize(stream)?;
/// drop(graph);
/// assert!(allocator.pool_snapshots().is_empty());
/// # drop(allocator);
/// # drop(caching);
/// # driver.stream_destroy(stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GraphAllocator {
    pub(super) common: Arc<Common>,
    pub(super) routes: Routes,
    source: Source,
}

/// How a [`GraphAllocator`] is made.
pub struct GraphAllocatorBuilder {
    default: Arc<dyn Allocator>,
    caching: Option<Arc<CachingAllocator>>,
    limit_bytes: Option<u64>,
    follower: Option<Box<LimitFollower>>,
    plain_memory: bool,
    record_stream_reuse: bool,
}

impl GraphAllocatorBuilder {
    /// At most so much for private pools and everything else together. `lower` tells the allocator inside how much of it is left
    /// for it, whenever that changes.
    #[must_use]
    pub fn limit_bytes(mut self, limit_bytes: u64, lower: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.limit_bytes = Some(limit_bytes);
        self.follower = Some(Box::new(move |left_bytes| lower(left_bytes.unwrap_or(u64::MAX))));
        self
    }

    /// Takes plain memory for private pools even where the device has virtual memory.
    #[must_use]
    pub fn plain_memory(mut self, plain: bool) -> Self {
        self.plain_memory = plain;
        self
    }

    /// Reads the order of captured streams off the capture, so that blocks with recorded streams are used again inside of it
    /// also where nobody called [`order_streams`](GraphAllocator::order_streams). Costs a driver call for each give-back of such
    /// a block, and one for each that waits on a miss. Around a caching allocator, its setting
    /// `graph_capture_record_stream_reuse` says whether.
    #[must_use]
    pub fn record_stream_reuse(mut self, reuse: bool) -> Self {
        self.record_stream_reuse = reuse;
        self
    }

    /// Makes the allocator.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn build(self) -> Result<Arc<GraphAllocator>, GraphError> {
        let properties = self.default.driver().device_properties(self.default.device())?;
        let source = if self.plain_memory { Source::Plain } else { Source::best(properties.capabilities) };
        let common = Common::new(
            self.default,
            self.caching,
            properties.total_bytes,
            self.record_stream_reuse,
            self.limit_bytes,
            self.follower,
        );
        Ok(Arc::new(GraphAllocator { common: Arc::new(common), routes: Routes::default(), source }))
    }
}

impl std::fmt::Debug for GraphAllocatorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphAllocatorBuilder")
            .field("default", &self.default)
            .field("limit_bytes", &self.limit_bytes)
            .finish_non_exhaustive()
    }
}

impl GraphAllocator {
    /// An allocator around `default`, to be described further.
    pub fn builder(default: Arc<dyn Allocator>) -> GraphAllocatorBuilder {
        GraphAllocatorBuilder {
            default,
            caching: None,
            limit_bytes: None,
            follower: None,
            plain_memory: false,
            record_stream_reuse: false,
        }
    }

    /// An allocator around `default`, with no limit but the device's for private pools.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn new(default: Arc<dyn Allocator>) -> Result<Arc<Self>, GraphError> {
        Self::builder(default).build()
    }

    /// An allocator around a caching one, under whose limit private pools are as well.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn over_caching(caching: &Arc<CachingAllocator>) -> Result<Arc<Self>, GraphError> {
        Self::builder_over_caching(caching).build()
    }

    /// The same, to be described further.
    pub fn builder_over_caching(caching: &Arc<CachingAllocator>) -> GraphAllocatorBuilder {
        let mut builder = Self::builder(Arc::clone(caching) as Arc<dyn Allocator>);
        builder.caching = Some(Arc::clone(caching));
        builder.record_stream_reuse = caching.config().graph_capture_record_stream_reuse();
        builder.limit_bytes = caching.limit_bytes();
        let follower = Arc::clone(caching);
        builder.follower = Some(Box::new(move |left_bytes| follower.set_limit_bytes(left_bytes)));
        builder
    }

    /// At most so much for private pools and everything else together from now on; `None` is no limit but the device's. What is
    /// reserved beyond a smaller limit stays until it is released.
    pub fn set_limit_bytes(&self, limit_bytes: Option<u64>) {
        self.common.set_limit_bytes(limit_bytes);
    }

    /// The limit in force.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.common.limit_bytes()
    }

    /// The allocator inside: for everything that is not captured.
    pub fn default_allocator(&self) -> &Arc<dyn Allocator> {
        &self.common.default
    }

    /// What private pools have from the driver, all together.
    pub fn private_bytes(&self) -> u64 {
        self.common.private_bytes()
    }

    /// A pool of its own, for captures of graphs that never run at the same time.
    ///
    /// # Errors
    /// None today.
    pub fn new_pool(&self) -> Result<PoolHandle, GraphError> {
        Ok(self.make_pool(None))
    }

    /// A pool that shares physical memory with the other pools of `group`: for graphs of different pools that never run at
    /// the same time.
    ///
    /// # Errors
    /// [`AllocError::Driver`] with `InvalidValue` where the group is on another device.
    pub fn new_pool_in(&self, group: &Arc<SharedPhysical>) -> Result<PoolHandle, GraphError> {
        check_stream(Stream::legacy_default(group.device()), self.common.device)?;
        Ok(self.make_pool(Some(Arc::clone(group))))
    }

    fn make_pool(&self, group: Option<Arc<SharedPhysical>>) -> PoolHandle {
        let id = PoolId(self.common.next_id());
        let pool = PrivatePool::new(id, Arc::clone(&self.common), self.source.clone(), group);
        let pool = Arc::new(pool);
        self.common.add_pool(&pool);
        PoolHandle::new(pool)
    }

    /// The handle, where its pool is one of ours.
    pub(super) fn own<'h>(&self, handle: &'h PoolHandle) -> Result<&'h PoolHandle, GraphError> {
        if Arc::ptr_eq(&handle.pool.common, &self.common) && self.common.has_pool(handle.id()) {
            Ok(handle)
        } else {
            Err(GraphError::ForeignPool { pool: handle.id() })
        }
    }

    /// Walks every private pool: pieces, blocks and counts.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn verify(&self) -> Result<(), String> {
        for pool in self.common.pools() {
            pool.core.lock().verify().map_err(|words| format!("{}: {words}", pool.id()))?;
        }
        Ok(())
    }

    /// Returns what pools without graphs still have. Says how much, and the last refusal.
    fn retire_all(&self, patience: Patience) -> (u64, Option<AllocError>) {
        let (mut released_bytes, mut refusal) = (0, None);
        for pool in self.common.pools() {
            match pool.retire(patience) {
                Ok(bytes) => released_bytes += bytes,
                Err(error) => refusal = Some(error),
            }
        }
        (released_bytes, refusal)
    }

    /// Serves a request of the captured stream from what its pool has.
    #[inline]
    fn hit_in_capture(&self, request: &Request) -> Option<DevicePtr> {
        if request.bytes == 0 || request.check(self.common.device).is_err() {
            return None;
        }
        self.routes.if_newest_begun_on(request.stream, |route, lane| route.hold.pool.hit(request, lane))
    }

    /// Takes back a block of a private pool. `None` where the address is of none.
    #[inline]
    fn give_back_to_pool(&self, ptr: DevicePtr) -> Option<Result<(), AllocError>> {
        let answer = self.common.with_owner(ptr, |pool| {
            let given_back = pool.core.lock().give_back(ptr)?;
            Ok(given_back.needs_care().then(|| (Arc::clone(pool), given_back)))
        })?;
        Some(answer.map(|left| {
            if let Some((pool, given_back)) = left {
                pool.after_give_back(ptr, given_back);
            }
        }))
    }

    fn allocate_outside(&self, request: Request) -> Result<DevicePtr, AllocError> {
        match self.common.default.allocate(request) {
            // Memory of graphs that are gone is better used than kept.
            Err(AllocError::OutOfMemory(report)) => match self.retire_all(Patience::Wait) {
                (0, _) => Err(AllocError::OutOfMemory(report)),
                _ => self.common.default.allocate(request),
            },
            answer => answer,
        }
    }
}

impl Allocator for GraphAllocator {
    fn name(&self) -> &'static str {
        self.common.default.name()
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        &self.common.driver
    }

    fn device(&self) -> DeviceId {
        self.common.device
    }

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        check_stream(request.stream, self.common.device)?;
        if self.routes.is_empty() {
            return self.allocate_outside(request);
        }
        if let Some(ptr) = self.hit_in_capture(&request) {
            return Ok(ptr);
        }
        let Some(found) = self.routes.find(&*self.common.driver, request.stream)? else {
            return self.allocate_outside(request);
        };
        request.check(self.common.device)?;
        if request.bytes == 0 {
            return Ok(DevicePtr::NULL);
        }
        let pool = &found.route.hold.pool;
        if pool.group.is_some() && found.lane.scope.is_none() {
            // Only captured work can take turns: this goes where all other memory does.
            return self.allocate_outside(request);
        }
        pool.allocate(&request, found.lane)
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.give_back_to_pool(ptr) {
            Some(answer) => answer,
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.common.default.give_back(ptr) },
        }
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.give_back_to_pool(ptr) {
            Some(answer) => answer,
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.common.default.give_back_or_owe(ptr) },
        }
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        check_stream(stream, self.common.device)?;
        let Some(pool) = self.common.owner(ptr) else {
            return self.common.default.record_stream(ptr, stream);
        };
        let lane = self.lane_in(&pool, stream)?;
        pool.core.lock().record_use(ptr, lane)
    }

    /// Private pools without graphs go too. Where it is not known that their last launches have finished, they are waited for, as a
    /// plain free does.
    fn empty_cache(&self) -> Result<u64, AllocError> {
        self.sweep();
        let (private_bytes, refusal) = self.retire_all(Patience::Wait);
        let default_bytes = self.common.default.empty_cache()?;
        refusal.map_or(Ok(private_bytes + default_bytes), Err)
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        match self.common.owner(ptr) {
            Some(pool) => pool.core.lock().block_at(ptr, Stream::legacy_default(self.common.device)),
            None => self.common.default.block_at(ptr),
        }
    }

    /// Those of the allocator inside and of all pools together. Peaks are sums of peaks: the most that can have been.
    fn stats(&self) -> DeviceStats {
        let mut stats = self.common.default.stats();
        for pool in self.common.pools() {
            figures::add(&mut stats, &pool.core.lock().stats);
        }
        figures::add(&mut stats, &self.common.departed.lock());
        stats
    }

    fn reset_peaks(&self) {
        self.common.default.reset_peaks();
        self.common.departed.lock().reset_peaks();
        for pool in self.common.pools() {
            pool.core.lock().stats.reset_peaks();
        }
    }

    fn reset_totals(&self) {
        self.common.default.reset_totals();
        self.common.departed.lock().reset_totals();
        for pool in self.common.pools() {
            pool.core.lock().stats.reset_totals();
        }
    }

    fn reconcile(&self) -> Result<(), Differences> {
        self.common.default.reconcile()?;
        self.common.pools().iter().try_for_each(|pool| pool.core.lock().reconcile())
    }
}

impl Drop for GraphAllocator {
    /// Pools that graphs and handles still refer to live on with them; all others go.
    fn drop(&mut self) {
        let routes = self.routes.list();
        for route in routes.iter() {
            self.routes.remove(route.number);
            route.hold.pool.core.lock().close_route(route.number);
        }
        drop(routes);
        self.retire_all(Patience::Wait);
        drop(self.common.take_pools());
    }
}
