//! Wrong arguments are errors: null, stale, foreign and mistaken handles for every function that takes one, null results, unknown
//! constants, texts that are not UTF-8. Nothing crashes and nothing changes.

mod common;

use std::ffi::c_char;
use std::ptr::{null, null_mut};

use common::*;
use headwater_capi::allocator::*;
use headwater_capi::arguments::*;
use headwater_capi::captures::*;
use headwater_capi::copies::*;
use headwater_capi::device::*;
use headwater_capi::graph_pool::*;
use headwater_capi::log::*;
use headwater_capi::memory::*;
use headwater_capi::oom::*;
use headwater_capi::pools::*;
use headwater_capi::recording::*;
use headwater_capi::reservations::*;
use headwater_capi::sleep::*;
use headwater_capi::snapshot::*;
use headwater_capi::spill::*;
use headwater_capi::statistics::*;
use headwater_capi::status::*;
use headwater_capi::streams::*;
use headwater_capi::tiers::*;

/// Calls a function with a bad handle and otherwise good arguments.
type Call = (&'static str, fn(usize) -> hw_status);

/// A call of `$function` whose first argument is the handle, as `$kind`.
macro_rules! calls {
    ($kind:ty: $($function:ident($($argument:expr),*);)*) => {
        vec![$((
            stringify!($function),
            // SAFETY: the handle is bad, which is the point; the other arguments are good for what the function does with them.
            (|handle| unsafe { $function(handle as *mut $kind as _ $(, $argument)*) }) as fn(usize) -> hw_status,
        ),)*]
    };
}

/// A place that lives for ever, for results that never come.
fn place<T: Default>() -> *mut T {
    Box::leak(Box::default())
}

fn handle_place<T>() -> *mut *mut T {
    Box::leak(Box::new(null_mut()))
}

fn sized<T>(make: impl FnOnce(u64) -> T) -> *mut T {
    Box::leak(Box::new(make(size_of::<T>() as u64)))
}

fn stats_place() -> *mut hw_stats {
    sized(|struct_bytes| hw_stats { struct_bytes, ..Default::default() })
}

fn block_place() -> *mut hw_graph_block {
    sized(|struct_bytes| hw_graph_block { struct_bytes, ..Default::default() })
}

fn device_calls() -> Vec<Call> {
    calls! { hw_device:
        hw_device_close();
        hw_device_get_info(sized(|struct_bytes| hw_device_info { struct_bytes, ..Default::default() }));
        hw_device_name(handle_place());
        hw_device_driver_version(handle_place());
        hw_device_why(handle_place());
        hw_sim_hazards(place(), null_mut());
        hw_stream_create(0, 0, place());
        hw_stream_destroy(7);
        hw_stream_synchronize(0);
        hw_stream_query(0, place());
        hw_stream_wait_event(0, 7);
        hw_event_create(0, place());
        hw_event_destroy(7);
        hw_event_record(7, 0);
        hw_event_synchronize(7);
        hw_event_query(7, place());
        hw_event_elapsed_us(7, 8, place());
        hw_copy_to_device(0, null(), 0, 0);
        hw_copy_to_host(null_mut(), 0, 0, 0);
        hw_copy_on_device(0, 0, 0, 0);
        hw_fill(0, 0, 0, 0);
        hw_host_allocate(4096, handle_place());
        hw_host_free(null_mut());
        hw_allocator_create(null(), handle_place());
        hw_graph_pool_create(0, 0, 0, handle_place());
    }
}

fn allocator_calls() -> Vec<Call> {
    calls! { hw_allocator:
        hw_allocator_create_limited(1, handle_place());
        hw_allocator_destroy(0);
        hw_allocator_policy(handle_place());
        hw_allocator_settings(handle_place());
        hw_set_limit_bytes(1);
        hw_get_limit_bytes(place());
        hw_set_memory_fraction(0.5);
        hw_enable_peer(0);
        hw_allocate(512, 0, place());
        hw_allocate_aligned(512, 512, 0, place());
        hw_give_back(0);
        hw_give_back_or_owe(0);
        hw_record_stream(0, 0);
        hw_forget_stream(0);
        hw_block_at(0, sized(|struct_bytes| hw_block_facts { struct_bytes, ..Default::default() }));
        hw_empty_cache(null_mut());
        hw_trim(0, null_mut());
        hw_poll(null_mut());
        hw_reconcile();
        hw_set_oom_callback(None, null_mut());
        hw_set_log_callback(None, null_mut());
        hw_sleep_blocks(null(), 0, 0, 0, handle_place(), null_mut());
        hw_pool_create(handle_place());
        hw_pools_json(handle_place());
        hw_capture_begin(0, 0, null(), null_mut());
        hw_capture_end(0, handle_place());
        hw_capture_abandon(0);
        hw_order_streams(0, 0);
        hw_get_stats(stats_place());
        hw_stats_json(handle_place());
        hw_stats_summary(handle_place());
        hw_reset_peaks();
        hw_reset_totals();
        hw_snapshot_json(handle_place());
        hw_snapshot_pickle(handle_place(), place());
        hw_recording_start(c"/dev/null".as_ptr(), null());
        hw_recording_stop(null_mut());
        hw_recording_mark(c"mark".as_ptr());
    }
}

fn graph_calls() -> Vec<Call> {
    let mut all = calls! { hw_graph_pool:
        hw_graph_pool_destroy();
        hw_graph_pool_allocate(1, 0, block_place());
        hw_graph_pool_block(1, block_place());
        hw_graph_pool_block_at(1, block_place());
        hw_graph_pool_return(1);
        hw_graph_pool_reset(null_mut());
        hw_graph_pool_get_stats(sized(|struct_bytes| hw_graph_pool_stats { struct_bytes, ..Default::default() }));
    };
    all.extend(calls! { hw_pool:
        hw_pool_destroy();
        hw_pool_id(place());
        hw_pool_begin_allocate(None, null_mut());
        hw_pool_end_allocate();
        hw_pool_release();
        hw_pool_checkpoint_take(handle_place());
        hw_pool_restore(null(), handle_place(), place(), handle_place(), place());
    });
    all.extend(calls! { hw_pool_checkpoint: hw_pool_checkpoint_destroy(); });
    all.extend(calls! { hw_graph:
        hw_graph_instantiate(handle_place());
        hw_graph_raw(place());
        hw_graph_destroy();
    });
    all.extend(calls! { hw_graph_exec:
        hw_graph_launch(0);
        hw_graph_exec_raw(place());
        hw_graph_exec_destroy();
    });
    all.extend(calls! { hw_sleep: hw_wake(0); });
    all
}

fn tier_calls() -> Vec<Call> {
    static GPU: [u32; 1] = [0];
    let mut all = calls! { hw_tiers:
        hw_tiers_destroy();
        hw_tiers_json(handle_place());
        hw_tiers_make_room(0, 0, 1, null_mut());
        hw_tiers_space_use(0, 0, sized(|struct_bytes| hw_space_use { struct_bytes, ..Default::default() }));
        hw_reserve(GPU.as_ptr(), 1, 1, 1, handle_place());
        hw_reserve_or_null(GPU.as_ptr(), 1, 1, handle_place());
        hw_reserve_upto(0, 0, 1, handle_place());
        hw_spill_buffer_create(0, null(), 1, 1, handle_place());
    };
    all.extend(calls! { hw_reservation:
        hw_reservation_get_facts(sized(|struct_bytes| hw_reservation_facts { struct_bytes, ..Default::default() }));
        hw_reservation_grow(1, 0);
        hw_reservation_shrink(1);
        hw_reservation_shrink_to_fit(null_mut());
        hw_reservation_release();
        hw_reservation_allocate(1, 0, 0, handle_place(), place());
    });
    all.extend(calls! { hw_reserved_block:
        hw_reserved_block_record_stream(0);
        hw_reserved_block_free();
    });
    all.extend(calls! { hw_spill_buffer:
        hw_spill_buffer_destroy();
        hw_spill_buffer_where(null_mut(), null_mut());
        hw_spill_buffer_set_priority(1);
        hw_spill_buffer_access(0, 0, 1, handle_place(), place());
        hw_spill_buffer_read(0, null_mut(), 0, 1);
        hw_spill_buffer_write(0, null(), 0, 1);
        hw_spill_buffer_prefetch(1);
        hw_spill_buffer_spill_to(1, 1);
    });
    all.extend(calls! { hw_spill_access: hw_spill_access_end(); });
    all
}

#[test]
fn null_stale_foreign_and_mistaken_handles_are_errors_in_every_function() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    let (stale_device, stale_allocator) = (sim(), create(device, &options(hw_policy::Auto)));
    // SAFETY: nothing uses them.
    unsafe {
        ok(hw_allocator_destroy(stale_allocator, 0));
        ok(hw_device_close(stale_device));
    }
    let local = [7_u64; 64];
    let foreign = local.as_ptr() as usize;
    // One of each kind that is not the function's: a device for allocators, an allocator for everything else.
    for (calls, stale, mistaken) in [
        (device_calls(), stale_device as usize, allocator as usize),
        (allocator_calls(), stale_allocator as usize, device as usize),
        (graph_calls(), stale_allocator as usize, allocator as usize),
        (tier_calls(), stale_allocator as usize, device as usize),
    ] {
        for (name, call) in calls {
            assert_eq!(call(0), hw_status::InvalidArgument, "{name} with null");
            assert!(message().contains("null"), "{name}: {}", message());
            for (bad, what) in
                [(stale, "stale"), (foreign, "foreign"), (mistaken, "mistaken"), (usize::MAX, "-1")]
            {
                assert_eq!(call(bad), hw_status::InvalidHandle, "{name} with a {what} handle");
                assert!(message().contains("0x"), "{name}: {}", message());
            }
        }
    }
    assert_eq!(local, [7; 64]);
    done(allocator, device);
}

/// The functions that are listed above are all there are.
#[test]
fn no_function_is_left_out_of_this_test() {
    let listed = [device_calls(), allocator_calls(), graph_calls(), tier_calls()].concat();
    let others = [
        "hw_last_status",
        "hw_last_error_message",
        "hw_last_oom",
        "hw_status_text",
        "hw_string_free",
        "hw_bytes_free",
        "hw_ptrs_free",
        "hw_version",
        "hw_device_open",
        "hw_label_push",
        "hw_label_pop",
        "hw_tiers_create",
    ];
    let header = include_str!("../include/headwater.h");
    let declared =
        header.lines().filter(|line| !line.starts_with([' ', '*', '/', '#']) && line.contains('('));
    let names = declared.filter_map(|line| {
        let name = line.split('(').next()?.rsplit([' ', '*']).next()?;
        (name.starts_with("hw_") && !line.starts_with("typedef")).then_some(name)
    });
    let mut count = 0;
    for name in names {
        assert!(
            others.contains(&name) || listed.iter().any(|(listed, _)| *listed == name),
            "{name} is not tested with bad handles"
        );
        count += 1;
    }
    assert_eq!(count, listed.len() + others.len());
}

#[test]
fn results_that_have_no_place_are_refused_before_anything_is_done() {
    let device = sim();
    let allocator = create(device, &hw_allocator_options { graph_pools: 1, ..options(hw_policy::Auto) });
    let mut misaligned = [0_u64; 2];
    // SAFETY: null, or a place that is never written.
    unsafe {
        for status in [
            hw_device_open(c"sim".as_ptr(), null_mut()),
            hw_allocator_create(device, null(), null_mut()),
            hw_allocate(allocator, 512, 0, null_mut()),
            hw_allocate_aligned(allocator, 512, 512, 0, null_mut()),
            hw_get_stats(allocator, null_mut()),
            hw_stats_json(allocator, null_mut()),
            hw_stream_create(device, 0, 0, null_mut()),
            hw_pool_create(allocator, null_mut()),
            hw_graph_pool_create(device, 0, 1 << 20, 0, null_mut()),
            hw_snapshot_pickle(allocator, null_mut(), null_mut()),
            hw_last_oom_after_one(allocator),
        ] {
            assert_eq!(status, hw_status::InvalidArgument, "{}", message());
        }
        let place = misaligned.as_mut_ptr().cast::<u8>().add(1).cast();
        refused(hw_allocate(allocator, 512, 0, place), hw_status::InvalidArgument, "misaligned");
    }
    assert_eq!(misaligned, [0; 2]);
    assert_eq!(stats(allocator).allocation.all.allocated, 0, "nothing was given out that nobody was told of");
    done(allocator, device);
}

/// Asks for the numbers of an out-of-memory error with nowhere to put them.
unsafe fn hw_last_oom_after_one(allocator: *const hw_allocator) -> hw_status {
    let mut ptr = 0;
    // SAFETY: a place, then none.
    unsafe {
        refused(hw_allocate(allocator, 1 << 46, 0, &raw mut ptr), hw_status::OutOfMemory, "out of memory");
        hw_last_oom(null_mut())
    }
}

#[test]
fn unknown_constants_bad_texts_and_bad_numbers_are_errors() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    let not_utf8: [c_char; 3] = [0xC3_u8 as c_char, 0x28, 0];
    let (mut made, mut opened, mut ptr, mut stream) = (null_mut(), null_mut(), 0, 0);
    let mut with = |change: &dyn Fn(&mut hw_allocator_options)| {
        let mut options = hw_allocator_options::default();
        change(&mut options);
        // SAFETY: a struct with its size, and a place.
        unsafe { hw_allocator_create(device, &raw const options, &raw mut made) }
    };
    refused(with(&|options| options.policy = 99), hw_status::InvalidArgument, "99 is no hw_policy");
    refused(with(&|options| options.graph_pools = 2), hw_status::InvalidArgument, "graph_pools");
    refused(with(&|options| options.reserved = 1), hw_status::InvalidArgument, "reserved");
    refused(with(&|options| options.settings = not_utf8.as_ptr()), hw_status::InvalidArgument, "UTF-8");
    refused(with(&|options| options.settings = c"speed:11".as_ptr()), hw_status::BadConfig, "speed");
    let both = |options: &mut hw_allocator_options| {
        options.settings = c"".as_ptr();
        options.settings_from_environment = 1;
    };
    refused(with(&both), hw_status::InvalidArgument, "exclude");
    // SAFETY: texts and places.
    unsafe {
        refused(hw_device_open(not_utf8.as_ptr(), &raw mut opened), hw_status::InvalidArgument, "UTF-8");
        refused(hw_device_open(null(), &raw mut opened), hw_status::InvalidArgument, "choice");
        refused(hw_device_open(c"cuda:999".as_ptr(), &raw mut opened), hw_status::Unavailable, "");
        refused(hw_stream_create(device, 2, 0, &raw mut stream), hw_status::InvalidArgument, "non_blocking");
        let alignment = hw_allocate_aligned(allocator, 8, 3, 0, &raw mut ptr);
        refused(alignment, hw_status::InvalidArgument, "3 bytes");
        let size = hw_allocate(allocator, u64::MAX, 0, &raw mut ptr);
        refused(size, hw_status::InvalidArgument, "beyond the address space");
        // A stream that nobody made.
        refused(hw_allocate(allocator, 8, 0xDEAD_0000, &raw mut ptr), hw_status::InvalidStream, "0xdead0000");
        refused(hw_record_stream(allocator, 0x10, 0), hw_status::InvalidPointer, "0x10");
        refused(hw_enable_peer(allocator, 77), hw_status::InvalidArgument, "");
        let sleep = hw_sleep_blocks(allocator, null(), 3, 0, 0, handle_place(), null_mut());
        refused(sleep, hw_status::InvalidArgument, "ptrs");
        let sleep = hw_sleep_blocks(allocator, null(), 0, 5, 0, handle_place(), null_mut());
        refused(sleep, hw_status::InvalidArgument, "hw_contents");
        refused(hw_label_push(null()), hw_status::InvalidArgument, "label");
        refused(hw_copy_to_device(device, 0x100, null(), 8, 0), hw_status::InvalidArgument, "src");
        refused(hw_copy_to_host(device, null_mut(), 0x100, 8, 0), hw_status::InvalidArgument, "dst");
        refused(hw_host_allocate(device, 0, handle_place()), hw_status::InvalidArgument, "");
        hw_string_free(null_mut());
        hw_bytes_free(null_mut(), 5);
        hw_ptrs_free(null_mut(), 5);
    }
    let binned = create(device, &options(hw_policy::Binned));
    // SAFETY: places.
    unsafe {
        refused(hw_set_limit_bytes(binned, 1), hw_status::NotSupported, "binned");
        refused(hw_trim(binned, 0, null_mut()), hw_status::NotSupported, "binned");
        refused(hw_snapshot_json(binned, handle_place()), hw_status::NotSupported, "binned");
        ok(hw_allocator_destroy(binned, 0));
    }
    assert_eq!(stats(allocator).allocation.all.allocated, 0);
    done(allocator, device);
}

#[test]
fn every_status_has_a_text_of_its_own() {
    use std::collections::BTreeSet;
    use std::ffi::CStr;
    // SAFETY: constant texts.
    let text = |status| unsafe { CStr::from_ptr(hw_status_text(status)) }.to_str().unwrap();
    let all: BTreeSet<&str> = (0..=hw_status::Internal as i32).map(text).collect();
    assert_eq!(all.len(), hw_status::Internal as usize + 1);
    assert_eq!((text(-1), text(20)), ("unknown status", "unknown status"));
}
