//! Bad input: each its typed error, and nothing changes.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::{Bench, DEVICE, KIB, MIB};
use headwater::allocator::{BlockState, MAX_REQUEST_BYTES};
use headwater::{AllocError, Allocator, Block, Request};
use headwater_driver::{DeviceId, DevicePtr, Stream};

/// Runs `misuse` and makes sure that it was without consequences.
fn without_consequences<T>(bench: &Bench, misuse: impl FnOnce() -> T) -> T {
    let before = (bench.allocator.stats(), bench.allocator.snapshot());
    let answer = misuse();
    assert_eq!((bench.allocator.stats(), bench.allocator.snapshot()), before);
    bench.check();
    answer
}

fn give_back(bench: &Bench, ptr: DevicePtr) -> Result<(), AllocError> {
    // SAFETY: no address given here names a block that something owns.
    without_consequences(bench, || unsafe { bench.allocator.give_back(ptr) })
}

#[test]
fn a_foreign_address_is_refused() {
    let bench = Bench::new("backing:classic");
    let ptr = DevicePtr::new(0x1234_5600);
    assert_eq!(give_back(&bench, ptr), Err(AllocError::ForeignPointer { ptr }));
    let stream = bench.stream();
    let answer = without_consequences(&bench, || bench.allocator.record_stream(ptr, stream));
    assert_eq!(answer, Err(AllocError::ForeignPointer { ptr }));
    assert_eq!(bench.allocator.block_at(ptr), None);
}

#[test]
fn a_block_given_back_twice_is_refused_whatever_became_of_its_memory() {
    let bench = Bench::new("backing:classic");
    let stream = bench.stream();
    let (a, b) = (bench.allocate(KIB, stream), bench.allocate(KIB, stream));
    bench.give_back(a);
    assert_eq!(give_back(&bench, a), Err(AllocError::AlreadyGivenBack { ptr: a }));
    // Merged into the block before it.
    bench.give_back(b);
    assert_eq!(give_back(&bench, b), Err(AllocError::AlreadyGivenBack { ptr: b }));
    // Returned to the driver.
    bench.allocator.empty_cache().unwrap();
    assert_eq!(give_back(&bench, b), Err(AllocError::AlreadyGivenBack { ptr: b }));
}

#[test]
fn a_block_that_still_waits_cannot_be_given_back_again() {
    let bench = Bench::new("backing:classic");
    let (mine, other) = (bench.stream(), bench.stream());
    let ptr = bench.allocate(KIB, mine);
    bench.busy(other, 1_000_000);
    bench.allocator.record_stream(ptr, other).unwrap();
    bench.give_back(ptr);
    assert_eq!(give_back(&bench, ptr), Err(AllocError::AlreadyGivenBack { ptr }));
    assert_eq!(bench.allocator.block_at(ptr).unwrap().state, BlockState::Pending);
}

#[test]
fn an_address_inside_a_block_names_the_block() {
    let bench = Bench::new("backing:classic");
    let block = bench.allocate(10 * KIB, bench.stream());
    for offset in [1, 512, 10 * KIB - 1] {
        let ptr = DevicePtr::new(block.raw() + offset);
        assert_eq!(give_back(&bench, ptr), Err(AllocError::InsideBlock { ptr, block }));
        assert_eq!(bench.allocator.block_at(ptr).unwrap().ptr, block);
    }
}

#[test]
fn requests_beyond_the_address_space_or_of_another_device_are_refused() {
    let bench = Bench::new("backing:classic");
    let stream = bench.stream();
    let ask = |request: Request| without_consequences(&bench, || bench.allocator.allocate(request));
    for bytes in [MAX_REQUEST_BYTES + 1, u64::MAX] {
        assert!(matches!(ask(Request::new(bytes, stream)), Err(AllocError::TooLarge { .. })));
    }
    let elsewhere = Stream::legacy_default(DeviceId(7));
    let wrong = AllocError::WrongDevice { stream: elsewhere, device: DEVICE };
    assert_eq!(ask(Request::new(1, elsewhere)), Err(wrong.clone()));
    assert_eq!(bench.allocator.forget_stream(elsewhere), Err(wrong.clone()));
    assert_eq!(bench.allocator.largest_available(elsewhere), Err(wrong.clone()));
    let ptr = bench.allocate(1, stream);
    assert_eq!(bench.allocator.record_stream(ptr, elsewhere), Err(wrong));
    for alignment_bytes in [0, 3, 4 * MIB] {
        let request = Request::new(1, stream).aligned_to(alignment_bytes);
        assert!(matches!(ask(request), Err(AllocError::BadAlignment { .. })));
    }
    assert!(ask_for_everything(&bench, stream).is_out_of_memory());
}

fn ask_for_everything(bench: &Bench, stream: Stream) -> AllocError {
    bench.try_allocate(MAX_REQUEST_BYTES, stream).unwrap_err()
}

#[test]
fn zero_bytes_are_an_empty_block() {
    let bench = Bench::new("backing:classic");
    let stream = bench.stream();
    let ptr = without_consequences(&bench, || bench.allocate(0, stream));
    assert!(ptr.is_null());
    bench.allocator.record_stream(ptr, stream).unwrap();
    for _ in 0..2 {
        give_back(&bench, ptr).unwrap();
    }
}

#[test]
fn alignments_are_kept_and_cost_no_more_than_they_must() {
    let bench = Bench::new("backing:classic");
    let stream = bench.stream();
    bench.allocate(512, stream);
    for alignment_bytes in (0..=21).map(|bits| 1 << bits) {
        let ask =
            || Block::allocate(&*bench.allocator, Request::new(5000, stream).aligned_to(alignment_bytes));
        let first = ask().unwrap();
        assert!(first.ptr().is_aligned_to(alignment_bytes), "{alignment_bytes}");
        let facts = bench.allocator.block_at(first.ptr()).unwrap();
        assert!(facts.allocated_bytes <= 5120 + alignment_bytes, "{alignment_bytes}: {facts:?}");
        let second = ask().unwrap();
        assert!(second.ptr().is_aligned_to(alignment_bytes) && second.ptr() != first.ptr());
        bench.check();
        drop((first, second));
    }
    bench.check();
}
