//! Settings from code: a setter per key, of the key's name, and one check at the end.

use std::collections::BTreeMap;

use super::error::{ConfigError, Origin};
use super::keys::Key;
use super::rounding::RoundupDivisions;
use super::settings::{AddressReserve, Backing, FillOnFree};
use super::values::MAX_MB;
use super::{Config, limits};

/// Builds a [`Config`] in code. Setters have the names and units of the keys; [`build`](Self::build) checks the
/// whole.
///
/// ```
/// use headwater::config::{Backing, Config, FillOnFree};
/// let config = Config::builder()
///     .backing(Backing::Classic)
///     .max_split_size_mb(256)
///     .memory_limit(40 << 30)
///     .fill_on_free(FillOnFree::Pattern(0xA5))
///     .build()?;
/// assert_eq!(
///     config.to_settings_string(),
///     "backing:classic,max_split_size_mb:256,memory_limit:40G,fill_on_free:0xA5"
/// );
/// # Ok::<(), headwater::config::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is in force before `build`"]
pub struct ConfigBuilder {
    config: Config,
}

/// A setter that stores its argument as it is, or as `Some`, or through a function.
macro_rules! setters {
    ($(
        $(#[$doc:meta])*
        $setter:ident($argument:ident: $type:ty) $key:ident => $($field:ident).+ = $value:expr;
    )*) => {
        impl ConfigBuilder {
            $($(#[$doc])* pub fn $setter(mut self, $argument: $type) -> Self {
                self.config.settings.$($field).+ = $value;
                self.config.origins.insert(Key::$key, Origin::Code);
                self
            })*
        }
    };
}

setters! {
    /// Whether blocks are cached at all.
    caching_allocator(on: bool) CachingAllocator => caching_allocator = on;
    /// Blocks of this size and more are never split.
    max_split_size_mb(mb: u64) MaxSplitSizeMb => max_split_size_mb = Some(mb.min(MAX_MB));
    /// How much larger than the request a block that may not be split can be.
    max_non_split_rounding_mb(mb: u64) MaxNonSplitRoundingMb =>
        max_non_split_rounding_mb = Some(mb.min(MAX_MB));
    /// How sizes are rounded towards powers of two.
    roundup_power2_divisions(divisions: RoundupDivisions) RoundupPower2Divisions =>
        roundup_power2_divisions = divisions;
    /// The segment for large blocks below 10 MiB.
    large_segment_size_mb(mb: u64) LargeSegmentSizeMb => large_segment_size_mb = mb.min(MAX_MB);
    /// Above this share of the limit, old cached segments are released.
    garbage_collection_threshold(share: f64) GarbageCollectionThreshold =>
        garbage_collection_threshold = Some(share);
    /// At most this share of the device's memory is reserved.
    per_process_memory_fraction(share: f64) PerProcessMemoryFraction => per_process_memory_fraction = share;
    /// At most this many bytes are reserved.
    memory_limit(bytes: u64) MemoryLimit => memory_limit = Some(bytes);
    /// Whether a request beyond the limit fails at once.
    throw_on_cudamalloc_oom(on: bool) ThrowOnCudamallocOom => throw_on_cudamalloc_oom = on;
    /// Whether finished memory of another stream may serve a request.
    cross_stream_reuse(on: bool) CrossStreamReuse => cross_stream_reuse = on;
    /// Whether blocks given back during a capture may be reused in it.
    graph_capture_record_stream_reuse(on: bool) GraphCaptureRecordStreamReuse =>
        graph_capture_record_stream_reuse = on;
    /// Whether any block can be exported to other processes.
    shareable(on: bool) Shareable => shareable = on;
    /// What one thread keeps of recently given back blocks.
    thread_cache_mb(mb: u64) ThreadCacheMb => thread_cache_mb = mb.min(MAX_MB);
    /// What given back memory is overwritten with.
    fill_on_free(fill: FillOnFree) FillOnFree => fill_on_free = fill;
    /// Whether a history of events is recorded.
    trace_malloc_mode(on: bool) TraceMallocMode => trace_malloc_mode = on;
    /// How many of the latest events are kept.
    history_events(events: u64) HistoryEvents => history_events = Some(events);
    /// No effect; see the module.
    release_lock_on_cudamalloc(on: bool) ReleaseLockOnCudamalloc => release_lock_on_cudamalloc = on;
    /// Addresses reserved for an arena.
    expandable_segments_reserve(reserve: AddressReserve) ExpandableSegmentsReserve =>
        expandable_segments_reserve = Some(reserve);
    /// Addresses reserved for an arena, by class of stream.
    expandable_segments_reserve_by_class(classes: BTreeMap<String, AddressReserve>)
        ExpandableSegmentsReserveByClass =>
        expandable_segments_reserve_by_class = classes;
    /// Host tier: pin ordinary memory in place.
    pinned_use_cuda_host_register(on: bool) PinnedUseCudaHostRegister => host.use_host_register = on;
    /// Host tier: threads that touch pages before they are pinned.
    pinned_num_register_threads(threads: u64) PinnedNumRegisterThreads => host.register_threads = threads;
    /// Host tier: notice finished uses in a thread of its own.
    pinned_use_background_threads(on: bool) PinnedUseBackgroundThreads => host.use_background_threads = on;
    /// Host tier: a segment pinned once, for small blocks.
    pinned_reserve_segment_size_mb(mb: u64) PinnedReserveSegmentSizeMb =>
        host.reserve_segment_mb = Some(mb.min(MAX_MB));
    /// Host tier: a failed give-back is counted, not returned.
    pinned_free_catch_all(on: bool) PinnedFreeCatchAll => host.free_catch_all = on;
    /// Host tier: larger blocks are not rounded to powers of two.
    pinned_max_round_threshold_mb(mb: u64) PinnedMaxRoundThresholdMb =>
        host.max_round_threshold_mb = Some(mb.min(MAX_MB));
    /// Host tier: larger blocks are not cached.
    pinned_max_cached_size_mb(mb: u64) PinnedMaxCachedSizeMb =>
        host.max_cached_size_mb = Some(mb.min(MAX_MB));
}

impl ConfigBuilder {
    pub(super) fn new(config: Config) -> Self {
        Self { config }
    }

    /// Where blocks come from. Also what `expandable_segments` says.
    pub fn backing(mut self, backing: Backing) -> Self {
        self.config.settings.backing = backing;
        for key in [Key::Backing, Key::ExpandableSegments] {
            self.config.origins.insert(key, Origin::Code);
        }
        self
    }

    /// Everything a settings string says.
    ///
    /// # Errors
    /// `Malformed`, `UnknownKey`, `Unsupported`, `Conflict`, and `BadValue` for what is no value of its kind. Ranges
    /// are checked by [`build`](Self::build).
    pub fn settings(mut self, text: &str) -> Result<Self, ConfigError> {
        self.config.apply(text, Origin::Code)?;
        Ok(self)
    }

    /// The configuration.
    ///
    /// # Errors
    /// `BadValue` for a value out of its range; `Conflict` for two that contradict each other.
    pub fn build(self) -> Result<Config, ConfigError> {
        limits::check(&self.config)?;
        Ok(self.config)
    }
}
