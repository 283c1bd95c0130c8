//! Every allocator passes the suite for allocators on the simulated device, and the device finds nothing wrong with it.

use std::sync::Arc;

use headwater::binned::{BinnedOptions, ClassDivisions};
use headwater::{Binned, Direct};
use headwater_conformance::{Ground, allocator};
use headwater_driver::DeviceId;
use headwater_sim::SimDriver;

fn passes(make: &allocator::Make) {
    let sim = SimDriver::builder().devices(2).build();
    let ground = Ground::new(sim.clone(), sim.second_view(), DeviceId(0));
    let summary = allocator::run_all(&ground, make, None, &mut |report| println!("{report}"));
    assert!(summary.all_passed(), "{summary}: {:#?}", summary.failed);
    assert!(summary.not_applicable.is_empty(), "{:#?}", summary.not_applicable);
    assert_eq!(sim.hazards(), []);
    assert_eq!(sim.leaks(), []);
}

#[test]
fn direct_passes() {
    passes(&|driver, device, limit_bytes| {
        Ok(Arc::new(match limit_bytes {
            Some(limit_bytes) => Direct::with_limit(driver, device, limit_bytes)?,
            None => Direct::new(driver, device)?,
        }))
    });
}

#[test]
fn binned_passes() {
    for divisions in [ClassDivisions::One, ClassDivisions::Four, ClassDivisions::Eight] {
        passes(&move |driver, device, limit_bytes| {
            let options = BinnedOptions { limit_bytes, divisions, ..BinnedOptions::default() };
            Ok(Arc::new(Binned::with_options(driver, device, options)?))
        });
    }
}

#[test]
fn binned_without_thread_caches_passes() {
    passes(&|driver, device, limit_bytes| {
        let options = BinnedOptions { limit_bytes, thread_cache_bytes: 0, ..BinnedOptions::default() };
        Ok(Arc::new(Binned::with_options(driver, device, options)?))
    });
}
