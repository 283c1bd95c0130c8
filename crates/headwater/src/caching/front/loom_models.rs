//! The lock-free parts of the caches under a model checker: every order of their steps, within loom's bounds. What they have in
//! common with other caches (latch, inbox) is modelled in `thread_cache/loom_models.rs`.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p headwater --release --lib loom_`

use std::sync::{Mutex, PoisonError};

use loom::sync::Arc;
use loom::thread;

use super::directory::Directory;
use super::ticket::{Doing, Ticket};

/// Two addresses with one home in a table of four entries.
const A: u64 = 0x7f00_0020_0000;
const B: u64 = 0x7f00_0020_0400;

#[test]
fn loom_of_all_exchanges_that_give_one_block_back_one_succeeds() {
    loom::model(|| {
        let ticket = Arc::new(Ticket::new());
        ticket.set(A, Doing::Live);
        let give_back = |to| {
            let ticket = ticket.clone();
            thread::spawn(move || u32::from(ticket.exchange(A, Doing::Live, to)))
        };
        // To the owner's bin, and by message.
        let others = [give_back(Doing::Kept), give_back(Doing::Sent)];
        // To the engine.
        let here = u32::from(ticket.exchange(A, Doing::Live, Doing::Gone));
        assert_eq!(here + others.map(|other| other.join().unwrap()).iter().sum::<u32>(), 1);
    });
}

#[test]
fn loom_a_user_is_noted_or_the_block_was_given_back_before() {
    loom::model(|| {
        let ticket = Arc::new(Ticket::new());
        ticket.set(A, Doing::Live);
        let recorder = {
            let ticket = ticket.clone();
            thread::spawn(move || {
                let marked = ticket.exchange(A, Doing::Live, Doing::Special);
                if marked {
                    ticket.set_user(7);
                }
                marked
            })
        };
        let kept = ticket.exchange(A, Doing::Live, Doing::Kept);
        let marked = recorder.join().unwrap();
        assert!(kept != marked, "a block with a user is never kept");
        assert_eq!(ticket.user(), if marked { 7 } else { 0 });
    });
}

#[test]
fn loom_a_reader_never_takes_one_blocks_ticket_for_anothers() {
    loom::model(|| {
        let (directory, mut writer) = Directory::new();
        writer.issue(A).set(A, Doing::Live);
        writer.issue(B).set(B, Doing::Live);
        let expected = std::ptr::from_ref(writer.get(B).unwrap()) as usize;
        // The lock of the engine; no model of it is needed, because readers do not take it.
        let writer = std::sync::Arc::new(Mutex::new(writer));
        let reader = {
            let (directory, writer) = (directory.clone(), writer.clone());
            thread::spawn(move || {
                let found = directory.find(B);
                // SAFETY: the writer, which keeps tickets, is alive.
                let is_live = found.is_some_and(|ticket| unsafe { ticket.as_ref() }.is_live_at(B));
                if is_live {
                    assert_eq!(found.map(|ticket| ticket.as_ptr() as usize), Some(expected));
                }
                drop(writer);
            })
        };
        {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = writer.get(A).unwrap();
            assert!(gone.exchange(A, Doing::Live, Doing::Gone));
            writer.take_in(A);
            assert!(writer.get(A).is_none() && writer.get(B).is_some());
        }
        reader.join().unwrap();
    });
}
