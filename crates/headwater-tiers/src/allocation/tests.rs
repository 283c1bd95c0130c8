//! Allocation inside reservations: whose bytes they are, and what happens when there are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headwater::{AllocError, Allocator, Direct, Request};
use headwater_driver::{Call, DeviceId, ErrorClass, Stream, StreamOptions, Streams};
use headwater_sim::{CostModel, FaultPlan, SimDriver};

use super::{FailAtOnce, ReservedAllocator, RetryWith, Tracking, Unreserved};
use crate::{GpuConfig, OverPolicy, Reservation, Space, SpaceId, TierError, Tiers, TiersConfig};

const DEVICE: DeviceId = DeviceId(0);
const KIB: u64 = 1024;

struct Setup {
    sim: Arc<SimDriver>,
    _tiers: Tiers,
    space: Space,
}

/// A GPU space of 100 KiB, 85 of which can be reserved.
fn setup() -> Setup {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    let direct = Arc::new(Direct::new(sim.clone(), DEVICE).unwrap());
    let mut gpu = GpuConfig::new(direct, 100 * KIB);
    gpu.streams = 1;
    let tiers = Tiers::new(TiersConfig::default().driver(sim.clone()).gpu(gpu)).unwrap();
    let space = tiers.space(SpaceId::gpu(DEVICE)).unwrap();
    Setup { sim, _tiers: tiers, space }
}

impl Setup {
    fn allocator(&self, tracking: Tracking) -> ReservedAllocator {
        ReservedAllocator::new(&self.space, tracking).unwrap()
    }

    fn reserve(&self, bytes: u64) -> Reservation {
        self.space.make_reservation_or_null(bytes).unwrap().unwrap()
    }

    fn stream(&self) -> Stream {
        self.sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap()
    }
}

fn out_of_memory() -> ErrorClass {
    ErrorClass::OutOfMemory { requested_bytes: 0, memory: None }
}

#[test]
fn a_block_goes_back_to_its_own_reservation_whoever_gives_it_back() {
    let setup = setup();
    let allocator = setup.allocator(Tracking::PerStream);
    let (one, other) = (setup.stream(), setup.stream());
    let (ones, others) = (setup.reserve(10 * KIB), setup.reserve(20 * KIB));
    let _attached = allocator.attach(one, &ones, OverPolicy::Fail).unwrap();
    let _also = allocator.attach(other, &others, OverPolicy::Fail).unwrap();
    let ptr = allocator.allocate(Request::new(4 * KIB, one)).unwrap();
    assert_eq!((ones.in_use_bytes(), others.in_use_bytes()), (4 * KIB, 0));
    allocator.record_stream(ptr, other).unwrap();
    std::thread::scope(|scope| {
        // SAFETY: the block is ours, and nothing uses it.
        scope.spawn(|| unsafe { allocator.give_back(ptr) }).join().unwrap().unwrap();
    });
    assert_eq!((ones.in_use_bytes(), others.in_use_bytes()), (0, 0));
    // SAFETY: the address names no block any more, which is an error and nothing else.
    assert!(unsafe { allocator.give_back(ptr) }.is_err());
}

#[test]
fn a_stream_has_one_reservation_until_it_is_detached() {
    let setup = setup();
    let allocator = setup.allocator(Tracking::PerStream);
    let stream = setup.stream();
    let (one, other) = (setup.reserve(KIB), setup.reserve(KIB));
    let attached = allocator.attach(stream, &one, OverPolicy::Fail).unwrap();
    assert!(matches!(
        allocator.attach(stream, &other, OverPolicy::Fail),
        Err(TierError::AlreadyAttached { .. })
    ));
    drop(attached);
    assert!(allocator.attach(stream, &other, OverPolicy::Fail).is_ok());
}

#[test]
fn threads_have_reservations_of_their_own_for_each_allocator() {
    let (setup, elsewhere) = (setup(), setup());
    let (allocator, second) =
        (setup.allocator(Tracking::PerThread), elsewhere.allocator(Tracking::PerThread));
    let stream = Stream::per_thread_default(DEVICE);
    let (mine, foreign) = (setup.reserve(8 * KIB), elsewhere.reserve(8 * KIB));
    let _mine = allocator.attach(stream, &mine, OverPolicy::Fail).unwrap();
    let _foreign = second.attach(stream, &foreign, OverPolicy::Fail).unwrap();
    std::thread::scope(|scope| {
        let theirs = setup.reserve(8 * KIB);
        let in_thread = scope.spawn(|| {
            let theirs = theirs;
            let attached = allocator.attach(stream, &theirs, OverPolicy::Fail).unwrap();
            let ptr = allocator.allocate(Request::new(2 * KIB, stream)).unwrap();
            drop(attached);
            (ptr, theirs)
        });
        let (ptr, theirs) = in_thread.join().unwrap();
        assert_eq!((theirs.in_use_bytes(), mine.in_use_bytes()), (2 * KIB, 0));
        // SAFETY: the block is ours, and nothing uses it.
        unsafe { allocator.give_back(ptr) }.unwrap();
        assert_eq!(theirs.in_use_bytes(), 0);
    });
    let ptr = second.allocate(Request::new(KIB, stream)).unwrap();
    assert_eq!((mine.in_use_bytes(), foreign.in_use_bytes()), (0, KIB));
    // SAFETY: as above.
    unsafe { second.give_back(ptr) }.unwrap();
}

#[test]
fn the_default_stream_of_each_thread_is_a_stream_of_its_own() {
    let setup = setup();
    let allocator = setup.allocator(Tracking::PerStream).unreserved(Unreserved::Refuse);
    let stream = Stream::per_thread_default(DEVICE);
    let mine = setup.reserve(8 * KIB);
    let _mine = allocator.attach(stream, &mine, OverPolicy::Fail).unwrap();
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| allocator.allocate_reserved(Request::new(KIB, stream)).unwrap_err()).join().unwrap()
    });
    assert!(matches!(refused, TierError::OverReservation { .. }), "{refused}");
}

#[test]
fn requests_without_a_reservation_are_counted_up_to_the_hard_cap() {
    let setup = setup();
    let allocator = setup.allocator(Tracking::PerStream);
    let stream = setup.stream();
    let ptr = allocator.allocate(Request::new(100 * KIB, stream)).unwrap();
    assert_eq!(setup.space.usage().unreserved_bytes, 100 * KIB);
    let error = allocator.allocate(Request::new(1, stream)).unwrap_err();
    let AllocError::OutOfMemory(report) = error else { panic!("{error}") };
    assert_eq!((report.limit_bytes, report.over_limit, report.requested_bytes), (Some(100 * KIB), true, 1));
    assert!(report.remedy.contains("capacity_bytes"));
    // SAFETY: the block is ours, and nothing uses it.
    unsafe { allocator.give_back(ptr) }.unwrap();
    assert_eq!(setup.space.usage().used_bytes(), 0);
}

#[test]
fn a_failed_allocation_costs_neither_account_anything() {
    let setup = setup();
    let allocator = setup.allocator(Tracking::PerStream);
    let stream = setup.stream();
    let reservation = setup.reserve(10 * KIB);
    let _attached = allocator.attach(stream, &reservation, OverPolicy::Ignore).unwrap();
    for class in [out_of_memory(), ErrorClass::Other] {
        setup.sim.set_faults(FaultPlan::none().fail_nth(Call::MemAlloc, 1, class));
        assert!(allocator.allocate(Request::new(20 * KIB, stream)).is_err());
        assert_eq!((reservation.in_use_bytes(), setup.space.usage().used_bytes()), (0, 10 * KIB));
    }
    assert!(matches!(
        allocator.allocate_reserved(Request::new(1, stream).aligned_to(3)),
        Err(TierError::Alloc(AllocError::BadAlignment { .. }))
    ));
}

#[test]
fn out_of_memory_below_is_retried_as_long_as_the_policy_makes_room() {
    let setup = setup();
    let stream = setup.stream();
    let reservation = setup.reserve(10 * KIB);
    let request = Request::new(KIB, stream);
    let faults = || {
        FaultPlan::none().fail_nth(Call::MemAlloc, 1, out_of_memory()).fail_nth(
            Call::MemAlloc,
            2,
            out_of_memory(),
        )
    };
    let calls = AtomicU32::new(0);
    let policy = RetryWith::new(2, |report: &headwater::OutOfMemoryReport| {
        calls.fetch_add(1, Ordering::Relaxed);
        report.requested_bytes == KIB
    });
    setup.sim.set_faults(faults());
    let block = setup.space.allocate(&reservation, request, OverPolicy::Fail, &policy).unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), block.bytes(), reservation.in_use_bytes()), (2, KIB, KIB));
    drop(block);

    setup.sim.set_faults(faults());
    let error = setup.space.allocate(&reservation, request, OverPolicy::Fail, &FailAtOnce).unwrap_err();
    assert!(matches!(error, TierError::OutOfMemory { attempts: 1, .. }), "{error}");
    assert!(error.to_string().contains("GPU 0"), "{error}");
    assert_eq!(reservation.in_use_bytes(), 0);
}

#[test]
fn a_policy_that_never_gives_up_is_stopped() {
    let setup = setup();
    let reservation = setup.reserve(10 * KIB);
    setup.sim.set_faults(FaultPlan::none().fail_share(1.0, 7).only(&[Call::MemAlloc]));
    let stubborn = RetryWith::new(u32::MAX, |_: &headwater::OutOfMemoryReport| true);
    let request = Request::new(KIB, setup.stream());
    let error = setup.space.allocate(&reservation, request, OverPolicy::Fail, &stubborn).unwrap_err();
    assert!(matches!(error, TierError::OutOfMemory { attempts: 16, .. }), "{error}");
}

#[test]
fn a_stream_whose_reservation_was_given_back_is_told() {
    let setup = setup();
    let allocator = setup.allocator(Tracking::PerStream);
    let stream = setup.stream();
    let reservation = setup.reserve(10 * KIB);
    let _attached = allocator.attach(stream, &reservation, OverPolicy::Ignore).unwrap();
    drop(reservation);
    let error = allocator.allocate_reserved(Request::new(KIB, stream)).unwrap_err();
    assert!(matches!(error, TierError::ReservationGivenBack { bytes: KIB, .. }), "{error}");
    assert!(allocator.allocate(Request::new(KIB, stream)).unwrap_err().is_out_of_memory());
}

#[test]
fn nothing_costs_nothing() {
    let setup = setup();
    let allocator = setup.allocator(Tracking::PerStream).unreserved(Unreserved::Refuse);
    let ptr = allocator.allocate(Request::new(0, setup.stream())).unwrap();
    assert!(ptr.is_null());
    // SAFETY: the null address is taken back as often as one likes.
    unsafe { allocator.give_back(ptr) }.unwrap();
    let reservation = setup.reserve(0);
    let request = Request::new(0, setup.stream());
    assert!(setup.space.allocate(&reservation, request, OverPolicy::Fail, &FailAtOnce).is_ok());
}
