//! The suite for every [`Allocator`](headwater::Allocator).
//!
//! One file an area, one function a behaviour, as in the suite for drivers, and on the same [`Ground`]. Every case
//! makes allocators of its own through a function that it is given, with or without a limit, so it knows the whole of
//! their accounts; and every case ends by giving everything back and finding the accounts empty.

mod accounts;
mod bad_input;
mod blocks;
mod capture;
mod ground;
mod handles;
mod limits;
mod streams;
mod threads;

use std::sync::LazyLock;

pub use ground::{AllocatorCase, AllocatorGround, Make};

use crate::case::{CaseReport, Ground, Summary, run_judged};

/// Lists the cases of an area. A case that is not listed is dead code, and the compiler says so.
macro_rules! list_cases {
    ($area:ident: $($case:ident),* $(,)?) => {
        pub(super) const CASES: &[super::AllocatorCase] = &[$(super::AllocatorCase {
            name: concat!(stringify!($area), "::", stringify!($case)),
            area: stringify!($area),
            body: $case,
        },)*];
    };
}
use list_cases;

static ALL: LazyLock<Vec<AllocatorCase>> = LazyLock::new(|| {
    let areas = [
        blocks::CASES,
        handles::CASES,
        bad_input::CASES,
        limits::CASES,
        accounts::CASES,
        streams::CASES,
        capture::CASES,
        threads::CASES,
    ];
    areas.concat()
});

/// Every case, in the order in which they run.
pub fn cases() -> &'static [AllocatorCase] {
    &ALL
}

/// Runs the cases whose name contains `filter` (all without one) on allocators from `make`, and tells `progress` of
/// each as it ends.
///
/// ```
/// use headwater::Direct;
/// use headwater_conformance::{Ground, allocator};
/// use std::sync::Arc;
///
/// fn judge_direct(ground: &Ground) -> bool {
///     let make: &allocator::Make = &|driver, device, limit_bytes| {
///         Ok(Arc::new(match limit_bytes {
///             Some(limit_bytes) => Direct::with_limit(driver, device, limit_bytes)?,
///             None => Direct::new(driver, device)?,
///         }))
///     };
///     allocator::run_all(ground, make, None, &mut |report| println!("{report}")).all_passed()
/// }
/// ```
pub fn run_all(
    ground: &Ground,
    make: &Make,
    filter: Option<&str>,
    progress: &mut dyn FnMut(&CaseReport),
) -> Summary {
    let ground = AllocatorGround { ground, make };
    let cases = cases().iter().map(|case| (case.name, case.area, || case.run(&ground)));
    run_judged(cases, filter, progress)
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
    }
}
