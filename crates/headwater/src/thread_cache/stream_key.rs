//! Streams as caches tell them apart.
//!
//! A block belongs to a stream, and a stream is a number: CUDA's own. With one exception: the per-thread default stream has
//! one number in all threads and is another stream in each, so here it gets the number of the thread as well.

use headwater_driver::{DeviceId, Stream};

/// A number for a stream. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamKey(pub(crate) u64);

/// Set where the rest is the number of a thread. Streams are addresses or small numbers, and have it not.
const OF_THREAD: u64 = 1 << 63;

impl StreamKey {
    /// The key of `stream` as the thread with the number `thread` sees it.
    #[inline(always)]
    pub(crate) fn new(stream: Stream, thread: u64) -> Self {
        if stream.is_per_thread_default() { Self(OF_THREAD | thread) } else { Self(stream.raw()) }
    }

    /// The stream, as its own thread sees it.
    pub(crate) fn stream(self, device: DeviceId) -> Stream {
        if self.0 & OF_THREAD != 0 {
            Stream::per_thread_default(device)
        } else {
            Stream::from_raw(device, self.0)
        }
    }

    /// The thread whose default stream it is, where it is one.
    pub(crate) fn thread(self) -> Option<u64> {
        (self.0 & OF_THREAD != 0).then_some(self.0 & !OF_THREAD)
    }

    /// Whether the thread with the number `thread` can name the stream to the driver.
    pub(crate) fn is_known_in(self, thread: u64) -> bool {
        self.0 & OF_THREAD == 0 || self.0 == OF_THREAD | thread
    }
}
