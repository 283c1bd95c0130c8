//! The whole conformance suite on the CUDA backend, with the fake driver under it: the same cases, under the same names,
//! as on the simulated device and on a GPU.

#![cfg(target_os = "linux")]

mod common;

use common::Fake;
use headwater_conformance::{Ground, Outcome, driver};
use headwater_driver::DeviceId;

#[test]
fn every_case_passes_and_none_is_left_out() {
    let fake = Fake::fresh();
    let ground = Ground::new(fake.open_backend(), fake.open_backend(), DeviceId(0));
    let mut names = Vec::new();
    let summary = driver::run_all(&ground, None, &mut |report| {
        names.push(report.name);
        if !matches!(report.outcome, Outcome::Passed) {
            println!("{report}");
        }
        assert_eq!(fake.context_depth(), 0, "{} left a context behind", report.name);
        assert_eq!(fake.undefined_uses(), 0, "{} had undefined behaviour", report.name);
        assert_eq!(fake.hazard_count(), 0, "{} raced", report.name);
    });
    let expected: Vec<_> = driver::cases().iter().map(|case| case.name).collect();
    assert_eq!(names, expected);
    assert!(summary.all_passed() && summary.not_applicable.is_empty(), "{summary}");
    println!("{summary}");
    drop(ground);
    assert_eq!((fake.leak_count(), fake.undefined_uses()), (0, 0));
}
