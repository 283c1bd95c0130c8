//! Marks: points in streams that the pool can ask about. Each is an event, used again when nobody needs it any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headwater_driver::{
    CaptureStatus, DeviceId, Driver, DriverError, ErrorClass, Event, EventOptions, Stream,
};
use parking_lot::Mutex;

use crate::capture_guard;

/// How many unused events are kept.
const SPARE_EVENTS: usize = 64;

/// A point in a stream. The clones are one mark.
#[derive(Clone, Debug)]
pub(super) struct Mark(Arc<Recorded>);

impl PartialEq for Mark {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[derive(Debug)]
struct Recorded {
    event: Event,
    passed: AtomicBool,
    marker: Arc<Shared>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.marker.keep(self.event);
    }
}

/// What came of an attempt to mark a stream.
#[derive(Debug)]
pub(super) enum Marked {
    /// Done.
    At(Mark),
    /// Not while the stream is being captured: an event would become part of the graph.
    Later,
    /// The stream does not exist any more.
    StreamGone,
}

/// Makes marks.
#[derive(Debug)]
pub(super) struct Marker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    spare: Mutex<Vec<Event>>,
}

impl Shared {
    fn keep(&self, event: Event) {
        {
            let mut spare = self.spare.lock();
            if spare.len() < SPARE_EVENTS {
                spare.push(event);
                return;
            }
        }
        // An event that cannot be destroyed is lost: there is nothing to be done about it here.
        let _ = self.driver.event_destroy(event);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for event in self.spare.get_mut().drain(..) {
            // There is nobody left to tell.
            let _ = self.driver.event_destroy(event);
        }
    }
}

impl Marker {
    pub(super) fn new(driver: Arc<dyn Driver>, device: DeviceId) -> Self {
        Self(Arc::new(Shared { driver, device, spare: Mutex::default() }))
    }

    /// Marks the present end of `stream`, as the calling thread knows it.
    pub(super) fn mark(&self, stream: Stream) -> Result<Marked, DriverError> {
        let driver = &self.0.driver;
        match driver.capture_status(stream) {
            Ok(CaptureStatus::None) => {}
            Ok(_) => return Ok(Marked::Later),
            Err(error) => match error.class() {
                // The default stream while a stream that it must wait for is captured.
                ErrorClass::IllegalInCapture => return Ok(Marked::Later),
                ErrorClass::InvalidHandle => return Ok(Marked::StreamGone),
                // Without captures no stream is captured.
                ErrorClass::Unavailable | ErrorClass::NotSupported => {}
                _ => return Err(error),
            },
        }
        let spare = self.0.spare.lock().pop();
        let event = match spare {
            Some(event) => event,
            None => driver.event_create(self.0.device, EventOptions::default())?,
        };
        match driver.event_record(event, stream) {
            Ok(()) => {
                let (passed, marker) = (AtomicBool::new(false), self.0.clone());
                Ok(Marked::At(Mark(Arc::new(Recorded { event, passed, marker }))))
            }
            Err(error) => {
                self.0.keep(event);
                if error.class() == ErrorClass::InvalidHandle { Ok(Marked::StreamGone) } else { Err(error) }
            }
        }
    }

    /// Whether everything before the mark has finished.
    pub(super) fn has_passed(&self, mark: &Mark) -> Result<bool, DriverError> {
        let driver = &self.0.driver;
        if !mark.0.passed.load(Ordering::Acquire) {
            let passed = capture_guard::relaxed(&**driver, || driver.event_query(mark.0.event))?;
            mark.0.passed.store(passed, Ordering::Release);
        }
        Ok(mark.0.passed.load(Ordering::Acquire))
    }

    /// Waits on the host until everything before the mark has finished.
    pub(super) fn wait(&self, mark: &Mark) -> Result<(), DriverError> {
        let driver = &self.0.driver;
        if !mark.0.passed.load(Ordering::Acquire) {
            capture_guard::relaxed(&**driver, || driver.event_synchronize(mark.0.event))?;
            mark.0.passed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Lets later work of `stream` wait on the device for the mark. Says whether: a stream that is being captured cannot
    /// wait for what is outside.
    pub(super) fn hold_back(&self, stream: Stream, mark: &Mark) -> Result<bool, DriverError> {
        let driver = &self.0.driver;
        match driver.capture_status(stream) {
            Ok(CaptureStatus::None) => {}
            Ok(_) => return Ok(false),
            Err(error) => match error.class() {
                ErrorClass::Unavailable | ErrorClass::NotSupported => {}
                _ => return Ok(false),
            },
        }
        driver.stream_wait_event(stream, mark.0.event)?;
        Ok(true)
    }
}
