//! What private pools of graphs ask of the caching allocator that they share a limit and a device with.

use headwater_driver::Stream;

use super::CachingAllocator;

impl CachingAllocator {
    /// What the driver gave, and what it is being asked for at this moment: both count under the limit. One number under one lock,
    /// so that a limit that was lowered a moment ago is exceeded by nothing that is not in it.
    pub(crate) fn held_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.core.stats().reserved_bytes.all.current.saturating_add(state.core.promised_bytes())
    }

    /// `stream` is about to be captured. No event can be recorded on it then, so what it has given back could not be known to
    /// have finished until the capture ends, and could not make way for the graph's own memory. One is recorded now.
    pub(crate) fn expect_capture(&self, stream: Stream) {
        if !self.is_paged {
            // The driver's plain free waits by itself.
            return;
        }
        self.collect();
        let tag = self.state.lock().core.tags().find(stream);
        if let Some(tag) = tag {
            // Without it that memory stays until the capture has ended, which is safe.
            let _ = self.mark_stream(tag);
        }
    }
}
