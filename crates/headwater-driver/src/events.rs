//! Events: points in streams.

use crate::{DeviceId, Event, Result, Stream};

/// How an event is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// Whether it keeps the time, for [`event_elapsed_us`](Events::event_elapsed_us). Costs more when recorded.
    pub timing: bool,
}

/// Events.
pub trait Events {
    /// Makes an event. Legal during capture.
    ///
    /// # Errors
    /// `InvalidValue` where there is no such device.
    fn event_create(&self, device: DeviceId, options: EventOptions) -> Result<Event>;

    /// Destroys an event. Waits on it that are already queued still hold.
    ///
    /// # Errors
    /// `InvalidHandle` where it does not exist (any more).
    fn event_destroy(&self, event: Event) -> Result<()>;

    /// Marks the present end of `stream`. Recording again moves the event; waits queued before keep the old point.
    /// Legal during capture of another stream; on a captured stream it marks a point of the capture.
    ///
    /// # Errors
    /// `InvalidHandle` where one of them does not exist, or they belong to two devices.
    fn event_record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Whether the work before the recorded point has finished; an event that was never recorded has.
    ///
    /// # Errors
    /// `InvalidHandle`; `IllegalInCapture` while a capture forbids it, and the capture is lost (also for an event outside
    /// of it); for an event recorded in a capture always; `InvalidValue` where it was recorded in a capture that has ended.
    fn event_query(&self, event: Event) -> Result<bool>;

    /// Waits on the host until the work before the recorded point has finished.
    ///
    /// # Errors
    /// As [`event_query`](Self::event_query).
    fn event_synchronize(&self, event: Event) -> Result<()>;

    /// Microseconds of device time from `start` to `end`.
    ///
    /// # Errors
    /// `NotReady` where one of them has not finished; `InvalidHandle` where one was never recorded or keeps no time.
    fn event_elapsed_us(&self, start: Event, end: Event) -> Result<f64>;
}
