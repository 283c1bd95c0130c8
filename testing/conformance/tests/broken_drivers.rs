//! The suite on devices that misbehave: it finds them out, and always comes to an end.

use std::sync::Arc;

use headwater_conformance::{Ground, Outcome, driver};
use headwater_driver::{Call, DeviceId, Driver, ErrorClass};
use headwater_sim::{FaultPlan, SimDriver};

fn machine(plan: FaultPlan) -> Ground {
    let sim = SimDriver::builder().devices(2).faults(plan).build();
    Ground::new(Arc::clone(&sim) as Arc<dyn Driver>, sim.second_view(), DeviceId(0))
}

/// Runs one case on a device where the first `call` fails, and returns what it says; nothing where it does not fail.
fn with_a_failing(call: Call, name: &str) -> String {
    let plan = FaultPlan::none().fail_nth(call, 1, ErrorClass::Other);
    let case = driver::cases().iter().find(|case| case.name == name);
    match case.map(|case| case.run(&machine(plan))) {
        Some(Outcome::Failed(failure)) => failure.to_string(),
        _ => String::new(),
    }
}

#[test]
fn a_call_that_fails_is_told_with_its_place_and_its_words() {
    let told = with_a_failing(Call::StreamCreate, "streams::a_new_stream_has_finished");
    assert!(told.contains("order.rs:"), "{told}");
    assert!(told.contains("cuStreamCreateWithPriority"), "{told}");
}

/// Cleanup happens in `drop`, where nothing can be returned; it still decides how the case ends.
#[test]
fn what_cannot_be_given_back_fails_the_case() {
    let told = with_a_failing(Call::StreamDestroy, "streams::a_new_stream_has_finished");
    assert!(told.contains("a stream can be given back"), "{told}");
    let told = with_a_failing(Call::HandleRelease, "virtual_memory::setting_access_again_changes_nothing");
    assert!(told.contains("a handle can be given back"), "{told}");
}

/// One call in twenty fails, whichever: the cases fail in words, none panics, none waits for ever.
#[test]
fn the_suite_ends_on_a_device_that_fails_at_random() {
    let mut failed = 0;
    for (case, seed) in driver::cases().iter().zip(1..) {
        if let Outcome::Failed(failure) = case.run(&machine(FaultPlan::none().fail_share(0.05, seed))) {
            assert!(!failure.message.contains("panic"), "{}: {failure}", case.name);
            failed += 1;
        }
    }
    assert!(failed > 20, "only {failed} cases noticed");
}
