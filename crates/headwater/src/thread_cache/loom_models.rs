//! The lock-free parts under a model checker: every order of their steps, within loom's bounds.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p headwater --release --lib loom_`
//!
//! Not here: an owner's plain store against a stranger's exchange on one word (`word.rs`). Loom lets the exchange come after
//! the store although it has read the value before it, which no processor does; `tests.rs` has real threads race there.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::barrier;
use super::inbox::{Inbox, Message};
use super::latch::Latch;
use super::word::{State, Word};

const ADDRESS: u64 = 0x7f00_0020_0000;

fn message(note: u64) -> Message<Word> {
    Message { about: std::ptr::null(), note }
}

#[test]
fn loom_owner_and_visitor_are_never_inside_together() {
    loom::model(|| {
        // Loom reports two uses of the cell that nothing orders.
        let shared = Arc::new((Latch::new(), UnsafeCell::new(0)));
        let owner = {
            let shared = shared.clone();
            thread::spawn(move || {
                // Once, because a model must come to an end; who is refused comes back when the visitor has left.
                let entered = shared.0.try_enter();
                if entered {
                    // SAFETY: the latch. Were it wrong, loom would say so.
                    shared.1.with_mut(|count| unsafe { *count += 1 });
                    shared.0.leave();
                }
                u32::from(entered)
            })
        };
        shared.0.stop();
        barrier::heavy();
        shared.0.wait_until_idle();
        // SAFETY: as above.
        shared.1.with_mut(|count| unsafe { *count += 1 });
        shared.0.resume();
        let entered = owner.join().unwrap();
        // SAFETY: the owner has ended.
        shared.1.with(|count| assert_eq!(unsafe { *count }, 1 + entered));
    });
}

#[test]
fn loom_an_inbox_loses_and_doubles_nothing() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::<Word>::new(2));
        inbox.open();
        let send = |note| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.send(&[message(note)]))
        };
        let senders = [send(1), send(2)];
        let mut sum = 0;
        inbox.take(|message| sum += message.note);
        assert!(senders.map(|sender| sender.join().unwrap()).iter().all(|sent| *sent));
        inbox.take(|message| sum += message.note);
        assert_eq!(sum, 3);
    });
}

#[test]
fn loom_a_full_inbox_refuses_and_what_was_sent_arrives() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::<Word>::new(2));
        inbox.open();
        let sender = {
            let inbox = inbox.clone();
            thread::spawn(move || u64::from(inbox.send(&[message(1), message(1)])) * 2)
        };
        let sent = u64::from(inbox.send(&[message(1)]));
        let sent = sent + sender.join().unwrap();
        let mut taken = 0;
        inbox.take(|message| taken += message.note);
        assert!((1..=2).contains(&sent));
        assert_eq!(taken, sent);
    });
}

#[test]
fn loom_a_thread_that_ends_leaves_no_message_behind() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::<Word>::new(2));
        inbox.open();
        let sender = {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.send(&[message(1)]))
        };
        let mut taken = 0;
        inbox.close(|message| taken += message.note);
        // Sent and taken, or refused and the sender's to put elsewhere.
        assert_eq!(u64::from(sender.join().unwrap()), taken);
    });
}

#[test]
fn loom_of_two_threads_that_do_not_own_a_block_one_gives_it_back() {
    loom::model(|| {
        let word = Arc::new(Word::gone());
        word.set(ADDRESS, State::Live);
        let other = {
            let word = word.clone();
            thread::spawn(move || word.give_back_foreign(ADDRESS, State::Sent))
        };
        let here = word.give_back_foreign(ADDRESS, State::Sent);
        assert!(here != other.join().unwrap());
    });
}
