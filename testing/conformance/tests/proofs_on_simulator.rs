//! The proofs on the simulated device, where time is virtual: what a GPU shows with a clock is exact here.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use headwater_conformance::proofs::{growth, nap, overlap, share};
use headwater_driver::{CaptureMode, DeviceId, Driver};
use headwater_sim::SimDriver;

const D: DeviceId = DeviceId(0);

fn machine() -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = SimDriver::builder().memory_bytes(4 << 30).build();
    (sim.clone(), sim)
}

fn leaves_nothing(sim: &SimDriver) {
    assert_eq!(sim.hazards(), []);
    assert_eq!(sim.leaks(), []);
}

#[test]
fn streams_under_pressure_run_side_by_side() {
    let (sim, driver) = machine();
    let report = overlap::run(&driver, D, 4, 2_000).unwrap();
    assert_eq!(report.words_wrong, 0);
    assert!(report.waits > 0, "no memory went from stream to stream: {report:?}");
    assert!(report.reserved_peak_bytes <= report.limit_bytes, "{report:?}");
    assert!(report.ratio() < 1.5, "{:.2}: {report:?}", report.ratio());
    leaves_nothing(&sim);
}

#[test]
fn the_arena_grows_inside_and_beside_a_capture_in_every_mode() {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let (sim, driver) = machine();
        let report = growth::run(&driver, D, mode, 3).unwrap();
        assert_eq!((report.launches, report.words_wrong), (6, 0), "{mode:?}");
        assert!(report.handles_made_in_capture >= 10, "{report:?}");
        leaves_nothing(&sim);
    }
}

#[test]
fn a_captured_graph_survives_the_sleep_of_its_memory() {
    let (sim, driver) = machine();
    let report = nap::run(&driver, D, 2, 2).unwrap();
    assert_eq!((report.naps, report.launches, report.words_wrong), (4, 10, 0));
    assert!(report.released_bytes >= (4 * 128) << 20, "{report:?}");
    leaves_nothing(&sim);
}

#[test]
fn two_views_of_a_machine_share_a_block() {
    let (sim, driver) = machine();
    let mut owner = share::Owner::new(&driver, D).unwrap();
    for manners in [share::Manners::Leaves, share::Manners::Stays] {
        let (here, there) = UnixStream::pair().unwrap();
        let view: Arc<dyn Driver> = sim.second_view();
        std::thread::scope(|scope| {
            let guest = scope.spawn(move || share::visit(&view, D, &there, manners));
            owner.lend(&here).unwrap();
            drop(here);
            guest.join().unwrap().unwrap();
        });
    }
    let report = owner.finish().unwrap();
    assert_eq!((report.guests, report.words_wrong), (2, 0));
    assert_eq!(sim.hazards(), []);
}

#[test]
fn another_machine_refuses_and_says_why() {
    let (_sim, driver) = machine();
    let mut owner = share::Owner::new(&driver, D).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    let stranger: Arc<dyn Driver> = SimDriver::new();
    let told = std::thread::scope(|scope| {
        let guest = scope.spawn(move || share::visit(&stranger, D, &there, share::Manners::Leaves));
        let told = owner.lend(&here).unwrap_err();
        assert!(guest.join().unwrap().is_err());
        told
    });
    assert!(told.to_string().contains("another simulated machine"), "{told}");
    assert_eq!(owner.finish().unwrap().words_wrong, 0);
}
