//! The settings by name: one table behind the parser, the error messages, the listing and the documentation.

macro_rules! keys {
    ($(
        $variant:ident $name:literal since $since:literal default $default:literal
            legal $legal:literal
            $effect:literal;
    )*) => {
        /// A setting. Its documentation is the table of [the module](super).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Key {
            $(#[doc = concat!("`", $name, "`: ", $effect)] $variant,)*
        }

        impl Key {
            /// Every setting, in the order of the documentation.
            pub const ALL: &'static [Key] = &[$(Key::$variant,)*];

            /// Its name in a settings string.
            pub const fn name(self) -> &'static str {
                match self { $(Key::$variant => $name,)* }
            }

            /// The PyTorch release that brought it, or who did.
            pub const fn since(self) -> &'static str {
                match self { $(Key::$variant => $since,)* }
            }

            /// Its value where nobody sets it.
            pub const fn default_text(self) -> &'static str {
                match self { $(Key::$variant => $default,)* }
            }

            /// Its legal values, in words.
            pub const fn legal(self) -> &'static str {
                match self { $(Key::$variant => $legal,)* }
            }

            /// What it does.
            pub const fn effect(self) -> &'static str {
                match self { $(Key::$variant => $effect,)* }
            }
        }
    };
}

keys! {
    Backing "backing" since "Headwater" default "auto"
        legal "classic, paged or auto"
        "where blocks come from: plain segments, a virtual arena, or an arena where the device can";
    ExpandableSegments "expandable_segments" since "2.6" default "auto"
        legal "True or False"
        "PyTorch's name for `backing`: True is `paged`, False is `classic`";
    CachingAllocator "caching_allocator" since "xsigma" default "True"
        legal "True or False"
        "False sends every request straight to the driver";
    Backend "backend" since "2.6" default "native"
        legal "native"
        "kept so that set-ups carry over; the driver's own pool is not offered";
    MaxSplitSizeMb "max_split_size_mb" since "2.6" default "unlimited"
        legal "unlimited, or a whole number of MiB from large_segment_size_mb (20) up"
        "blocks of this size and more are never split";
    MaxNonSplitRoundingMb "max_non_split_rounding_mb" since "2.6" default "20"
        legal "a whole number of MiB from large_segment_size_mb (20) up"
        "how much larger than the request a block that may not be split can be";
    RoundupPower2Divisions "roundup_power2_divisions" since "2.6" default "off"
        legal "off, a power of two, or a list such as [256:1,512:2,>:4] of MiB and steps, all powers of two (steps may be 0)"
        "round sizes up to a share of the power of two below them";
    LargeSegmentSizeMb "large_segment_size_mb" since "2.11" default "20"
        legal "a whole number of MiB above 10"
        "the segment for large blocks below 10 MiB";
    GarbageCollectionThreshold "garbage_collection_threshold" since "2.6" default "off"
        legal "off, or a number above 0 and below 1"
        "above this share of the limit the least recently reused cached segments are released; needs a limit";
    PerProcessMemoryFraction "per_process_memory_fraction" since "2.10" default "1"
        legal "a number from 0 to 1"
        "at most this share of the device's memory is reserved";
    MemoryLimit "memory_limit" since "Headwater" default "none"
        legal "none, or bytes above 0 with an optional K, M, G or T (1024 based), such as 40G"
        "at most this much is reserved; the smaller of both limits holds";
    ThrowOnCudamallocOom "throw_on_cudamalloc_oom" since "2.12" default "False"
        legal "True or False"
        "a request beyond the limit fails at once, without the ladder of retries; needs a limit";
    CrossStreamReuse "cross_stream_reuse" since "Headwater" default "True"
        legal "True or False"
        "finished memory of another stream may serve a request before the driver is asked";
    GraphCaptureRecordStreamReuse "graph_capture_record_stream_reuse" since "2.9" default "False"
        legal "True or False"
        "accepted, no effect yet: GraphAllocator::order_streams lets memory pass between streams of a capture";
    Shareable "shareable" since "Headwater" default "False"
        legal "True or False"
        "any block can be exported to other processes (paged), at a higher cost of every handle; allocate_shareable needs no setting";
    ThreadCacheMb "thread_cache_mb" since "Headwater" default "8"
        legal "a whole number of MiB from 0 (off) to 65536"
        "accepted, no effect yet: what one thread keeps of recently given back blocks";
    FillOnFree "fill_on_free" since "Headwater" default "none"
        legal "none, zero, or a byte of two hex digits such as 0xA5"
        "what memory is overwritten with, in stream order, before anyone else gets it";
    TraceMallocMode "trace_malloc_mode" since "xsigma" default "0"
        legal "0 (off) or 1 (on)"
        "1 records the history of events, 65536 long unless history_events says otherwise";
    HistoryEvents "history_events" since "Headwater" default "0"
        legal "a whole number from 0 (off) to 16777216"
        "how many of the latest events are kept";
    ReleaseLockOnCudamalloc "release_lock_on_cudamalloc" since "2.6" default "False"
        legal "True or False"
        "no effect: no lock is ever held across a driver call";
    ExpandableSegmentsReserve "expandable_segments_reserve" since "2.15" default "unset"
        legal "unset, or a positive share of the device's memory such as 0.5, or GiB such as 40G"
        "addresses reserved for an arena (paged); 9/8 of the memory where unset, and never more";
    ExpandableSegmentsReserveByClass "expandable_segments_reserve_by_class" since "2.15" default "unset"
        legal "unset, or a list such as [serving:0.25,loading:8G] of names with a positive share or GiB each"
        "the same for streams of a named class";
    PinnedUseCudaHostRegister "pinned_use_cuda_host_register" since "2.6" default "False"
        legal "True or False"
        "accepted, no effect yet (host tier): pin ordinary memory in place of allocating pinned memory";
    PinnedNumRegisterThreads "pinned_num_register_threads" since "2.6" default "1"
        legal "a power of two from 1 to 128"
        "accepted, no effect yet (host tier): threads that touch pages before they are pinned";
    PinnedUseBackgroundThreads "pinned_use_background_threads" since "2.6" default "False"
        legal "True or False"
        "accepted, no effect yet (host tier): notice finished uses in a thread of its own";
    PinnedReserveSegmentSizeMb "pinned_reserve_segment_size_mb" since "2.10" default "off"
        legal "off, or a whole number of MiB above 0"
        "accepted, no effect yet (host tier): a segment pinned once, for small blocks";
    PinnedFreeCatchAll "pinned_free_catch_all" since "2.12" default "False"
        legal "True or False"
        "accepted, no effect yet (host tier): a failed give-back is counted and logged, not returned";
    PinnedMaxRoundThresholdMb "pinned_max_round_threshold_mb" since "2.13" default "unlimited"
        legal "unlimited, or a whole number of MiB"
        "accepted, no effect yet (host tier): larger blocks are not rounded to powers of two";
    PinnedMaxCachedSizeMb "pinned_max_cached_size_mb" since "2.13" default "unlimited"
        legal "unlimited, or a whole number of MiB"
        "accepted, no effect yet (host tier): larger blocks are not cached";
}

/// Names PyTorch accepts besides its own, for builds whose sources were translated from `cuda` to `hip`.
const ALIASES: &[(&str, Key)] = &[
    ("release_lock_on_hipmalloc", Key::ReleaseLockOnCudamalloc),
    ("pinned_use_hip_host_register", Key::PinnedUseCudaHostRegister),
];

impl Key {
    /// The setting of this name.
    pub fn from_name(name: &str) -> Option<Key> {
        let own = Key::ALL.iter().copied().find(|key| key.name() == name);
        own.or_else(|| ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, key)| *key))
    }

    /// The name closest to `name`, where it is close enough to be what was meant: one edit in three characters.
    pub(super) fn closest_name(name: &str) -> Option<&'static str> {
        // A key is at most 36 characters long; what is far longer is no misspelt key, and not worth the comparison.
        if name.chars().count() > 64 {
            return None;
        }
        let name = name.to_ascii_lowercase();
        let close = Key::ALL.iter().map(|key| (edits_between(&name, key.name()), key.name()));
        let (edits, closest) = close.min_by_key(|(edits, _)| *edits)?;
        (edits * 3 <= closest.len()).then_some(closest)
    }
}

/// How many characters must be inserted, removed or replaced to turn `from` into `to` (Levenshtein's distance).
fn edits_between(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    // `row[n]`: the edits from the part of `from` seen so far to the first `n` characters of `to`.
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (seen, from_char) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = seen + 1;
        for (n, to_char) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from_char != *to_char);
            diagonal = row[n + 1];
            row[n + 1] = replaced.min(row[n] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_key_and_no_two_are_alike() {
        for key in Key::ALL {
            assert_eq!(Key::from_name(key.name()), Some(*key));
        }
        let names: std::collections::BTreeSet<_> = Key::ALL.iter().map(|key| key.name()).collect();
        assert_eq!(names.len(), Key::ALL.len());
        assert_eq!(Key::from_name("release_lock_on_hipmalloc"), Some(Key::ReleaseLockOnCudamalloc));
        assert_eq!(Key::from_name("Backing"), None);
    }

    #[test]
    fn a_slip_is_suggested_and_noise_is_not() {
        assert_eq!(Key::closest_name("max_splt_size_mb"), Some("max_split_size_mb"));
        assert_eq!(Key::closest_name("EXPANDABLE_SEGMENTS"), Some("expandable_segments"));
        assert_eq!(Key::closest_name("garbage_collect_threshold"), Some("garbage_collection_threshold"));
        assert_eq!(Key::closest_name("colour"), None);
        assert_eq!(Key::closest_name(""), None);
        assert_eq!(Key::closest_name(&"x".repeat(1 << 20)), None);
    }

    #[test]
    fn edits_are_counted_both_ways() {
        for (from, to, edits) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)] {
            assert_eq!(edits_between(from, to), edits);
            assert_eq!(edits_between(to, from), edits);
        }
    }

    #[test]
    fn the_documented_table_holds_every_key_with_its_default() {
        let documentation = include_str!("mod.rs");
        for key in Key::ALL {
            let row = format!("//! | `{}` | {} | {} |", key.name(), key.since(), key.default_text());
            assert!(documentation.contains(&row), "no row that starts with {row}");
        }
    }
}
