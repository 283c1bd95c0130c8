//! Reservations: what they promise, what is in use of them, and that the space always knows.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{Claim, Increase, OverPolicy, Reservation};
use crate::{DiskConfig, Fraction, Space, SpaceId, Thresholds, TierError, Tiers, TiersConfig, Wait};

/// Tiers with one space of 1000 bytes, 800 of which can be reserved. The space lives as long as the tiers.
fn space() -> (Tiers, Space) {
    let mut disk = DiskConfig::new("/", 1000);
    disk.thresholds = Thresholds { reservation_limit: Fraction::percent(80), ..Thresholds::default() };
    let tiers = Tiers::new(TiersConfig { passes_max: 2, ..TiersConfig::default() }.disk(disk)).unwrap();
    let space = tiers.space(SpaceId::disk(0)).unwrap();
    (tiers, space)
}

fn now() -> Wait {
    Wait::at_most(Duration::ZERO)
}

fn reserve(space: &Space, bytes: u64) -> Reservation {
    space.make_reservation(bytes, &now()).unwrap()
}

fn increase(factor: f64) -> OverPolicy {
    OverPolicy::Increase(Increase::padded_by(factor).unwrap())
}

#[test]
fn a_reservation_is_exact_and_gives_back_when_dropped() {
    let (_tiers, space) = space();
    let reservation = reserve(&space, 800);
    assert_eq!((reservation.bytes(), space.reserved_bytes(), space.reservable_bytes()), (800, 800, 0));
    assert!(space.make_reservation_or_null(1).unwrap().is_none());
    assert!(matches!(space.make_reservation(1, &now()), Err(TierError::TimedOut { .. })));
    drop(reservation);
    assert_eq!(space.usage().used_bytes(), 0);
}

#[test]
fn up_to_takes_what_there_is_and_never_more_than_asked() {
    let (_tiers, space) = space();
    let first = space.make_reservation_upto(500).unwrap();
    let second = space.make_reservation_upto(500).unwrap();
    let third = space.make_reservation_upto(500).unwrap();
    assert_eq!((first.bytes(), second.bytes(), third.bytes()), (500, 300, 0));
}

#[test]
fn a_request_above_the_limit_fails_at_once_and_says_why() {
    let (_tiers, space) = space();
    let wait = Wait::at_most(Duration::from_secs(3600));
    let error = space.make_reservation(801, &wait).unwrap_err();
    let shortage = error.shortage().unwrap();
    assert!(matches!(error, TierError::NeverFits(_)));
    assert_eq!((shortage.requested_bytes, shortage.limit_bytes, shortage.capacity_bytes), (801, 800, 1000));
    assert!(error.to_string().contains("reservation_limit"), "{error}");
    assert!(space.make_reservation_or_null(801).is_err());
}

#[test]
fn allocations_inside_cost_the_space_nothing_more() {
    let (_tiers, space) = space();
    let reservation = reserve(&space, 100);
    let claim = reservation.claim(100, OverPolicy::Fail).unwrap();
    assert_eq!((reservation.unused_bytes(), space.usage().used_bytes()), (0, 100));
    let error = reservation.claim(1, OverPolicy::Fail).unwrap_err();
    assert!(matches!(
        error,
        TierError::OverReservation { reservation_bytes: 100, in_use_bytes: 100, ref shortage } if shortage.requested_bytes == 1
    ));
    drop(claim);
    assert_eq!(reservation.unused_bytes(), 100);
}

#[test]
fn what_is_in_use_outlives_its_reservation_and_is_paid_back_by_whoever_drops_it() {
    let (_tiers, space) = space();
    let reservation = reserve(&space, 100);
    let (inside, beyond) = (
        reservation.claim(30, OverPolicy::Fail).unwrap(),
        reservation.claim(90, OverPolicy::Ignore).unwrap(),
    );
    assert_eq!(space.usage().used_bytes(), 120);
    drop(reservation);
    assert_eq!(space.usage().used_bytes(), 120);
    std::thread::spawn(move || drop(beyond)).join().unwrap();
    assert_eq!(space.usage().used_bytes(), 30);
    drop(inside);
    assert_eq!(space.usage().used_bytes(), 0);
}

#[test]
fn ignore_goes_up_to_the_capacity_and_no_further() {
    let (_tiers, space) = space();
    let reservation = reserve(&space, 800);
    let beyond = reservation.claim(1000, OverPolicy::Ignore).unwrap();
    assert_eq!((space.usage().reserved_bytes, space.usage().unreserved_bytes), (800, 200));
    assert!(matches!(reservation.claim(1, OverPolicy::Ignore), Err(TierError::OverCapacity(_))));
    drop(beyond);
    assert_eq!(space.usage().used_bytes(), 800);
}

#[test]
fn increase_pads_where_it_can_and_is_exact_where_it_cannot() {
    let (_tiers, space) = space();
    let reservation = reserve(&space, 100);
    let first = reservation.claim(200, increase(1.5)).unwrap();
    assert_eq!(reservation.bytes(), 250, "100 missing, padded by half");
    let second = reservation.claim(600, increase(1.5)).unwrap();
    assert_eq!((reservation.bytes(), reservation.in_use_bytes()), (800, 800), "no room for padding");
    assert_eq!(space.usage().used_bytes(), 800, "nothing is counted twice");
    assert!(matches!(reservation.claim(1, increase(1.5)), Err(TierError::NoRoom(_))));
    let beyond_limit = OverPolicy::Increase(Increase::padded_by(1.0).unwrap().beyond_limit());
    let third = reservation.claim(200, beyond_limit).unwrap();
    assert_eq!((reservation.bytes(), space.usage().used_bytes()), (1000, 1000));
    assert!(matches!(reservation.claim(1, beyond_limit), Err(TierError::OverCapacity(_))));
    drop((first, second, third));
    assert_eq!((reservation.in_use_bytes(), reservation.shrink_to_fit()), (0, 1000));
    assert_eq!(space.usage().used_bytes(), 0);
}

#[test]
fn shrinking_wakes_whoever_fits_then() {
    let (_tiers, space) = space();
    let reservation = reserve(&space, 800);
    let _claim = reservation.claim(100, OverPolicy::Fail).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| space.make_reservation(700, &Wait::at_most(Duration::from_secs(3600))));
        while space.usage().waiting == 0 {
            std::thread::yield_now();
        }
        assert_eq!(space.usage().waiting_bytes, 700);
        assert_eq!(reservation.shrink_to_fit(), 700);
        assert_eq!(waiter.join().unwrap().unwrap().bytes(), 700);
    });
}

#[test]
fn freeing_what_nobody_reserved_wakes_whoever_fits_then() {
    let (_tiers, space) = space();
    let held = space.claim_unreserved(1000).unwrap();
    assert!(matches!(space.claim_unreserved(1), Err(TierError::OverCapacity(_))));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| space.make_reservation(800, &Wait::at_most(Duration::from_secs(3600))));
        while space.usage().waiting == 0 {
            std::thread::yield_now();
        }
        drop(held);
        assert!(waiter.join().unwrap().is_ok());
    });
}

#[test]
fn a_growing_reservation_waits_like_everyone_and_keeps_what_it_has() {
    let (_tiers, space) = space();
    let (growing, other) = (reserve(&space, 300), reserve(&space, 400));
    assert!(matches!(growing.grow(200), Err(TierError::NoRoom(_))));
    assert!(matches!(growing.grow_within(200, &now()), Err(TierError::TimedOut { .. })));
    assert_eq!(growing.bytes(), 300);
    std::thread::scope(|scope| {
        let grown = scope.spawn(|| growing.grow_within(200, &Wait::at_most(Duration::from_secs(3600))));
        while space.usage().waiting == 0 {
            std::thread::yield_now();
        }
        drop(other);
        assert_eq!(grown.join().unwrap(), Ok(()));
    });
    assert_eq!((growing.bytes(), space.reserved_bytes()), (500, 500));
}

#[test]
fn only_what_is_unused_can_be_split_off_or_shrunk_away() {
    let (_tiers, space) = space();
    let reservation = reserve(&space, 100);
    let _claim = reservation.claim(60, OverPolicy::Fail).unwrap();
    let refused = TierError::NotUnused { requested_bytes: 41, unused_bytes: 40, reservation_bytes: 100 };
    assert_eq!(reservation.split(41).unwrap_err(), refused);
    assert_eq!(reservation.shrink(41).unwrap_err(), refused);
    let part = reservation.split(40).unwrap();
    assert_eq!((reservation.bytes(), part.bytes(), space.reserved_bytes()), (60, 40, 100));
}

#[test]
fn merged_reservations_cover_each_other_and_credits_find_their_way() {
    let (_tiers, space) = space();
    let (target, other) = (reserve(&space, 100), reserve(&space, 50));
    let beyond = other.claim(80, OverPolicy::Ignore).unwrap();
    assert_eq!(space.usage().used_bytes(), 180);
    target.merge(other).unwrap();
    assert_eq!((target.bytes(), target.in_use_bytes()), (150, 80));
    assert_eq!(space.usage().used_bytes(), 150, "what was beyond one is inside both");
    drop(beyond);
    assert_eq!((target.in_use_bytes(), space.usage().used_bytes()), (0, 150));
}

#[test]
fn a_long_chain_of_merges_ends_well() {
    let (_tiers, space) = space();
    let mut claims = Vec::new();
    let mut last = reserve(&space, 1);
    for _ in 0..50_000 {
        let next = last.split(0).unwrap();
        claims.push(last.claim(0, OverPolicy::Fail).unwrap());
        next.merge(last).unwrap();
        last = next;
    }
    let first = claims.swap_remove(0);
    drop(claims);
    drop(first);
    assert_eq!((last.bytes(), last.in_use_bytes()), (1, 0));
}

#[test]
fn reservations_of_two_spaces_do_not_merge() {
    let (_one, mine) = space();
    let (_other, theirs) = space();
    let (one, other) = (reserve(&mine, 10), reserve(&theirs, 20));
    let (other, error) = one.merge(other).unwrap_err();
    assert!(matches!(error, TierError::WrongSpace { .. }));
    assert_eq!((one.bytes(), other.bytes()), (10, 20));
}

#[test]
fn threads_that_split_merge_claim_and_give_back_lose_no_byte() {
    let (_tiers, space) = space();
    let shared = reserve(&space, 400);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (space, shared) = (&space, &shared);
            scope.spawn(move || {
                for round in 0..300 {
                    let bytes = 1 + (thread * 7 + round * 13) % 50;
                    let inside = shared.claim(bytes, OverPolicy::Ignore).unwrap();
                    let part = shared.split(bytes).ok();
                    let orphan = part.as_ref().map(|part| part.claim(2 * bytes, OverPolicy::Ignore));
                    drop(inside);
                    if let Some(part) = part {
                        shared.merge(part).unwrap();
                    }
                    drop(orphan);
                    drop(space.claim_unreserved(bytes));
                }
            });
        }
    });
    assert_eq!((shared.bytes(), shared.in_use_bytes(), space.usage().used_bytes()), (400, 0, 400));
}

#[derive(Clone, Debug)]
enum Step {
    Reserve(u64),
    UpTo(u64),
    Grow(usize, u64),
    Shrink(usize, u64),
    ShrinkToFit(usize),
    Split(usize, u64),
    Merge(usize, usize),
    Claim(usize, u64, u8),
    ClaimUnreserved(u64),
    DropReservation(usize),
    DropClaim(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (at, bytes) = (0..16_usize, 0..400_u64);
    let step = prop_oneof![
        bytes.clone().prop_map(Step::Reserve),
        bytes.clone().prop_map(Step::UpTo),
        (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Step::Grow(at, bytes)),
        (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Step::Shrink(at, bytes)),
        at.clone().prop_map(Step::ShrinkToFit),
        (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Step::Split(at, bytes)),
        (at.clone(), at.clone()).prop_map(|(one, other)| Step::Merge(one, other)),
        (at.clone(), bytes.clone(), 0..4_u8).prop_map(|(at, bytes, policy)| Step::Claim(at, bytes, policy)),
        bytes.prop_map(Step::ClaimUnreserved),
        at.clone().prop_map(Step::DropReservation),
        at.prop_map(Step::DropClaim),
    ];
    proptest::collection::vec(step, 1..80)
}

fn policy(number: u8) -> OverPolicy {
    match number {
        0 => OverPolicy::Fail,
        1 => OverPolicy::Ignore,
        2 => increase(1.25),
        _ => OverPolicy::Increase(Increase::padded_by(2.0).unwrap().beyond_limit()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens: the ceilings hold, every open reservation is paid for by the larger of its two figures, what
    /// outlives its reservation is paid for by itself, and at the end nothing is left.
    #[test]
    fn every_byte_is_accounted_for(steps in steps()) {
        let (_tiers, space) = space();
        let mut reservations: Vec<Reservation> = Vec::new();
        // Each with the reservation it came from, if that is still open.
        let mut claims: Vec<(Claim, Option<Arc<super::Promise>>)> = Vec::new();
        for step in steps {
            let count = reservations.len();
            match step {
                Step::Reserve(bytes) => reservations.extend(space.make_reservation_or_null(bytes).ok().flatten()),
                Step::UpTo(bytes) => reservations.push(space.make_reservation_upto(bytes).unwrap()),
                Step::ClaimUnreserved(bytes) => {
                    claims.extend(space.claim_unreserved(bytes).ok().map(|claim| (claim, None)));
                }
                Step::DropClaim(at) => if !claims.is_empty() {
                    drop(claims.swap_remove(at % claims.len()));
                },
                _ if count == 0 => {}
                Step::Grow(at, bytes) => drop(reservations[at % count].grow(bytes)),
                Step::Shrink(at, bytes) => drop(reservations[at % count].shrink(bytes)),
                Step::ShrinkToFit(at) => {
                    reservations[at % count].shrink_to_fit();
                    prop_assert_eq!(reservations[at % count].unused_bytes(), 0);
                }
                Step::Split(at, bytes) => reservations.extend(reservations[at % count].split(bytes).ok()),
                Step::Claim(at, bytes, number) => {
                    let reservation = &reservations[at % count];
                    let claim = reservation.claim(bytes, policy(number)).ok();
                    claims.extend(claim.map(|claim| (claim, Some(reservation.promise().clone()))));
                }
                Step::DropReservation(at) => {
                    let gone = reservations.swap_remove(at % count);
                    for (_, owner) in &mut claims {
                        owner.take_if(|owner| Arc::ptr_eq(owner, gone.promise()));
                    }
                }
                Step::Merge(one, other) => if one % count != other % count {
                    let (one, other) = ((one % count).max(other % count), (one % count).min(other % count));
                    let gone = reservations.swap_remove(one);
                    for (_, owner) in &mut claims {
                        if owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, gone.promise())) {
                            *owner = Some(reservations[other].promise().clone());
                        }
                    }
                    reservations[other].merge(gone).unwrap();
                },
            }
            let orphans: u64 = claims.iter().filter(|(_, owner)| owner.is_none()).map(|(claim, _)| claim.bytes()).sum();
            let mut expected = orphans;
            for reservation in &reservations {
                let mine = claims.iter().filter(|(_, owner)| {
                    owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, reservation.promise()))
                });
                prop_assert_eq!(reservation.in_use_bytes(), mine.map(|(claim, _)| claim.bytes()).sum::<u64>());
                expected += reservation.bytes().max(reservation.in_use_bytes());
            }
            prop_assert_eq!(space.usage().used_bytes(), expected);
            prop_assert!(expected <= 1000);
        }
        drop(reservations);
        drop(claims);
        prop_assert_eq!(space.usage().used_bytes(), 0);
    }
}
