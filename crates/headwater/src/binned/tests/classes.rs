//! Classes as callers see them: their statistics, their waste, and what is beyond them.

use headwater_driver::{Call, Devices};

use super::*;
use crate::binned::ClassDivisions;

#[test]
fn a_class_knows_its_hits_misses_blocks_and_waste() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let first = take(&pool, 600_000, STREAM);
    let second = take(&pool, MIB, STREAM);
    let class = class_of(&pool, MIB);
    assert_eq!((class.hits, class.misses), (1, 1), "one segment has two blocks");
    assert_eq!((class.in_use_blocks, class.cached_blocks, class.pending_blocks), (2, 0, 0));
    assert_eq!((class.wasted_bytes, class.reserved_bytes), (MIB - 600_000, 2 * MIB));
    give_back(&pool, first).unwrap();
    give_back(&pool, second).unwrap();
    let class = class_of(&pool, MIB);
    assert_eq!((class.in_use_blocks, class.cached_blocks, class.wasted_bytes), (0, 2, 0));
    assert_eq!(pool.empty_cache().unwrap(), 2 * MIB);
    assert_eq!(class_of(&pool, MIB).reserved_bytes, 0);
}

#[test]
fn a_hit_asks_the_driver_nothing_in_either_direction() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    for bytes in [1, 4096, MIB, 64 * MIB, 2 << 30] {
        let ptr = take(&pool, bytes, STREAM);
        give_back(&pool, ptr).unwrap();
        let before = sim.call_counts();
        for _ in 0..100 {
            let again = take(&pool, bytes, STREAM);
            assert_eq!(again, ptr);
            give_back(&pool, again).unwrap();
        }
        assert_eq!(sim.call_counts().since(&before).total(), 0, "{bytes}");
    }
}

#[test]
fn finer_classes_waste_less() {
    let bytes = 5 * MIB;
    let reserved = |divisions| {
        let sim = SimDriver::new();
        let pool = pool_with(&sim, BinnedOptions { divisions, ..BinnedOptions::default() });
        let ptr = take(&pool, bytes - 100, STREAM);
        pool.block_at(ptr).unwrap().allocated_bytes
    };
    assert_eq!(reserved(ClassDivisions::One), 8 * MIB);
    assert_eq!(reserved(ClassDivisions::Four), 5 * MIB);
    assert_eq!(reserved(ClassDivisions::Eight), 5 * MIB);
}

#[test]
fn what_is_larger_than_every_class_goes_straight_to_the_driver_and_back() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let bytes = (2 << 30) + 1;
    let ptr = take(&pool, bytes, STREAM);
    let facts = pool.block_at(DevicePtr::new(ptr.raw() + bytes - 1)).unwrap();
    assert_eq!((facts.ptr, facts.requested_bytes), (ptr, bytes));
    assert_eq!(reserved_bytes(&pool), (2 << 30) + 2 * MIB);
    give_back(&pool, ptr).unwrap();
    assert_eq!(reserved_bytes(&pool), 0);
    assert_eq!(sim.call_counts().of(Call::MemFree), 1);
    assert_eq!(give_back(&pool, ptr), Err(AllocError::AlreadyGivenBack { ptr }));
    pool.reconcile().unwrap();
}

#[test]
fn a_limit_that_has_no_room_for_a_class_may_have_room_for_the_request() {
    let sim = SimDriver::new();
    let options = BinnedOptions { limit_bytes: Some(10 * MIB), ..BinnedOptions::default() };
    let pool = pool_with(&sim, options);
    let ptr = take(&pool, 9 * MIB, STREAM);
    assert_eq!(pool.block_at(ptr).unwrap().allocated_bytes, 9 * MIB);
    assert!(pool.allocate(Request::new(2 * MIB, STREAM)).unwrap_err().is_out_of_memory());
    give_back(&pool, ptr).unwrap();
    give_back(&pool, take(&pool, 2 * MIB, STREAM)).unwrap();
    pool.reconcile().unwrap();
}

#[test]
fn a_driver_that_aligns_to_no_page_is_asked_for_a_page_more() {
    // The simulated device aligns large blocks as CUDA does; segments that it would not align are made by hand.
    let segment = super::super::segment::Segment::new(0, 4096, 512);
    // SAFETY: it is freed below, after its last use.
    let segment_ref = unsafe { segment.as_ref() };
    segment_ref.begin(0x7f00_0000_1000, 4 * MIB, 512);
    assert_eq!(segment_ref.base(), 0x7f00_0020_0000);
    let addresses: Vec<u64> = segment_ref.records().map(|record| record.ptr().raw()).collect();
    assert_eq!((addresses.len(), addresses[0], addresses[4095]), (4096, 0x7f00_0020_0000, 0x7f00_003f_fe00));
    // SAFETY: nobody uses it any more.
    unsafe { super::super::segment::Segment::free_bookkeeping(segment) };
}
