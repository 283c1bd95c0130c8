//! Device work that still uses blocks.
//!
//! A use is an event in the stream of the work. Blocks that are given back carry their uses along, and are handed out again
//! when all of them have finished. Events cost 0.3 us to make and to destroy, so idle ones are kept, up to a bound.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ThreadId;

use headwater_driver::{DeviceId, Driver, Event, EventOptions, Result, Stream};
use parking_lot::Mutex;
use smallvec::SmallVec;

use headwater_driver::capture_guard::relaxed;

/// Idle events kept for each device.
const IDLE_EVENTS_MAX: usize = 64;

/// Makes events and keeps idle ones.
#[derive(Debug)]
pub(crate) struct Events {
    driver: Arc<dyn Driver>,
    idle: Mutex<BTreeMap<DeviceId, Vec<Event>>>,
}

impl Events {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { driver, idle: Mutex::default() })
    }

    /// Marks what `stream` has to do by now.
    pub(crate) fn mark(self: &Arc<Self>, stream: Stream) -> Result<Arc<Use>> {
        let device = stream.device();
        let kept = self.idle.lock().get_mut(&device).and_then(Vec::pop);
        let event = match kept {
            Some(event) => event,
            None => self.driver.event_create(device, EventOptions { timing: false })?,
        };
        // Owned from here on: where recording fails, the event goes back.
        let mark = Use { events: self.clone(), stream, thread: thread_of(stream), event };
        self.driver.event_record(event, stream)?;
        Ok(Arc::new(mark))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in std::mem::take(self.idle.get_mut()).into_values().flatten() {
            // A lost device refuses, and then there is nothing left to destroy.
            let _ = self.driver.event_destroy(event);
        }
    }
}

/// A point in a stream that must be reached before blocks are free.
#[derive(Debug)]
pub(crate) struct Use {
    events: Arc<Events>,
    stream: Stream,
    /// The thread whose default stream it is, where it is one: the same value names another stream in every thread.
    thread: Option<ThreadId>,
    event: Event,
}

fn thread_of(stream: Stream) -> Option<ThreadId> {
    stream.is_per_thread_default().then(|| std::thread::current().id())
}

impl Use {
    /// Whether it is a point in what this thread calls `stream`.
    pub(crate) fn is_in(&self, stream: Stream) -> bool {
        self.stream == stream && self.thread == thread_of(stream)
    }

    /// Moves the point to what the stream has to do by now.
    pub(crate) fn mark_again(&self) -> Result<()> {
        self.events.driver.event_record(self.event, self.stream)
    }

    /// Makes all later work in `stream` wait for the point.
    pub(crate) fn hold_back(&self, stream: Stream) -> Result<()> {
        self.events.driver.stream_wait_event(stream, self.event)
    }

    pub(crate) fn has_finished(&self) -> Result<bool> {
        let driver = &*self.events.driver;
        relaxed(driver, || driver.event_query(self.event))
    }

    pub(crate) fn wait(&self) -> Result<()> {
        let driver = &*self.events.driver;
        relaxed(driver, || driver.event_synchronize(self.event))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let device = self.event.device();
        {
            let mut idle = self.events.idle.lock();
            let kept = idle.entry(device).or_default();
            if kept.len() < IDLE_EVENTS_MAX {
                kept.push(self.event);
                return;
            }
        }
        // As above.
        let _ = self.events.driver.event_destroy(self.event);
    }
}

/// All uses of some blocks, one a stream.
pub(crate) type Uses = SmallVec<[Arc<Use>; 2]>;
