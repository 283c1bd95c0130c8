//! The legal ranges, in one place for the parser and the builder. PyTorch's where the setting is PyTorch's.

use std::borrow::Cow;

use super::Config;
use super::error::ConfigError;
use super::keys::Key;
use super::rounding::{LARGE_EXACT_MIN_BYTES, MIB};
use super::settings::AddressReserve;

/// How long the history is where it is on and nobody says.
pub const HISTORY_EVENTS_DEFAULT: u64 = 65_536;
/// The longest history: 2 GiB of host memory at 128 bytes an event.
pub const HISTORY_EVENTS_MAX: u64 = 1 << 24;
/// The largest cache of one thread.
pub const THREAD_CACHE_MAX_MB: u64 = 65_536;

const REGISTER_THREADS_MAX: u64 = 128;

/// The first setting out of its range, or in contradiction to another.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let settings = &config.settings;
    let refuse = |key: Key, legal: Cow<'static, str>| {
        let value = config.value_text(key);
        Err(ConfigError::BadValue { key: key.name(), value, legal, origin: config.origin(key) })
    };
    let keep = |legal: bool, key: Key| if legal { Ok(()) } else { refuse(key, key.legal().into()) };

    let segment_mb = settings.large_segment_size_mb;
    keep(segment_mb > LARGE_EXACT_MIN_BYTES / MIB, Key::LargeSegmentSizeMb)?;
    // Both bounds are the large segment size in force, not its default: a segment must itself be splittable.
    for (mb, key) in [
        (settings.max_split_size_mb, Key::MaxSplitSizeMb),
        (settings.max_non_split_rounding_mb, Key::MaxNonSplitRoundingMb),
    ] {
        if mb.is_some_and(|mb| mb < segment_mb) {
            return refuse(
                key,
                format!("a whole number of MiB from large_segment_size_mb ({segment_mb}) up").into(),
            );
        }
    }
    let threshold = settings.garbage_collection_threshold;
    keep(threshold.is_none_or(|share| share > 0.0 && share < 1.0), Key::GarbageCollectionThreshold)?;
    let fraction = settings.per_process_memory_fraction;
    keep((0.0..=1.0).contains(&fraction), Key::PerProcessMemoryFraction)?;
    keep(settings.memory_limit != Some(0), Key::MemoryLimit)?;
    keep(settings.thread_cache_mb <= THREAD_CACHE_MAX_MB, Key::ThreadCacheMb)?;
    keep(settings.history_events.is_none_or(|events| events <= HISTORY_EVENTS_MAX), Key::HistoryEvents)?;
    if settings.trace_malloc_mode && settings.history_events == Some(0) {
        return Err(ConfigError::Conflict {
            first: format!("{}:1", Key::TraceMallocMode.name()),
            second: format!("{}:0", Key::HistoryEvents.name()),
            origin: config.origin(Key::HistoryEvents),
        });
    }
    let reserve = settings.expandable_segments_reserve;
    keep(reserve.is_none_or(is_reserve), Key::ExpandableSegmentsReserve)?;
    let mut classes = settings.expandable_segments_reserve_by_class.iter();
    let legal = classes.all(|(class, reserve)| is_class(class) && is_reserve(*reserve));
    keep(legal, Key::ExpandableSegmentsReserveByClass)?;

    let threads = settings.host.register_threads;
    keep(threads.is_power_of_two() && threads <= REGISTER_THREADS_MAX, Key::PinnedNumRegisterThreads)?;
    keep(settings.host.reserve_segment_mb != Some(0), Key::PinnedReserveSegmentSizeMb)
}

fn is_reserve(reserve: AddressReserve) -> bool {
    reserve.number().is_finite() && reserve.number() > 0.0
}

/// A name that can be written into a settings string and read back.
fn is_class(class: &str) -> bool {
    !class.is_empty()
        && !class.contains([',', ':', '[', ']'])
        && !class.contains(|c: char| c.is_ascii_whitespace())
}
