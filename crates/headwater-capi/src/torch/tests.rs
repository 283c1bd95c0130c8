use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headwater::config::Config;
use headwater::{AllocError, Allocator};
use headwater_driver::{DeviceId, DevicePtr, StreamOptions, Streams};
use headwater_sim::SimDriver;
use headwater_trace::record::RecordOptions;

use super::*;

const KEY: PoolKey = (0, 1);

fn memory() -> (Arc<SimDriver>, DeviceMemory) {
    let sim = SimDriver::new();
    let memory = DeviceMemory::new(sim.clone(), DeviceId(0), &Config::default()).unwrap();
    (sim, memory)
}

fn give_back(memory: &DeviceMemory, ptr: DevicePtr) {
    // SAFETY: a bare address of this test's.
    unsafe { memory.give_back(ptr) }.unwrap();
}

#[test]
fn memory_belongs_to_the_stream_that_it_was_asked_for() {
    let (sim, memory) = memory();
    // Somebody else's streams: made by another view of the machine, adopted on the way.
    let theirs = sim.second_view();
    let options = StreamOptions { non_blocking: true, priority: 0 };
    let streams = [theirs.stream_create(DeviceId(0), options), theirs.stream_create(DeviceId(0), options)];
    let [one, other] = streams.map(Result::unwrap);
    let ptr = memory.allocate(1 << 20, one.raw()).unwrap();
    assert_eq!(memory.front().block_at(ptr).unwrap().stream, one);
    memory.record_stream(ptr, other.raw()).unwrap();
    give_back(&memory, ptr);
    memory.forget_stream(other.raw()).unwrap();
    memory.forget_stream(other.raw()).unwrap();
    let unknown = memory.allocate(512, 0xdead_0000).unwrap_err();
    assert!(matches!(unknown, AllocError::Driver(_)), "{unknown}");
    assert!(sim.hazards().is_empty());
    memory.graphs().reconcile().unwrap();
}

#[test]
fn a_pool_lives_as_long_as_it_has_users() {
    let (_sim, memory) = memory();
    assert_eq!(memory.pool_uses(KEY), 0);
    memory.retain_pool(KEY).unwrap();
    memory.begin_allocate_to_pool(KEY, |stream| stream == 0).unwrap();
    assert_eq!(memory.pool_uses(KEY), 2);
    let ptr = memory.allocate(3 << 20, 0).unwrap();
    assert!(memory.pool(KEY).unwrap().reserved_bytes() >= 3 << 20);
    assert!(memory.begin_allocate_to_pool(KEY, |_| true).is_err(), "routed already");
    memory.end_allocate_to_pool(KEY).unwrap();
    memory.release_pool(KEY).unwrap();
    give_back(&memory, ptr);
    assert!(memory.pool(KEY).unwrap().reserved_bytes() > 0, "one user is left");
    memory.release_pool(KEY).unwrap();
    assert!(memory.pool(KEY).is_none());
    assert_eq!(memory.graphs().private_bytes(), 0);
    assert!(matches!(memory.release_pool(KEY), Err(MemoryError::NoSuchPool(KEY))));
    memory.graphs().verify().unwrap();
}

#[test]
fn a_limit_is_for_pools_and_everything_else_together() {
    let (_sim, memory) = memory();
    memory.set_limit_bytes(Some(32 << 20));
    memory.begin_allocate_to_pool(KEY, |_| true).unwrap();
    let ptr = memory.allocate(20 << 20, 0).unwrap();
    memory.end_allocate_to_pool(KEY).unwrap();
    assert!(memory.allocate(20 << 20, 0).unwrap_err().is_out_of_memory());
    memory.set_limit_bytes(None);
    assert_eq!(memory.limit_bytes(), None);
    let outside = memory.allocate(20 << 20, 0).unwrap();
    give_back(&memory, outside);
    give_back(&memory, ptr);
    memory.release_pool(KEY).unwrap();
    assert!(memory.set_fraction(f64::NAN).is_err());
    memory.set_fraction(0.5).unwrap();
    assert_eq!(memory.limit_bytes(), Some(memory.total_bytes() / 2));
}

#[test]
fn a_recording_begins_and_ends_while_memory_is_held() {
    let (_sim, memory) = memory();
    let before = memory.allocate(1000, 0).unwrap();
    let file = std::env::temp_dir().join(format!("headwater-torch-{}.hwt", std::process::id()));
    memory.start_recording(std::fs::File::create(&file).unwrap(), RecordOptions::default()).unwrap();
    let again = memory.start_recording(Vec::new(), RecordOptions::default());
    assert!(matches!(again, Err(MemoryError::RecordingAlready)));
    let during = memory.allocate(2000, 0).unwrap();
    give_back(&memory, before);
    memory.stop_recording().unwrap();
    give_back(&memory, during);
    assert!(matches!(memory.stop_recording(), Err(MemoryError::NotRecording)));
    let trace = headwater_trace::open(&file).unwrap();
    assert_eq!(trace.summary().peak_live_bytes, 2000);
    std::fs::remove_file(&file).unwrap();
}

/// Adds up what it is shown.
#[derive(Default)]
struct Sums {
    segments_bytes: u64,
    blocks_bytes: u64,
    live: BTreeMap<u64, u64>,
    pools: Vec<[u64; 2]>,
}

unsafe extern "C" fn note_segment(context: *mut c_void, segment: *const WalkedSegment) {
    // SAFETY: called with what `walk` below passes.
    let (sums, segment) = unsafe { (&mut *context.cast::<Sums>(), &*segment) };
    sums.segments_bytes += segment.total_bytes;
    sums.pools.push(segment.pool);
}

unsafe extern "C" fn note_block(context: *mut c_void, block: *const WalkedBlock) {
    // SAFETY: as above.
    let (sums, block) = unsafe { (&mut *context.cast::<Sums>(), &*block) };
    sums.blocks_bytes += block.bytes;
    if block.state == BlockState::Live {
        sums.live.insert(block.address, block.requested_bytes);
    }
}

fn walk(memory: &DeviceMemory, only: Option<PoolKey>) -> Sums {
    let mut sums = Sums::default();
    let walker = Walker { context: (&raw mut sums).cast(), segment: note_segment, block: note_block };
    // SAFETY: the functions are made for this context.
    unsafe { memory.walk(only, &walker) };
    sums
}

#[test]
fn a_walk_shows_every_byte_once() {
    let (_sim, memory) = memory();
    let outside = memory.allocate(5 << 20, 0).unwrap();
    memory.begin_allocate_to_pool(KEY, |_| true).unwrap();
    let inside = memory.allocate(1000, 0).unwrap();
    memory.end_allocate_to_pool(KEY).unwrap();
    let sums = walk(&memory, None);
    assert_eq!(sums.segments_bytes, memory.stats().reserved_bytes.all.current);
    assert_eq!(sums.blocks_bytes, sums.segments_bytes);
    assert_eq!(sums.live, BTreeMap::from([(outside.raw(), 5 << 20), (inside.raw(), 1000)]));
    let pool = walk(&memory, Some(KEY));
    assert_eq!(pool.live, BTreeMap::from([(inside.raw(), 1000)]));
    assert!(pool.pools.iter().all(|shown| *shown == [KEY.0, KEY.1]));
}

unsafe extern "C" fn push(context: *mut c_void, ptr: u64) {
    // SAFETY: called with what the test below passes.
    unsafe { &mut *context.cast::<Vec<u64>>() }.push(ptr);
}

unsafe extern "C" fn ignore(_: *mut c_void, _: u64) {}

#[test]
fn a_pool_is_brought_back_into_an_earlier_state() {
    let (_sim, memory) = memory();
    memory.begin_allocate_to_pool(KEY, |_| true).unwrap();
    let kept = memory.allocate(1 << 20, 0).unwrap();
    let state = memory.pool_state(KEY).unwrap();
    let later = memory.allocate(1 << 20, 0).unwrap();
    let (mut freed, mut allocated) = (Vec::<u64>::new(), Vec::<u64>::new());
    let visitor = |of_freed: bool, list: &mut Vec<u64>| CheckpointVisitor {
        context: (&raw mut *list).cast(),
        freed: if of_freed { push } else { ignore },
        allocated: if of_freed { ignore } else { push },
    };
    // SAFETY: `later` is not used again.
    unsafe { memory.restore_pool(&state, &visitor(true, &mut freed)) }.unwrap();
    // SAFETY: nothing changes: the pool is in that state.
    unsafe { memory.restore_pool(&state, &visitor(false, &mut allocated)) }.unwrap();
    freed.sort_unstable();
    let mut both = vec![kept.raw(), later.raw()];
    both.sort_unstable();
    assert_eq!((freed, allocated), (both, vec![kept.raw()]));
    assert_eq!(walk(&memory, Some(KEY)).live.len(), 1);
    memory.end_allocate_to_pool(KEY).unwrap();
}

static COPIES: AtomicU32 = AtomicU32::new(0);

/// What libstdc++ makes of a function that says yes to stream 7.
#[repr(C)]
struct Cxx {
    any: [*mut c_void; 2],
    manager: Option<unsafe extern "C-unwind" fn(*mut [*mut c_void; 2], *const [*mut c_void; 2], i32) -> bool>,
    invoker: Option<unsafe extern "C-unwind" fn(*const [*mut c_void; 2], *const *mut c_void) -> bool>,
}

unsafe extern "C-unwind" fn manage(
    to: *mut [*mut c_void; 2],
    from: *const [*mut c_void; 2],
    what: i32,
) -> bool {
    match what {
        2 => {
            COPIES.fetch_add(1, Ordering::Relaxed);
            // SAFETY: both are good.
            unsafe { to.write(from.read()) };
        }
        3 => {
            COPIES.fetch_sub(1, Ordering::Relaxed);
        }
        _ => {}
    }
    false
}

unsafe extern "C-unwind" fn invoke(any: *const [*mut c_void; 2], stream: *const *mut c_void) -> bool {
    // SAFETY: both are good.
    unsafe { (*any)[0] == *stream }
}

#[test]
fn a_std_function_is_copied_called_and_destroyed() {
    let source =
        Cxx { any: [7 as *mut c_void, std::ptr::null_mut()], manager: Some(manage), invoker: Some(invoke) };
    // SAFETY: laid out as libstdc++ does.
    let copy = unsafe { StdFunction::copy_of((&raw const source).cast()) }.unwrap();
    assert_eq!(COPIES.load(Ordering::Relaxed), 1);
    assert!(copy.accepts(7 as *mut c_void) && !copy.accepts(8 as *mut c_void));
    drop(copy);
    assert_eq!(COPIES.load(Ordering::Relaxed), 0);
    let empty = Cxx { any: [std::ptr::null_mut(); 2], manager: None, invoker: None };
    // SAFETY: as above.
    assert!(unsafe { StdFunction::copy_of((&raw const empty).cast()) }.is_none());
    // SAFETY: null is allowed.
    assert!(unsafe { StdFunction::copy_of(std::ptr::null()) }.is_none());
}

#[test]
fn failures_carry_numbers_and_a_message_with_an_end() {
    let (_sim, memory) = memory();
    memory.set_limit_bytes(Some(8 << 20));
    let error = memory.allocate(64 << 20, 0).unwrap_err();
    let failure = Failure::of_request(&error);
    assert!(failure.out_of_memory && failure.over_limit);
    assert_eq!(failure.limit_bytes, 8 << 20);
    assert!(Failure::of_request(&memory.allocate(1 << 60, 0).unwrap_err()).out_of_memory);
    // More than there are addresses for: the driver's refusal is no other kind of error.
    memory.set_limit_bytes(None);
    let refused = memory.allocate(1 << 46, 0).unwrap_err();
    assert_eq!(refused.out_of_memory().map(|report| report.requested_bytes), Some(1 << 46), "{refused}");
    let long = Failure::of(&"x".repeat(10_000));
    assert_eq!(long.message[MESSAGE_BYTES - 1], 0);
    assert_eq!(long.message[MESSAGE_BYTES - 2], b'x'.cast_signed() as std::ffi::c_char);
}

#[test]
fn figures_are_the_statistics() {
    let (_sim, memory) = memory();
    let ptr = memory.allocate(1000, 0).unwrap();
    let figures = Figures::from(&memory.stats());
    assert_eq!(figures.requested_bytes[0].current, 1000);
    assert_eq!(figures.allocated_bytes[1].current, 1024);
    assert_eq!(figures.reserved_bytes[0].peak, 2 << 20);
    assert_eq!(figures.max_split_size, -1);
    give_back(&memory, ptr);
    assert_eq!(CALLS.table_bytes as usize, size_of::<Calls>());
}
