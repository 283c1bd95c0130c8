//! Every driver call may fail: the accounts stay exact, nothing leaks, and the next request works.

use headwater_driver::{Call, Devices, ErrorClass};
use headwater_sim::FaultPlan;

use super::*;
use crate::allocator::BlockState;
use crate::block::Block;

/// Every kind of call, with whatever errors come.
fn scripted_program(sim: &Arc<SimDriver>, pool: &Arc<Binned>, streams: [Stream; 2]) {
    let [own, other] = streams;
    let mut held = Vec::new();
    for bytes in [100, MIB, 20 * MIB, (2 << 30) + 1] {
        for stream in [own, other] {
            held.extend(pool.allocate(Request::new(bytes, stream)));
            pool.reconcile().unwrap();
        }
    }
    for (place, ptr) in held.into_iter().enumerate() {
        if place % 2 == 0 {
            pool.record_stream(ptr, other).unwrap();
        }
        if give_back(pool, ptr).is_err() {
            // The caller still holds it, and the fault was for once.
            pool.reconcile().unwrap();
            give_back(pool, ptr).unwrap();
        }
        pool.reconcile().unwrap();
    }
    // Errors are for those who want to know; what they concern stays.
    let _ = pool.process_deferred();
    pool.reconcile().unwrap();
    // Memory of one stream for the other, and back to the driver.
    let passing = Block::allocate(pool.clone() as Arc<dyn Allocator>, Request::new(20 * MIB, other));
    drop(passing);
    let _ = pool.empty_cache();
    pool.reconcile().unwrap();
    assert_eq!(sim.hazards(), []);
}

#[test]
fn any_one_call_may_fail_and_the_accounts_stay_exact() {
    let calls = {
        let sim = SimDriver::new();
        let streams = [stream(&sim), stream(&sim)];
        let pool = pool(&sim);
        let before = sim.call_counts();
        scripted_program(&sim, &pool, streams);
        sim.call_counts().since(&before).total()
    };
    assert!(calls >= 30, "{calls}");
    for n in 1..=calls {
        for class in [ErrorClass::Other, ErrorClass::OutOfMemory { requested_bytes: 0, memory: None }] {
            let sim = SimDriver::new();
            let streams = [stream(&sim), stream(&sim)];
            let pool = pool(&sim);
            sim.set_faults(FaultPlan::none().fail_nth_of_any(n, class));
            scripted_program(&sim, &pool, streams);
            sim.set_faults(FaultPlan::none());
            pool.empty_cache().unwrap();
            assert_eq!(reserved_bytes(&pool), 0, "call {n}, {class:?}");
            pool.reconcile().unwrap();
            give_back(&pool, take(&pool, MIB, STREAM)).unwrap();
            drop(pool);
            let leaks: Vec<_> = sim.leaks().into_iter().filter(|leak| leak.bytes > 0).collect();
            assert_eq!(leaks, [], "call {n}, {class:?}");
        }
    }
}

#[test]
fn a_segment_that_the_driver_refuses_is_owed_and_goes_later() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let ptr = take(&pool, 20 * MIB, STREAM);
    give_back(&pool, ptr).unwrap();
    sim.set_faults(FaultPlan::none().fail_nth(Call::MemFree, 1, ErrorClass::Other));
    assert!(matches!(pool.empty_cache(), Err(AllocError::Driver(_))));
    assert_eq!(reserved_bytes(&pool), 32 * MIB);
    assert_eq!(pool.stats().num_owed_give_backs, 1);
    assert_eq!(give_back(&pool, ptr), Err(AllocError::AlreadyGivenBack { ptr }));
    pool.reconcile().unwrap();
    assert_eq!(pool.empty_cache().unwrap(), 32 * MIB);
}

#[test]
fn a_dropped_block_that_the_driver_refuses_is_pending_until_it_goes() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    let request = Request::new((2 << 30) + 1, STREAM);
    let block = Block::allocate(pool.clone() as Arc<dyn Allocator>, request).unwrap();
    let ptr = block.ptr();
    sim.set_faults(FaultPlan::none().fail_nth(Call::MemFree, 1, ErrorClass::Other));
    drop(block);
    assert_eq!(pool.block_at(ptr).unwrap().state, BlockState::Pending);
    assert_eq!(pool.stats().pending_bytes(), (2 << 30) + 2 * MIB);
    assert_eq!(give_back(&pool, ptr), Err(AllocError::AlreadyGivenBack { ptr }));
    pool.reconcile().unwrap();
    assert_eq!(pool.empty_cache().unwrap(), (2 << 30) + 2 * MIB);
    assert_eq!(pool.stats().pending_bytes(), 0);
    pool.reconcile().unwrap();
}

#[test]
fn a_pool_that_goes_returns_what_is_still_out() {
    let sim = SimDriver::new();
    let pool = pool(&sim);
    for bytes in [100, MIB, 20 * MIB, (2 << 30) + 1] {
        take(&pool, bytes, STREAM);
        give_back(&pool, take(&pool, bytes, STREAM)).unwrap();
    }
    drop(pool);
    assert_eq!(sim.leaks(), []);
}
