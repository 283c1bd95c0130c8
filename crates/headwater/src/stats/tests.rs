//! The statistics against a plain model, and their names against PyTorch's.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The keys of `torch.cuda.memory_stats()` in PyTorch 2.12.
fn pytorch_keys() -> BTreeSet<String> {
    let arrays = [
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ];
    let parts = ["current", "peak", "allocated", "freed"];
    let mut keys = BTreeSet::new();
    for array in arrays {
        for pool in ["all", "small_pool", "large_pool"] {
            keys.extend(parts.map(|part| format!("{array}.{pool}.{part}")));
        }
    }
    for stat in ["oversize_allocations", "oversize_segments"] {
        keys.extend(parts.map(|part| format!("{stat}.{part}")));
    }
    let numbers = [
        "num_alloc_retries",
        "num_ooms",
        "max_split_size",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "num_oom_rejections",
    ];
    keys.extend(numbers.map(str::to_owned));
    keys
}

#[test]
fn flat_names_are_pytorchs_and_three_of_our_own() {
    let flat: BTreeSet<String> = DeviceStats::default().flatten().into_keys().collect();
    let missing: Vec<_> = pytorch_keys().difference(&flat).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
    let ours: Vec<_> = flat.difference(&pytorch_keys()).cloned().collect();
    assert_eq!(ours, ["num_hits", "num_misses", "num_owed_give_backs"]);
}

#[test]
fn flat_values_are_those_of_the_fields() {
    let mut stats = DeviceStats::default();
    stats.allocated_bytes.increase(PoolKind::SmallPool, 1024);
    stats.allocated_bytes.increase(PoolKind::LargePool, 4096);
    stats.allocated_bytes.decrease(PoolKind::LargePool, 4096);
    stats.oversize_segments.increase(3);
    stats.num_ooms = 2;
    stats.hits = u64::MAX;
    let flat = stats.flatten();
    for (name, value) in [
        ("allocated_bytes.all.current", 1024),
        ("allocated_bytes.all.peak", 5120),
        ("allocated_bytes.all.allocated", 5120),
        ("allocated_bytes.all.freed", 4096),
        ("allocated_bytes.small_pool.current", 1024),
        ("allocated_bytes.large_pool.current", 0),
        ("allocated_bytes.large_pool.peak", 4096),
        ("oversize_segments.peak", 3),
        ("num_ooms", 2),
        ("num_hits", i64::MAX),
        ("max_split_size", -1),
    ] {
        assert_eq!(flat[name], value, "{name}");
    }
    stats.max_split_size = Some(256 << 20);
    assert_eq!(stats.flatten()["max_split_size"], 256 << 20);
}

#[test]
fn memory_of_no_pool_counts_for_all_only() {
    let mut array = StatArray::default();
    array.increase(PoolKind::All, 7);
    assert_eq!((array.all.current, array.small_pool.current, array.large_pool.current), (7, 0, 0));
    array.decrease(PoolKind::All, 7);
    assert_eq!(array.of(PoolKind::All).freed, 7);
}

#[test]
fn resets_touch_what_they_name_and_nothing_else() {
    let mut stats = DeviceStats::default();
    stats.active.increase(PoolKind::SmallPool, 10);
    stats.active.decrease(PoolKind::SmallPool, 4);
    stats.oversize_allocations.increase(5);
    stats.oversize_allocations.decrease(5);
    stats.num_device_alloc = 3;
    stats.hits = 1;
    let mut peaks = stats.clone();
    peaks.reset_peaks();
    let mut expected = stats.active.all;
    expected.peak = 6;
    assert_eq!(peaks.active.all, expected);
    assert_eq!(peaks.oversize_allocations.peak, 0);
    assert_eq!((peaks.num_device_alloc, peaks.hits), (3, 1));
    let mut totals = stats.clone();
    totals.reset_totals();
    let mut expected = stats.active.small_pool;
    (expected.allocated, expected.freed) = (0, 0);
    assert_eq!(totals.active.small_pool, expected);
    assert_eq!((totals.num_device_alloc, totals.hits, totals.hit_rate()), (0, 0, None));
    assert!(totals.counters().iter().all(|(_, value)| *value == 0));
}

#[test]
fn shares_are_of_the_peaks_or_of_now() {
    let mut stats = DeviceStats::default();
    assert_eq!((stats.fragmentation(), stats.current_fragmentation()), (0.0, 0.0));
    stats.reserved_bytes.increase(PoolKind::LargePool, 100);
    stats.active_bytes.increase(PoolKind::LargePool, 80);
    stats.allocated_bytes.increase(PoolKind::LargePool, 80);
    stats.requested_bytes.increase(PoolKind::LargePool, 75);
    stats.requested_bytes.decrease(PoolKind::LargePool, 50);
    stats.allocated_bytes.decrease(PoolKind::LargePool, 55);
    assert_eq!(stats.fragmentation(), 0.25);
    assert_eq!(stats.current_fragmentation(), 0.75);
    assert_eq!((stats.cached_bytes(), stats.pending_bytes()), (20, 55));
    (stats.hits, stats.misses) = (3, 1);
    assert_eq!(stats.hit_rate(), Some(0.75));
}

#[test]
fn taking_away_too_much_is_noticed_and_never_wraps() {
    let mut stats = DeviceStats::default();
    stats.requested_bytes.increase(PoolKind::SmallPool, 10);
    stats.requested_bytes.decrease(PoolKind::SmallPool, 12);
    assert_eq!(stats.requested_bytes.all.current, 0);
    assert_eq!(stats.requested_bytes.all.deficit(), 2);
    stats.reset_peaks();
    stats.reset_totals();
    let differences = stats.reconcile(&WalkedTotals::default()).unwrap_err();
    let deficit = |name: &str| Difference::Deficit { name: name.to_owned(), amount: 2 };
    let expected = [deficit("requested_bytes.all"), deficit("requested_bytes.small_pool")];
    assert_eq!(differences.iter().cloned().collect::<Vec<_>>(), expected);
}

#[test]
fn each_difference_is_named_with_both_numbers() {
    let mut stats = DeviceStats::default();
    assert_eq!(stats.reconcile(&WalkedTotals::default()), Ok(()));
    stats.segment.increase(PoolKind::LargePool, 1);
    stats.oversize_segments.increase(1);
    let mut walked = WalkedTotals::default();
    walked.segment.add(PoolKind::SmallPool, 1);
    let differences = stats.reconcile(&walked).unwrap_err();
    assert_eq!(
        differences.to_string(),
        "the statistics do not add up in 3 places; segment.small_pool.current: counted 0, found 1; \
         segment.large_pool.current: counted 1, found 0; oversize_segments.current: counted 1, found 0"
    );
}

#[test]
fn a_part_larger_than_its_whole_is_reported_even_where_the_walk_agrees() {
    let mut stats = DeviceStats::default();
    stats.requested_bytes.increase(PoolKind::SmallPool, 513);
    let mut walked = WalkedTotals::default();
    walked.requested_bytes.add(PoolKind::SmallPool, 513);
    let differences = stats.reconcile(&walked).unwrap_err().to_string();
    assert!(
        differences.contains(
            "requested_bytes.small_pool.current is 513, more than allocated_bytes.small_pool.current, 0"
        ),
        "{differences}"
    );
}

#[test]
fn the_summary_shows_bytes_shares_and_counters() {
    let mut stats = DeviceStats::default();
    stats.reserved_bytes.increase(PoolKind::LargePool, 20 << 20);
    stats.requested_bytes.increase(PoolKind::LargePool, 15 << 20);
    (stats.hits, stats.misses, stats.num_ooms) = (1_998, 2, 1);
    let summary = stats.summary();
    let line =
        |start: &str| summary.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    assert!(line("reserved").contains("20.0 MiB"), "{summary}");
    assert!(line("fragmentation").contains("25.0 %"), "{summary}");
    assert!(line("hit rate").contains("99.9 %"), "{summary}");
    assert!(line("hits").ends_with("1,998"), "{summary}");
    assert!(line("ooms").ends_with('1'), "{summary}");
    assert_eq!(line("alloc retries"), "", "{summary}");
}

proptest! {
    /// Random rises and falls against a list of amounts that are really there.
    #[test]
    fn counts_follow_a_plain_model(
        steps in prop::collection::vec((any::<bool>(), any::<bool>(), 0u64..1 << 40), 0..200),
    ) {
        let mut array = StatArray::default();
        let mut held: Vec<(PoolKind, u64)> = Vec::new();
        let (mut peak, mut rose, mut fell) = (0, 0, 0);
        for (rise, small, amount) in steps {
            let kind = if small { PoolKind::SmallPool } else { PoolKind::LargePool };
            if rise || held.is_empty() {
                array.increase(kind, amount);
                held.push((kind, amount));
                rose += amount;
            } else {
                let (kind, amount) = held.swap_remove(amount as usize % held.len());
                array.decrease(kind, amount);
                fell += amount;
            }
            let now = |kind| held.iter().filter(|(of, _)| *of == kind).map(|(_, amount)| amount).sum::<u64>();
            let (small, large) = (now(PoolKind::SmallPool), now(PoolKind::LargePool));
            peak = peak.max(small + large);
            prop_assert_eq!((array.small_pool.current, array.large_pool.current), (small, large));
            prop_assert_eq!((array.all.current, array.all.peak), (small + large, peak));
            prop_assert_eq!((array.all.allocated, array.all.freed, array.all.deficit()), (rose, fell, 0));
        }
    }
}
