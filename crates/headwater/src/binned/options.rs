//! What a pool is told when it is made.

use super::classes::ClassDivisions;
use crate::config::{Config, Key, Origin};

/// One thread may keep this part of the memory there is, whatever the options say: 8 GiB have room for 64 threads with 128 MiB
/// each. More would be collected from the threads by pressure again and again.
const THREAD_CACHE_SHARE: u64 = 64;

/// The settings of a [`Binned`](super::Binned) pool.
///
/// ```
/// use headwater::binned::{BinnedOptions, ClassDivisions};
/// let options = BinnedOptions { divisions: ClassDivisions::Four, limit_bytes: Some(8 << 30), ..Default::default() };
/// assert_eq!(options.thread_cache_bytes, 1 << 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinnedOptions {
    /// The most the pool may hold of the device's memory, never exceeded, not even for a moment. `None`: no limit but the
    /// device's.
    pub limit_bytes: Option<u64>,
    /// How fine size classes are.
    pub divisions: ClassDivisions,
    /// What one thread may keep of blocks that were given back, and one block more; never more than a 64th of the limit or of
    /// the device's memory. 0: every call takes its class's lock.
    ///
    /// The default, 1 GiB, is for threads that hold some hundred blocks of up to 16 MiB: what such a thread has free goes up
    /// and down by half a gigabyte, and with 256 MiB one call in a hundred had to go to the depot. Memory in a thread's cache
    /// is not lost to others: what it did not need between two looks is taken before the pool grows, and all of it under
    /// pressure, by `empty_cache` and when the thread ends.
    pub thread_cache_bytes: u64,
    /// Whether memory that another stream has finished with may serve a request before the pool grows.
    pub cross_stream_reuse: bool,
    /// Whether of two threads that give back the same block *in the same nanoseconds* exactly one is told that it worked.
    ///
    /// A second give-back that comes after the first is always refused, and the block is always taken back once. But a
    /// thread gives back its own blocks without an atomic exchange, which would cost as much as all the rest, so that an
    /// exchange of another thread in just that moment goes unseen and both are told `Ok`. With this set, the thread makes the
    /// exchange, off the quick path: to find who gives back what is not theirs.
    pub race_checks: bool,
}

impl Default for BinnedOptions {
    fn default() -> Self {
        Self {
            limit_bytes: None,
            divisions: ClassDivisions::One,
            thread_cache_bytes: 1 << 30,
            cross_stream_reuse: true,
            race_checks: false,
        }
    }
}

impl BinnedOptions {
    /// The same on a device of `total_bytes`.
    pub(super) fn on_device(self, total_bytes: u64) -> Self {
        let most = self.limit_bytes.unwrap_or(u64::MAX).min(total_bytes) / THREAD_CACHE_SHARE;
        Self { thread_cache_bytes: self.thread_cache_bytes.min(most), ..self }
    }

    /// The options that settings ask for, on a device of `total_bytes`: the limit, `cross_stream_reuse`, and `thread_cache_mb`
    /// where it was set. All else, the caching allocator's default for a thread's cache included, stays as it is here.
    ///
    /// ```
    /// use headwater::binned::BinnedOptions;
    /// use headwater::config::{Config, ConfigError};
    /// let options = BinnedOptions::from_config(&Config::parse("thread_cache_mb:64,cross_stream_reuse:False")?, 80 << 30);
    /// assert_eq!((options.thread_cache_bytes, options.cross_stream_reuse), (64 << 20, false));
    /// assert_eq!(BinnedOptions::from_config(&Config::default(), 80 << 30), BinnedOptions::default());
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn from_config(config: &Config, total_bytes: u64) -> Self {
        let default = Self::default();
        let thread_cache_bytes = match config.origin(Key::ThreadCacheMb) {
            Origin::Default => default.thread_cache_bytes,
            _ => config.thread_cache_bytes(),
        };
        Self {
            limit_bytes: config.limit_bytes(total_bytes),
            thread_cache_bytes,
            cross_stream_reuse: config.cross_stream_reuse(),
            ..default
        }
    }
}
