//! Graph memory on the simulated device: the stress program, and the suite for allocators around a graph allocator.

use std::sync::Arc;

use headwater::config::Config;
use headwater::graph::GraphAllocator;
use headwater::{AllocError, Allocator, CachingAllocator, Direct};
use headwater_conformance::{Ground, allocator, graph_stress};
use headwater_driver::{Capabilities, DeviceId, Driver};
use headwater_sim::SimDriver;

#[test]
fn a_thousand_launches_leave_no_wrong_word_and_little_more_than_the_largest_is_reserved() {
    let sim = SimDriver::new();
    let driver: Arc<dyn Driver> = sim.clone();
    let report = graph_stress::run(&driver, DeviceId(0), 1000).unwrap();
    println!("{report:#?}");
    assert_eq!(report.words_wrong, 0);
    assert_eq!(sim.hazards(), []);
    assert_eq!(sim.leaks(), []);
    assert!(report.churn_requests > 100);
    assert!(report.ten_in_ten_pools_bytes >= report.ten_sum_bytes);
    assert!(report.ten_in_one_pool_bytes <= report.ten_largest_bytes + report.ten_largest_bytes / 20);
}

#[test]
fn launches_over_plain_memory_leave_no_wrong_word() {
    let capabilities = Capabilities {
        virtual_memory: false,
        capture: true,
        host_pinning: true,
        peer_access: false,
        shareable_handles: false,
    };
    let sim = SimDriver::builder().capabilities(capabilities).build();
    let driver: Arc<dyn Driver> = sim.clone();
    let report = graph_stress::run(&driver, DeviceId(0), 100).unwrap();
    assert_eq!(report.words_wrong, 0);
    assert_eq!(sim.hazards(), []);
    assert_eq!(sim.leaks(), []);
}

/// The layer changes nothing for those who do not capture through it.
fn passes(make_default: &'static allocator::Make) {
    let sim = SimDriver::builder().devices(2).build();
    let ground = Ground::new(sim.clone(), sim.second_view(), DeviceId(0));
    let make: &allocator::Make = &move |driver, device, limit_bytes| {
        let default = make_default(driver, device, limit_bytes)?;
        let wrapped = GraphAllocator::new(default).expect("the device's properties can be read");
        Ok(wrapped)
    };
    let summary = allocator::run_all(&ground, make, None, &mut |report| println!("{report}"));
    assert!(summary.all_passed(), "{summary}: {:#?}", summary.failed);
    assert_eq!(sim.hazards(), []);
    assert_eq!(sim.leaks(), []);
}

#[test]
fn around_direct_the_suite_passes() {
    passes(&|driver, device, limit_bytes| {
        Ok(Arc::new(match limit_bytes {
            Some(limit_bytes) => Direct::with_limit(driver, device, limit_bytes)?,
            None => Direct::new(driver, device)?,
        }))
    });
}

fn caching(
    settings: &str,
    driver: Arc<dyn Driver>,
    device: DeviceId,
    limit_bytes: Option<u64>,
) -> Result<Arc<dyn Allocator>, AllocError> {
    let config = Config::parse(settings).expect("the settings are legal");
    let caching = CachingAllocator::new(driver, device, config)?;
    caching.set_limit_bytes(limit_bytes);
    Ok(caching)
}

#[test]
fn around_classic_the_suite_passes() {
    passes(&|driver, device, limit_bytes| caching("backing:classic", driver, device, limit_bytes));
}

#[test]
fn around_paged_the_suite_passes() {
    passes(&|driver, device, limit_bytes| caching("backing:paged", driver, device, limit_bytes));
}
