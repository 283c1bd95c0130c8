use std::sync::Arc;

use headwater_driver::{Call, DeviceId, Devices, ErrorClass, Stream, StreamOptions, Streams};
use headwater_sim::{FaultPlan, SimDriver};

use super::*;
use crate::direct::Direct;

const DEVICE: DeviceId = DeviceId(0);
const STREAM: Stream = Stream::legacy_default(DEVICE);

fn allocator(sim: &Arc<SimDriver>) -> Arc<dyn Allocator> {
    Arc::new(Direct::new(sim.clone(), DEVICE).unwrap())
}

#[test]
fn a_buffer_takes_the_bytes_of_its_values() {
    let sim = SimDriver::new();
    let buffer = DeviceVec::<[u16; 3]>::uninit(allocator(&sim), 7, STREAM).unwrap();
    assert_eq!((buffer.len(), buffer.bytes()), (7, 42));
    let nothing = DeviceVec::<[u16; 0]>::uninit(allocator(&sim), 7, STREAM).unwrap();
    assert_eq!((nothing.len(), nothing.bytes(), nothing.ptr()), (7, 0, DevicePtr::NULL));
    assert_eq!(nothing.to_vec(STREAM).unwrap().len(), 7);
}

#[test]
fn a_copy_in_another_stream_leaves_no_event_behind_when_a_call_fails() {
    let calls = [Call::CaptureStatus, Call::EventCreate, Call::EventRecord, Call::StreamWaitEvent];
    for call in calls.into_iter().chain([Call::CopyToHost, Call::StreamSynchronize]) {
        let sim = SimDriver::new();
        let other = sim.stream_create(DEVICE, StreamOptions { non_blocking: true, priority: 0 }).unwrap();
        let allocator = allocator(&sim);
        let buffer = DeviceVec::from_slice(allocator.clone(), &[1_u32, 2, 3], STREAM).unwrap();
        sim.set_faults(FaultPlan::none().fail_nth(call, 1, ErrorClass::Other));
        let error = buffer.to_vec(other).unwrap_err();
        assert!(matches!(&error, AllocError::Driver(error) if error.call() == call), "{error}");
        let counts = sim.call_counts();
        let destroyed = counts.of(Call::EventDestroy);
        assert_eq!(destroyed, counts.of(Call::EventCreate) - u64::from(call == Call::EventCreate), "{call}");
        assert_eq!(buffer.to_vec(other).unwrap(), [1, 2, 3]);
        drop(buffer);
        assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    }
}

#[test]
fn a_failed_first_copy_gives_the_memory_back() {
    let sim = SimDriver::new();
    let allocator = allocator(&sim);
    sim.set_faults(FaultPlan::none().fail_nth(Call::CopyToDevice, 1, ErrorClass::Other));
    assert!(DeviceVec::from_slice(allocator.clone(), &[1_u8], STREAM).is_err());
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
}

#[test]
fn a_queued_copy_is_waited_for_by_its_caller() {
    let sim = SimDriver::new();
    let mut buffer = DeviceVec::<u32>::zeroed(allocator(&sim), 3, STREAM).unwrap();
    let (source, mut target) = ([4, 5, 6], [0; 3]);
    // SAFETY: both arrays outlive the wait below, and all is in one stream.
    unsafe {
        buffer.copy_from_host_async(&source, STREAM).unwrap();
        buffer.copy_to_host_async(&mut target, STREAM).unwrap();
    }
    sim.stream_synchronize(STREAM).unwrap();
    assert_eq!(target, source);
}

#[test]
fn a_block_keeps_the_buffers_memory() {
    let sim = SimDriver::new();
    let buffer = DeviceVec::from_slice(allocator(&sim), &[1_u64, 2], STREAM).unwrap();
    let ptr = buffer.ptr();
    let block = buffer.into_block();
    assert_eq!((block.ptr(), block.bytes()), (ptr, 16));
}
