//! Strategies: who the candidates are, who is taken, and that a request waits for all of them.

use std::sync::Arc;
use std::time::Duration;

use headwater::Direct;
use headwater_driver::{Call, DeviceId, ErrorClass};
use headwater_sim::{CostModel, FaultPlan, SimDriver};

use super::{Shares, Strategy, Topology};
use crate::{
    DiskConfig, Fraction, GpuConfig, HostConfig, Placement, Reservation, SpaceId, Tier, TierError, Tiers,
    TiersConfig, Wait,
};

const MIB: u64 = 1 << 20;

fn sim(devices: u32) -> Arc<SimDriver> {
    SimDriver::builder().devices(devices).cost(CostModel::free_of_charge()).build()
}

/// Two GPUs next to two nodes, and a disk; 100 MiB each, 85 of which can be reserved.
fn config(sim: &Arc<SimDriver>) -> TiersConfig {
    let mut config = TiersConfig::default().driver(sim.clone()).disk(DiskConfig::new("/", 100 * MIB));
    for place in 0..2 {
        let direct = Arc::new(Direct::new(sim.clone(), DeviceId(place)).unwrap());
        let mut gpu = GpuConfig::new(direct, 100 * MIB);
        (gpu.streams, gpu.numa_node) = (1, Some(place));
        let mut host = HostConfig::new(place, 100 * MIB);
        host.pinned.initial_slabs = 0;
        config = config.gpu(gpu).host(host);
    }
    config
}

fn tiers() -> Tiers {
    Tiers::new(config(&sim(2))).unwrap()
}

fn gpu(place: u32) -> SpaceId {
    SpaceId::gpu(DeviceId(place))
}

fn take(tiers: &Tiers, strategy: &Strategy, bytes: u64) -> Reservation {
    tiers.request_reservation(strategy, bytes, &Wait::at_most(Duration::ZERO)).unwrap()
}

#[test]
fn any_in_a_tier_takes_the_one_with_the_most_room() {
    let tiers = tiers();
    let any = Strategy::AnyInTier(Tier::Gpu);
    let first = take(&tiers, &any, 40 * MIB);
    let second = take(&tiers, &any, 40 * MIB);
    assert_eq!((first.space(), second.space()), (gpu(0), gpu(1)));
}

#[test]
fn a_preferred_space_comes_first_and_the_others_after() {
    let tiers = tiers();
    let prefer = Strategy::PreferInTier(gpu(1));
    let places: Vec<_> = (0..3).map(|_| take(&tiers, &prefer, 40 * MIB)).collect();
    assert_eq!(places.iter().map(Reservation::space).collect::<Vec<_>>(), [gpu(1), gpu(1), gpu(0)]);
}

#[test]
fn tiers_are_taken_in_the_order_given() {
    let tiers = tiers();
    let strategy = Strategy::Tiers(vec![Tier::Disk, Tier::Gpu]);
    let places: Vec<_> = (0..3).map(|_| take(&tiers, &strategy, 80 * MIB).space()).collect();
    assert_eq!(places, [SpaceId::disk(0); 3], "each was given back before the next");
    let _disk = take(&tiers, &strategy, 80 * MIB);
    assert_eq!(take(&tiers, &strategy, 80 * MIB).space().tier(), Tier::Gpu);
}

#[test]
fn down_goes_to_the_near_node_then_the_far_one_then_disk() {
    let tiers = tiers();
    let down = Strategy::Downgrade { from: gpu(1), to: None };
    let held: Vec<_> = (0..3).map(|_| take(&tiers, &down, 80 * MIB)).collect();
    let places: Vec<_> = held.iter().map(Reservation::space).collect();
    assert_eq!(places, [SpaceId::host(1), SpaceId::host(0), SpaceId::disk(0)]);
    let to_host = Strategy::Downgrade { from: gpu(1), to: Some(Tier::Host) };
    assert!(tiers.request_reservation_or_null(&to_host, 80 * MIB).unwrap().is_none());
}

#[test]
fn up_goes_to_the_near_device_first() {
    let tiers = tiers();
    let up = Strategy::Upgrade { from: SpaceId::host(1), to: None };
    let held: Vec<_> = (0..2).map(|_| take(&tiers, &up, 80 * MIB)).collect();
    assert_eq!(held.iter().map(Reservation::space).collect::<Vec<_>>(), [gpu(1), gpu(0)]);
    let from_disk = Strategy::Upgrade { from: SpaceId::disk(0), to: None };
    assert_eq!(take(&tiers, &from_disk, 80 * MIB).space().tier(), Tier::Host, "the GPUs are full");
}

#[test]
fn a_request_waits_for_all_its_candidates_at_once() {
    // The seed of this test: a request that waited for its first candidate alone slept through a release elsewhere.
    for freed in 0..2 {
        let tiers = tiers();
        let mut held: Vec<_> =
            (0..2).map(|place| take(&tiers, &Strategy::Specific(gpu(place)), 85 * MIB)).collect();
        std::thread::scope(|scope| {
            let any = Strategy::PreferInTier(gpu(0));
            let patient = Wait::at_most(Duration::from_secs(3600));
            let tiers = &tiers;
            let waiter = scope.spawn(move || tiers.request_reservation(&any, 10 * MIB, &patient));
            while tiers.waiting() == 0 {
                std::thread::yield_now();
            }
            drop(held.remove(freed));
            assert_eq!(waiter.join().unwrap().unwrap().space(), gpu(freed as u32));
        });
    }
}

#[test]
fn host_reservations_are_whole_blocks() {
    let tiers = tiers();
    assert_eq!(take(&tiers, &Strategy::Specific(SpaceId::host(0)), 1).bytes(), MIB);
}

#[test]
fn no_candidate_and_never_are_told_apart_and_at_once() {
    let tiers = tiers();
    let patient = Wait::at_most(Duration::from_secs(3600));
    let ask = |strategy: Strategy, bytes| tiers.request_reservation(&strategy, bytes, &patient).unwrap_err();
    let nowhere = ask(Strategy::Upgrade { from: gpu(0), to: None }, 1);
    assert_eq!(nowhere.to_string(), "no space fits the strategy up from GPU 0");
    assert!(matches!(ask(Strategy::Specific(gpu(7)), 1), TierError::NoCandidate { .. }));
    assert!(matches!(ask(Strategy::AnyInTier(Tier::Gpu), 86 * MIB), TierError::NeverFits(_)));
    assert!(matches!(tiers.space(gpu(7)), Err(TierError::UnknownSpace(_))));
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused_and_leaves_nothing() {
    let sim = sim(2);
    let twice = config(&sim).disk(DiskConfig::new("/", 1)).host(HostConfig::new(0, MIB));
    assert!(Tiers::new(twice).unwrap_err().to_string().contains("HOST node 0 is there twice"));
    let driverless = TiersConfig { driver: None, ..config(&sim) };
    assert!(matches!(Tiers::new(driverless), Err(TierError::BadSetting { setting: "driver", .. })));
    sim.set_faults(FaultPlan::none().fail_nth(Call::StreamCreate, 2, ErrorClass::Other));
    assert!(matches!(Tiers::new(config(&sim)), Err(TierError::Driver(_))));
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn a_machine_becomes_spaces() {
    let sim = sim(1);
    let mut topology = Topology::discover(&*sim, &[std::env::temp_dir()]).unwrap();
    for node in &mut topology.nodes {
        node.total_bytes = 64 * MIB;
    }
    let allocator = |device| Ok(Arc::new(Direct::new(sim.clone(), device)?) as Arc<dyn headwater::Allocator>);
    let shares = Shares { host: Fraction::percent(50), ..Shares::default() };
    let mut config = TiersConfig::from_topology(sim.clone(), &topology, shares, allocator).unwrap();
    let has_several_nodes = topology.nodes.len() > 1;
    for host in &mut config.hosts {
        assert_eq!(
            (host.capacity_bytes, host.pinned.placement == Placement::PreferNode),
            (32 * MIB, has_several_nodes)
        );
        host.pinned.blocks_per_slab = 1;
    }
    let tiers = Tiers::new(config).unwrap();
    assert_eq!(tiers.spaces().len(), 2 + topology.nodes.len());
    assert_eq!(tiers.space(gpu(0)).unwrap().capacity_bytes(), (139 << 30) * 95 / 100);
}
