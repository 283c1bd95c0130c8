//! From a settings string to settings: each item's key is looked up, its value read, its origin noted; then the whole
//! is checked.

use std::collections::BTreeMap;

use super::error::{ConfigError, Origin};
use super::grammar::{self, Item, Value};
use super::keys::Key;
use super::rounding::{RoundupBound, RoundupDivisions};
use super::settings::Backing;
use super::values::{
    read_backing, read_bool, read_bytes, read_fill, read_mb, read_number, read_or_word, read_reserve,
    read_whole,
};
use super::{Config, limits};

impl Config {
    /// The defaults, changed by the settings string `text`.
    ///
    /// # Errors
    /// Every [`ConfigError`] but `NotUnicode`.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_from(text, Origin::Code)
    }

    /// As [`parse`](Self::parse), for a text that came from `origin`.
    ///
    /// # Errors
    /// Every [`ConfigError`] but `NotUnicode`.
    pub fn parse_from(text: &str, origin: Origin) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.apply(text, origin)?;
        limits::check(&config)?;
        Ok(config)
    }

    /// Changes what `text` names; ranges are not checked yet.
    pub(super) fn apply(&mut self, text: &str, origin: Origin) -> Result<(), ConfigError> {
        // `backing` and `expandable_segments` are two names of one setting. A key given twice overrides itself; two
        // names that disagree are a mistake that an order of precedence would hide.
        let mut backing_named: BTreeMap<Key, Backing> = BTreeMap::new();
        for Item { key: name, value } in grammar::items(text, origin)? {
            let Some(key) = Key::from_name(&name) else {
                let suggestion = Key::closest_name(&name);
                return Err(ConfigError::UnknownKey { key: name, suggestion, origin });
            };
            if key == Key::Backend {
                check_backend(&value, origin)?;
            }
            if self.set(key, &value).is_none() {
                let legal = key.legal().into();
                return Err(ConfigError::BadValue {
                    key: key.name(),
                    value: value.to_string(),
                    legal,
                    origin,
                });
            }
            if matches!(key, Key::Backing | Key::ExpandableSegments) {
                backing_named.insert(key, self.settings.backing);
                self.origins.insert(Key::Backing, origin);
                self.origins.insert(Key::ExpandableSegments, origin);
            }
            self.origins.insert(key, origin);
        }
        match (backing_named.get(&Key::Backing), backing_named.get(&Key::ExpandableSegments)) {
            (Some(named), Some(expandable)) if named != expandable => Err(ConfigError::Conflict {
                first: format!("{}:{named}", Key::Backing.name()),
                second: format!(
                    "{}:{}",
                    Key::ExpandableSegments.name(),
                    if *expandable == Backing::Paged { "True" } else { "False" }
                ),
                origin,
            }),
            _ => Ok(()),
        }
    }

    /// Sets `key`, or answers `None` where `value` is no value of its kind.
    fn set(&mut self, key: Key, value: &Value) -> Option<()> {
        let settings = &mut self.settings;
        // The two settings that take lists first; every other one takes one word.
        match key {
            Key::RoundupPower2Divisions => {
                settings.roundup_power2_divisions = read_divisions(value)?;
                return Some(());
            }
            Key::ExpandableSegmentsReserveByClass => {
                settings.expandable_segments_reserve_by_class = match value {
                    Value::Word(word) => (word == "unset").then(BTreeMap::new)?,
                    Value::List(pairs) => {
                        let classes =
                            pairs.iter().map(|(class, word)| Some((class.clone(), read_reserve(word)?)));
                        classes.collect::<Option<_>>()?
                    }
                };
                return Some(());
            }
            _ => {}
        }
        let word = value.word()?;
        let host = &mut settings.host;
        match key {
            Key::RoundupPower2Divisions | Key::ExpandableSegmentsReserveByClass => return None,
            Key::Backing => settings.backing = read_backing(word)?,
            Key::ExpandableSegments => {
                settings.backing = if read_bool(word)? { Backing::Paged } else { Backing::Classic };
            }
            Key::CachingAllocator => settings.caching_allocator = read_bool(word)?,
            Key::Backend => (word == "native").then_some(())?,
            Key::MaxSplitSizeMb => settings.max_split_size_mb = read_or_word(word, "unlimited", read_mb)?,
            Key::MaxNonSplitRoundingMb => settings.max_non_split_rounding_mb = Some(read_mb(word)?),
            Key::LargeSegmentSizeMb => settings.large_segment_size_mb = read_mb(word)?,
            Key::GarbageCollectionThreshold => {
                settings.garbage_collection_threshold = read_or_word(word, "off", read_number)?;
            }
            Key::PerProcessMemoryFraction => settings.per_process_memory_fraction = read_number(word)?,
            Key::MemoryLimit => settings.memory_limit = read_or_word(word, "none", read_bytes)?,
            Key::ThrowOnCudamallocOom => settings.throw_on_cudamalloc_oom = read_bool(word)?,
            Key::CrossStreamReuse => settings.cross_stream_reuse = read_bool(word)?,
            Key::GraphCaptureRecordStreamReuse => {
                settings.graph_capture_record_stream_reuse = read_bool(word)?
            }
            Key::Shareable => settings.shareable = read_bool(word)?,
            Key::ThreadCacheMb => settings.thread_cache_mb = read_mb(word)?,
            Key::FillOnFree => settings.fill_on_free = read_fill(word)?,
            Key::TraceMallocMode => {
                settings.trace_malloc_mode = match word {
                    "0" => false,
                    "1" => true,
                    _ => return None,
                };
            }
            Key::HistoryEvents => settings.history_events = Some(read_whole(word)?),
            Key::ReleaseLockOnCudamalloc => settings.release_lock_on_cudamalloc = read_bool(word)?,
            Key::ExpandableSegmentsReserve => {
                settings.expandable_segments_reserve = read_or_word(word, "unset", read_reserve)?;
            }
            Key::PinnedUseCudaHostRegister => host.use_host_register = read_bool(word)?,
            Key::PinnedNumRegisterThreads => host.register_threads = read_whole(word)?,
            Key::PinnedUseBackgroundThreads => host.use_background_threads = read_bool(word)?,
            Key::PinnedReserveSegmentSizeMb => host.reserve_segment_mb = read_or_word(word, "off", read_mb)?,
            Key::PinnedFreeCatchAll => host.free_catch_all = read_bool(word)?,
            Key::PinnedMaxRoundThresholdMb => {
                host.max_round_threshold_mb = read_or_word(word, "unlimited", read_mb)?;
            }
            Key::PinnedMaxCachedSizeMb => host.max_cached_size_mb = read_or_word(word, "unlimited", read_mb)?,
        }
        Some(())
    }
}

/// The driver's own pool cannot be had behind these settings: it keeps no statistics, limits or history that they
/// could govern.
fn check_backend(value: &Value, origin: Origin) -> Result<(), ConfigError> {
    match value.word() {
        Some(word @ ("cudaMallocAsync" | "hipMallocAsync")) => Err(ConfigError::Unsupported {
            key: Key::Backend.name(),
            value: word.to_owned(),
            instead: "use backend:native with backing:paged, which shares memory between streams as the driver's pool \
                      does, or caching_allocator:False to go to the driver every time",
            origin,
        }),
        _ => Ok(()),
    }
}

fn read_divisions(value: &Value) -> Option<RoundupDivisions> {
    match value {
        Value::Word(word) if word == "off" => Some(RoundupDivisions::OFF),
        Value::Word(word) => RoundupDivisions::uniform(read_whole(word)?).ok(),
        Value::List(pairs) => {
            let rules = pairs.iter().map(|(bound, divisions)| {
                let bound = match bound.as_str() {
                    ">" => RoundupBound::Rest,
                    mib => RoundupBound::Mib(read_whole(mib)?),
                };
                Some((bound, read_whole(divisions)?))
            });
            RoundupDivisions::by_interval(&rules.collect::<Option<Vec<_>>>()?).ok()
        }
    }
}
