use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headwater_driver::{DeviceId, DevicePtr, Stream};
use headwater_sim::SimDriver;
use parking_lot::Mutex;

use super::*;
use crate::{AllocError, Allocator, Block, Direct, Request};

const DEVICE: DeviceId = DeviceId(0);
const STREAM: Stream = Stream::legacy_default(DEVICE);

fn direct(limit_bytes: u64) -> Arc<dyn Allocator> {
    Arc::new(Direct::with_limit(SimDriver::new(), DEVICE, limit_bytes).unwrap())
}

fn block(allocator: &Arc<impl Allocator + 'static>, bytes: u64) -> Result<Block, AllocError> {
    Block::allocate(allocator.clone(), Request::new(bytes, STREAM))
}

#[test]
fn limits_around_one_allocator_share_it_out() {
    let inner = direct(u64::MAX);
    let one = Arc::new(Limited::new(inner.clone(), 1000));
    let two = Arc::new(Limited::new(inner.clone(), 2000));
    let held = [block(&one, 1000).unwrap(), block(&two, 1500).unwrap()];
    let error = block(&one, 1).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.requested_bytes, report.live_bytes, report.limit_bytes), (1, 1000, Some(1000)));
    assert!(report.over_limit);
    assert_eq!((one.held_bytes(), two.held_bytes()), (1000, 1500));
    drop(held);
    assert_eq!((one.held_bytes(), two.held_bytes()), (0, 0));
    assert_eq!(inner.stats().requested_bytes.all.current, 0);
}

#[test]
fn a_limit_counts_nothing_for_what_failed() {
    let limited = Arc::new(Limited::new(direct(500), 1000));
    assert!(block(&limited, 600).unwrap_err().is_out_of_memory());
    let bad = limited.allocate(Request::new(1, STREAM).aligned_to(3));
    assert!(matches!(bad, Err(AllocError::BadAlignment { .. })));
    assert_eq!(limited.held_bytes(), 0);
    let kept = block(&limited, 100).unwrap();
    let ptr = DevicePtr::new(kept.ptr().raw() + 8);
    // SAFETY: the address names no block, and is refused.
    let refused = unsafe { limited.give_back(ptr) };
    assert_eq!(refused, Err(AllocError::InsideBlock { ptr, block: kept.ptr() }));
    assert_eq!(limited.held_bytes(), 100);
}

#[test]
fn a_callback_that_frees_memory_saves_the_request() {
    let inner = direct(1000);
    let spare =
        Arc::new(Mutex::new(Some(Block::allocate(inner.clone(), Request::new(800, STREAM)).unwrap())));
    let to_free = spare.clone();
    let saved = Arc::new(WithFailureCallback::new(inner, move |report| {
        assert_eq!(report.requested_bytes, 500);
        to_free.lock().take().is_some()
    }));
    let block = block(&saved, 500).unwrap();
    assert!(spare.lock().is_none());
    drop(block);
}

#[test]
fn a_callback_that_cannot_help_is_asked_once() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let allocator = Arc::new(WithFailureCallback::new(direct(1000), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        true
    }));
    assert!(block(&allocator, 1001).unwrap_err().is_out_of_memory());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    // Bad input is no want of memory.
    assert!(block(&allocator, u64::MAX).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_log_keeps_the_latest_calls_with_their_outcomes() {
    let logged = Arc::new(Logged::new(direct(1000), 3));
    let held = block(&logged, 100).unwrap();
    let ptr = held.ptr();
    held.record_stream(STREAM).unwrap();
    let failed = block(&logged, 2000).unwrap_err();
    drop(held);
    let entries = logged.entries();
    assert_eq!(entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [1, 2, 3]);
    let events: Vec<_> = entries.into_iter().map(|entry| entry.event).collect();
    assert_eq!(
        events,
        [
            LogEvent::RecordStream(ptr, STREAM, Ok(())),
            LogEvent::Allocate(Request::new(2000, STREAM), Err(failed)),
            LogEvent::GiveBack(ptr, Ok(())),
        ]
    );
}
