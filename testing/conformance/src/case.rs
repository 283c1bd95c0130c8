//! A case, what it stands on, and how it ends.
//!
//! A case never panics on what a backend does: everything it finds comes back as an [`Outcome`], so that one wrong
//! answer of a backend costs one case and not the run. A backend that panics fails the case it panicked in.

use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_driver::{DeviceId, Driver, DriverError};
use parking_lot::Mutex;

/// What a case stands on: a machine, and somebody else who uses the same machine.
#[derive(Debug)]
pub struct Ground {
    /// The backend that is judged.
    pub driver: Arc<dyn Driver>,
    /// A second, independent opening of the same machine: somebody else, whose streams are adopted.
    pub other: Arc<dyn Driver>,
    /// The device that is judged.
    pub device: DeviceId,
    /// A second device of the same machine, where there is one.
    pub second_device: Option<DeviceId>,
    /// What could not be cleaned up in the case that runs. Guards write here as they are dropped.
    leftovers: Mutex<Vec<Failure>>,
}

impl Ground {
    /// Stands on `device` of `driver`. `other` is a second opening of the same machine. The second device is the first
    /// one that is not `device`.
    pub fn new(driver: Arc<dyn Driver>, other: Arc<dyn Driver>, device: DeviceId) -> Self {
        let second_device = (0..driver.device_count()).map(DeviceId).find(|candidate| *candidate != device);
        Self { driver, other, device, second_device, leftovers: Mutex::new(Vec::new()) }
    }

    /// Notes that something could not be cleaned up: the case fails for it when it ends.
    pub(crate) fn note_leftover(&self, leftover: Failure) {
        self.leftovers.lock().push(leftover);
    }

    fn take_leftovers(&self) -> Vec<Failure> {
        std::mem::take(&mut *self.leftovers.lock())
    }
}

/// One behaviour that every backend must show.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, area first: `virtual_memory::part_of_a_handle_cannot_be_mapped`.
    pub name: &'static str,
    /// What it is about: `virtual_memory`.
    pub area: &'static str,
    pub(crate) body: fn(&Ground) -> Result<(), Stop>,
}

impl Case {
    /// Runs the case, its cleanup included.
    pub fn run(&self, ground: &Ground) -> Outcome {
        judge(ground, || (self.body)(ground))
    }
}

/// Runs the body of a case, and finds how it ended.
pub(crate) fn judge(ground: &Ground, body: impl FnOnce() -> Result<(), Stop>) -> Outcome {
    let stopped = catch_unwind(AssertUnwindSafe(body));
    let leftovers = ground.take_leftovers();
    match stopped {
        Ok(Err(Stop::Failed(failure))) => Outcome::Failed(failure.leaving(&leftovers)),
        Err(panic) => Outcome::Failed(Failure::panicked(panic.as_ref()).leaving(&leftovers)),
        // A case that found nothing, or nothing to do, still fails for what it left behind.
        Ok(ended) => match (leftovers.split_first(), ended) {
            (Some((first, others)), _) => Outcome::Failed(first.clone().leaving(others)),
            (None, Err(Stop::NotApplicable(reason))) => Outcome::NotApplicable(reason),
            (None, _) => Outcome::Passed,
        },
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The behaviour was seen.
    Passed,
    /// Something else was seen.
    Failed(Failure),
    /// This machine cannot show it, for this reason (one device only, say). Not a pass.
    NotApplicable(&'static str),
}

/// What was seen instead, and where the suite looked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was expected and what was seen.
    pub message: String,
    /// The place in the suite.
    pub file: &'static str,
    /// The line in `file`.
    pub line: u32,
}

impl Failure {
    /// A failure noticed by the caller.
    #[track_caller]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        let place = Location::caller();
        Self { message: message.into(), file: place.file(), line: place.line() }
    }

    /// The same failure, with what could not be cleaned up after it.
    fn leaving(mut self, leftovers: &[Failure]) -> Self {
        for leftover in leftovers {
            self.message.push_str(&format!("; and then {leftover}"));
        }
        self
    }

    fn panicked(panic: &(dyn std::any::Any + Send)) -> Self {
        let words = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("(no message)");
        Self::new(format!("expected an answer, got a panic: {words}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for Failure {}

/// Why a case stopped before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(Failure),
    NotApplicable(&'static str),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A driver call that had to succeed and did not: `?` on a call is an assertion, and knows its line.
impl From<DriverError> for Stop {
    #[track_caller]
    fn from(error: DriverError) -> Self {
        Self::Failed(Failure::new(format!("expected the call to succeed, got: {error}")))
    }
}

/// One case that was run.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub area: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took on the host's clock.
    pub elapsed: Duration,
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(f, "passed  {}", self.name),
            Outcome::Failed(failure) => write!(f, "FAILED  {}: {failure}", self.name),
            Outcome::NotApplicable(reason) => write!(f, "not run {}: {reason}", self.name),
        }
    }
}

/// All cases that were run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How many passed.
    pub passed: usize,
    /// Those that failed.
    pub failed: Vec<CaseReport>,
    /// Those that this machine cannot show.
    pub not_applicable: Vec<CaseReport>,
}

impl Summary {
    /// Whether at least one case ran and none failed.
    pub fn all_passed(&self) -> bool {
        self.failed.is_empty() && self.passed > 0
    }

    /// How many cases there were.
    pub fn total(&self) -> usize {
        self.passed + self.failed.len() + self.not_applicable.len()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, not_applicable) = (self.failed.len(), self.not_applicable.len());
        write!(f, "{} passed, {failed} failed, {not_applicable} not applicable", self.passed)
    }
}

/// Runs those of `cases` whose name contains `filter`, in their order, and tells `progress` of each.
pub(crate) fn run_cases(
    cases: &[Case],
    ground: &Ground,
    filter: Option<&str>,
    progress: &mut dyn FnMut(&CaseReport),
) -> Summary {
    run_judged(cases.iter().map(|case| (case.name, case.area, || case.run(ground))), filter, progress)
}

/// The same for cases of any kind: their names, their areas, and how to run them.
pub(crate) fn run_judged(
    cases: impl Iterator<Item = (&'static str, &'static str, impl FnOnce() -> Outcome)>,
    filter: Option<&str>,
    progress: &mut dyn FnMut(&CaseReport),
) -> Summary {
    let mut summary = Summary::default();
    for (name, area, run) in cases.filter(|(name, ..)| filter.is_none_or(|part| name.contains(part))) {
        let start = Instant::now();
        let outcome = run();
        let report = CaseReport { name, area, outcome, elapsed: start.elapsed() };
        progress(&report);
        match report.outcome {
            Outcome::Passed => summary.passed += 1,
            Outcome::Failed(_) => summary.failed.push(report),
            Outcome::NotApplicable(_) => summary.not_applicable.push(report),
        }
    }
    summary
}
