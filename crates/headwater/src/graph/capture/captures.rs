//! Captures begun and ended: through the allocator, and by somebody else who says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headwater_driver::{CaptureMode, CaptureStatus, ErrorClass, EventOptions, Stream};

use super::allocator::GraphAllocator;
use super::graphs::CapturedGraph;
use super::handles::{GraphHold, PoolHandle, RouteHold};
use super::lanes::{LaneKey, Scope};
use super::private_pool::PrivatePool;
use super::retire::Patience;
use super::routes::{Route, Rule, capture_of};
use crate::allocator::check_stream;
use crate::error::AllocError;
use crate::graph::error::GraphError;

impl GraphAllocator {
    /// Starts capturing `stream`: what it, and streams that join its capture, ask for comes from `pool`, or from a fresh one.
    /// Returns the pool.
    ///
    /// # Errors
    /// [`GraphError::ForeignPool`]; what the driver answered. Then nothing is captured that was not before.
    pub fn begin_capture(
        &self,
        stream: Stream,
        mode: CaptureMode,
        pool: Option<&PoolHandle>,
    ) -> Result<PoolHandle, GraphError> {
        check_stream(stream, self.common.device)?;
        self.sweep();
        let handle = match pool {
            Some(handle) => self.own(handle)?.clone(),
            None => self.new_pool()?,
        };
        if let Some(caching) = &self.common.caching {
            caching.expect_capture(stream);
        }
        let driver = &*self.common.driver;
        driver.capture_begin(stream, mode)?;
        let capture = match capture_of(driver, stream) {
            Ok(Some(capture)) => capture,
            answer => {
                // Ended again: without its number, its streams cannot be told from others.
                if let Ok(graph) = driver.capture_end(stream) {
                    let _ = driver.graph_destroy(graph);
                }
                answer?;
                return Err(GraphError::NotCapturing { stream });
            }
        };
        let rule = Rule::Capture { origin: LaneKey::new(stream, None), capture };
        self.add_route(&handle.pool, rule, |_| false);
        Ok(handle)
    }

    /// Ends the capture begun on `stream` and returns its graph, which keeps the pool's memory.
    ///
    /// # Errors
    /// [`GraphError::NotCapturing`]; what the driver answered. The graph is then lost and the capture over, unless the stream is
    /// still captured: then it can be ended again.
    pub fn end_capture(&self, stream: Stream) -> Result<CapturedGraph, GraphError> {
        let route = self.take_capture(stream)?;
        let driver = &*self.common.driver;
        match driver.capture_end(stream) {
            Ok(graph) => {
                // The graph's hold before the route's goes: the memory is never nobody's.
                let hold = GraphHold::new(Arc::clone(&route.hold.pool));
                self.close(&route);
                Ok(CapturedGraph::new(graph, hold))
            }
            Err(error) => {
                if self.is_under_way(&route, stream) {
                    route.ending.store(false, Ordering::Release);
                } else {
                    self.close(&route);
                }
                Err(error.into())
            }
        }
    }

    /// Ends the capture begun on `stream`, whatever its state, and throws away its graph.
    ///
    /// # Errors
    /// [`GraphError::NotCapturing`]; what the driver answered where the stream is still captured.
    pub fn abandon_capture(&self, stream: Stream) -> Result<(), GraphError> {
        match self.end_capture(stream) {
            Ok(_) => Ok(()),
            Err(error @ GraphError::Alloc(_)) if self.has_capture(stream) => Err(error),
            // It was lost, and is over all the same.
            Err(GraphError::Alloc(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes what comes in `after` wait for what is in `before`, on the device or in their capture, and remembers it: memory that
    /// `before` freed in this capture can then serve `after`. (An order made by other means is not known here, and memory stays
    /// with the stream that freed it until the capture ends.)
    ///
    /// # Errors
    /// What the driver answered; then no order is remembered.
    pub fn order_streams(&self, before: Stream, after: Stream) -> Result<(), GraphError> {
        let driver = &*self.common.driver;
        let event = driver.event_create(self.common.device, EventOptions::default())?;
        let ordered =
            driver.event_record(event, before).and_then(|()| driver.stream_wait_event(after, event));
        let destroyed = driver.event_destroy(event);
        ordered?;
        let destinations = (self.routes.find(driver, before)?, self.routes.find(driver, after)?);
        if let (Some(first), Some(second)) = destinations
            && first.route.number == second.route.number
        {
            first.route.hold.pool.core.lock().order(first.lane, second.lane);
        }
        Ok(destroyed?)
    }

    /// Routes requests of streams that `filter` accepts to `pool`, until [`end_allocate_to_pool`](Self::end_allocate_to_pool):
    /// for captures that somebody else begins and ends. The newest route that accepts a stream wins. The pool is in use from now on,
    /// until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// [`GraphError::ForeignPool`]; [`GraphError::AlreadyRouted`] where requests are routed to the pool by this call already.
    pub fn begin_allocate_to_pool(
        &self,
        pool: &PoolHandle,
        filter: impl Fn(Stream) -> bool + Send + Sync + 'static,
    ) -> Result<(), GraphError> {
        let pool = &self.own(pool)?.pool;
        let id = pool.id();
        // Before the route: it must not find a pool without users.
        pool.hold(|holders| {
            holders.foreign += 1;
            holders.launched_unseen = true;
        });
        let again = |other: &Route| other.pool_id() == id && matches!(other.rule, Rule::Caller(_));
        if !self.add_route(pool, Rule::Caller(Box::new(filter)), again) {
            pool.hold(|holders| holders.foreign -= 1);
            return Err(GraphError::AlreadyRouted { pool: id });
        }
        Ok(())
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. Captures that used it have ended by now.
    ///
    /// # Errors
    /// [`GraphError::NotRouted`].
    pub fn end_allocate_to_pool(&self, pool: &PoolHandle) -> Result<(), GraphError> {
        let id = pool.id();
        let list = self.routes.list();
        let newest = list
            .iter()
            .rev()
            .find(|route| Arc::ptr_eq(&route.hold.pool, &pool.pool) && matches!(route.rule, Rule::Caller(_)));
        let route = newest.ok_or(GraphError::NotRouted { pool: id })?;
        let removed = self.routes.remove(route.number).ok_or(GraphError::NotRouted { pool: id })?;
        removed.hold.pool.core.lock().close_route(removed.number);
        Ok(())
    }

    /// Takes a pool into use without routing requests to it, until [`release_pool`](Self::release_pool): for callers who count
    /// their users of a pool, as PyTorch does.
    ///
    /// # Errors
    /// [`GraphError::ForeignPool`].
    pub fn retain_pool(&self, pool: &PoolHandle) -> Result<(), GraphError> {
        self.own(pool)?.pool.hold(|holders| holders.foreign += 1);
        Ok(())
    }

    /// Ends one use that [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began: its graph is destroyed. With the last
    /// use the memory goes back, after all work on the device has finished: where the graphs ran is not known here.
    ///
    /// # Errors
    /// [`GraphError::NotInUse`]; what the driver answered, and then the memory goes back later.
    pub fn release_pool(&self, pool: &PoolHandle) -> Result<(), GraphError> {
        let last = {
            let mut holders = pool.pool.holders.lock();
            holders.foreign = match holders.foreign.checked_sub(1) {
                Some(left) => left,
                None => return Err(GraphError::NotInUse { pool: pool.id() }),
            };
            holders.foreign == 0
        };
        if last {
            pool.pool.retire(Patience::Wait)?;
        }
        Ok(())
    }

    fn add_route(&self, pool: &Arc<PrivatePool>, rule: Rule, refuse: impl Fn(&Route) -> bool) -> bool {
        let number = self.common.next_id();
        pool.core.lock().open_route(number);
        let hold = RouteHold::new(Arc::clone(pool));
        let route = Arc::new(Route { number, hold, rule, ending: AtomicBool::new(false) });
        let added = self.routes.push(Arc::clone(&route), refuse);
        if !added {
            pool.core.lock().close_route(number);
        }
        added
    }

    /// Claims the right to end the capture begun on `stream`.
    fn take_capture(&self, stream: Stream) -> Result<Arc<Route>, GraphError> {
        let list = self.routes.list();
        let mut captures = list.iter().rev().filter(|route| route.is_capture_of(stream));
        let claimed = captures.find(|route| !route.ending.swap(true, Ordering::AcqRel));
        claimed.cloned().ok_or(GraphError::NotCapturing { stream })
    }

    fn has_capture(&self, stream: Stream) -> bool {
        self.routes.list().iter().any(|route| route.is_capture_of(stream))
    }

    fn close(&self, route: &Route) {
        self.routes.remove(route.number);
        route.hold.pool.core.lock().close_route(route.number);
    }

    /// Whether the driver still has the route's capture. Where it cannot be asked, it may.
    fn is_under_way(&self, route: &Route, stream: Stream) -> bool {
        let Rule::Capture { capture, .. } = route.rule else { return true };
        match self.common.driver.capture_status(stream) {
            Ok(CaptureStatus::Active(id)) => id.0 == capture,
            Ok(CaptureStatus::Invalidated) => true,
            Ok(CaptureStatus::None) => false,
            Err(error) => error.class() != ErrorClass::InvalidHandle,
        }
    }

    /// Ends the routes of captures that are gone without having been ended here: their stream was destroyed, or somebody ended
    /// them past us.
    pub(super) fn sweep(&self) {
        for route in self.routes.list().iter() {
            let Rule::Capture { origin, .. } = route.rule else { continue };
            if origin.is_within_reach()
                && !route.ending.load(Ordering::Acquire)
                && !self.is_under_way(route, origin.stream)
                && !route.ending.swap(true, Ordering::AcqRel)
            {
                self.close(route);
            }
        }
    }

    /// The lane of a stream that uses a pool's memory, for waits.
    pub(super) fn lane_in(&self, pool: &PrivatePool, stream: Stream) -> Result<LaneKey, AllocError> {
        let driver = &*self.common.driver;
        if let Some(found) = self.routes.find(driver, stream)?
            && found.route.pool_id() == pool.id()
        {
            return Ok(found.lane);
        }
        // In a capture that allocates elsewhere: its graph is the caller's to order.
        let scope = capture_of(driver, stream)?.map(|capture| Scope { route: 0, capture });
        Ok(LaneKey::new(stream, scope))
    }
}
