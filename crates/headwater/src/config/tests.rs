//! Settings as users write them, and the size rules against the properties they promise.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn from_variable(variable: &'static str, text: &'static str) -> Result<Config, ConfigError> {
    Config::from_lookup(|name| (name == variable).then_some(text))
}

fn message(text: &'static str) -> String {
    from_variable("HEADWATER_ALLOC_CONF", text).unwrap_err().to_string()
}

#[test]
fn defaults_are_those_of_the_table_and_of_pytorch() {
    let config = Config::default();
    for entry in config.entries() {
        assert_eq!(entry.value, entry.key.default_text(), "{:?}", entry.key);
        assert!(entry.is_default && entry.origin == Origin::Default, "{:?}", entry.key);
    }
    assert_eq!(config.to_settings_string(), "");
    assert_eq!(config.max_split_bytes(), None);
    assert_eq!(config.max_non_split_rounding_bytes(), 20 * MIB);
    assert_eq!(config.large_segment_bytes(), 20 * MIB);
    assert_eq!(config.garbage_collection_threshold(), None);
    assert_eq!(config.limit_bytes(80 << 30), None);
    assert_eq!(config.history_events(), 0);
    assert_eq!(config.address_reserve_bytes(None, 80 << 30), 90 << 30);
}

#[test]
fn every_key_is_read_written_and_traced_to_its_variable() {
    let text = "backing:paged,caching_allocator:False,backend:native,max_split_size_mb:256,max_non_split_rounding_mb:64,\
                roundup_power2_divisions:[256:1,512:2,>:4],large_segment_size_mb:32,garbage_collection_threshold:0.8,\
                per_process_memory_fraction:0.5,memory_limit:40G,throw_on_cudamalloc_oom:True,cross_stream_reuse:False,\
                graph_capture_record_stream_reuse:True,shareable:True,thread_cache_mb:16,fill_on_free:0xA5,\
                trace_malloc_mode:1,history_events:1000,release_lock_on_cudamalloc:True,expandable_segments_reserve:0.5,\
                expandable_segments_reserve_by_class:[loading:8G,serving:0.25],pinned_use_cuda_host_register:True,\
                pinned_num_register_threads:8,pinned_use_background_threads:True,pinned_reserve_segment_size_mb:64,\
                pinned_free_catch_all:True,pinned_max_round_threshold_mb:128,pinned_max_cached_size_mb:256";
    let config = from_variable("PYTORCH_ALLOC_CONF", text).unwrap();
    for entry in config.entries() {
        assert_eq!(entry.is_default, entry.key == Key::Backend, "{:?}", entry.key);
        assert_eq!(entry.origin, Origin::Variable("PYTORCH_ALLOC_CONF"), "{:?}", entry.key);
    }
    assert_eq!(config.to_settings_string(), text.replace("backend:native,", ""));
    assert_eq!(Config::parse(&config.to_settings_string()), Ok(config.clone()));
    assert_eq!(config.backing(), Backing::Paged);
    assert!(!config.caching() && !config.cross_stream_reuse());
    assert!(config.throw_on_cudamalloc_oom() && config.graph_capture_record_stream_reuse());
    assert!(config.shareable());
    assert_eq!(config.max_non_split_rounding_bytes(), 64 * MIB);
    assert_eq!(config.thread_cache_bytes(), 16 * MIB);
    assert_eq!(config.fill_on_free().byte(), Some(0xA5));
    assert_eq!(config.history_events(), 1000);
    assert_eq!(config.limit_bytes(60 << 30), Some(30 << 30));
    assert_eq!(config.limit_bytes(100 << 30), Some(40 << 30));
    assert_eq!(config.address_reserve_bytes(Some("serving"), 80 << 30), 20 << 30);
    assert_eq!(config.address_reserve_bytes(Some("loading"), 80 << 30), 8 << 30);
    assert_eq!(config.address_reserve_bytes(Some("other"), 80 << 30), 40 << 30);
    assert_eq!(config.address_reserve_bytes(Some("loading"), 1 << 30), (1 << 30) + (1 << 27));
    assert_eq!((config.host().register_threads, config.host().max_cached_size_mb), (8, Some(256)));
}

#[test]
fn the_first_variable_that_is_set_is_read_alone() {
    let lookup = |set: &'static [&'static str]| {
        Config::from_lookup(move |name| {
            let place = set.iter().position(|variable| *variable == name)?;
            Some(format!("memory_limit:{}", place + 1))
        })
    };
    let limit = |set| lookup(set).unwrap().memory_limit_bytes();
    assert_eq!(limit(&["PYXSIGMA_CUDA_ALLOC_CONF", "HEADWATER_ALLOC_CONF"]), Some(2));
    assert_eq!(limit(&["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]), Some(2));
    assert_eq!(limit(&["PYXSIGMA_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]), Some(2));
    assert_eq!(limit(&["PYXSIGMA_CUDA_ALLOC_CONF"]), Some(1));
    assert_eq!(limit(&[]), None);
    let shielded = |name| Some(if name == "HEADWATER_ALLOC_CONF" { "" } else { "memory_limit:1" });
    assert_eq!(Config::from_lookup(shielded), Ok(Config::default()));
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStringExt;
    let refused = Config::from_lookup(|_| Some(std::ffi::OsString::from_vec(vec![b'a', 0xFF])));
    assert!(matches!(refused, Err(ConfigError::NotUnicode { variable: "HEADWATER_ALLOC_CONF", .. })));
}

#[test]
fn errors_name_the_key_the_value_the_range_and_the_variable() {
    for (text, expected) in [
        (
            "max_splt_size_mb:64",
            "unknown key `max_splt_size_mb` in HEADWATER_ALLOC_CONF; did you mean max_split_size_mb?",
        ),
        ("colour:red", "unknown key `colour` in HEADWATER_ALLOC_CONF; `headwater info` lists the keys"),
        (
            "expandable_segments:true",
            "bad value `true` for expandable_segments in HEADWATER_ALLOC_CONF: legal is True or False",
        ),
        (
            "max_split_size_mb:19",
            "bad value `19` for max_split_size_mb in HEADWATER_ALLOC_CONF: legal is a whole number of MiB from \
             large_segment_size_mb (20) up",
        ),
        (
            "backing:paged,expandable_segments:False",
            "backing:paged contradicts expandable_segments:False in HEADWATER_ALLOC_CONF: keep one of them",
        ),
        ("a", "HEADWATER_ALLOC_CONF cannot be read at character 2: expected `:` and a value, found the end"),
    ] {
        assert_eq!(message(text), expected);
    }
    let refused = message("backend:cudaMallocAsync");
    assert!(refused.contains("backing:paged") && refused.contains("HEADWATER_ALLOC_CONF"), "{refused}");
}

#[test]
fn values_out_of_range_are_refused() {
    for text in [
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:10",
        "large_segment_size_mb:32,max_split_size_mb:31",
        "max_split_size_mb:31,large_segment_size_mb:32",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:nan",
        "per_process_memory_fraction:1.1",
        "per_process_memory_fraction:-0.1",
        "memory_limit:0",
        "memory_limit:16777216T",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[300:2]",
        "roundup_power2_divisions:[256:3]",
        "roundup_power2_divisions:[0:1]",
        "pinned_num_register_threads:0",
        "pinned_num_register_threads:6",
        "pinned_num_register_threads:256",
        "pinned_reserve_segment_size_mb:0",
        "expandable_segments_reserve:0",
        "expandable_segments_reserve:-1G",
        "expandable_segments_reserve:inf",
        "expandable_segments_reserve_by_class:[a:0]",
        "expandable_segments_reserve_by_class:0.5",
        "thread_cache_mb:65537",
        "history_events:16777217",
        "trace_malloc_mode:2",
        "fill_on_free:0x1FF",
        "backing:Paged",
        "backend:[a:b]",
    ] {
        match Config::parse(text) {
            Err(ConfigError::BadValue { key, origin: Origin::Code, .. }) => {
                assert!(text.contains(key), "{text}")
            }
            other => panic!("{text} gave {other:?}"),
        }
    }
    let contradiction = Config::parse("trace_malloc_mode:1,history_events:0");
    assert!(matches!(contradiction, Err(ConfigError::Conflict { .. })), "{contradiction:?}");
    assert!(matches!(Config::parse("backend:hipMallocAsync"), Err(ConfigError::Unsupported { .. })));
}

#[test]
fn later_settings_override_earlier_ones_and_linked_defaults_follow() {
    let config =
        Config::parse("memory_limit:1G,memory_limit:2G,expandable_segments:True,expandable_segments:False")
            .unwrap();
    assert_eq!(config.memory_limit_bytes(), Some(2 << 30));
    assert_eq!(config.backing(), Backing::Classic);
    assert_eq!(Config::parse("backing:paged,expandable_segments:True").unwrap().backing(), Backing::Paged);
    assert_eq!(Config::parse("large_segment_size_mb:12").unwrap().max_non_split_rounding_bytes(), 12 * MIB);
    assert_eq!(
        Config::parse("max_split_size_mb:12,large_segment_size_mb:12").unwrap().max_split_bytes(),
        Some(12 * MIB)
    );
    assert_eq!(Config::parse("trace_malloc_mode:1").unwrap().history_events(), HISTORY_EVENTS_DEFAULT);
    assert_eq!(
        Config::parse("max_split_size_mb:18446744073709551615").unwrap().max_split_bytes(),
        Some(!(MIB - 1))
    );
}

#[test]
fn builder_and_text_agree_and_the_builder_checks_too() {
    let built = Config::builder()
        .max_split_size_mb(256)
        .thread_cache_mb(0)
        .backing(Backing::Classic)
        .build()
        .unwrap();
    assert_eq!(Config::parse("max_split_size_mb:256,thread_cache_mb:0,backing:classic"), Ok(built.clone()));
    assert_eq!(built.origin(Key::MaxSplitSizeMb), Origin::Code);
    assert_eq!(built.origin(Key::MemoryLimit), Origin::Default);
    let refused = Config::builder().per_process_memory_fraction(f64::NAN).build().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "bad value `NaN` for per_process_memory_fraction in the program's settings: legal is a number from 0 to 1"
    );
    for class in ["", "a:b", "a b", "a]"] {
        let classes = BTreeMap::from([(class.to_owned(), AddressReserve::Gib(1.0))]);
        assert!(Config::builder().expandable_segments_reserve_by_class(classes).build().is_err(), "{class}");
    }
    assert!(Config::builder().settings("max_split_size_mb:1").unwrap().build().is_err());
    assert!(built.to_builder().settings("nonsense").is_err());
}

#[test]
fn the_listing_has_a_line_per_setting_with_value_and_origin() {
    let config = from_variable("PYXSIGMA_CUDA_ALLOC_CONF", "max_split_size_mb:256").unwrap();
    let listing = config.to_string();
    assert_eq!(listing.lines().count(), Key::ALL.len());
    let line = listing.lines().find(|line| line.starts_with("max_split_size_mb ")).unwrap();
    assert!(line.ends_with("256        PYXSIGMA_CUDA_ALLOC_CONF (default unlimited)"), "{line}");
    assert!(listing.contains("native     default\n"), "{listing}");
}

#[test]
fn auto_backing_follows_the_device() {
    assert_eq!(Backing::Auto.resolve(true), Backing::Paged);
    assert_eq!(Backing::Auto.resolve(false), Backing::Classic);
    assert_eq!(Backing::Classic.resolve(true), Backing::Classic);
    assert_eq!(Backing::Paged.resolve(false), Backing::Paged);
    let pytorch = Config::pytorch_rules();
    assert_eq!(Config::parse(&pytorch.to_settings_string()), Ok(pytorch));
}

/// The list and the divisions it gives are those of PyTorch's own test of its settings (`allocator_config_test`).
#[test]
fn power_of_two_rounding_follows_pytorchs_table() {
    let divisions = |text: &str| *Config::parse(text).unwrap().roundup_divisions();
    let mixed = divisions("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]");
    for (mib, parts) in
        [(32, 8), (64, 8), (128, 2), (256, 4), (512, 2), (1024, 4), (2048, 1), (4096, 1), (8192, 1)]
    {
        assert_eq!(mixed.at(mib * MIB), parts, "{mib} MiB");
    }
    // 45 MiB lies between 32 and 64, in eight steps of 4 MiB; 1100 MiB between 1 and 2 GiB, in four of 256 MiB; and
    // so on.
    for (request_mib, block_mib) in
        [(45, 48), (66, 72), (130, 192), (300, 320), (600, 768), (1100, 1280), (2100, 2100)]
    {
        assert_eq!(round_size(request_mib * MIB, &mixed), block_mib * MIB, "{request_mib} MiB");
    }
    let eight = RoundupDivisions::uniform(8).unwrap();
    assert_eq!(round_size(4096, &eight), 4096);
    assert_eq!(round_size(4097, &eight), 4608);
    assert_eq!(round_size(4000, &eight), 4096);
    assert_eq!(round_size(u64::MAX, &eight), u64::MAX);
    assert_eq!(RoundupDivisions::by_interval(&[]).unwrap(), RoundupDivisions::OFF);
    assert_eq!(divisions("roundup_power2_divisions:[>:4]").table()[..2], [0, 4]);
    assert_eq!(divisions("roundup_power2_divisions:[1:2,8:4]").table()[..5], [2, 0, 0, 4, 0]);
    assert_eq!(divisions("roundup_power2_divisions:[1048576:2]").to_string(), "2");
}

fn any_divisions() -> impl Strategy<Value = RoundupDivisions> {
    let steps = || prop_oneof![Just(0u64), (0u32..12).prop_map(|power| 1 << power)];
    let bound =
        prop_oneof![Just(RoundupBound::Rest), (0u32..18).prop_map(|power| RoundupBound::Mib(1 << power))];
    prop_oneof![
        Just(RoundupDivisions::OFF),
        (0u32..12).prop_map(|power| RoundupDivisions::uniform(1 << power).unwrap()),
        prop::collection::vec((bound, steps()), 0..8)
            .prop_map(|rules| RoundupDivisions::by_interval(&rules).unwrap()),
    ]
}

/// Sizes of every magnitude, with the edges of powers of two more often than chance.
fn any_size() -> impl Strategy<Value = u64> {
    let near =
        (0u32..60, -2i64..=2).prop_map(|(power, offset)| (1u64 << power).saturating_add_signed(offset));
    let spread =
        (0u32..60, any::<u64>()).prop_map(|(power, bits)| (1u64 << power) | (bits & ((1u64 << power) - 1)));
    prop_oneof![near, spread]
}

prop_compose! {
    fn any_config()(
        backing in prop_oneof![Just(Backing::Classic), Just(Backing::Paged), Just(Backing::Auto)],
        segment in 11u64..100,
        split in prop::option::of(0u64..1000),
        rounding in prop::option::of(0u64..1000),
        divisions in any_divisions(),
        threshold in prop::option::of(0.001f64..0.999),
        fraction in 0.0f64..=1.0,
        limit in prop::option::of(1u64..),
        history in prop::option::of(1u64..=HISTORY_EVENTS_MAX),
        flags in any::<[bool; 5]>(),
        fill in any::<u8>(),
        classes in prop::collection::btree_map("[a-z_]{1,8}", 0.001f64..100.0, 0..4),
    ) -> Config {
        let mut builder = Config::builder().backing(backing).large_segment_size_mb(segment)
            .roundup_power2_divisions(divisions).per_process_memory_fraction(fraction)
            .caching_allocator(flags[0]).cross_stream_reuse(flags[1]).trace_malloc_mode(flags[2])
            .shareable(flags[4])
            .fill_on_free(if flags[3] { FillOnFree::Pattern(fill) } else { FillOnFree::Zero })
            .expandable_segments_reserve_by_class(classes.into_iter().map(|(class, number)| {
                (class, if number < 1.0 { AddressReserve::Fraction(number) } else { AddressReserve::Gib(number) })
            }).collect());
        if let Some(split) = split { builder = builder.max_split_size_mb(segment + split); }
        if let Some(rounding) = rounding { builder = builder.max_non_split_rounding_mb(segment + rounding); }
        if let Some(threshold) = threshold { builder = builder.garbage_collection_threshold(threshold); }
        if let Some(limit) = limit { builder = builder.memory_limit(limit); }
        if let Some(history) = history { builder = builder.history_events(history); }
        builder.build().unwrap()
    }
}

proptest! {
    #[test]
    fn a_block_holds_its_request_in_whole_units_and_stays_put(size in any_size(), divisions in any_divisions()) {
        let block = round_size(size, &divisions);
        prop_assert!(block >= size && block >= MIN_BLOCK_BYTES);
        prop_assert_eq!(block % MIN_BLOCK_BYTES, 0);
        prop_assert_eq!(round_size(block, &divisions), block);
        prop_assert!(block <= size.next_power_of_two().max(MIN_BLOCK_BYTES));
    }

    #[test]
    fn larger_requests_never_get_smaller_blocks(
        one in any_size(),
        other in any_size(),
        divisions in any_divisions(),
    ) {
        let (small, large) = (one.min(other), one.max(other));
        prop_assert!(round_size(small, &divisions) <= round_size(large, &divisions));
    }

    #[test]
    fn a_segment_holds_its_block_in_whole_units(size in any_size(), segment_mb in 11u64..200) {
        let block = round_size(size, &RoundupDivisions::OFF);
        let segment = segment_bytes(block, segment_mb * MIB);
        prop_assert!(segment >= block);
        prop_assert_eq!(segment % MIB, 0);
    }

    #[test]
    fn divisions_are_written_as_they_are_read(divisions in any_divisions()) {
        let config = Config::builder().roundup_power2_divisions(divisions).build().unwrap();
        let read = Config::parse(&config.to_settings_string()).unwrap();
        prop_assert_eq!(*read.roundup_divisions(), divisions);
    }

    #[test]
    fn the_settings_string_reads_back_to_the_same_configuration(config in any_config()) {
        let text = config.to_settings_string();
        let read = Config::parse(&text).unwrap();
        prop_assert_eq!(&read, &config);
        prop_assert_eq!(read.to_settings_string(), text);
    }

    #[test]
    fn no_text_makes_the_parser_fail_otherwise_than_by_an_error(text in "[a-z_:,\\[\\]> 0-9.GTx]{0,60}") {
        let _ = Config::parse(&text);
    }

    #[test]
    fn spaces_change_nothing(config in any_config(), gap in " {0,2}|\t") {
        let text = config.to_settings_string();
        let space = |c: char| if ",:[]".contains(c) { format!("{gap}{c}{gap}") } else { c.to_string() };
        let spaced: String = text.chars().map(space).collect();
        prop_assert_eq!(Config::parse(&spaced).unwrap(), config);
    }
}
