//! Every benchmark runs on the simulated device, reports what it promises, and leaves nothing behind.

use std::sync::Arc;

use headwater::{Binned, Direct};
use headwater_bench::{BENCHES, BenchError, BenchOptions, Contestant, Effort};
use headwater_driver::DeviceId;
use headwater_sim::SimDriver;

fn contestants(sim: &Arc<SimDriver>) -> [Contestant; 2] {
    let (one, other) = (sim.clone(), sim.clone());
    [
        Contestant::new("direct", move || Ok(Arc::new(Direct::new(one.clone(), DeviceId(0))?))),
        Contestant::new("binned", move || Ok(Arc::new(Binned::new(other.clone(), DeviceId(0))?))),
    ]
}

#[test]
fn every_benchmark_reports_every_contestant_and_leaks_nothing() {
    let sim = SimDriver::new();
    let options = BenchOptions { effort: Effort::Glance, threads: vec![1, 2], ..BenchOptions::default() };
    let rows = headwater_bench::run(&contestants(&sim), &options, &mut |_| {}).unwrap();
    for bench in BENCHES {
        for allocator in ["direct", "binned"] {
            let reported = rows.iter().any(|row| row.bench.starts_with(bench) && row.allocator == allocator);
            assert!(reported, "{allocator} in {bench}");
        }
    }
    let yardsticks = rows.iter().filter(|row| row.allocator == "malloc");
    assert!(
        yardsticks.clone().count() == 1 && yardsticks.clone().all(|row| row.bench == "pair" && row.ns > 0.0)
    );
    assert_eq!(sim.leaks(), []);
    assert_eq!(sim.hazards(), []);
}

#[test]
fn a_contestant_takes_part_where_it_was_asked_to() {
    let sim = SimDriver::new();
    let [direct, binned] = contestants(&sim);
    let options = BenchOptions {
        effort: Effort::Glance,
        sizes: vec![4096],
        only: vec!["pair".to_owned(), "seed_000".to_owned()],
        ..BenchOptions::default()
    };
    let rows = headwater_bench::run(&[direct.only_in(&["seed_000"]), binned], &options, &mut |_| {}).unwrap();
    let took_part = |allocator: &str, bench: &str| {
        rows.iter().any(|row| row.allocator == allocator && row.bench.starts_with(bench))
    };
    assert!(took_part("binned", "pair") && took_part("binned", "seed_000"));
    assert!(!took_part("direct", "pair") && took_part("direct", "seed_000"));
}

#[test]
fn percentiles_are_there_where_single_operations_are_timed() {
    let sim = SimDriver::new();
    let options = BenchOptions { effort: Effort::Glance, threads: vec![1], ..BenchOptions::default() };
    let rows = headwater_bench::run(&contestants(&sim)[1..], &options, &mut |_| {}).unwrap();
    // A quick operation may take less than the clock can tell, a request that the driver serves may not.
    for bench in ["miss", "seed_001_cold"] {
        let row = rows.iter().find(|row| row.bench == bench).unwrap();
        assert!(row.min > 0.0 && row.min <= row.p50 && row.p50 <= row.p99 && row.p99 <= row.p999, "{row}");
    }
}

#[test]
fn a_row_has_the_documented_keys() {
    let sim = SimDriver::new();
    let options = BenchOptions {
        effort: Effort::Glance,
        sizes: vec![4096],
        only: vec!["pair".to_owned()],
        ..BenchOptions::default()
    };
    let rows = headwater_bench::run(&contestants(&sim), &options, &mut |_| {}).unwrap();
    assert_eq!(rows.len(), 3);
    let json = serde_json::to_value(&rows[0]).unwrap();
    for key in ["bench", "allocator", "size", "threads", "ns", "p50", "p99", "p999", "mops"] {
        assert!(json.get(key).is_some(), "{key}");
    }
}

#[test]
fn a_benchmark_that_is_none_is_refused_by_name() {
    let options = BenchOptions { only: vec!["pears".to_owned()], ..BenchOptions::default() };
    let answer = headwater_bench::run(&[], &options, &mut |_| {});
    assert!(matches!(answer, Err(BenchError::UnknownBench { ref name, .. }) if name == "pears"));
}
