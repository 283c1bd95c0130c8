//! The suite for every [`Driver`](headwater_driver::Driver).
//!
//! One file an area, one function a behaviour, and a list of them at the foot of each file. A case is true on an H200
//! with driver 580, over CUDA 13: where a backend differs, the backend is wrong. No case does what would cost a
//! real device its context (a kernel on memory that is not mapped, an illegal address): one such error would be every later
//! call's answer. No case measures time: work that must still be running spins for a tenth of a second, and only the order
//! of things is looked at.

mod capture;
mod copies;
mod devices;
mod errors;
mod events;
mod host_memory;
mod kernels;
mod plain_memory;
mod several_devices;
mod streams;
mod threads;
mod virtual_memory;

use std::sync::LazyLock;

use crate::case::{Case, CaseReport, Ground, Summary, run_cases};

/// Lists the cases of an area. A case that is not listed is dead code, and the compiler says so.
macro_rules! list {
    ($area:ident: $($case:ident),* $(,)?) => {
        pub(in crate::driver) const CASES: &[crate::case::Case] = &[$(crate::case::Case {
            name: concat!(stringify!($area), "::", stringify!($case)),
            area: stringify!($area),
            body: $case,
        },)*];
    };
}
use list;

static ALL: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let areas = [
        devices::CASES,
        plain_memory::CASES,
        virtual_memory::life_cycle::CASES,
        virtual_memory::refusals::CASES,
        virtual_memory::sharing::CASES,
        host_memory::CASES,
        streams::order::CASES,
        streams::names::CASES,
        events::CASES,
        copies::CASES,
        kernels::CASES,
        capture::status::CASES,
        capture::order::CASES,
        capture::illegal::CASES,
        capture::threads::CASES,
        capture::legal::CASES,
        capture::graphs::CASES,
        several_devices::CASES,
        threads::CASES,
        errors::CASES,
    ];
    areas.concat()
});

/// Every case, in the order in which they run.
pub fn cases() -> &'static [Case] {
    &ALL
}

/// Runs the cases whose name contains `filter` (all without one) and tells `progress` of each as it ends.
pub fn run_all(ground: &Ground, filter: Option<&str>, progress: &mut dyn FnMut(&CaseReport)) -> Summary {
    run_cases(cases(), ground, filter, progress)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_in_its_area() {
        let names: BTreeSet<_> = cases().iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases().len());
        assert!(cases().iter().all(|case| case.name.starts_with(case.area)));
        assert!(cases().len() >= 90, "{} cases", cases().len());
    }
}
