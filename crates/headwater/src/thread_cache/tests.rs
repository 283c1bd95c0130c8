//! Bins, slots and words with real threads.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::inbox::{Inbox, Message};
use super::slots::{Slot, Tenant, ThreadCaches};
use super::word::{State, Word};
use super::{Bins, Free};

const SIZES: [u64; 3] = [512, 1024, 1 << 20];

fn bins(bytes_max: u64) -> Bins<u32> {
    Bins::new(SIZES.into(), bytes_max)
}

fn free(thing: &'static u32) -> Free<u32> {
    Free { address: u64::from(*thing) * 512, thing: thing.into() }
}

fn things<const N: usize>() -> [&'static u32; N] {
    std::array::from_fn(|place| &*Box::leak(Box::new(place as u32)))
}

/// Everything that `take` takes out, by class.
fn taken(mut take: impl FnMut(&mut dyn FnMut(usize, NonNull<u32>))) -> Vec<(usize, u32)> {
    let mut out = Vec::new();
    // SAFETY: the things are leaked.
    take(&mut |class, thing: NonNull<u32>| out.push((class, unsafe { *thing.as_ref() })));
    out
}

/// Prepares a bin and keeps `things` in it, in this order. Returns what had to leave.
fn filled(bins: &mut Bins<u32>, stream: u64, class: usize, things: &[&'static u32]) -> Vec<(usize, u32)> {
    let left = taken(|out| bins.prepare(stream, stream, class, &mut |class, thing| out(class, thing)));
    for thing in things {
        assert!(bins.keep(stream, class, free(thing)));
    }
    left
}

fn hand_out(bins: &mut Bins<u32>, stream: u64, class: usize) -> Option<u64> {
    assert!(class < SIZES.len());
    // SAFETY: there is such a class.
    unsafe { bins.hand_out(stream, class, 100) }.map(|(free, _)| free.address / 512)
}

#[test]
fn the_block_given_back_last_goes_out_first_and_only_to_its_stream_and_class() {
    let mut bins = bins(1 << 30);
    let [a, b, c] = things();
    filled(&mut bins, 7, 0, &[a, b]);
    filled(&mut bins, 8, 0, &[c]);
    assert_eq!(hand_out(&mut bins, 7, 0), None, "another stream was used last");
    assert!(bins.select(7));
    assert_eq!(hand_out(&mut bins, 7, 1), None);
    assert_eq!(hand_out(&mut bins, 7, 0), Some(1));
    assert_eq!(hand_out(&mut bins, 7, 0), Some(0));
    assert_eq!(hand_out(&mut bins, 7, 0), None);
    assert!(bins.select(8) && !bins.select(9));
    assert_eq!(hand_out(&mut bins, 8, 0), Some(2));
    let tally = bins.tally(0);
    assert_eq!((tally.handed_out, tally.requested_bytes_out, tally.given_back), (3, 300, 0));
}

#[test]
fn surplus_is_what_was_not_needed_between_two_looks() {
    let mut bins = bins(1 << 30);
    let [a, b, c] = things();
    filled(&mut bins, 7, 0, &[a, b, c]);
    let look =
        |bins: &mut Bins<u32>| taken(|out| bins.take_surplus(Some(0), &mut |class, thing| out(class, thing)));
    assert_eq!(look(&mut bins), [], "the first look only begins to watch");
    assert_eq!(hand_out(&mut bins, 7, 0), Some(2));
    assert!(bins.keep(7, 0, free(c)));
    assert_eq!(look(&mut bins), [(0, 0), (0, 1)], "one was needed, two were not");
    assert_eq!(look(&mut bins), [(0, 2)], "an idle thread is emptied");
    assert_eq!(look(&mut bins), []);
}

#[test]
fn bins_together_stay_within_the_threads_bytes_and_one_block() {
    let mut bins = bins(3 << 20);
    let [a, b, c, d, e] = things();
    filled(&mut bins, 7, 0, &[a]);
    filled(&mut bins, 7, 2, &[b, c, d]);
    assert!(!bins.keep(7, 0, free(e)), "more than the thread may keep is there already");
    let left = taken(|out| bins.make_room(7, 0, &mut |class, thing| out(class, thing)));
    assert_eq!(left, [(2, 1), (2, 2)], "large blocks leave until half is left, the oldest first");
    assert!(bins.keep(7, 0, free(e)));
}

#[test]
fn one_block_of_any_size_can_be_kept_and_none_without_a_cache() {
    let [a] = things();
    let mut small = bins(1);
    filled(&mut small, 7, 2, &[a]);
    assert_eq!(hand_out(&mut small, 7, 2), Some(0));
    let mut none = bins(0);
    assert_eq!(taken(|out| none.prepare(7, 7, 0, &mut |class, thing| out(class, thing))), []);
    assert!(!none.keep(7, 0, free(a)));
}

#[test]
fn a_full_bin_gives_up_its_older_half_and_streams_beyond_the_most_are_emptied() {
    let mut bins = bins(1 << 30);
    let all = things::<64>();
    filled(&mut bins, 1, 0, &all);
    let left = taken(|out| bins.make_room(1, 0, &mut |class, thing| out(class, thing)));
    assert_eq!(left, (0..32).map(|number| (0, number)).collect::<Vec<_>>());
    for stream in 2..=16 {
        assert_eq!(filled(&mut bins, stream, 0, &[]), []);
    }
    assert_eq!(filled(&mut bins, 17, 0, &[]).len(), 32, "stream 1 was unused for longest");
    assert!(!bins.select(1));
}

/// Counts what its threads count.
#[derive(Default)]
struct Counting {
    caches: Option<ThreadCaches<u64, Word>>,
    ended: AtomicU64,
}

impl Tenant for Counting {
    type Cache = u64;
    type Thing = Word;

    fn thread_caches(&self) -> &ThreadCaches<u64, Word> {
        self.caches.as_ref().unwrap()
    }

    fn new_cache(&self) -> u64 {
        0
    }

    fn thread_ends(&self, slot: &Slot<u64, Word>) {
        self.ended.fetch_add(slot.own(std::mem::take), Ordering::Relaxed);
    }
}

#[test]
fn visitors_see_whole_steps_and_what_a_thread_leaves_is_handed_over() {
    const STEPS: u64 = 20_000;
    let tenant = Arc::new(Counting { caches: Some(ThreadCaches::new(0)), ..Counting::default() });
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let tenant = tenant.clone();
            std::thread::spawn(move || {
                let slot = tenant.thread_caches().attach(&tenant);
                for _ in 0..STEPS {
                    // Odd only inside.
                    slot.own(|count| {
                        *count += 1;
                        *count += 1;
                    });
                }
            })
        })
        .collect();
    for _ in 0..200 {
        tenant.thread_caches().stop(|stopped| stopped.each(|_, count| assert!(count.is_multiple_of(2))));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(tenant.ended.load(Ordering::Relaxed), 3 * 2 * STEPS);
    // The slots wait for other threads: no more are made.
    let slots = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let tenant = tenant.clone();
        std::thread::spawn(move || tenant.thread_caches().attach(&tenant).thread()).join().unwrap();
    }
    tenant.thread_caches().stop(|stopped| stopped.each(|_, _| _ = slots.fetch_add(1, Ordering::Relaxed)));
    assert!(slots.load(Ordering::Relaxed) <= 4, "three threads at once, and the common slot");
}

#[test]
fn owner_and_stranger_at_once_take_a_block_back_once() {
    const ROUNDS: u64 = 10_000;
    const ADDRESS: u64 = 0x7f00_0020_0000;
    let (word, inbox) = (Word::gone(), Inbox::new(2));
    inbox.open();
    let turn = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            for round in 0..ROUNDS {
                while turn.load(Ordering::Acquire) < 2 * round + 1 {
                    std::thread::yield_now();
                }
                if word.give_back_foreign(ADDRESS, State::Sent) {
                    assert!(inbox.send(&[Message { about: &word, note: round }]));
                }
                turn.store(2 * round + 2, Ordering::Release);
            }
        });
        for round in 0..ROUNDS {
            word.set(ADDRESS, State::Live);
            turn.store(2 * round + 1, Ordering::Release);
            let mut in_hand = u32::from(word.give_back_own(ADDRESS, State::Cached));
            while turn.load(Ordering::Acquire) < 2 * round + 2 {
                std::thread::yield_now();
            }
            inbox.take(|message| {
                assert_eq!(message.note, round);
                in_hand += u32::from(word.receive());
            });
            assert_eq!(in_hand, 1, "in round {round}");
        }
        stranger.join().unwrap();
    });
}
