//! Settings as text: the canonical settings string, and the listing that `headwater info` prints.

use std::fmt;

use super::Config;
use super::error::Origin;
use super::keys::Key;
use super::settings::Backing;
use super::values::{write_bool, write_bytes, write_fill, write_reserve};

/// One setting of a [`Config`] as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The setting.
    pub key: Key,
    /// The value in force, as it would be written.
    pub value: String,
    /// Whether that is the default.
    pub is_default: bool,
    /// Where it came from.
    pub origin: Origin,
}

impl Config {
    /// Every setting, in the order of the documentation.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        Key::ALL.iter().map(|&key| Entry {
            key,
            value: self.value_text(key),
            is_default: self.is_default(key),
            origin: self.origin(key),
        })
    }

    /// The settings that differ from the default, in one fixed order and form: what [`Config::parse`] turns back into
    /// an equal configuration. Empty where nothing differs.
    pub fn to_settings_string(&self) -> String {
        // `expandable_segments` says what `backing` says, and `backend` has one value.
        let told = Key::ALL.iter().filter(|key| !matches!(key, Key::ExpandableSegments | Key::Backend));
        let told = told.filter(|key| !self.is_default(**key));
        told.map(|key| format!("{}:{}", key.name(), self.value_text(*key))).collect::<Vec<_>>().join(",")
    }

    fn is_default(&self, key: Key) -> bool {
        match key {
            // Their defaults follow other settings: only "nobody set it" is the default.
            Key::MaxNonSplitRoundingMb => self.settings.max_non_split_rounding_mb.is_none(),
            Key::HistoryEvents => self.settings.history_events.is_none(),
            _ => self.value_text(key) == key.default_text(),
        }
    }

    /// The value of `key` in force, as it would be written.
    pub fn value_text(&self, key: Key) -> String {
        let settings = &self.settings;
        let host = &settings.host;
        let or_word = |value: Option<String>, word: &str| value.unwrap_or_else(|| word.to_owned());
        let mb = |value: Option<u64>, word: &str| or_word(value.map(|mb| mb.to_string()), word);
        match key {
            Key::Backing => settings.backing.to_string(),
            Key::ExpandableSegments => match settings.backing {
                Backing::Auto => "auto".to_owned(),
                named => write_bool(named == Backing::Paged),
            },
            Key::CachingAllocator => write_bool(settings.caching_allocator),
            Key::Backend => "native".to_owned(),
            Key::MaxSplitSizeMb => mb(settings.max_split_size_mb, "unlimited"),
            Key::MaxNonSplitRoundingMb => {
                settings.max_non_split_rounding_mb.unwrap_or(settings.large_segment_size_mb).to_string()
            }
            Key::RoundupPower2Divisions => settings.roundup_power2_divisions.to_string(),
            Key::LargeSegmentSizeMb => settings.large_segment_size_mb.to_string(),
            Key::GarbageCollectionThreshold => {
                or_word(settings.garbage_collection_threshold.map(|share| share.to_string()), "off")
            }
            Key::PerProcessMemoryFraction => settings.per_process_memory_fraction.to_string(),
            Key::MemoryLimit => or_word(settings.memory_limit.map(write_bytes), "none"),
            Key::ThrowOnCudamallocOom => write_bool(settings.throw_on_cudamalloc_oom),
            Key::CrossStreamReuse => write_bool(settings.cross_stream_reuse),
            Key::GraphCaptureRecordStreamReuse => write_bool(settings.graph_capture_record_stream_reuse),
            Key::Shareable => write_bool(settings.shareable),
            Key::ThreadCacheMb => settings.thread_cache_mb.to_string(),
            Key::FillOnFree => write_fill(settings.fill_on_free),
            Key::TraceMallocMode => u8::from(settings.trace_malloc_mode).to_string(),
            Key::HistoryEvents => self.history_events().to_string(),
            Key::ReleaseLockOnCudamalloc => write_bool(settings.release_lock_on_cudamalloc),
            Key::ExpandableSegmentsReserve => {
                or_word(settings.expandable_segments_reserve.map(write_reserve), "unset")
            }
            Key::ExpandableSegmentsReserveByClass => {
                let classes = &settings.expandable_segments_reserve_by_class;
                if classes.is_empty() {
                    return "unset".to_owned();
                }
                let classes =
                    classes.iter().map(|(class, reserve)| format!("{class}:{}", write_reserve(*reserve)));
                format!("[{}]", classes.collect::<Vec<_>>().join(","))
            }
            Key::PinnedUseCudaHostRegister => write_bool(host.use_host_register),
            Key::PinnedNumRegisterThreads => host.register_threads.to_string(),
            Key::PinnedUseBackgroundThreads => write_bool(host.use_background_threads),
            Key::PinnedReserveSegmentSizeMb => mb(host.reserve_segment_mb, "off"),
            Key::PinnedFreeCatchAll => write_bool(host.free_catch_all),
            Key::PinnedMaxRoundThresholdMb => mb(host.max_round_threshold_mb, "unlimited"),
            Key::PinnedMaxCachedSizeMb => mb(host.max_cached_size_mb, "unlimited"),
        }
    }
}

/// A line per setting: its name, the value in force, the default where that differs, and where the value came from.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<Entry> = self.entries().collect();
        let keys = entries.iter().map(|entry| entry.key.name().len()).max().unwrap_or(0);
        let values = entries.iter().map(|entry| entry.value.len()).max().unwrap_or(0);
        for Entry { key, value, is_default, origin } in &entries {
            write!(f, "{:keys$}  {value:values$}  {origin}", key.name())?;
            if !is_default {
                write!(f, " (default {})", key.default_text())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
