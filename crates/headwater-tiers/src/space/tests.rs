//! A space's gauge, and what changes of it do to those who wait.

use std::sync::Arc;
use std::time::Duration;

use crate::{
    DiskConfig, Fraction, ManualClock, News, OverPolicy, Space, SpaceId, Thresholds, TierError, Tiers,
    TiersConfig, Wait,
};

fn tiers_of(capacity_bytes: u64, config: TiersConfig) -> (Tiers, Space) {
    let tiers = Tiers::new(config.disk(DiskConfig::new("/", capacity_bytes))).unwrap();
    let space = tiers.space(SpaceId::disk(0)).unwrap();
    (tiers, space)
}

fn space_of(capacity_bytes: u64) -> (Tiers, Space) {
    tiers_of(capacity_bytes, TiersConfig::default())
}

fn wait_until_waiting(space: &Space, count: usize) {
    while space.usage().waiting < count {
        std::thread::yield_now();
    }
}

#[test]
fn the_gauge_counts_reserved_and_unreserved_against_the_capacity() {
    let (_tiers, space) = space_of(1000);
    let reservation = space.make_reservation_upto(700).unwrap();
    let claim = space.claim_unreserved(149).unwrap();
    assert_eq!((space.available_bytes(), space.reservable_bytes()), (151, 1));
    assert!(!space.should_downgrade());
    let last = space.claim_unreserved(1).unwrap();
    assert!(space.should_downgrade(), "850 of 1000 is the trigger");
    assert_eq!(space.amount_to_downgrade(), 200);
    drop((claim, last));
    assert!(!space.should_downgrade() && !space.should_stop_downgrading(), "700 is in between");
    reservation.shrink(50).unwrap();
    assert!(space.should_stop_downgrading(), "650 is the stop");
    assert_eq!((space.amount_to_downgrade(), space.usage().used_bytes_peak), (0, 850));
}

#[test]
fn reservations_alone_reach_the_trigger() {
    let (_tiers, space) = space_of(1000);
    let _all = space.make_reservation_upto(u64::MAX).unwrap();
    assert_eq!(space.reserved_bytes(), 850);
    assert!(space.should_downgrade());
}

#[test]
fn raised_limits_serve_waiters_and_lowered_ones_tell_those_who_can_never_be() {
    let (_tiers, space) = space_of(1000);
    let _held = space.make_reservation_upto(850).unwrap();
    let patient = Wait::at_most(Duration::from_secs(3600));
    std::thread::scope(|scope| {
        let (small, large) = (
            scope.spawn(|| space.make_reservation(100, &patient)),
            scope.spawn(|| space.make_reservation(600, &patient)),
        );
        wait_until_waiting(&space, 2);
        let marks = Thresholds { reservation_limit: Fraction::percent(50), ..Thresholds::default() };
        space.set_limits(1000, marks).unwrap();
        assert!(matches!(large.join().unwrap(), Err(TierError::NeverFits(_))));
        assert_eq!(space.usage().waiting, 1);
        space.set_limits(2000, Thresholds::default()).unwrap();
        assert_eq!(small.join().unwrap().unwrap().bytes(), 100);
    });
    let bad = Thresholds { downgrade_trigger: Fraction::percent(1), ..Thresholds::default() };
    assert!(matches!(space.set_limits(10, bad), Err(TierError::BadSetting { .. })));
    assert_eq!(space.capacity_bytes(), 2000);
}

#[test]
fn shutdown_wakes_everyone_and_dropping_the_tiers_is_shutdown() {
    let (tiers, space) = space_of(100);
    let held = space.make_reservation_upto(85).unwrap();
    let patient = Wait::at_most(Duration::from_secs(3600));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| space.make_reservation(10, &patient))).collect();
        wait_until_waiting(&space, 4);
        drop(tiers);
        for waiter in waiters {
            assert!(matches!(waiter.join().unwrap(), Err(TierError::ShutDown)));
        }
    });
    assert!(matches!(space.make_reservation_upto(1), Err(TierError::ShutDown)));
    assert_eq!(held.grow(1), Err(TierError::ShutDown));
    drop(held);
    assert_eq!(space.usage().used_bytes(), 0);
}

#[test]
fn deadlines_follow_the_injected_clock() {
    let clock = Arc::new(ManualClock::default());
    let (tiers, space) = tiers_of(100, TiersConfig { clock: clock.clone(), ..TiersConfig::default() });
    let _held = space.make_reservation_upto(85).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| space.make_reservation(10, &Wait::at_most(Duration::from_secs(60))));
        wait_until_waiting(&space, 1);
        clock.advance(Duration::from_secs(60));
        tiers.expire_waits();
        let error = waiter.join().unwrap().unwrap_err();
        let TierError::TimedOut { waited, shortage } = error else { panic!("{error}") };
        assert_eq!((waited, shortage.used_bytes), (Duration::from_secs(60), 85));
    });
}

#[test]
fn a_listener_with_a_deadline_follows_the_injected_clock_too() {
    let clock = Arc::new(ManualClock::default());
    let (tiers, space) = tiers_of(100, TiersConfig { clock: clock.clone(), ..TiersConfig::default() });
    let _held = space.make_reservation_upto(85).unwrap();
    let mut listener = space.channel().listen();
    std::thread::scope(|scope| {
        let news = scope.spawn(move || listener.wait(&Wait::at_most(Duration::from_secs(60))));
        // Whether the listener sleeps already or not: its deadline has come.
        clock.advance(Duration::from_secs(3600));
        while !news.is_finished() {
            clock.advance(Duration::from_secs(60));
            tiers.expire_waits();
        }
        assert_eq!(news.join().unwrap(), News::TimedOut);
    });
}

#[test]
fn everything_that_makes_room_is_news() {
    let (_tiers, space) = space_of(100);
    let reservation = space.make_reservation_upto(50).unwrap();
    let claim = reservation.claim(60, OverPolicy::Ignore).unwrap();
    let mut listener = space.channel().listen();
    assert_eq!(listener.poll(), None);
    drop(claim);
    assert_eq!(listener.poll(), Some(News::Notified));
    reservation.shrink(1).unwrap();
    assert_eq!(listener.poll(), Some(News::Notified));
    drop(reservation);
    assert_eq!((listener.poll(), listener.poll()), (Some(News::Notified), Some(News::Idle)));
}

#[test]
fn a_space_says_what_it_does_not_have() {
    let (_tiers, space) = space_of(100);
    let error = space.streams().unwrap_err();
    assert_eq!(error, TierError::NotThisTier { space: SpaceId::disk(0), what: "streams" });
    assert!(space.allocator().is_err() && space.pinned_pool().is_err() && space.mount().is_ok());
}
