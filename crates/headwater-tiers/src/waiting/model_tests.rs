//! The queue against a model, over random programs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::account::Charge;
use super::request::{Answer, Ask, Ceiling, Grant, Outcome, Refused, Ticket};
use super::tests::{ask_any, book};

/// One step of a random program.
#[derive(Clone, Debug)]
enum Step {
    Ask { first: usize, second: Option<usize>, bytes: u64, deadline: Option<u64> },
    Try { account: usize, bytes: u64 },
    UpTo { account: usize, bytes: u64 },
    GiveBack(usize),
    Cancel(usize),
    Pass(u64),
    SetLimit { account: usize, limit: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let account = 0..3_usize;
    let step = prop_oneof![
        4 => (account.clone(), proptest::option::of(account.clone()), 0..130_u64, proptest::option::of(0..20_u64))
            .prop_map(|(first, second, bytes, deadline)| Step::Ask { first, second, bytes, deadline }),
        2 => (account.clone(), 0..60_u64).prop_map(|(account, bytes)| Step::Try { account, bytes }),
        1 => (account.clone(), 0..60_u64).prop_map(|(account, bytes)| Step::UpTo { account, bytes }),
        5 => (0..64_usize).prop_map(Step::GiveBack),
        1 => (0..64_usize).prop_map(Step::Cancel),
        1 => (1..5_u64).prop_map(Step::Pass),
        1 => (account, 0..110_u64).prop_map(|(account, limit)| Step::SetLimit { account, limit }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The same machine, written for obviousness: what is out, who waits, and what each has borne.
#[derive(Default)]
struct Model {
    now: u64,
    limits: [u64; 3],
    used: [u64; 3],
    /// Grants that are out: account and bytes.
    out: Vec<(usize, u64)>,
    waiting: BTreeMap<u64, (Vec<usize>, u64, Option<u64>, u32)>,
    ended: BTreeMap<u64, &'static str>,
}

const PASSES_MAX: u32 = 3;

impl Model {
    fn fits(&self, account: usize, bytes: u64) -> bool {
        bytes == 0 || self.used[account] + bytes <= self.limits[account]
    }

    /// Whether somebody older than `than` has borne enough and wants `account`.
    fn is_held(&self, account: usize, than: u64) -> bool {
        self.waiting.range(..than).any(|(_, (wanted, bytes, _, passes))| {
            *passes >= PASSES_MAX && wanted.contains(&account) && *bytes <= self.limits[account]
        })
    }

    /// First wanted place that has room; the model's candidates have different ranks.
    fn place(&self, wanted: &[usize], bytes: u64, than: u64) -> Option<usize> {
        let open = |account: usize| bytes == 0 || !self.is_held(account, than);
        wanted.iter().copied().find(|account| self.fits(*account, bytes) && open(*account))
    }

    fn give(&mut self, account: usize, bytes: u64, than: u64) {
        self.used[account] += bytes;
        self.out.push((account, bytes));
        let limit = self.limits[account];
        for (wanted, wanted_bytes, _, passes) in self.waiting.range_mut(..than).map(|(_, waiter)| waiter) {
            if bytes > 0 && wanted.contains(&account) && *wanted_bytes <= limit {
                *passes += 1;
            }
        }
    }

    /// Serves whoever can be, oldest first, from the start after every grant: the slow, obvious way.
    fn serve(&mut self) {
        loop {
            let served = self.waiting.iter().find_map(|(ticket, (wanted, bytes, _, _))| {
                self.place(wanted, *bytes, *ticket).map(|account| (*ticket, account, *bytes))
            });
            let Some((ticket, account, bytes)) = served else { return };
            self.waiting.remove(&ticket);
            self.give(account, bytes, ticket);
            self.ended.insert(ticket, "granted");
        }
    }

    fn end(
        &mut self,
        why: &'static str,
        ends: impl Fn(&Self, u64, &(Vec<usize>, u64, Option<u64>, u32)) -> bool,
    ) {
        let over: Vec<_> = self
            .waiting
            .iter()
            .filter(|(ticket, waiter)| ends(self, **ticket, waiter))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in over {
            self.waiting.remove(&ticket);
            self.ended.insert(ticket, why);
        }
    }
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Granted(_) => "granted",
        Outcome::TimedOut => "timed out",
        Outcome::Cancelled => "cancelled",
        Outcome::NeverFits => "never fits",
        Outcome::ShutDown => "shut down",
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_end_as_in_the_model(steps in steps()) {
        let start = Instant::now();
        let at = |tick: u64| start + Duration::from_nanos(tick);
        let mut book = book(PASSES_MAX, &[100, 80, 40]);
        let mut model = Model { limits: [100, 80, 40], ..Model::default() };
        let mut tickets = Vec::new();
        for step in steps {
            match step {
                Step::Ask { first, second, bytes, deadline } => {
                    let wanted: Vec<_> = std::iter::once(first).chain(second.filter(|second| *second != first)).collect();
                    let ranked: Vec<_> = wanted.iter().copied().zip(0..).collect();
                    let deadline = deadline.map(|ticks| model.now + ticks);
                    let answer = book.ask(ask_any(&ranked, bytes), deadline.map(at));
                    if wanted.iter().all(|account| bytes > model.limits[*account]) {
                        prop_assert_eq!(answer, Err(Refused::NeverFits));
                    } else if let Some(account) = model.place(&wanted, bytes, u64::MAX) {
                        prop_assert_eq!(answer, Ok(Answer::Granted(Grant { account, bytes })));
                        model.give(account, bytes, u64::MAX);
                    } else if model.waiting.len() == 64 {
                        prop_assert_eq!(answer, Err(Refused::QueueFull { waiters_max: 64 }));
                    } else {
                        let Ok(Answer::Waiting(ticket)) = answer else { panic!("it should wait: {answer:?}") };
                        model.waiting.insert(ticket.number(), (wanted, bytes, deadline, 0));
                        tickets.push(ticket);
                    }
                }
                Step::Try { account, bytes } => {
                    let answer = book.try_ask(&Ask::of(account, bytes)).is_ok();
                    let fits = bytes <= model.limits[account] && model.place(&[account], bytes, u64::MAX).is_some();
                    prop_assert_eq!(answer, fits);
                    if fits {
                        model.give(account, bytes, u64::MAX);
                    }
                }
                Step::UpTo { account, bytes } => {
                    let room = model.limits[account].saturating_sub(model.used[account]);
                    let bytes_given = if model.is_held(account, u64::MAX) { 0 } else { bytes.min(room) };
                    prop_assert_eq!(book.ask_up_to(account, bytes), Ok(Grant { account, bytes: bytes_given }));
                    model.give(account, bytes_given, u64::MAX);
                }
                Step::GiveBack(index) => if !model.out.is_empty() {
                    let (account, bytes) = model.out.swap_remove(index % model.out.len());
                    book.recharge(account, Charge::reserved(bytes), Charge::NONE, Ceiling::Limit).unwrap();
                    model.used[account] -= bytes;
                    model.serve();
                },
                Step::Cancel(index) => if !tickets.is_empty() {
                    let ticket: Ticket = tickets[index % tickets.len()];
                    book.cancel(ticket);
                    model.end("cancelled", |_, number, _| number == ticket.number());
                    model.serve();
                },
                Step::Pass(ticks) => {
                    model.now += ticks;
                    book.expire(at(model.now));
                    let now = model.now;
                    model.end("timed out", |_, _, waiter| waiter.2.is_some_and(|deadline| deadline <= now));
                    model.serve();
                }
                Step::SetLimit { account, limit } => {
                    book.set_ceilings(account, 100, limit);
                    model.limits[account] = limit.min(100);
                    model.end("never fits", |model, _, (wanted, bytes, _, _)| {
                        wanted.iter().all(|account| *bytes > model.limits[*account])
                    });
                    model.serve();
                }
            }
            prop_assert_eq!(book.verify(), Ok(()));
            for account in 0..3 {
                prop_assert_eq!(book.account(account).used_bytes(), model.used[account]);
            }
            prop_assert_eq!(book.waiters(), model.waiting.len());
        }
        for ticket in tickets {
            let outcome = book.take_outcome(ticket).map(outcome_name);
            prop_assert_eq!(outcome, model.ended.get(&ticket.number()).copied());
        }
    }
}
