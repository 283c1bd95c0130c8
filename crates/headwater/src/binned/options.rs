//! What a pool is told when it is made.

use super::classes::ClassDivisions;

/// The settings of a [`Binned`](super::Binned) pool.
///
/// ```
/// use headwater::binned::{BinnedOptions, ClassDivisions};
/// let options = BinnedOptions { divisions: ClassDivisions::Four, limit_bytes: Some(8 << 30), ..Default::default() };
/// assert_eq!(options.thread_cache_bytes, 256 << 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinnedOptions {
    /// The most the pool may hold of the device's memory, never exceeded, not even for a moment. `None`: no limit but the
    /// device's.
    pub limit_bytes: Option<u64>,
    /// How fine size classes are.
    pub divisions: ClassDivisions,
    /// What one thread may keep of blocks that were given back, and one block more. Threads that keep blocks they do not need
    /// lose them before the pool grows. 0: every call takes its class's lock.
    pub thread_cache_bytes: u64,
    /// Whether memory that another stream has finished with may serve a request before the pool grows.
    pub cross_stream_reuse: bool,
}

impl Default for BinnedOptions {
    fn default() -> Self {
        Self {
            limit_bytes: None,
            divisions: ClassDivisions::One,
            thread_cache_bytes: 256 << 20,
            cross_stream_reuse: true,
        }
    }
}
