//! Every allocator passes the suite for allocators on the CUDA backend, with the fake driver under it.

mod common;

use common::Fake;
use headwater::Policy;
use headwater_conformance::{Ground, Outcome, allocator};
use headwater_driver::DeviceId;

fn passes(policy: Policy) {
    let make = move |driver, device, limit_bytes| policy.build(driver, device, limit_bytes);
    let fake = Fake::fresh();
    let ground = Ground::new(fake.open_backend(), fake.open_backend(), DeviceId(0));
    let summary = allocator::run_all(&ground, &make, None, &mut |report| {
        if !matches!(report.outcome, Outcome::Passed) {
            println!("{report}");
        }
        assert_eq!(fake.undefined_uses(), 0, "{} had undefined behaviour", report.name);
        assert_eq!(fake.hazard_count(), 0, "{} raced", report.name);
    });
    assert!(summary.all_passed() && summary.not_applicable.is_empty(), "{summary}");
    drop(ground);
    assert_eq!((fake.leak_count(), fake.undefined_uses()), (0, 0));
}

#[test]
fn direct_passes() {
    passes(Policy::Direct);
}

#[test]
fn binned_passes() {
    passes(Policy::Binned);
}

#[test]
fn classic_passes() {
    passes(Policy::Classic);
}

#[test]
fn paged_passes() {
    passes(Policy::Paged);
}
