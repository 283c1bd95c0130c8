//! The settings themselves: plain data in the units they are written in, so that every value can be written back
//! exactly.

use std::collections::BTreeMap;

use super::rounding::{LARGE_SEGMENT_DEFAULT_BYTES, MIB, RoundupDivisions};

/// Where a caching allocator's blocks come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Segments of the driver's plain allocation, by PyTorch's rules.
    Classic,
    /// One arena of virtual addresses, with physical handles mapped into it.
    Paged,
    /// `Paged` where the device has virtual memory management, `Classic` elsewhere.
    #[default]
    Auto,
}

impl Backing {
    /// The backing for a device that has virtual memory management, or has not. Never `Auto`.
    #[must_use]
    pub const fn resolve(self, virtual_memory: bool) -> Self {
        match self {
            Self::Auto if virtual_memory => Self::Paged,
            Self::Auto => Self::Classic,
            named => named,
        }
    }

    /// Its name in a settings string.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Paged => "paged",
            Self::Auto => "auto",
        }
    }
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What given back memory is overwritten with, in stream order, before anyone else gets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FillOnFree {
    /// Nothing.
    #[default]
    None,
    /// Zeroes, to keep data private.
    Zero,
    /// This byte, to make the use of given back memory show.
    Pattern(u8),
}

impl FillOnFree {
    /// The byte to fill with, where one is wanted.
    pub const fn byte(self) -> Option<u8> {
        match self {
            Self::None => None,
            Self::Zero => Some(0),
            Self::Pattern(byte) => Some(byte),
        }
    }
}

/// How many addresses to reserve for an arena.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AddressReserve {
    /// A share of the device's memory.
    Fraction(f64),
    /// This many GiB.
    Gib(f64),
}

impl AddressReserve {
    /// The bytes on a device with `total_bytes` of memory, rounded down.
    pub fn bytes(self, total_bytes: u64) -> u64 {
        // `as` saturates: a share or size beyond the address space becomes the whole of it.
        match self {
            Self::Fraction(share) => (share * total_bytes as f64) as u64,
            Self::Gib(gib) => (gib * (1u64 << 30) as f64) as u64,
        }
    }

    pub(super) fn number(self) -> f64 {
        match self {
            Self::Fraction(number) | Self::Gib(number) => number,
        }
    }
}

/// The `pinned_` settings: pinned host memory, in the host tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostSettings {
    /// Pin ordinary memory in place of allocating pinned memory.
    pub use_host_register: bool,
    /// Threads that touch pages before they are pinned.
    pub register_threads: u64,
    /// Notice finished uses in a thread of its own.
    pub use_background_threads: bool,
    /// A segment pinned once, for small blocks.
    pub reserve_segment_mb: Option<u64>,
    /// A failed give-back is counted and logged, not returned.
    pub free_catch_all: bool,
    /// Larger blocks are not rounded to powers of two.
    pub max_round_threshold_mb: Option<u64>,
    /// Larger blocks are not cached.
    pub max_cached_size_mb: Option<u64>,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            use_host_register: false,
            register_threads: 1,
            use_background_threads: false,
            reserve_segment_mb: None,
            free_catch_all: false,
            max_round_threshold_mb: None,
            max_cached_size_mb: None,
        }
    }
}

/// All settings, named after their keys. `None` where the default is a word or follows another setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) backing: Backing,
    pub(super) caching_allocator: bool,
    pub(super) max_split_size_mb: Option<u64>,
    pub(super) max_non_split_rounding_mb: Option<u64>,
    pub(super) roundup_power2_divisions: RoundupDivisions,
    pub(super) large_segment_size_mb: u64,
    pub(super) garbage_collection_threshold: Option<f64>,
    pub(super) per_process_memory_fraction: f64,
    pub(super) memory_limit: Option<u64>,
    pub(super) throw_on_cudamalloc_oom: bool,
    pub(super) cross_stream_reuse: bool,
    pub(super) graph_capture_record_stream_reuse: bool,
    pub(super) shareable: bool,
    pub(super) thread_cache_mb: u64,
    pub(super) fill_on_free: FillOnFree,
    pub(super) trace_malloc_mode: bool,
    pub(super) history_events: Option<u64>,
    pub(super) release_lock_on_cudamalloc: bool,
    pub(super) expandable_segments_reserve: Option<AddressReserve>,
    pub(super) expandable_segments_reserve_by_class: BTreeMap<String, AddressReserve>,
    pub(super) host: HostSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backing: Backing::Auto,
            caching_allocator: true,
            max_split_size_mb: None,
            max_non_split_rounding_mb: None,
            roundup_power2_divisions: RoundupDivisions::OFF,
            large_segment_size_mb: LARGE_SEGMENT_DEFAULT_BYTES / MIB,
            garbage_collection_threshold: None,
            per_process_memory_fraction: 1.0,
            memory_limit: None,
            throw_on_cudamalloc_oom: false,
            cross_stream_reuse: true,
            graph_capture_record_stream_reuse: false,
            shareable: false,
            thread_cache_mb: 8,
            fill_on_free: FillOnFree::None,
            trace_malloc_mode: false,
            history_events: None,
            release_lock_on_cudamalloc: false,
            expandable_segments_reserve: None,
            expandable_segments_reserve_by_class: BTreeMap::new(),
            host: HostSettings::default(),
        }
    }
}
