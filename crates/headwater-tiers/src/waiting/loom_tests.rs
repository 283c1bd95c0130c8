//! The gate in every order that threads can take. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p headwater-tiers --release loom_tests`.
//!
//! A sleeper that nobody wakes is a deadlock in the model, so a lost wake-up fails the test.

use std::sync::Arc;

use loom::thread;

use super::account::{Account, Charge};
use super::book::Book;
use super::gate::{Gate, WaitRefused};
use super::request::{Ask, Ceiling};
use super::wait::{CancelToken, Wait};
use crate::clock::ManualClock;
use crate::space::{News, NotificationChannel};

/// A gate whose one account of `bytes` is all given out.
fn full_gate(bytes: u64, passes_max: u32) -> Arc<Gate> {
    let mut book = Book::new(passes_max, 8);
    book.open_account(Account::new(bytes, bytes, 1));
    book.try_ask(&Ask::of(0, bytes)).expect("it is empty");
    Gate::new(book, Arc::new(ManualClock::default()))
}

fn give_back(gate: &Gate, bytes: u64) {
    let back = gate.settle(|book| book.recharge(0, Charge::reserved(bytes), Charge::NONE, Ceiling::Capacity));
    back.expect("giving back is never refused");
}

fn forever() -> Wait {
    Wait::until_cancelled_by(&CancelToken::new())
}

fn spawn_waiter(gate: &Arc<Gate>, bytes: u64, wait: Wait) -> thread::JoinHandle<Result<u64, WaitRefused>> {
    let gate = gate.clone();
    thread::spawn(move || gate.wait_for(Ask::of(0, bytes), &wait).map(|grant| grant.bytes))
}

fn used(gate: &Gate) -> u64 {
    gate.read(|book| {
        assert_eq!(book.verify(), Ok(()));
        book.account(0).used_bytes()
    })
}

#[test]
fn a_release_reaches_a_waiter_whenever_it_comes() {
    loom::model(|| {
        let gate = full_gate(1, 1);
        let waiter = spawn_waiter(&gate, 1, forever());
        give_back(&gate, 1);
        assert_eq!(waiter.join().expect("no panic"), Ok(1));
        assert_eq!(used(&gate), 1);
    });
}

#[test]
fn one_release_reaches_two_waiters() {
    loom::model(|| {
        let gate = full_gate(2, 1);
        let waiters = [spawn_waiter(&gate, 1, forever()), spawn_waiter(&gate, 1, forever())];
        give_back(&gate, 2);
        for waiter in waiters {
            assert_eq!(waiter.join().expect("no panic"), Ok(1));
        }
    });
}

#[test]
fn a_large_and_a_small_waiter_are_both_served_by_two_releases() {
    loom::model(|| {
        let gate = full_gate(3, 1);
        let (large, small) = (spawn_waiter(&gate, 2, forever()), spawn_waiter(&gate, 1, forever()));
        give_back(&gate, 1);
        give_back(&gate, 2);
        assert_eq!(large.join().expect("no panic"), Ok(2));
        assert_eq!(small.join().expect("no panic"), Ok(1));
        assert_eq!(used(&gate), 3);
    });
}

#[test]
fn cancellation_and_release_at_once_lose_neither_the_waiter_nor_a_byte() {
    loom::model(|| {
        let gate = full_gate(1, 1);
        let token = CancelToken::new();
        let waiter = spawn_waiter(&gate, 1, Wait::until_cancelled_by(&token));
        let releaser = {
            let gate = gate.clone();
            thread::spawn(move || give_back(&gate, 1))
        };
        token.cancel();
        let answer = waiter.join().expect("no panic");
        releaser.join().expect("no panic");
        match answer {
            Ok(bytes) => assert_eq!((bytes, used(&gate)), (1, 1)),
            Err(refused) => assert_eq!((refused, used(&gate)), (WaitRefused::Cancelled, 0)),
        }
    });
}

#[test]
fn cancelling_the_one_in_front_serves_the_one_behind() {
    loom::model(|| {
        // Strict order: while the large one waits, the small one may not pass although it fits.
        let gate = full_gate(2, 0);
        give_back(&gate, 1);
        let token = CancelToken::new();
        let large = spawn_waiter(&gate, 2, Wait::until_cancelled_by(&token));
        let small = spawn_waiter(&gate, 1, forever());
        token.cancel();
        assert_eq!(large.join().expect("no panic"), Err(WaitRefused::Cancelled));
        assert_eq!(small.join().expect("no panic"), Ok(1));
    });
}

#[test]
fn shutdown_reaches_everyone_who_waits_or_is_about_to() {
    loom::model(|| {
        let gate = full_gate(1, 1);
        let waiters = [spawn_waiter(&gate, 1, forever()), spawn_waiter(&gate, 1, forever())];
        gate.shut_down();
        for waiter in waiters {
            assert!(waiter.join().expect("no panic").is_err());
        }
    });
}

#[test]
fn news_reaches_a_listener_whenever_it_comes() {
    loom::model(|| {
        let channel = NotificationChannel::new(Arc::new(ManualClock::default()));
        let notifier = channel.notifier();
        let mut listener = channel.listen();
        let sleeper = thread::spawn(move || (listener.wait(&forever()), listener.wait(&forever())));
        drop(notifier);
        assert_eq!(sleeper.join().expect("no panic"), (News::Notified, News::Idle));
    });
}

#[test]
fn cancellation_reaches_a_listener_whenever_it_comes() {
    loom::model(|| {
        let channel = NotificationChannel::new(Arc::new(ManualClock::default()));
        let _alive = channel.notifier();
        let token = CancelToken::new();
        let (mut listener, wait) = (channel.listen(), Wait::until_cancelled_by(&token));
        let sleeper = thread::spawn(move || listener.wait(&wait));
        token.cancel();
        assert_eq!(sleeper.join().expect("no panic"), News::Cancelled);
    });
}
