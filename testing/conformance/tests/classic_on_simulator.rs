//! The caching allocator with the classic backing passes the suite for allocators on the simulated device.

use headwater::CachingAllocator;
use headwater::config::Config;
use headwater_conformance::{Ground, allocator};
use headwater_driver::DeviceId;
use headwater_sim::SimDriver;

/// Runs the suite on allocators with these settings, and the limit that a case asks for.
fn passes(settings: &'static str) {
    let sim = SimDriver::builder().devices(2).build();
    let ground = Ground::new(sim.clone(), sim.second_view(), DeviceId(0));
    let make: &allocator::Make = &move |driver, device, limit_bytes| {
        let config = Config::parse(settings).expect("the settings are legal");
        let allocator = CachingAllocator::new(driver, device, config)?;
        allocator.set_limit_bytes(limit_bytes);
        Ok(allocator)
    };
    let summary = allocator::run_all(&ground, make, None, &mut |report| println!("{report}"));
    assert!(summary.all_passed(), "{summary}: {:#?}", summary.failed);
    assert_eq!(sim.hazards(), []);
    assert_eq!(sim.leaks(), []);
}

#[test]
fn classic_passes() {
    passes("backing:classic");
}

#[test]
fn pytorchs_rules_pass() {
    passes("backing:classic,cross_stream_reuse:False,thread_cache_mb:0");
}

#[test]
fn classic_with_thread_caches_passes() {
    passes("backing:classic,thread_cache_mb:8");
}

#[test]
fn without_caching_it_passes() {
    passes("caching_allocator:False");
}

#[test]
fn overwriting_what_is_given_back_it_passes() {
    passes("backing:classic,fill_on_free:0xA5");
}
