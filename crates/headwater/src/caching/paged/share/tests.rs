//! Which handles were made for export, from the inside.

use headwater_driver::Stream;
use headwater_sim::{FaultPlan, SimDriver};

use super::*;
use crate::caching::Contents;
use crate::config::Config;

#[test]
fn handles_made_for_export_are_known_for_as_long_as_they_exist() {
    let (device, mib) = (DeviceId(0), 1 << 20);
    let stream = Stream::legacy_default(device);
    let sim = SimDriver::builder().memory_bytes(1 << 30).build();
    let config = Config::parse("backing:paged").unwrap();
    let allocator = CachingAllocator::new(sim.clone(), device, config).unwrap();
    let known = || allocator.state.lock().core.paged().unwrap().exportable.len();

    let private = allocator.allocate(Request::new(64 * mib, stream)).unwrap();
    assert_eq!(known(), 0);
    let ptr = allocator.allocate_shareable(Request::new(300 * mib, stream)).unwrap();
    let handles = known();
    assert!(handles > 1);

    // SAFETY: nothing uses the blocks, here and below.
    let (id, _) = unsafe { allocator.sleep(&[ptr, private], Contents::Lost, stream) }.unwrap();
    assert_eq!(known(), 0);
    sim.set_faults(FaultPlan::none().fail_nth(
        headwater_driver::Call::AccessSet,
        2,
        headwater_driver::ErrorClass::Other,
    ));
    allocator.wake(id, stream).unwrap_err();
    assert_eq!(known(), 0, "waking was undone");
    sim.set_faults(FaultPlan::none());
    allocator.wake(id, stream).unwrap();
    assert_eq!(known(), handles);
    assert!(matches!(allocator.export(private, Neighbours::Exposed), Err(ShareError::Private { .. })));

    for ptr in [ptr, private] {
        // SAFETY: as above.
        unsafe { allocator.give_back(ptr) }.unwrap();
    }
    assert_eq!(known(), handles, "they are cached");
    allocator.empty_cache().unwrap();
    assert_eq!(known(), 0);
}
