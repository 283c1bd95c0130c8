//! Streams: ours, the default ones, and somebody else's.

use crate::{DeviceId, Event, Result, Stream};

/// How a stream is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whether the stream takes part in the legacy default stream's implicit ordering (CUDA's default: it does).
    pub non_blocking: bool,
    /// Smaller runs first; out-of-range values are clamped, as CUDA does.
    pub priority: i32,
}

/// Streams. Work in one stream runs in order; streams run beside each other.
///
/// The legacy default stream waits for all work in blocking streams of its device, and they wait for it. The two
/// default streams ([`Stream::legacy_default`], [`Stream::per_thread_default`]) always exist.
pub trait Streams {
    /// Makes a stream. Legal during capture.
    ///
    /// # Errors
    /// `InvalidValue` where there is no such device.
    fn stream_create(&self, device: DeviceId, options: StreamOptions) -> Result<Stream>;

    /// Destroys a stream made by [`stream_create`](Self::stream_create). Returns at once; work in it still finishes; a capture
    /// begun on it is gone.
    ///
    /// # Errors
    /// `InvalidHandle` where it does not exist (any more), is a default stream, or was adopted and so is not ours.
    fn stream_destroy(&self, stream: Stream) -> Result<()>;

    /// Makes a stream that somebody else made (`CUstream` value `raw`) known here. Adopting twice is no error; default
    /// streams need no adoption.
    ///
    /// # Safety
    /// `raw` is a live stream of `device` in the device's primary context, and stays alive until it was given to
    /// [`stream_forget`](Self::stream_forget) and calls that use it have returned.
    ///
    /// # Errors
    /// `InvalidHandle` where the driver can tell that there is no such stream.
    unsafe fn stream_adopt(&self, device: DeviceId, raw: u64) -> Result<Stream>;

    /// Forgets an adopted stream: its owner is about to destroy it.
    ///
    /// # Errors
    /// `InvalidHandle` where it was not adopted.
    fn stream_forget(&self, stream: Stream) -> Result<()>;

    /// Whether all work in the stream has finished.
    ///
    /// # Errors
    /// `InvalidHandle`; `IllegalInCapture` while a capture forbids it (also for another stream than the captured one), for a
    /// captured stream always; `DeviceLost`.
    fn stream_query(&self, stream: Stream) -> Result<bool>;

    /// Waits on the host until all work in the stream has finished.
    ///
    /// # Errors
    /// As [`stream_query`](Self::stream_query).
    fn stream_synchronize(&self, stream: Stream) -> Result<()>;

    /// Makes all later work in `stream` wait on the device for what `event` last recorded. An event that was never
    /// recorded is waited for not at all. Across devices too. In a capture this joins `stream` to the capture of the event.
    ///
    /// # Errors
    /// `InvalidHandle` where one of them does not exist; `IllegalInCapture` where the event was recorded in another
    /// capture than the one `stream` is in, or where `stream` is captured and the event was recorded outside (the captures are
    /// then lost); `InvalidValue` where the event was recorded in a capture that has ended.
    fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<()>;
}
