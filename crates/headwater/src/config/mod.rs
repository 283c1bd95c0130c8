//! Configuration: every setting of the allocators, its legal values, and where it came from.
//!
//! Settings come from a builder in code ([`Config::builder`]) or from the environment ([`Config::from_env`]) as
//! `key:value,key:value`, in PyTorch's grammar. Of the variables `HEADWATER_ALLOC_CONF`, `PYTORCH_CUDA_ALLOC_CONF`,
//! `PYTORCH_ALLOC_CONF` and `PYXSIGMA_CUDA_ALLOC_CONF` the first that is set is read, and it alone (set but empty
//! counts: it means "nothing but defaults"). Keys that appear twice: the later one holds. An unknown key, a bad value
//! or a contradiction is a [`ConfigError`], and nothing is in force.
//!
//! `_mb` counts MiB, as in PyTorch. Booleans are exactly `True` and `False`, as in PyTorch. "since" is the PyTorch
//! release (2.6: or before), `xsigma` for the settings of that library's allocator, `Headwater` for our own; all are
//! accepted from every variable.
//!
//! | key | since | default | legal | effect |
//! |---|---|---|---|---|
//! | `backing` | Headwater | auto | `classic`, `paged`, `auto` | plain segments, a virtual arena, or an arena where the device can |
//! | `expandable_segments` | 2.6 | auto | `True`, `False` | PyTorch's name for it: `True` is `paged`, `False` is `classic` |
//! | `caching_allocator` | xsigma | True | `True`, `False` | `False`: every request goes straight to the driver |
//! | `backend` | 2.6 | native | `native` | none; `cudaMallocAsync` is refused with advice |
//! | `max_split_size_mb` | 2.6 | unlimited | ≥ `large_segment_size_mb` | blocks of this size and more are never split |
//! | `max_non_split_rounding_mb` | 2.6 | 20 | ≥ `large_segment_size_mb`, its default | slack when such a block is reused |
//! | `roundup_power2_divisions` | 2.6 | off | 2^n, or `[256:1,512:2,>:4]` | sizes are rounded to a share of a power of two |
//! | `large_segment_size_mb` | 2.11 | 20 | > 10 | the segment for large blocks below 10 MiB |
//! | `garbage_collection_threshold` | 2.6 | off | in (0, 1) | share of the limit above which old cached segments go; needs a limit; `classic` only |
//! | `per_process_memory_fraction` | 2.10 | 1 | in \[0, 1\] | limit, as a share of the device's memory |
//! | `memory_limit` | Headwater | none | > 0, `K` `M` `G` `T` | limit in bytes; the smaller of both holds |
//! | `throw_on_cudamalloc_oom` | 2.12 | False | `True`, `False` | beyond the limit: fail at once, no retries |
//! | `cross_stream_reuse` | Headwater | True | `True`, `False` | finished memory of another stream may serve a request |
//! | `graph_capture_record_stream_reuse` | 2.9 | False | `True`, `False` | the capture is asked in which order its streams are; `GraphAllocator::order_streams` says it without |
//! | `shareable` | Headwater | False | `True`, `False` | any block can be exported to other processes; every handle then costs more; `paged` only; `allocate_shareable` needs no setting |
//! | `thread_cache_mb` | Headwater | 8 | 0 to 65536 | what a thread keeps of given back blocks; 0: nothing; `classic`: only where it is set |
//! | `fill_on_free` | Headwater | none | `none`, `zero`, `0xA5` | overwrite before anyone else gets the memory |
//! | `trace_malloc_mode` | xsigma | 0 | `0`, `1` | 1: record a history of events (65536 of them) |
//! | `history_events` | Headwater | 0 | 0 to 16777216 | how many of the latest events are kept |
//! | `release_lock_on_cudamalloc` | 2.6 | False | `True`, `False` | none: no lock is held across a driver call |
//! | `expandable_segments_reserve` | 2.15 | unset | > 0, share or `40G` | addresses reserved for an arena; at most 9/8 of the memory |
//! | `expandable_segments_reserve_by_class` | 2.15 | unset | `[name:0.5,name:40G]` | the same for streams of a class |
//! | `pinned_use_cuda_host_register` | 2.6 | False | `True`, `False` | no effect yet (host tier): pin ordinary memory in place |
//! | `pinned_num_register_threads` | 2.6 | 1 | 2^n ≤ 128 | no effect yet (host tier): threads that touch pages first |
//! | `pinned_use_background_threads` | 2.6 | False | `True`, `False` | no effect yet (host tier): notice finished uses in a thread |
//! | `pinned_reserve_segment_size_mb` | 2.10 | off | > 0 | no effect yet (host tier): a segment pinned once, for small blocks |
//! | `pinned_free_catch_all` | 2.12 | False | `True`, `False` | no effect yet (host tier): a failed give-back is counted, not returned |
//! | `pinned_max_round_threshold_mb` | 2.13 | unlimited | ≥ 0 | no effect yet (host tier): larger blocks are not rounded to 2^n |
//! | `pinned_max_cached_size_mb` | 2.13 | unlimited | ≥ 0 | no effect yet (host tier): larger blocks are not cached |
//!
//! Where the default is a word, the word is also accepted as a value. `release_lock_on_hipmalloc` and
//! `pinned_use_hip_host_register` are accepted for their `cuda` names. One difference to PyTorch on purpose: a bad
//! `expandable_segments_reserve` is an error here, and a warning there.
//!
//! ```
//! use headwater::config::{Backing, Config, MIB};
//! let config = Config::parse("max_split_size_mb:256, expandable_segments:False, memory_limit:40G")?;
//! assert_eq!(config.max_split_bytes(), Some(256 * MIB));
//! assert_eq!(config.backing(), Backing::Classic);
//! assert_eq!(config.limit_bytes(80 << 30), Some(40 << 30));
//! assert_eq!(Config::parse(&config.to_settings_string())?, config);
//! # Ok::<(), headwater::config::ConfigError>(())
//! ```

mod builder;
mod environment;
mod error;
mod grammar;
mod keys;
mod limits;
mod listing;
mod parse;
mod rounding;
mod settings;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;

pub use builder::ConfigBuilder;
pub use environment::VARIABLES;
pub use error::{ConfigError, Origin};
pub use keys::Key;
pub use limits::{HISTORY_EVENTS_DEFAULT, HISTORY_EVENTS_MAX, THREAD_CACHE_MAX_MB};
pub use listing::Entry;
pub use rounding::{
    LARGE_EXACT_MIN_BYTES, LARGE_SEGMENT_DEFAULT_BYTES, LARGE_SEGMENT_UNIT_BYTES, MAX_REQUEST_BYTES, MIB,
    MIN_BLOCK_BYTES, ROUNDUP_INTERVALS, RoundupBound, RoundupDivisions, SMALL_POOL_MAX_BYTES,
    SMALL_SEGMENT_BYTES, is_small, round_size, segment_bytes,
};
use settings::Settings;
pub use settings::{AddressReserve, Backing, FillOnFree, HostSettings};

/// A checked configuration. Two are equal where all settings are, wherever they came from.
#[derive(Clone, Debug, Default)]
pub struct Config {
    settings: Settings,
    /// Of the settings that somebody set.
    origins: BTreeMap<Key, Origin>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl Config {
    /// A builder that starts from the defaults.
    pub fn builder() -> ConfigBuilder {
        Self::default().to_builder()
    }

    /// A builder that starts from this configuration.
    pub fn to_builder(&self) -> ConfigBuilder {
        ConfigBuilder::new(self.clone())
    }

    /// PyTorch's allocator, exactly: classic backing, no reuse across streams and no thread caches, all else as by
    /// default. A replay of what a PyTorch program asked for then reserves what PyTorch reserved.
    pub fn pytorch_rules() -> Self {
        let mut config = Self::default().with_backing(Backing::Classic);
        config.settings.cross_stream_reuse = false;
        config.settings.thread_cache_mb = 0;
        for key in [Key::CrossStreamReuse, Key::ThreadCacheMb] {
            config.origins.insert(key, Origin::Code);
        }
        config
    }

    /// The same settings with another backing.
    #[must_use]
    pub fn with_backing(mut self, backing: Backing) -> Self {
        self.settings.backing = backing;
        for key in [Key::Backing, Key::ExpandableSegments] {
            self.origins.insert(key, Origin::Code);
        }
        self
    }

    /// Where blocks come from.
    pub fn backing(&self) -> Backing {
        self.settings.backing
    }

    /// Whether blocks are cached at all; if not, every request goes straight to the driver.
    pub fn caching(&self) -> bool {
        self.settings.caching_allocator
    }

    /// Blocks of this size and more are never split. `None`: all may be.
    pub fn max_split_bytes(&self) -> Option<u64> {
        self.settings.max_split_size_mb.map(|mb| mb * MIB)
    }

    /// A request of at least [`max_split_bytes`](Self::max_split_bytes) takes no cached block that is larger by this
    /// or more.
    pub fn max_non_split_rounding_bytes(&self) -> u64 {
        self.settings.max_non_split_rounding_mb.unwrap_or(self.settings.large_segment_size_mb) * MIB
    }

    /// How sizes are rounded towards powers of two.
    pub fn roundup_divisions(&self) -> &RoundupDivisions {
        &self.settings.roundup_power2_divisions
    }

    /// The segment for large blocks below [`LARGE_EXACT_MIN_BYTES`].
    pub fn large_segment_bytes(&self) -> u64 {
        self.settings.large_segment_size_mb * MIB
    }

    /// The block size for a request of `bytes`: [`round_size`] with these settings.
    pub fn round_size(&self, bytes: u64) -> u64 {
        round_size(bytes, &self.settings.roundup_power2_divisions)
    }

    /// The segment for a block of `block_bytes`: [`segment_bytes`] with these settings.
    pub fn segment_bytes(&self, block_bytes: u64) -> u64 {
        segment_bytes(block_bytes, self.large_segment_bytes())
    }

    /// Above this share of the limit, cached segments that were not reused for long are released. `None`: never.
    pub fn garbage_collection_threshold(&self) -> Option<f64> {
        self.settings.garbage_collection_threshold
    }

    /// The share of the device's memory that may be reserved.
    pub fn memory_fraction(&self) -> f64 {
        self.settings.per_process_memory_fraction
    }

    /// The limit given in bytes.
    pub fn memory_limit_bytes(&self) -> Option<u64> {
        self.settings.memory_limit
    }

    /// The limit in force on a device with `total_bytes` of memory: the smaller of both limits. `None`: no limit but
    /// the device's.
    pub fn limit_bytes(&self, total_bytes: u64) -> Option<u64> {
        let fraction = self.settings.per_process_memory_fraction;
        // A fraction of 1 is no limit (PyTorch's rule). The product is rounded down; `as` saturates.
        let by_fraction = (fraction < 1.0).then_some((fraction * total_bytes as f64) as u64);
        match (by_fraction, self.settings.memory_limit) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Whether a request beyond the limit fails at once, without retries.
    pub fn throw_on_cudamalloc_oom(&self) -> bool {
        self.settings.throw_on_cudamalloc_oom
    }

    /// Whether finished memory of another stream may serve a request.
    pub fn cross_stream_reuse(&self) -> bool {
        self.settings.cross_stream_reuse
    }

    /// Whether blocks given back during a capture may be reused in it.
    pub fn graph_capture_record_stream_reuse(&self) -> bool {
        self.settings.graph_capture_record_stream_reuse
    }

    /// Whether any block can be exported to other processes ([`sharing`](crate::sharing)).
    pub fn shareable(&self) -> bool {
        self.settings.shareable
    }

    /// What one thread may keep of recently given back blocks, per device. 0: no thread caches. In front of the classic backing
    /// they are used only where somebody set this: by default that backing stands for PyTorch's allocator.
    pub fn thread_cache_bytes(&self) -> u64 {
        self.settings.thread_cache_mb * MIB
    }

    /// What memory is overwritten with before anyone else gets it.
    pub fn fill_on_free(&self) -> FillOnFree {
        self.settings.fill_on_free
    }

    /// How many of the latest events are kept. 0: history is off.
    pub fn history_events(&self) -> u64 {
        let by_mode = if self.settings.trace_malloc_mode { HISTORY_EVENTS_DEFAULT } else { 0 };
        self.settings.history_events.unwrap_or(by_mode)
    }

    /// The addresses to reserve for an arena on a device with `total_bytes` of memory, for streams of `class` (or of
    /// none). 9/8 of the memory where nothing is set, and never more: no block can be larger than the memory behind
    /// it.
    pub fn address_reserve_bytes(&self, class: Option<&str>, total_bytes: u64) -> u64 {
        let whole = total_bytes.saturating_add(total_bytes / 8);
        let settings = &self.settings;
        let of_class = class.and_then(|class| settings.expandable_segments_reserve_by_class.get(class));
        let reserve = of_class.or(settings.expandable_segments_reserve.as_ref());
        reserve.map_or(whole, |reserve| reserve.bytes(total_bytes).min(whole))
    }

    /// The settings of pinned host memory. They have effect in the host tier only.
    pub fn host(&self) -> &HostSettings {
        &self.settings.host
    }

    /// Where the value of `key` came from.
    pub fn origin(&self, key: Key) -> Origin {
        self.origins.get(&key).copied().unwrap_or_default()
    }
}
