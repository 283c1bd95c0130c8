//! Pinned blocks: growth, reuse after the last device use, shrinking, buffers.

use std::sync::Arc;

use headwater::AllocError;
use headwater_driver::{
    Call, Capture, CaptureMode, CaptureStatus, Copies, DeviceId, Driver, ErrorClass, PlainMemory, Stream,
    StreamOptions, Streams,
};
use headwater_sim::{CostModel, FaultPlan, SimDriver, Work};

use super::{PinnedPool, Placement};
use crate::{HostBuffer, HostConfig, OverPolicy, Reservation, Space, SpaceId, TierError, Tiers, TiersConfig};

const BLOCK: u64 = 4096;

struct Setup {
    sim: Arc<SimDriver>,
    _tiers: Tiers,
    space: Space,
}

/// A HOST space of 20 blocks, 17 of which can be reserved, in slabs of 8; one slab at first.
fn setup_with(change: impl FnOnce(&mut HostConfig)) -> Result<Setup, TierError> {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    make(sim, change)
}

fn make(sim: Arc<SimDriver>, change: impl FnOnce(&mut HostConfig)) -> Result<Setup, TierError> {
    let mut host = HostConfig::new(0, 20 * BLOCK);
    (host.pinned.block_bytes, host.pinned.blocks_per_slab, host.pinned.initial_slabs) = (BLOCK, 8, 1);
    change(&mut host);
    let tiers = Tiers::new(TiersConfig::default().driver(sim.clone()).host(host))?;
    let space = tiers.space(SpaceId::host(0))?;
    Ok(Setup { sim, _tiers: tiers, space })
}

fn setup() -> Setup {
    setup_with(|_| {}).unwrap()
}

impl Setup {
    fn pool(&self) -> &PinnedPool {
        self.space.pinned_pool().unwrap()
    }

    fn reserve(&self, blocks: u64) -> Reservation {
        self.space.make_reservation_or_null(blocks * BLOCK).unwrap().unwrap()
    }

    fn buffer(&self, reservation: &Reservation, bytes: u64) -> HostBuffer {
        self.space.allocate_host(reservation, bytes, OverPolicy::Fail).unwrap()
    }

    fn stream(&self) -> Stream {
        self.sim.stream_create(DeviceId(0), StreamOptions { non_blocking: true, priority: 0 }).unwrap()
    }

    /// Slabs, and free and pending blocks.
    fn blocks(&self) -> (usize, u64, u64) {
        let usage = self.pool().usage();
        (usage.slabs, usage.free_bytes / BLOCK, usage.pending_bytes / BLOCK)
    }
}

#[test]
fn the_defaults_are_four_pools_of_128_blocks_of_1_mib() {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    let config = TiersConfig::default().driver(sim).host(HostConfig::new(0, 1 << 30));
    let tiers = Tiers::new(config).unwrap();
    let usage = tiers.space(SpaceId::host(0)).unwrap().pinned_pool().unwrap().usage();
    assert_eq!((usage.slabs, usage.pinned_bytes, usage.free_bytes), (4, 512 << 20, 512 << 20));
}

#[test]
fn a_buffer_is_spans_of_one_block_each_and_the_last_as_long_as_needed() {
    let setup = setup();
    let reservation = setup.reserve(4);
    let mut buffer = setup.buffer(&reservation, 2 * BLOCK + 100);
    let lengths: Vec<_> = buffer.iter_spans().map(<[u8]>::len).collect();
    assert_eq!(lengths, [BLOCK as usize, BLOCK as usize, 100]);
    assert!(buffer.span(3).is_none());
    for index in 0..3 {
        buffer.span_mut(index).unwrap().fill(index as u8 + 1);
    }
    assert!((0..3).all(|index| buffer.span(index).unwrap().iter().all(|byte| *byte == index as u8 + 1)));
    assert_eq!(reservation.unused_bytes(), BLOCK);
}

#[test]
fn buffers_grow_and_are_trimmed_in_place() {
    let setup = setup();
    let reservation = setup.reserve(4);
    let mut buffer = setup.buffer(&reservation, 100);
    buffer.span_mut(0).unwrap().fill(7);
    buffer.grow_to(BLOCK).unwrap();
    assert_eq!((buffer.spans(), reservation.unused_bytes()), (1, 3 * BLOCK));
    buffer.grow_to(3 * BLOCK + 1).unwrap();
    assert_eq!((buffer.spans(), buffer.bytes(), reservation.unused_bytes()), (4, 3 * BLOCK + 1, 0));
    assert!(buffer.span(0).unwrap()[..100].iter().all(|byte| *byte == 7));
    assert!(matches!(buffer.grow_to(4 * BLOCK + 1), Err(TierError::OverReservation { .. })));
    assert_eq!((buffer.bytes(), reservation.in_use_bytes()), (3 * BLOCK + 1, 4 * BLOCK));
    buffer.trim_to(BLOCK + 1);
    assert_eq!((buffer.spans(), buffer.bytes(), reservation.unused_bytes()), (2, BLOCK + 1, 2 * BLOCK));
    buffer.trim_to(0);
    assert_eq!((buffer.spans(), setup.blocks().1), (0, 8));
}

#[test]
fn the_pool_grows_to_the_capacity_and_the_last_slab_is_as_small_as_it_must() {
    let setup = setup();
    let reservation = setup.reserve(17);
    let all = setup.space.allocate_host(&reservation, 20 * BLOCK, OverPolicy::Ignore).unwrap();
    assert_eq!((setup.blocks(), setup.pool().usage().pinned_bytes), ((3, 0, 0), 20 * BLOCK));
    let more = setup.space.allocate_host(&reservation, 1, OverPolicy::Ignore);
    assert!(matches!(more, Err(TierError::OverCapacity(_))), "{more:?}");
    drop(all);
    assert_eq!(setup.blocks(), (3, 20, 0));
}

#[test]
fn blocks_wait_for_the_last_device_use_before_they_are_handed_out_again() {
    // One slab is all there is, so the next buffer must get the same blocks.
    let setup = setup_with(|host| host.capacity_bytes = 8 * BLOCK).unwrap();
    let reservation = setup.reserve(6);
    let stream = setup.stream();
    let device = setup.sim.mem_alloc(DeviceId(0), BLOCK).unwrap();
    setup.sim.submit(stream, Work::new("long before the copy", 1_000_000)).unwrap();
    let mut buffer = setup.buffer(&reservation, 6 * BLOCK);
    buffer.span_mut(0).unwrap().fill(1);
    let (start, bytes) = buffer.span_ptr(0).unwrap();
    // SAFETY: both ranges are allocated, and the blocks are announced as used until the copy is done.
    unsafe { setup.sim.copy_to_device(device, start.as_ptr(), bytes as u64, stream) }.unwrap();
    buffer.record_use(stream).unwrap();
    buffer.record_use(stream).unwrap();
    drop(buffer);
    assert_eq!((setup.blocks(), reservation.in_use_bytes()), ((1, 2, 6), 0));
    // Two are free at once; for six the pool waits for the copy.
    let small = setup.buffer(&reservation, 2 * BLOCK);
    assert_eq!(setup.blocks(), (1, 0, 6));
    drop(small);
    let mut again = setup.buffer(&reservation, 6 * BLOCK);
    again.span_mut(0).unwrap().fill(2);
    assert!(setup.sim.now_ns() >= 1_000_000, "it waited on the device's clock");
    assert!(setup.sim.hazards().is_empty(), "{:?}", setup.sim.hazards());
    assert_eq!(setup.sim.peek(device.raw()..device.raw() + BLOCK), Some(vec![1; BLOCK as usize]));
}

#[test]
fn a_trimmed_block_does_not_wait_for_what_the_rest_does_later() {
    let setup = setup_with(|host| host.capacity_bytes = 8 * BLOCK).unwrap();
    let reservation = setup.reserve(6);
    let stream = setup.stream();
    let mut buffer = setup.buffer(&reservation, 2 * BLOCK);
    buffer.record_use(stream).unwrap();
    buffer.trim_to(BLOCK);
    setup.sim.submit(stream, Work::new("later", 1_000_000_000)).unwrap();
    buffer.record_use(stream).unwrap();
    let _rest = setup.buffer(&reservation, 5 * BLOCK);
    let _more = setup.space.allocate_host(&reservation, 2 * BLOCK, OverPolicy::Ignore).unwrap();
    assert!(setup.sim.now_ns() < 1_000_000_000);
    buffer.wait_for_uses().unwrap();
    assert!(setup.sim.now_ns() >= 1_000_000_000);
}

#[test]
fn shrinking_gives_whole_free_slabs_back_and_keeps_what_is_asked() {
    let setup = setup();
    let reservation = setup.reserve(17);
    let (first, rest) = (setup.buffer(&reservation, BLOCK), setup.buffer(&reservation, 16 * BLOCK));
    assert_eq!(setup.blocks(), (3, 3, 0));
    drop(rest);
    assert_eq!(setup.pool().shrink(10 * BLOCK).unwrap(), 4 * BLOCK, "20 - 4 is enough, 16 - 8 is not");
    assert_eq!(setup.pool().shrink(0).unwrap(), 8 * BLOCK, "the first slab has a block in use");
    assert_eq!(setup.blocks(), (1, 7, 0));
    drop(first);
    assert_eq!((setup.pool().shrink(0).unwrap(), setup.blocks()), (8 * BLOCK, (0, 0, 0)));
    assert_eq!(setup.buffer(&reservation, BLOCK).spans(), 1, "and it grows again");
}

#[test]
fn a_driver_that_cannot_pin_or_free_costs_nothing() {
    let setup = setup();
    let reservation = setup.reserve(17);
    let class = ErrorClass::OutOfMemory { requested_bytes: 0, memory: None };
    setup.sim.set_faults(FaultPlan::none().fail_nth(Call::HostAlloc, 1, class));
    let refused = setup.space.allocate_host(&reservation, 9 * BLOCK, OverPolicy::Fail);
    assert!(matches!(refused, Err(TierError::Driver(_))), "{refused:?}");
    assert_eq!((setup.blocks(), reservation.in_use_bytes()), ((1, 8, 0), 0));
    drop(setup.buffer(&reservation, 9 * BLOCK));
    setup.sim.set_faults(FaultPlan::none().fail_nth(Call::HostFree, 1, ErrorClass::Other));
    assert!(setup.pool().shrink(0).is_err());
    assert_eq!(setup.blocks(), (2, 16, 0));
    assert_eq!(setup.pool().shrink(0).unwrap(), 16 * BLOCK);
}

#[test]
fn failing_events_are_told_and_lose_no_block() {
    let setup = setup_with(|host| host.capacity_bytes = 8 * BLOCK).unwrap();
    let reservation = setup.reserve(6);
    let stream = setup.stream();
    let mut buffer = setup.buffer(&reservation, 6 * BLOCK);
    for call in [Call::EventCreate, Call::EventRecord] {
        setup.sim.set_faults(FaultPlan::none().fail_nth(call, 1, ErrorClass::Other));
        assert!(buffer.record_use(stream).is_err());
    }
    buffer.record_use(stream).unwrap();
    setup.sim.submit(stream, Work::new("unfinished", 1000)).unwrap();
    buffer.record_use(stream).unwrap();
    drop(buffer);
    setup.sim.set_faults(FaultPlan::none().fail_nth(Call::EventSynchronize, 1, ErrorClass::Other));
    let refused = setup.space.allocate_host(&reservation, 6 * BLOCK, OverPolicy::Fail);
    assert!(matches!(refused, Err(TierError::Driver(_))), "{refused:?}");
    assert_eq!((setup.blocks(), reservation.in_use_bytes()), ((1, 2, 6), 0));
    // A use that cannot be asked about can still be waited for.
    setup.sim.set_faults(FaultPlan::none().fail_nth(Call::EventQuery, 1, ErrorClass::Other));
    assert_eq!(setup.buffer(&reservation, 6 * BLOCK).spans(), 6);
}

#[test]
fn a_capture_is_left_alone_and_its_streams_are_refused() {
    let setup = setup_with(|host| host.capacity_bytes = 16 * BLOCK).unwrap();
    let reservation = setup.reserve(13);
    let (captured, other) = (setup.stream(), setup.stream());
    let mut buffer = setup.buffer(&reservation, 6 * BLOCK);
    setup.sim.capture_begin(captured, CaptureMode::Global).unwrap();
    let refused = buffer.record_use(captured).unwrap_err();
    assert_eq!(refused, TierError::Alloc(AllocError::StreamCapturing { stream: captured }));
    buffer.record_use(other).unwrap();
    drop(buffer);
    // Asks the event, and pins another slab.
    let _all = setup.buffer(&reservation, 13 * BLOCK);
    assert!(matches!(setup.sim.capture_status(captured), Ok(CaptureStatus::Active(_))));
}

/// One driver call in twenty fails. Everything ends in success or in the driver's own error, and nothing is lost.
#[test]
fn random_driver_faults_lose_no_block_and_no_byte() {
    for seed in 0..20 {
        let setup = setup();
        let reservation = setup.reserve(17);
        let stream = setup.stream();
        setup.sim.set_faults(FaultPlan::none().fail_share(0.05, seed));
        let mut buffers = Vec::new();
        for round in 0..200_u64 {
            let answer = match (round * 7 + seed) % 5 {
                0 | 1 => setup
                    .space
                    .allocate_host(&reservation, (1 + round % 5) * BLOCK, OverPolicy::Fail)
                    .map(|buffer| buffers.push(buffer)),
                2 => buffers.last_mut().map_or(Ok(()), |buffer: &mut HostBuffer| {
                    buffer.record_use(stream)?;
                    buffer.grow_to(buffer.bytes() + BLOCK)
                }),
                3 => {
                    buffers.truncate(buffers.len() / 2);
                    Ok(())
                }
                _ => setup.pool().shrink(8 * BLOCK).map(drop),
            };
            if let Err(error) = answer {
                assert!(
                    matches!(error, TierError::Driver(_) | TierError::OverReservation { .. }),
                    "{seed}: {error}"
                );
            }
            let in_use: u64 = buffers.iter().map(|buffer| buffer.spans() as u64 * BLOCK).sum();
            let usage = setup.pool().usage();
            assert_eq!(
                (reservation.in_use_bytes(), usage.pinned_bytes),
                (in_use, in_use + usage.free_bytes + usage.pending_bytes)
            );
        }
        setup.sim.set_faults(FaultPlan::none());
        buffers.clear();
        setup.sim.wait_until_idle();
        setup.pool().shrink(0).unwrap();
        assert_eq!((setup.blocks(), setup.sim.hazards().len()), ((0, 0, 0), 0));
        let sim = setup.sim.clone();
        drop((reservation, setup));
        sim.stream_destroy(stream).unwrap();
        assert!(sim.leaks().is_empty(), "{seed}: {:?}", sim.leaks());
    }
}

#[test]
fn many_threads_share_the_blocks_and_all_come_back() {
    let setup = setup();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let setup = &setup;
            scope.spawn(move || {
                let stream = setup.stream();
                for round in 0..50 {
                    let blocks = 1 + (thread + round) % 4;
                    let reservation = setup.reserve(4);
                    let mut buffer = setup.buffer(&reservation, blocks * BLOCK);
                    buffer.span_mut(0).unwrap().fill(thread as u8);
                    buffer.record_use(stream).unwrap();
                    assert!(buffer.span(0).unwrap().iter().all(|byte| *byte == thread as u8));
                }
            });
        }
    });
    assert_eq!(setup.space.usage().used_bytes(), 0);
    setup.pool().shrink(0).unwrap();
    assert_eq!(setup.blocks(), (0, 0, 0));
}

#[test]
fn everything_pinned_is_freed_with_the_tiers() {
    let setup = setup();
    let reservation = setup.reserve(6);
    let stream = setup.stream();
    let mut buffer = setup.buffer(&reservation, 6 * BLOCK);
    setup.sim.submit(stream, Work::new("still running", 1_000_000)).unwrap();
    buffer.record_use(stream).unwrap();
    let sim = setup.sim.clone();
    drop((buffer, reservation, setup));
    sim.stream_destroy(stream).unwrap();
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn bound_slabs_are_on_their_node_where_the_system_binds() {
    let bound = setup_with(|host| host.pinned.placement = Placement::OnlyNode);
    let setup = match bound {
        Ok(setup) => setup,
        // Some sandboxes forbid the call; then it must be said, and preferring the node must still work.
        Err(TierError::System { .. }) => {
            setup_with(|host| host.pinned.placement = Placement::PreferNode).unwrap()
        }
        Err(error) => panic!("{error}"),
    };
    let reservation = setup.reserve(2);
    let mut buffer = setup.buffer(&reservation, 2 * BLOCK);
    buffer.span_mut(1).unwrap().fill(9);
    match setup.pool().verify_placement() {
        Ok(report) => assert_eq!(report.pages_on_node, report.pages_sampled, "{report:?}"),
        Err(error) => assert!(matches!(error, TierError::System { .. }), "{error}"),
    }
    let sim = setup.sim.clone();
    drop((buffer, reservation, setup));
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn a_node_that_does_not_exist_is_refused_and_nothing_stays_mapped() {
    let sim = SimDriver::builder().cost(CostModel::free_of_charge()).build();
    let mut host = HostConfig::new(77, 20 * BLOCK);
    host.pinned.block_bytes = BLOCK;
    host.pinned.placement = Placement::OnlyNode;
    let driver: Arc<dyn Driver> = sim.clone();
    let refused = Tiers::new(TiersConfig::default().driver(driver).host(host)).unwrap_err();
    assert!(refused.to_string().contains("node 77"), "{refused}");
    assert!(sim.leaks().is_empty());
}

#[test]
fn sizes_that_make_no_sense_are_named() {
    for (block_bytes, blocks_per_slab, setting) in
        [(0, 8, "block_bytes"), (100, 8, "block_bytes"), (BLOCK, 0, "blocks_per_slab")]
    {
        let refused = setup_with(|host| {
            (host.pinned.block_bytes, host.pinned.blocks_per_slab) = (block_bytes, blocks_per_slab);
        });
        assert!(matches!(refused, Err(TierError::BadSetting { setting: named, .. }) if named == setting));
    }
}
