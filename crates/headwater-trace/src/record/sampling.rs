//! Recording a part only, for programs that ask for memory millions of times a second.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which requests are recorded. What is not, is as if it had never happened: live bytes and peaks of a sampled trace are
/// those of the recorded blocks alone, and the header's `sampling` says so. The figures the allocator reports of itself
/// at the end are whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sampling {
    /// All of them.
    #[default]
    All,
    /// The first, and then every n-th. 0 and 1 are all.
    EveryNth(u64),
    /// One for every so many bytes asked for: requests of this size and more always, smaller ones in proportion to their
    /// size. 0 is all.
    EveryBytes(u64),
}

impl Sampling {
    /// As the header of a trace has it; `None` for all.
    pub(super) fn describe(self) -> Option<String> {
        match self {
            Self::All | Self::EveryNth(0 | 1) | Self::EveryBytes(0) => None,
            Self::EveryNth(n) => Some(format!("every {n}th request")),
            Self::EveryBytes(bytes) => Some(format!("one request for every {bytes} bytes")),
        }
    }
}

/// Decides, request by request.
#[derive(Debug)]
pub(super) struct Sampler {
    sampling: Sampling,
    /// Requests, or bytes, seen so far.
    seen: AtomicU64,
}

impl Sampler {
    pub(super) fn new(sampling: Sampling) -> Self {
        Self { sampling, seen: AtomicU64::new(0) }
    }

    /// Whether a request of `bytes` is recorded.
    #[inline]
    pub(super) fn takes(&self, bytes: u64) -> bool {
        // Relaxed: the count orders nothing.
        match self.sampling {
            Sampling::All | Sampling::EveryNth(0 | 1) | Sampling::EveryBytes(0) => true,
            Sampling::EveryNth(n) => self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(n),
            Sampling::EveryBytes(step) => {
                let before = self.seen.fetch_add(bytes, Ordering::Relaxed);
                before.wrapping_add(bytes) / step != before / step
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(sampling: Sampling, sizes: &[u64]) -> Vec<u64> {
        let sampler = Sampler::new(sampling);
        sizes.iter().copied().filter(|bytes| sampler.takes(*bytes)).collect()
    }

    #[test]
    fn every_nth_request_is_taken_whatever_its_size() {
        assert_eq!(taken(Sampling::EveryNth(3), &[1, 2, 3, 4, 5, 6, 7]), [1, 4, 7]);
        assert_eq!(taken(Sampling::EveryNth(0), &[1, 2]), [1, 2]);
    }

    #[test]
    fn large_requests_are_always_taken_and_small_ones_by_their_bytes() {
        assert_eq!(taken(Sampling::EveryBytes(100), &[100, 350, 100]), [100, 350, 100]);
        assert_eq!(taken(Sampling::EveryBytes(100), &[40; 10]).len(), 4);
    }
}
