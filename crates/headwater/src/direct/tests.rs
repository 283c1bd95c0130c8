//! What only a device that fails on order can show; the rest is in the conformance suite.

use std::sync::Arc;

use headwater_driver::{Call, DeviceId, DevicePtr, Devices, ErrorClass, Stream};
use headwater_sim::{FaultPlan, SimDriver};

use super::Direct;
use crate::allocator::{Allocator, BlockState, Request};
use crate::block::Block;
use crate::error::AllocError;

const DEVICE: DeviceId = DeviceId(0);
const STREAM: Stream = Stream::legacy_default(DEVICE);
const MIB: u64 = 1 << 20;

fn direct(sim: &Arc<SimDriver>) -> Arc<Direct> {
    Arc::new(Direct::new(sim.clone(), DEVICE).unwrap())
}

fn give_back(direct: &Direct, ptr: DevicePtr) -> Result<(), AllocError> {
    // SAFETY: these tests own the addresses they give back.
    unsafe { direct.give_back(ptr) }
}

fn reserved_bytes(direct: &Direct) -> u64 {
    direct.stats().reserved_bytes.all.current
}

/// Every kind of call, with whatever errors come.
fn scripted_program(direct: &Arc<Direct>) -> Vec<AllocError> {
    let mut errors = Vec::new();
    let mut bare = Vec::new();
    for alignment_bytes in [256, 4096, 2 * MIB] {
        match direct.allocate(Request::new(MIB, STREAM).aligned_to(alignment_bytes)) {
            Ok(ptr) => bare.push(ptr),
            Err(error) => errors.push(error),
        }
        direct.reconcile().unwrap();
        match Block::allocate(direct.clone(), Request::new(1000, STREAM)) {
            Ok(block) => drop(block),
            Err(error) => errors.push(error),
        }
        direct.reconcile().unwrap();
    }
    for ptr in bare {
        if let Err(error) = give_back(direct, ptr) {
            errors.push(error);
            direct.reconcile().unwrap();
            // The caller still holds it, and the fault was for once.
            give_back(direct, ptr).unwrap();
        }
        direct.reconcile().unwrap();
    }
    if let Err(error) = direct.empty_cache() {
        errors.push(error);
    }
    errors
}

#[test]
fn any_one_call_may_fail_and_the_accounts_stay_exact() {
    let sim = SimDriver::new();
    let whole = direct(&sim);
    let before = sim.call_counts();
    assert_eq!(scripted_program(&whole), []);
    let calls = sim.call_counts().since(&before).total();
    assert!(calls >= 24, "{calls}");
    for n in 1..=calls {
        for class in [ErrorClass::Other, ErrorClass::OutOfMemory { requested_bytes: 0, memory: None }] {
            let sim = SimDriver::new();
            let direct = direct(&sim);
            sim.set_faults(FaultPlan::none().fail_nth_of_any(n, class));
            scripted_program(&direct);
            direct.empty_cache().unwrap();
            assert_eq!(reserved_bytes(&direct), 0, "call {n}, {class:?}");
            direct.reconcile().unwrap();
            // The next request works.
            let ptr = direct.allocate(Request::new(MIB, STREAM)).unwrap();
            give_back(&direct, ptr).unwrap();
            drop(direct);
            assert_eq!(sim.leaks(), [], "call {n}, {class:?}");
        }
    }
}

#[test]
fn a_give_back_that_the_driver_refuses_leaves_the_block_with_its_caller() {
    let sim = SimDriver::new();
    let direct = direct(&sim);
    let ptr = direct.allocate(Request::new(MIB, STREAM)).unwrap();
    let before = direct.stats();
    sim.set_faults(FaultPlan::none().fail_nth(Call::MemFree, 1, ErrorClass::Other));
    assert!(matches!(give_back(&direct, ptr), Err(AllocError::Driver(_))));
    assert_eq!(direct.stats(), before);
    assert_eq!(direct.block_at(ptr).unwrap().state, BlockState::Live);
    give_back(&direct, ptr).unwrap();
    assert_eq!(reserved_bytes(&direct), 0);
}

#[test]
fn a_dropped_block_that_the_driver_refuses_is_owed_and_paid_later() {
    let sim = SimDriver::new();
    let direct = direct(&sim);
    let block = Block::allocate(direct.clone(), Request::new(MIB, STREAM)).unwrap();
    let ptr = block.ptr();
    sim.set_faults(FaultPlan::none().fail_nth(Call::MemFree, 1, ErrorClass::Other));
    drop(block);

    let stats = direct.stats();
    assert_eq!((stats.requested_bytes.all.current, stats.pending_bytes()), (0, MIB));
    assert_eq!(stats.num_owed_give_backs, 1);
    assert_eq!(direct.block_at(ptr).unwrap().state, BlockState::Pending);
    assert_eq!(give_back(&direct, ptr), Err(AllocError::AlreadyGivenBack { ptr }));
    direct.reconcile().unwrap();

    let next = direct.allocate(Request::new(MIB, STREAM)).unwrap();
    assert_eq!(direct.stats().pending_bytes(), 0);
    give_back(&direct, next).unwrap();
    assert_eq!(reserved_bytes(&direct), 0);
}

#[test]
fn debts_are_paid_before_a_request_is_refused_at_the_limit() {
    let sim = SimDriver::new();
    let direct = Arc::new(Direct::with_limit(sim.clone(), DEVICE, MIB).unwrap());
    let block = Block::allocate(direct.clone(), Request::new(MIB, STREAM)).unwrap();
    // Refused when dropped, and once more at the start of the next request.
    let faults = FaultPlan::none().fail_nth(Call::MemFree, 1, ErrorClass::Other);
    sim.set_faults(faults.fail_nth(Call::MemFree, 2, ErrorClass::Other));
    drop(block);
    let ptr = direct.allocate(Request::new(MIB, STREAM)).unwrap();
    give_back(&direct, ptr).unwrap();
}

#[test]
fn an_allocator_that_goes_returns_what_is_still_out() {
    let sim = SimDriver::new();
    let direct = direct(&sim);
    direct.allocate(Request::new(MIB, STREAM).aligned_to(4096)).unwrap();
    let block = Block::allocate(direct.clone(), Request::new(MIB, STREAM)).unwrap();
    sim.set_faults(FaultPlan::none().fail_nth(Call::MemFree, 1, ErrorClass::Other));
    drop(block);
    assert_eq!(sim.leaks().len(), 2);
    drop(direct);
    assert_eq!(sim.leaks(), []);
}

#[test]
fn an_alignment_within_the_drivers_own_takes_up_nothing_more() {
    let sim = SimDriver::new();
    let direct = direct(&sim);
    for alignment_bytes in [1, 2, 256] {
        let ptr = direct.allocate(Request::new(1000, STREAM).aligned_to(alignment_bytes)).unwrap();
        assert_eq!(reserved_bytes(&direct), 1000);
        give_back(&direct, ptr).unwrap();
    }
}
