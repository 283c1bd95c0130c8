//! Sharing from end to end, on the simulated device: a second view of the machine stands for the other process.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use headwater_driver::{Call, Capabilities, DeviceId, DevicePtr, Devices, Driver, ErrorClass, Stream};
use headwater_sim::{FaultPlan, LeakKind, SimDriver};

use super::*;
use crate::caching::{CachingAllocator, Contents};
use crate::config::Config;
use crate::{Allocator, Request};

const D: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;

fn stream() -> Stream {
    Stream::legacy_default(D)
}

fn ground() -> (Arc<SimDriver>, Arc<CachingAllocator>) {
    ground_with("backing:paged")
}

fn ground_with(settings: &str) -> (Arc<SimDriver>, Arc<CachingAllocator>) {
    let sim = SimDriver::builder().memory_bytes(1 << 30).build();
    let config = Config::parse(settings).unwrap();
    let allocator = CachingAllocator::new(sim.clone(), D, config).unwrap();
    (sim, allocator)
}

/// The block as the other process gets it.
fn sent(block: &ExportedBlock) -> ReceivedBlock {
    let (here, there) = UnixStream::pair().unwrap();
    send(&here, block).unwrap();
    receive(&there).unwrap()
}

fn give_back(allocator: &CachingAllocator, ptr: DevicePtr) -> Result<(), AllocError> {
    // SAFETY: nothing in these tests uses a block after giving it back.
    unsafe { allocator.give_back(ptr) }
}

fn read(driver: &dyn Driver, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    // SAFETY: the buffer outlives the wait.
    unsafe { driver.copy_to_host(out.as_mut_ptr(), ptr, bytes as u64, stream()) }.unwrap();
    driver.stream_synchronize(stream()).unwrap();
    out
}

fn fill(driver: &dyn Driver, ptr: DevicePtr, value: u8, bytes: u64) {
    // SAFETY: the range is a live block's.
    unsafe { driver.fill_bytes(ptr, value, bytes, stream()) }.unwrap();
    driver.stream_synchronize(stream()).unwrap();
}

#[test]
fn both_sides_see_the_same_bytes() {
    let (sim, allocator) = ground();
    let other: Arc<SimDriver> = sim.second_view();
    let ptr = allocator.allocate_shareable(Request::new(5 * MIB, stream())).unwrap();
    fill(&*sim, ptr, 0x31, 5 * MIB);
    let exported = allocator.export(ptr, Neighbours::Refused).unwrap();
    let imported = ImportedBlock::map(other.clone(), D, &sent(&exported), stream()).unwrap();
    assert_eq!((imported.bytes(), imported.device()), (5 * MIB, D));
    assert_eq!(read(&*other, imported.ptr(), 64), [0x31; 64]);
    fill(&*other, imported.ptr(), 0x32, 5 * MIB);
    assert_eq!(read(&*sim, ptr, 64), [0x32; 64]);
    drop(imported);
    drop(exported);
    give_back(&allocator, ptr).unwrap();
    allocator.verify().unwrap();
    assert!(sim.hazards().is_empty(), "{:?}", sim.hazards());
    drop(allocator);
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn a_block_that_shares_its_handles_is_exported_only_where_that_is_meant() {
    let (_sim, allocator) = ground_with("backing:paged,shareable:True");
    let small = allocator.allocate(Request::new(4096, stream())).unwrap();
    let neighbour = allocator.allocate(Request::new(4096, stream())).unwrap();
    let refused = allocator.export(neighbour, Neighbours::Refused).unwrap_err();
    assert!(
        matches!(refused, ShareError::Exposes { exported_bytes, .. } if exported_bytes == 2 * MIB),
        "{refused}"
    );
    let exported = allocator.export(neighbour, Neighbours::Exposed).unwrap();
    assert_eq!(exported.note().bytes(), 4096);
    assert_eq!(exported.note().offset_bytes(), neighbour.raw() - small.raw());
    drop(exported);
    give_back(&allocator, small).unwrap();
    give_back(&allocator, neighbour).unwrap();
}

#[test]
fn other_blocks_are_private_and_the_error_names_the_remedies() {
    let (sim, allocator) = ground();
    let ptr = allocator.allocate(Request::new(64 * MIB, stream())).unwrap();
    for neighbours in [Neighbours::Refused, Neighbours::Exposed] {
        let refused = allocator.export(ptr, neighbours).unwrap_err();
        assert!(matches!(refused, ShareError::Private { ptr: named } if named == ptr), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("allocate_shareable") && text.contains("shareable:True"), "{text}");
    }
    assert_eq!(sim.call_counts().of(Call::HandleExport), 0, "the driver need not be asked");
    give_back(&allocator, ptr).unwrap();
    allocator.verify().unwrap();
}

#[test]
fn with_the_setting_any_block_crosses() {
    let (sim, allocator) = ground_with("backing:paged,shareable:True");
    let other = sim.second_view();
    let ptr = allocator.allocate(Request::new(64 * MIB, stream())).unwrap();
    fill(&*sim, ptr, 0x41, 64 * MIB);
    let exported = allocator.export(ptr, Neighbours::Exposed).unwrap();
    let imported = allocator.import(&sent(&exported), stream());
    drop(imported.unwrap());
    let imported = ImportedBlock::map(other.clone(), D, &sent(&exported), stream()).unwrap();
    assert_eq!(read(&*other, imported.ptr(), 64), [0x41; 64]);
    drop(imported);
    drop(exported);
    give_back(&allocator, ptr).unwrap();
    drop(allocator);
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn a_device_that_cannot_export_says_so_when_it_is_asked_for_such_memory() {
    let able = SimDriver::new().device_properties(D).unwrap().capabilities;
    let sim = SimDriver::builder().capabilities(Capabilities { shareable_handles: false, ..able }).build();
    let settings = |text| Config::parse(text).unwrap();
    let refused =
        CachingAllocator::new(sim.clone(), D, settings("backing:paged,shareable:True")).unwrap_err();
    let is_not_supported = |error: &AllocError| matches!(error, AllocError::Driver(error) if error.class() == ErrorClass::NotSupported);
    assert!(is_not_supported(&refused), "{refused}");
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    let allocator = CachingAllocator::new(sim, D, settings("backing:paged")).unwrap();
    let refused = allocator.allocate_shareable(Request::new(MIB, stream())).unwrap_err();
    assert!(matches!(&refused, ShareError::Alloc(error) if is_not_supported(error)), "{refused}");
    allocator.verify().unwrap();
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
}

#[test]
fn shareable_blocks_have_handles_of_their_own_whatever_is_cached() {
    let (_sim, allocator) = ground();
    let cached = allocator.allocate(Request::new(64 * MIB, stream())).unwrap();
    give_back(&allocator, cached).unwrap();
    let ptrs: Vec<_> = (1..6)
        .map(|mib| {
            allocator.allocate_shareable(Request::new(mib * MIB + 1, stream()).aligned_to(4096)).unwrap()
        })
        .collect();
    for ptr in &ptrs {
        drop(allocator.export(*ptr, Neighbours::Refused).unwrap());
        allocator.verify().unwrap();
    }
    ptrs.into_iter().for_each(|ptr| give_back(&allocator, ptr).unwrap());
    allocator.verify().unwrap();
}

#[test]
fn the_cache_makes_way_for_a_shareable_block_and_the_limit_holds() {
    let (_sim, allocator) = ground();
    allocator.set_limit_bytes(Some(64 * MIB));
    let cached = allocator.allocate(Request::new(60 * MIB, stream())).unwrap();
    give_back(&allocator, cached).unwrap();
    let ptr = allocator.allocate_shareable(Request::new(40 * MIB, stream())).unwrap();
    assert!(allocator.stats().reserved_bytes.all.peak <= 64 * MIB);
    let refused = allocator.allocate_shareable(Request::new(40 * MIB, stream())).unwrap_err();
    assert!(matches!(refused, ShareError::Alloc(AllocError::OutOfMemory(_))), "{refused}");
    give_back(&allocator, ptr).unwrap();
    allocator.verify().unwrap();
}

#[test]
fn a_block_given_back_while_exported_is_used_again_only_afterwards() {
    let (sim, allocator) = ground();
    let ptr = allocator.allocate_shareable(Request::new(2 * MIB, stream())).unwrap();
    let first = allocator.export(ptr, Neighbours::Refused).unwrap();
    let second = allocator.export(ptr, Neighbours::Refused).unwrap();
    give_back(&allocator, ptr).unwrap();
    assert_eq!(give_back(&allocator, ptr), Err(AllocError::AlreadyGivenBack { ptr }));
    drop(first);
    assert_eq!(allocator.empty_cache().unwrap(), 0, "it is still exported");
    drop(second);
    assert_eq!(allocator.empty_cache().unwrap(), 2 * MIB);
    drop(allocator);
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

#[test]
fn an_exported_block_does_not_sleep() {
    let (_sim, allocator) = ground();
    let ptr = allocator.allocate_shareable(Request::new(2 * MIB, stream())).unwrap();
    let exported = allocator.export(ptr, Neighbours::Refused).unwrap();
    // SAFETY: nothing uses the block.
    let asleep = unsafe { allocator.sleep(&[ptr], Contents::Lost, stream()) };
    assert_eq!(asleep.unwrap_err(), AllocError::Exported { ptr });
    drop(exported);
    // SAFETY: nothing uses the block.
    let (id, _) = unsafe { allocator.sleep(&[ptr], Contents::Lost, stream()) }.unwrap();
    let refused = allocator.export(ptr, Neighbours::Refused).unwrap_err();
    assert!(matches!(refused, ShareError::Alloc(AllocError::Asleep { .. })), "{refused}");
    allocator.wake(id, stream()).unwrap();
    // What came back can be exported as before.
    drop(allocator.export(ptr, Neighbours::Refused).unwrap());
    give_back(&allocator, ptr).unwrap();
}

#[test]
fn what_cannot_be_exported_says_why() {
    let (sim, allocator) = ground();
    let foreign = DevicePtr::new(0x1234);
    let refused = allocator.export(foreign, Neighbours::Exposed).unwrap_err();
    assert!(matches!(refused, ShareError::Alloc(AllocError::ForeignPointer { .. })), "{refused}");
    let classic = CachingAllocator::new(sim, D, Config::parse("backing:classic").unwrap()).unwrap();
    let ptr = classic.allocate(Request::new(MIB, stream())).unwrap();
    assert!(matches!(classic.export(ptr, Neighbours::Exposed), Err(ShareError::NotPaged)));
    assert!(matches!(classic.allocate_shareable(Request::new(1, stream())), Err(ShareError::NotPaged)));
    give_back(&classic, ptr).unwrap();
}

#[test]
fn another_machine_is_told_that_the_memory_is_not_its_own() {
    let (_sim, allocator) = ground();
    let ptr = allocator.allocate_shareable(Request::new(2 * MIB, stream())).unwrap();
    let exported = allocator.export(ptr, Neighbours::Refused).unwrap();
    let stranger = SimDriver::new();
    let refused = ImportedBlock::map(stranger.clone(), D, &sent(&exported), stream()).unwrap_err();
    assert!(refused.to_string().contains("another simulated machine"), "{refused}");
    assert!(stranger.leaks().is_empty());
    let two = SimDriver::builder().devices(2).build();
    let elsewhere =
        ImportedBlock::map(two, DeviceId(1), &sent(&exported), Stream::legacy_default(DeviceId(1)));
    assert!(matches!(elsewhere, Err(ShareError::OtherDevice { .. })));
    drop(exported);
    give_back(&allocator, ptr).unwrap();
}

/// Every driver call of an import, of its end, and of an export fails once; what was done before is undone.
#[test]
fn every_call_that_fails_leaves_nothing_behind() {
    let run = |plan: FaultPlan| -> (u64, bool) {
        let (sim, allocator) = ground();
        let other = sim.second_view();
        let mine = sim.leaks().len();
        let before = [sim.call_counts().total(), other.call_counts().total()];
        sim.set_faults(plan);
        let seen = other.clone();
        let calls = || {
            sim.set_faults(FaultPlan::none());
            sim.call_counts().total() - before[0] + seen.call_counts().total() - before[1]
        };
        let ptr = match allocator.allocate_shareable(Request::new(300 * MIB, stream())) {
            Ok(ptr) => ptr,
            Err(error) => {
                let calls = calls();
                allocator.verify().unwrap_or_else(|why| panic!("{error}: {why}"));
                allocator.empty_cache().unwrap();
                assert_eq!(allocator.stats().reserved_bytes.all.current, 0, "{error}");
                return (calls, true);
            }
        };
        let mut failed = false;
        if let Ok(exported) = allocator.export(ptr, Neighbours::Refused) {
            let received = sent(&exported);
            match ImportedBlock::map(other, D, &received, stream()) {
                Ok(mut imported) => {
                    if imported.close().is_err() {
                        failed = true;
                        imported.close().unwrap();
                    }
                }
                Err(_) => failed = true,
            }
        } else {
            failed = true;
        }
        let calls = calls();
        give_back(&allocator, ptr).unwrap();
        allocator.empty_cache().unwrap();
        allocator.verify().unwrap();
        assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
        // Only what the allocator keeps: its arena, and events.
        let kept = sim.leaks().into_iter().filter(|leak| leak.kind != LeakKind::Event).count();
        assert_eq!(kept, mine);
        drop(allocator);
        assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
        (calls, failed)
    };
    let (calls, failed) = run(FaultPlan::none());
    assert!(!failed && calls > 8);
    let mut failures = 0;
    for position in 1..=calls {
        for class in [ErrorClass::Other, ErrorClass::OutOfMemory { requested_bytes: 0, memory: None }] {
            failures += u64::from(run(FaultPlan::none().fail_nth_of_any(position, class)).1);
        }
    }
    assert!(failures >= calls, "{failures} of {calls} calls were seen to fail");
    let (_, failed) = run(FaultPlan::none().fail_nth(Call::HandleExport, 1, ErrorClass::NotSupported));
    assert!(failed);
}

#[test]
fn many_handles_travel_in_many_messages() {
    let note = BlockNote::new(1, 0, "0000:01:00.0", vec![1; 300]).unwrap();
    let (_sim, allocator) = ground();
    let ptr = allocator.allocate_shareable(Request::new(MIB, stream())).unwrap();
    let fds: Vec<OwnedFd> =
        (0..300).map(|_| std::io::pipe().map(|(reader, _)| reader.into()).unwrap()).collect();
    drop(allocator.export(ptr, Neighbours::Refused).unwrap());
    let block = ExportedBlock::new(Arc::clone(&allocator), ptr, note, fds);
    let (here, there) = UnixStream::pair().unwrap();
    let received = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&here, &block));
        let received = receive(&there).unwrap();
        sender.join().unwrap().unwrap();
        received
    });
    assert_eq!(received.handles().count(), 300);
    drop(block);
    give_back(&allocator, ptr).unwrap();
}

#[test]
fn a_hostile_sender_gets_an_error_and_nothing_else() {
    let good = BlockNote::new(1, 0, "x", vec![2 * MIB, 2 * MIB]).unwrap().to_bytes();
    let framed = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    for bytes in [
        vec![],
        vec![1, 0, 0],
        u32::MAX.to_le_bytes().to_vec(),
        framed(b"nonsense"),
        framed(&good[..good.len() - 1]),
        framed(&good),
        // A batch that names descriptors and brings none.
        [framed(&good), vec![2]].concat(),
        [framed(&good), vec![0]].concat(),
    ] {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&bytes).unwrap();
        drop(here);
        assert!(receive(&there).is_err(), "{bytes:?}");
    }
    let note = BlockNote::new(1, 0, "x", vec![2 * MIB]).unwrap();
    assert!(matches!(ReceivedBlock::new(note, Vec::new()), Err(ShareError::WrongDescriptors { .. })));
    let (reader, _) = std::io::pipe().unwrap();
    let note = BlockNote::new(1, 0, "0000:01:00.0", vec![2 * MIB]).unwrap();
    let fd = reader.as_fd().try_clone_to_owned().unwrap();
    let received = ReceivedBlock::new(note, vec![fd]).unwrap();
    let sim = SimDriver::new();
    let refused = ImportedBlock::map(sim.clone(), D, &received, stream()).unwrap_err();
    assert!(matches!(refused, ShareError::Driver(_)), "{refused}");
    assert!(sim.leaks().is_empty());
}
