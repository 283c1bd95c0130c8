//! Faults on order: which driver calls shall fail, and how.
//!
//! Every driver call can fail, and rule 4 of the design says that a failed call leaves the accounting exact. A plan makes
//! that testable in two ways. Systematically: run a scripted program once with an empty plan, read
//! [`calls_seen`](FaultPlan::calls_seen), then run it again once for every position with
//! [`fail_nth_of_any`](FaultPlan::fail_nth_of_any). And at random: [`fail_share`](FaultPlan::fail_share) draws from a
//! seeded generator of its own, so a failing seed replays.
//!
//! Rules combine. Each counts for itself, also while another one fires; where several fire at once the first added wins.

use headwater_driver::{Call, ErrorClass};

// `only` keeps its calls as bits of one word.
const _: () = assert!(Call::ALL.len() <= 64);

/// Which calls fail. Counting starts when the plan is handed to the device.
///
/// ```
/// use headwater_driver::{Call, ErrorClass};
/// use headwater_sim::FaultPlan;
///
/// // The second handle cannot be created, and one in a hundred copies fails.
/// let oom = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };
/// let plan = FaultPlan::none()
///     .fail_nth(Call::HandleCreate, 2, oom)
///     .fail_share(0.01, 42)
///     .only(&[Call::CopyToDevice, Call::CopyToHost]);
/// # let mut plan = plan;
/// # assert_eq!(plan.next(Call::HandleCreate), None);
/// # assert_eq!(plan.next(Call::HandleCreate), Some(oom));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
    /// Bit `call as u64` is set where `only` named the call; `None` means every call.
    only: Option<u64>,
    calls_seen: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    /// Fires when `calls_left` reaches zero; zero from the start never fires.
    NthOf { call: Call, calls_left: u64, class: ErrorClass },
    /// The same for calls of any kind that `only` lets through.
    NthOfAny { calls_left: u64, class: ErrorClass },
    /// Fires where the next draw is below `threshold`, out of 2^53.
    Share { threshold: u64, random: SplitMix64 },
}

impl FaultPlan {
    /// Nothing fails.
    pub fn none() -> Self {
        Self::default()
    }

    /// The `n`-th `call` from now fails with `class`; the first is 1, and 0 is never. It fails once: the next attempt
    /// succeeds again, as after memory was freed.
    #[must_use]
    pub fn fail_nth(mut self, call: Call, n: u64, class: ErrorClass) -> Self {
        self.rules.push(Rule::NthOf { call, calls_left: n, class });
        self
    }

    /// The `n`-th call of any kind fails with `class`, once. Where [`only`](Self::only) was used, only those calls count.
    #[must_use]
    pub fn fail_nth_of_any(mut self, n: u64, class: ErrorClass) -> Self {
        self.rules.push(Rule::NthOfAny { calls_left: n, class });
        self
    }

    /// About `share` (0 to 1) of all calls fail, chosen by `seed`: out of memory where the call allocates,
    /// [`ErrorClass::Other`] elsewhere. A share that is no number is taken as 0.
    #[must_use]
    pub fn fail_share(mut self, share: f64, seed: u64) -> Self {
        // A float cast saturates, and makes zero of what is no number.
        let threshold = (share.clamp(0.0, 1.0) * SplitMix64::DRAWS as f64) as u64;
        self.rules.push(Rule::Share { threshold, random: SplitMix64(seed) });
        self
    }

    /// Restricts [`fail_share`](Self::fail_share) and [`fail_nth_of_any`](Self::fail_nth_of_any) to `calls`; those named
    /// in several uses add up.
    #[must_use]
    pub fn only(mut self, calls: &[Call]) -> Self {
        let named = calls.iter().fold(0, |bits, call| bits | bit(*call));
        self.only = Some(self.only.unwrap_or(0) | named);
        self
    }

    /// Whether this call fails, and how. The device asks once for every call, before it does anything. Out of memory
    /// comes back as it was given (from a share: with zero bytes asked for); the device fills in the numbers.
    #[inline]
    pub fn next(&mut self, call: Call) -> Option<ErrorClass> {
        self.calls_seen += 1;
        if self.rules.is_empty() {
            return None;
        }
        self.next_by_rules(call)
    }

    /// How many calls were asked about so far, failed ones included: the positions a scripted program has.
    pub fn calls_seen(&self) -> u64 {
        self.calls_seen
    }

    #[cold]
    fn next_by_rules(&mut self, call: Call) -> Option<ErrorClass> {
        let let_through = self.only.is_none_or(|bits| bits & bit(call) != 0);
        let mut fault = None;
        // No early exit: every rule counts and draws as if it were alone.
        for rule in &mut self.rules {
            let fired = match rule {
                Rule::NthOf { call: of, calls_left, class } => {
                    (*of == call && counts_down_to_zero(calls_left)).then_some(*class)
                }
                Rule::NthOfAny { calls_left, class } => {
                    (let_through && counts_down_to_zero(calls_left)).then_some(*class)
                }
                Rule::Share { threshold, random } => {
                    (let_through && random.draw() < *threshold).then(|| likely_class(call))
                }
            };
            fault = fault.or(fired);
        }
        fault
    }
}

const fn bit(call: Call) -> u64 {
    1 << call as u64
}

/// Counts down and says whether this was the last; stays at zero afterwards.
fn counts_down_to_zero(calls_left: &mut u64) -> bool {
    let last = *calls_left == 1;
    *calls_left = calls_left.saturating_sub(1);
    last
}

/// What a call fails with on a real machine: calls that need memory find none.
fn likely_class(call: Call) -> ErrorClass {
    match call {
        Call::MemAlloc
        | Call::AddressReserve
        | Call::HandleCreate
        | Call::HandleMap
        | Call::AccessSet
        | Call::HandleImport
        | Call::HostAlloc
        | Call::HostRegister
        | Call::StreamCreate
        | Call::EventCreate
        | Call::GraphInstantiate
        | Call::ModuleLoad => ErrorClass::OutOfMemory { requested_bytes: 0, memory: None },
        _ => ErrorClass::Other,
    }
}

/// Steele, Lea and Flood's SplitMix64 (2014): eight bytes of state, any seed is good.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SplitMix64(u64);

impl SplitMix64 {
    /// How many values a draw can have: as many as a float tells apart evenly.
    const DRAWS: u64 = 1 << 53;

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) >> 11
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OOM: ErrorClass = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };

    fn failing_positions(mut plan: FaultPlan, calls: &[Call]) -> Vec<usize> {
        calls.iter().enumerate().filter_map(|(place, call)| plan.next(*call).map(|_| place + 1)).collect()
    }

    #[test]
    fn an_empty_plan_fails_nothing_and_counts() {
        let mut plan = FaultPlan::none();
        assert!(Call::ALL.iter().all(|call| plan.next(*call).is_none()));
        assert_eq!(plan.calls_seen(), Call::ALL.len() as u64);
    }

    #[test]
    fn the_nth_call_of_a_kind_fails_once() {
        let plan = FaultPlan::none().fail_nth(Call::MemAlloc, 2, OOM).fail_nth(Call::MemFree, 0, OOM);
        let calls = [Call::MemAlloc, Call::MemFree, Call::MemAlloc, Call::MemAlloc, Call::MemFree];
        assert_eq!(failing_positions(plan, &calls), [3]);
    }

    #[test]
    fn every_position_of_a_program_can_be_made_to_fail() {
        let program = [Call::AddressReserve, Call::HandleCreate, Call::HandleMap, Call::AccessSet];
        for position in 1..=program.len() {
            let plan = FaultPlan::none().fail_nth_of_any(position as u64, ErrorClass::Other);
            assert_eq!(failing_positions(plan, &program), [position]);
        }
    }

    #[test]
    fn only_restricts_shares_and_nth_of_any_but_not_a_named_call() {
        let plan = FaultPlan::none()
            .fail_nth_of_any(2, ErrorClass::Other)
            .fail_nth(Call::EventQuery, 1, ErrorClass::NotReady)
            .only(&[Call::MemAlloc])
            .only(&[Call::MemFree]);
        let calls = [Call::MemAlloc, Call::EventQuery, Call::EventRecord, Call::MemFree];
        assert_eq!(failing_positions(plan, &calls), [2, 4]);
        let plan = FaultPlan::none().fail_share(1.0, 7).only(&[Call::MemAlloc]);
        assert_eq!(failing_positions(plan, &calls), [1]);
    }

    #[test]
    fn rules_count_also_while_another_fires_and_the_first_wins() {
        let mut plan = FaultPlan::none()
            .fail_nth_of_any(1, ErrorClass::NotReady)
            .fail_nth(Call::MemAlloc, 1, OOM)
            .fail_nth(Call::MemAlloc, 2, OOM);
        assert_eq!(plan.next(Call::MemAlloc), Some(ErrorClass::NotReady));
        assert_eq!(plan.next(Call::MemAlloc), Some(OOM));
        assert_eq!(plan.next(Call::MemAlloc), None);
    }

    #[test]
    fn a_share_picks_a_class_that_fits_the_call() {
        let mut plan = FaultPlan::none().fail_share(1.0, 1);
        assert_eq!(plan.next(Call::HandleCreate), Some(OOM));
        assert_eq!(plan.next(Call::EventRecord), Some(ErrorClass::Other));
    }

    #[test]
    fn shares_beyond_their_range_mean_none_or_all() {
        let calls = [Call::KernelLaunch; 50];
        assert_eq!(failing_positions(FaultPlan::none().fail_share(f64::NAN, 1), &calls).len(), 0);
        assert_eq!(failing_positions(FaultPlan::none().fail_share(-1.0, 1), &calls).len(), 0);
        assert_eq!(failing_positions(FaultPlan::none().fail_share(2.0, 1), &calls).len(), 50);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_share_is_the_same_for_the_same_seed_and_about_as_large_as_asked(
            seed in any::<u64>(),
            percent in 1u32..=99,
        ) {
            let share = f64::from(percent) / 100.0;
            let calls = [Call::EventRecord; 4000];
            let failed = failing_positions(FaultPlan::none().fail_share(share, seed), &calls);
            prop_assert_eq!(&failed, &failing_positions(FaultPlan::none().fail_share(share, seed), &calls));
            // Six standard deviations of 4000 draws are at most 4.8 %.
            prop_assert!((failed.len() as f64 / 4000.0 - share).abs() < 0.05);
        }
    }
}
