//! Which request goes to which pool.
//!
//! A route is a pool and a rule that says which streams it is for. The newest route that a stream fits wins. Where there is none,
//! which is the usual state of a program, a request costs one load more than without all this.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headwater_driver::{CaptureStatus, Driver, Stream};
use parking_lot::RwLock;

use super::handles::{PoolId, RouteHold};
use super::lanes::{LaneKey, Scope};
use crate::error::AllocError;

/// Says which streams a route is for.
pub(super) type Filter = dyn Fn(Stream) -> bool + Send + Sync;

pub(super) enum Rule {
    /// Streams of a capture that was begun here, on `origin`.
    Capture { origin: LaneKey, capture: u64 },
    /// Streams that the caller's filter accepts.
    Caller(Box<Filter>),
}

pub(super) struct Route {
    pub(super) number: u64,
    pub(super) hold: RouteHold,
    pub(super) rule: Rule,
    /// Set by the one thread that ends the capture.
    pub(super) ending: AtomicBool,
}

impl Route {
    pub(super) fn pool_id(&self) -> PoolId {
        self.hold.pool.id()
    }

    /// Whether it is the capture begun on `stream`, by this thread where that makes a difference.
    pub(super) fn is_capture_of(&self, stream: Stream) -> bool {
        matches!(self.rule, Rule::Capture { origin, .. } if origin.stream == stream && origin.is_within_reach())
    }

    fn captured(&self, stream: Stream, capture: u64) -> LaneKey {
        LaneKey::new(stream, Some(Scope { route: self.number, capture }))
    }

    /// The lane of `stream`, where it is the one that the capture was begun on: that one is in its capture until it is ended, so
    /// nobody is asked. Other streams are asked about every time. They too stay in a capture until it ends, but one that
    /// was destroyed meanwhile may have given its name to a new stream that is in none.
    #[inline]
    fn lane_of_origin(&self, stream: Stream) -> Option<LaneKey> {
        match self.rule {
            Rule::Capture { origin, capture } if self.is_capture_of(stream) => {
                Some(origin.inside(Scope { route: self.number, capture }))
            }
            _ => None,
        }
    }

    /// The lane of `stream`, where the route is for it. `status` is asked at most once for all routes.
    fn lane(&self, stream: Stream, status: &mut Status<'_>) -> Result<Option<LaneKey>, AllocError> {
        let origin = self.lane_of_origin(stream);
        if origin.is_some() {
            return Ok(origin);
        }
        match &self.rule {
            Rule::Capture { capture, .. } => {
                Ok((status.of(stream)? == Some(*capture)).then(|| self.captured(stream, *capture)))
            }
            Rule::Caller(filter) if filter(stream) => {
                let captured = |capture| self.captured(stream, capture);
                Ok(Some(status.of(stream)?.map_or(LaneKey::new(stream, None), captured)))
            }
            Rule::Caller(_) => Ok(None),
        }
    }
}

/// Asks for a stream's capture when it is first needed.
struct Status<'a> {
    driver: &'a dyn Driver,
    known: Option<Option<u64>>,
}

impl Status<'_> {
    fn of(&mut self, stream: Stream) -> Result<Option<u64>, AllocError> {
        if let Some(known) = self.known {
            return Ok(known);
        }
        let capture = capture_of(self.driver, stream)?;
        self.known = Some(capture);
        Ok(capture)
    }
}

/// The capture that a stream is in. None where it is in none, in one that is lost, or cannot be in one.
pub(super) fn capture_of(driver: &dyn Driver, stream: Stream) -> Result<Option<u64>, AllocError> {
    use headwater_driver::ErrorClass::{IllegalInCapture, NotSupported, Unavailable};
    match driver.capture_status(stream) {
        Ok(CaptureStatus::Active(id)) => Ok(Some(id.0)),
        Ok(_) => Ok(None),
        Err(error) if matches!(error.class(), IllegalInCapture | Unavailable | NotSupported) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A request's pool and lane.
pub(super) struct Destination {
    pub(super) route: Arc<Route>,
    pub(super) lane: LaneKey,
}

/// All routes, oldest first. Readers take a reference to the list and let the lock go.
#[derive(Default)]
pub(super) struct Routes {
    list: RwLock<Arc<Vec<Arc<Route>>>>,
    count: AtomicUsize,
}

impl Routes {
    /// Where a request of `stream` goes, if not to the default allocator.
    #[inline]
    pub(super) fn find(
        &self,
        driver: &dyn Driver,
        stream: Stream,
    ) -> Result<Option<Destination>, AllocError> {
        if self.is_empty() { Ok(None) } else { self.search(driver, stream) }
    }

    fn search(&self, driver: &dyn Driver, stream: Stream) -> Result<Option<Destination>, AllocError> {
        let list = self.list();
        let mut status = Status { driver, known: None };
        for route in list.iter().rev() {
            if let Some(lane) = route.lane(stream, &mut status)? {
                return Ok(Some(Destination { route: Arc::clone(route), lane }));
            }
        }
        Ok(None)
    }

    /// Calls `serve` with the newest route where it is a capture that was begun on `stream`: the usual case inside of a capture.
    /// It needs neither the driver nor a caller's filter, so it happens under the lock, without references to list and route. The
    /// state of a pool may be locked inside, nothing else.
    #[inline]
    pub(super) fn if_newest_begun_on<T>(
        &self,
        stream: Stream,
        serve: impl FnOnce(&Route, LaneKey) -> Option<T>,
    ) -> Option<T> {
        let list = self.list.read();
        let route = list.last()?;
        serve(route, route.lane_of_origin(stream)?)
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // Acquire: who was told that a capture has begun sees its route.
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn list(&self) -> Arc<Vec<Arc<Route>>> {
        Arc::clone(&self.list.read())
    }

    /// Adds the newest route, unless `refuse` finds a reason not to.
    pub(super) fn push(&self, route: Arc<Route>, refuse: impl Fn(&Route) -> bool) -> bool {
        let mut list = self.list.write();
        if list.iter().any(|other| refuse(other)) {
            return false;
        }
        let mut longer = Vec::clone(&list);
        longer.push(route);
        self.count.store(longer.len(), Ordering::Release);
        *list = Arc::new(longer);
        true
    }

    /// Takes out a route.
    pub(super) fn remove(&self, number: u64) -> Option<Arc<Route>> {
        let mut list = self.list.write();
        let place = list.iter().position(|route| route.number == number)?;
        let mut shorter = Vec::clone(&list);
        let route = shorter.remove(place);
        self.count.store(shorter.len(), Ordering::Release);
        *list = Arc::new(shorter);
        Some(route)
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list().iter().map(|route| route.pool_id())).finish()
    }
}
