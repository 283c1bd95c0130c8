//! The queue: its rules one by one, and real threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::account::{Account, Charge};
use super::book::Book;
use super::gate::{Gate, WaitRefused};
use super::request::{Answer, Ask, Candidate, Ceiling, Grant, Outcome, Refused, Ticket};
use super::wait::{CancelToken, Wait};
use crate::clock::{ManualClock, SystemClock};

/// A book with one account of 100 bytes for each limit.
pub(super) fn book(passes_max: u32, limits: &[u64]) -> Book {
    let mut book = Book::new(passes_max, 64);
    for limit in limits {
        book.open_account(Account::new(100, *limit, 1));
    }
    book
}

pub(super) fn ask_any(candidates: &[(usize, u8)], bytes: u64) -> Ask {
    let candidates = candidates.iter().map(|&(account, rank)| Candidate { account, rank });
    Ask { candidates: candidates.collect(), bytes }
}

fn wait_for(book: &mut Book, ask: Ask) -> Ticket {
    match book.ask(ask, None) {
        Ok(Answer::Waiting(ticket)) => ticket,
        other => panic!("it should wait: {other:?}"),
    }
}

fn give_back(book: &mut Book, account: usize, bytes: u64) -> Vec<Ticket> {
    let decided = book.recharge(account, Charge::reserved(bytes), Charge::NONE, Ceiling::Capacity).unwrap();
    book.verify().unwrap();
    decided.to_vec()
}

#[test]
fn the_limit_and_the_capacity_hold_at_their_exact_edges() {
    let mut book = book(4, &[85]);
    assert_eq!(book.try_ask(&Ask::of(0, 86)), Err(Refused::NeverFits));
    assert_eq!(book.try_ask(&Ask::of(0, 85)), Ok(Grant { account: 0, bytes: 85 }));
    assert_eq!(book.try_ask(&Ask::of(0, 1)), Err(Refused::NoRoom));
    assert_eq!(book.try_ask(&Ask::of(0, 0)), Ok(Grant { account: 0, bytes: 0 }));
    let more =
        |book: &mut Book, bytes| book.recharge(0, Charge::NONE, Charge::unreserved(bytes), Ceiling::Capacity);
    assert_eq!(more(&mut book, 16), Err(Refused::NoRoom));
    assert!(more(&mut book, 15).unwrap().is_empty());
    assert_eq!(book.account(0).used_bytes(), 100);
}

#[test]
fn promises_are_whole_granules() {
    let mut book = Book::new(4, 8);
    book.open_account(Account::new(100, 95, 10));
    assert_eq!(book.try_ask(&Ask::of(0, 11)), Ok(Grant { account: 0, bytes: 20 }));
    assert_eq!(book.ask_up_to(0, 1000), Ok(Grant { account: 0, bytes: 70 }));
    assert_eq!(
        book.try_ask(&Ask::of(0, 91)),
        Err(Refused::NeverFits),
        "91 bytes need 100, and the limit is 95"
    );
}

#[test]
fn a_small_request_passes_a_large_one_a_bounded_number_of_times() {
    let mut book = book(2, &[100]);
    book.try_ask(&Ask::of(0, 90)).unwrap();
    let large = wait_for(&mut book, Ask::of(0, 50));
    for _ in 0..2 {
        book.try_ask(&Ask::of(0, 1)).unwrap();
    }
    // Passed twice: now it holds up everyone behind it, in every way to ask.
    assert_eq!(book.try_ask(&Ask::of(0, 1)), Err(Refused::NoRoom));
    assert_eq!(book.ask_up_to(0, 8), Ok(Grant { account: 0, bytes: 0 }));
    let growth = book.recharge(0, Charge::reserved(1), Charge::reserved(2), Ceiling::Limit);
    assert_eq!(growth, Err(Refused::NoRoom));
    let small = wait_for(&mut book, Ask::of(0, 1));
    assert!(give_back(&mut book, 0, 1).is_empty());
    assert_eq!(give_back(&mut book, 0, 90), [large, small]);
    assert_eq!(book.take_outcome(large), Some(Outcome::Granted(Grant { account: 0, bytes: 50 })));
}

#[test]
fn one_release_serves_everyone_who_fits_in_order() {
    let mut book = book(8, &[100]);
    book.try_ask(&Ask::of(0, 100)).unwrap();
    let tickets: Vec<_> = [60, 50, 40, 30].map(|bytes| wait_for(&mut book, Ask::of(0, bytes))).into();
    // 60 fits and goes first, 50 does not, 40 does.
    assert_eq!(give_back(&mut book, 0, 100), [tickets[0], tickets[2]]);
    assert_eq!(book.take_outcome(tickets[1]), None);
}

#[test]
fn a_waiter_takes_whichever_candidate_comes_free_first_and_the_wanted_one_if_both_do() {
    for (freed, expected) in [(0, 0), (1, 1)] {
        let mut book = book(4, &[100, 100]);
        for account in 0..2 {
            book.try_ask(&Ask::of(account, 100)).unwrap();
        }
        let ticket = wait_for(&mut book, ask_any(&[(0, 0), (1, 1)], 10));
        assert_eq!(give_back(&mut book, freed, 50), [ticket]);
        assert_eq!(book.take_outcome(ticket), Some(Outcome::Granted(Grant { account: expected, bytes: 10 })));
    }
    let mut book = book(4, &[100, 100, 100]);
    book.try_ask(&Ask::of(1, 50)).unwrap();
    let wanted = ask_any(&[(0, 1), (1, 0), (2, 0)], 10);
    assert_eq!(
        book.try_ask(&wanted).map(|grant| grant.account),
        Ok(2),
        "the lower rank, and more room within it"
    );
}

#[test]
fn a_space_too_small_for_a_waiter_is_not_held_up_by_it() {
    let mut book = book(0, &[100, 20]);
    book.try_ask(&Ask::of(0, 100)).unwrap();
    wait_for(&mut book, ask_any(&[(0, 0), (1, 0)], 30));
    assert_eq!(book.try_ask(&Ask::of(1, 20)).map(|grant| grant.account), Ok(1));
}

#[test]
fn what_can_never_be_granted_is_refused_at_once_and_when_a_limit_falls() {
    let mut book = book(4, &[80, 90]);
    assert_eq!(book.ask(ask_any(&[(0, 0), (1, 1)], 91), None), Err(Refused::NeverFits));
    assert_eq!(book.ask(ask_any(&[], 1), None), Err(Refused::NeverFits));
    book.try_ask(&Ask::of(0, 80)).unwrap();
    let waiting = wait_for(&mut book, Ask::of(0, 60));
    assert!(book.set_ceilings(0, 100, 60).is_empty());
    assert_eq!(book.set_ceilings(0, 100, 59).to_vec(), [waiting]);
    assert_eq!(book.take_outcome(waiting), Some(Outcome::NeverFits));
}

#[test]
fn a_raised_limit_serves_waiters() {
    let mut book = book(4, &[50]);
    book.try_ask(&Ask::of(0, 50)).unwrap();
    let waiting = wait_for(&mut book, Ask::of(0, 10));
    assert!(book.set_ceilings(0, 100, 59).is_empty());
    assert_eq!(book.set_ceilings(0, 100, 60).to_vec(), [waiting]);
}

#[test]
fn whoever_gives_up_no_longer_holds_others_up() {
    for gives_up_by_time in [true, false] {
        let now = Instant::now();
        let mut book = book(0, &[100]);
        book.try_ask(&Ask::of(0, 90)).unwrap();
        let Ok(Answer::Waiting(large)) = book.ask(Ask::of(0, 50), Some(now)) else {
            panic!("it should wait")
        };
        let small = wait_for(&mut book, Ask::of(0, 5));
        let decided = if gives_up_by_time { book.expire(now) } else { book.cancel(large) };
        assert_eq!(decided.to_vec(), [large, small]);
        let expected = if gives_up_by_time { Outcome::TimedOut } else { Outcome::Cancelled };
        assert_eq!(book.take_outcome(large), Some(expected));
        assert!(matches!(book.take_outcome(small), Some(Outcome::Granted(_))));
    }
}

#[test]
fn a_deadline_is_kept_to_the_tick() {
    let now = Instant::now();
    let mut book = book(0, &[100]);
    book.try_ask(&Ask::of(0, 100)).unwrap();
    let deadline = now + Duration::from_nanos(2);
    let Ok(Answer::Waiting(ticket)) = book.ask(Ask::of(0, 1), Some(deadline)) else {
        panic!("it should wait")
    };
    assert!(book.expire(now + Duration::from_nanos(1)).is_empty());
    assert_eq!(book.expire(deadline).to_vec(), [ticket]);
}

#[test]
fn shutdown_ends_every_wait_and_what_is_out_can_come_back() {
    let mut book = book(4, &[100]);
    book.try_ask(&Ask::of(0, 100)).unwrap();
    let tickets: Vec<_> = (0..3).map(|_| wait_for(&mut book, Ask::of(0, 1))).collect();
    assert_eq!(book.shut_down().len(), 3);
    for ticket in tickets {
        assert_eq!(book.take_outcome(ticket), Some(Outcome::ShutDown));
    }
    assert_eq!(book.ask(Ask::of(0, 1), None), Err(Refused::ShutDown));
    assert!(give_back(&mut book, 0, 100).is_empty());
    assert_eq!(book.account(0).used_bytes(), 0);
}

#[test]
fn the_queue_is_bounded() {
    let mut book = Book::new(4, 2);
    book.open_account(Account::new(10, 10, 1));
    book.try_ask(&Ask::of(0, 10)).unwrap();
    for _ in 0..2 {
        wait_for(&mut book, Ask::of(0, 1));
    }
    assert_eq!(book.ask(Ask::of(0, 1), None), Err(Refused::QueueFull { waiters_max: 2 }));
    assert_eq!(book.waiting_for(0), (2, 2));
}

#[test]
fn threads_that_wait_are_all_served_and_every_byte_comes_back() {
    let mut book = Book::new(2, 64);
    let account = book.open_account(Account::new(100, 100, 1));
    let gate = Gate::new(book, Arc::new(SystemClock));
    let served = AtomicU64::new(0);
    let token = CancelToken::new();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (gate, served, token) = (&gate, &served, &token);
            scope.spawn(move || {
                for round in 0..200 {
                    let bytes = 1 + (thread * 37 + round * 61) % 90;
                    let wait = Wait::until_cancelled_by(token);
                    let grant = gate.wait_for(Ask::of(account, bytes), &wait).unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                    gate.settle(|book| {
                        book.recharge(account, Charge::reserved(grant.bytes), Charge::NONE, Ceiling::Capacity)
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(served.into_inner(), 1600);
    assert_eq!(gate.read(|book| (book.account(account).used_bytes(), book.waiters())), (0, 0));
}

#[test]
fn a_clock_moved_by_hand_ends_waits_and_an_elapsed_deadline_ends_at_once() {
    let clock = Arc::new(ManualClock::default());
    let mut book = Book::new(2, 8);
    let account = book.open_account(Account::new(10, 10, 1));
    book.try_ask(&Ask::of(account, 10)).unwrap();
    let gate = Gate::new(book, clock.clone());
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| gate.wait_for(Ask::of(account, 1), &Wait::at_most(Duration::from_secs(5))));
        while gate.read(Book::waiters) == 0 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(4));
        gate.expire();
        assert_eq!(gate.read(Book::waiters), 1);
        clock.advance(Duration::from_secs(1));
        gate.expire();
        assert_eq!(waiter.join().unwrap(), Err(WaitRefused::TimedOut { waited: Duration::from_secs(5) }));
    });
    let gate = Gate::new(
        {
            let mut book = Book::new(2, 8);
            book.open_account(Account::new(10, 10, 1));
            book.try_ask(&Ask::of(0, 10)).unwrap();
            book
        },
        Arc::new(SystemClock),
    );
    let refused = gate.wait_for(Ask::of(0, 1), &Wait::until(Instant::now()));
    assert!(matches!(refused, Err(WaitRefused::TimedOut { .. })), "{refused:?}");
}

#[test]
fn a_token_cancelled_before_during_and_after_ends_the_wait() {
    let mut book = Book::new(2, 8);
    let account = book.open_account(Account::new(10, 10, 1));
    book.try_ask(&Ask::of(account, 10)).unwrap();
    let gate = Gate::new(book, Arc::new(SystemClock));
    let token = CancelToken::new();
    let wait = Wait::until_cancelled_by(&token);
    std::thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..3).map(|_| scope.spawn(|| gate.wait_for(Ask::of(account, 1), &wait))).collect();
        while gate.read(Book::waiters) < 3 {
            std::thread::yield_now();
        }
        token.cancel();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Err(WaitRefused::Cancelled));
        }
    });
    let late = gate.wait_for(Ask::of(account, 1), &Wait::until_cancelled_by(&token));
    assert_eq!(late, Err(WaitRefused::Cancelled));
}
