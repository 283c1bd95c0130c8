//! The driver's suite on the simulated device, which has to show every behaviour that the real one shows. It also watches
//! the suite itself: a case that races, or leaves something behind, would be a false witness on a real GPU.

use std::sync::Arc;

use headwater_conformance::{Ground, Outcome, driver};
use headwater_driver::{DeviceId, Driver};
use headwater_sim::SimDriver;

fn machine(devices: u32) -> (Arc<SimDriver>, Ground) {
    let sim = SimDriver::builder().devices(devices).build();
    let ground = Ground::new(Arc::clone(&sim) as Arc<dyn Driver>, sim.second_view(), DeviceId(0));
    (sim, ground)
}

/// Every case on a machine of its own, so that what is found belongs to the case.
#[test]
fn every_case_passes_with_no_hazard_and_no_leak() {
    let mut found = Vec::new();
    for case in driver::cases() {
        let (sim, ground) = machine(2);
        match case.run(&ground) {
            Outcome::Passed => {}
            Outcome::Failed(failure) => found.push(format!("{}: {failure}", case.name)),
            Outcome::NotApplicable(reason) => found.push(format!("{}: not applicable: {reason}", case.name)),
        }
        found.extend(sim.hazards().iter().map(|hazard| format!("{}: {hazard}", case.name)));
        found.extend(sim.leaks().iter().map(|leak| format!("{}: left behind: {leak}", case.name)));
    }
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

#[test]
fn one_machine_takes_the_whole_suite_on_either_device() {
    for device in [DeviceId(0), DeviceId(1)] {
        let sim = SimDriver::builder().devices(2).build();
        let ground = Ground::new(Arc::clone(&sim) as Arc<dyn Driver>, sim.second_view(), device);
        let summary = driver::run_all(&ground, None, &mut |_| {});
        let failed: Vec<_> = summary.failed.iter().map(ToString::to_string).collect();
        assert!(summary.all_passed(), "{summary} on {device}\n{}", failed.join("\n"));
        assert_eq!(summary.passed, driver::cases().len());
        assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    }
}

/// What one device cannot show is said to be not applicable, not passed.
#[test]
fn one_device_is_honest_about_what_it_cannot_show() {
    let (_sim, ground) = machine(1);
    let summary = driver::run_all(&ground, Some("several_devices::"), &mut |_| {});
    assert_eq!(summary.passed, 0);
    assert!(summary.failed.is_empty(), "{:?}", summary.failed);
    assert_eq!(summary.not_applicable.len(), summary.total());
    assert!(!summary.all_passed());
}

#[test]
fn a_filter_runs_the_cases_it_names_and_tells_of_each() {
    let (_sim, ground) = machine(1);
    let mut told = Vec::new();
    let summary = driver::run_all(&ground, Some("plain_memory::"), &mut |report| told.push(report.name));
    assert!(told.len() > 5 && told.iter().all(|name| name.starts_with("plain_memory::")), "{told:?}");
    assert_eq!(told.len(), summary.total());
}
