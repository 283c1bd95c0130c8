//! Allocators through the C functions: memory out and back, limits, the out-of-memory callback, and the end of it.

mod common;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use headwater_capi::allocator::*;
use headwater_capi::copies::*;
use headwater_capi::device::*;
use headwater_capi::memory::*;
use headwater_capi::oom::hw_set_oom_callback;
use headwater_capi::sleep::*;
use headwater_capi::statistics::*;
use headwater_capi::status::*;
use headwater_capi::streams::*;

const POLICIES: [hw_policy; 5] =
    [hw_policy::Auto, hw_policy::Direct, hw_policy::Binned, hw_policy::Classic, hw_policy::Paged];

#[test]
fn every_policy_gives_memory_out_and_takes_it_back() {
    for policy in POLICIES {
        for graph_pools in [0, 1] {
            let device = sim();
            let allocator = create(device, &hw_allocator_options { graph_pools, ..options(policy) });
            let ptr = allocate(allocator, 1000, 0);
            assert_eq!(ptr % 256, 0);
            let mut facts =
                hw_block_facts { struct_bytes: size_of::<hw_block_facts>() as u64, ..Default::default() };
            // SAFETY: the tests' own memory, in every block below.
            unsafe {
                ok(hw_block_at(allocator, ptr + 999, &raw mut facts));
                assert_eq!((facts.ptr, facts.requested_bytes, facts.state), (ptr, 1000, 0), "{policy:?}");
                let mut aligned = 0;
                ok(hw_allocate_aligned(allocator, 5, 1 << 20, 0, &raw mut aligned));
                assert_eq!(aligned % (1 << 20), 0);
                ok(hw_give_back_or_owe(allocator, aligned));
            }
            assert_eq!(allocate(allocator, 0, 0), 0);
            give_back(allocator, 0);
            assert_eq!(stats(allocator).allocation.all.current, 1);
            give_back(allocator, ptr);
            // SAFETY: as above.
            unsafe {
                refused(hw_give_back(allocator, ptr), hw_status::InvalidPointer, "0x");
                ok(hw_empty_cache(allocator, null_mut()));
                ok(hw_poll(allocator, null_mut()));
            }
            assert_eq!(stats(allocator).reserved_bytes.all.current, 0, "{policy:?}");
            done(allocator, device);
        }
    }
}

#[test]
fn policies_and_settings_are_told_back() {
    let device = sim();
    for (options, policy, settings) in [
        (options(hw_policy::Direct), "direct", ""),
        (
            options(hw_policy::Classic),
            "classic",
            "backing:classic,cross_stream_reuse:False,thread_cache_mb:0",
        ),
        (with_settings(hw_policy::Auto, c"backing:classic"), "classic", "backing:classic"),
        (with_settings(hw_policy::Paged, c"max_split_size_mb:256"), "paged", "max_split_size_mb:256"),
    ] {
        let allocator = create(device, &options);
        let (mut name, mut text) = (null_mut(), null_mut());
        // SAFETY: places.
        unsafe {
            ok(hw_allocator_policy(allocator, &raw mut name));
            ok(hw_allocator_settings(allocator, &raw mut text));
            ok(hw_allocator_destroy(allocator, 0));
        }
        assert_eq!(taken(name), policy);
        let text = taken(text);
        assert!(text.contains(settings), "{text} {settings}");
    }
    // SAFETY: nothing uses it.
    unsafe { ok(hw_device_close(device)) };
}

#[test]
fn a_limit_holds_and_the_numbers_of_its_error_are_told() {
    let device = sim();
    let settings = c("memory_limit:64M");
    for (policy, graph_pools) in [(hw_policy::Paged, 0), (hw_policy::Classic, 1), (hw_policy::Binned, 0)] {
        let allocator = create(
            device,
            &hw_allocator_options { limit_bytes: 32 << 20, graph_pools, ..with_settings(policy, &settings) },
        );
        let held = allocate(allocator, 20 << 20, 0);
        let mut ptr = 7;
        let mut report =
            hw_oom_report { struct_bytes: size_of::<hw_oom_report>() as u64, ..Default::default() };
        // SAFETY: places.
        unsafe {
            refused(hw_allocate(allocator, 20 << 20, 0, &raw mut ptr), hw_status::OutOfMemory, "20.0 MiB");
            ok(hw_last_oom(&raw mut report));
        }
        assert_eq!(ptr, 7, "nothing is written where nothing was given out");
        assert_eq!((report.requested_bytes, report.live_bytes), (20 << 20, 20 << 20));
        assert_eq!((report.limit_bytes, report.over_limit), (32 << 20, 1), "{policy:?}");
        give_back(allocator, held);
        // SAFETY: no other thread.
        unsafe { ok(hw_allocator_destroy(allocator, 0)) };
    }
    let allocator = create(device, &hw_allocator_options { graph_pools: 1, ..options(hw_policy::Auto) });
    let mut limit = 0;
    // SAFETY: places.
    unsafe {
        ok(hw_get_limit_bytes(allocator, &raw mut limit));
        assert_eq!(limit, u64::MAX);
        ok(hw_set_limit_bytes(allocator, 4 << 20));
        ok(hw_get_limit_bytes(allocator, &raw mut limit));
        assert_eq!(limit, 4 << 20);
        let mut ptr = 0;
        refused(hw_allocate(allocator, 8 << 20, 0, &raw mut ptr), hw_status::OutOfMemory, "limit");
        ok(hw_set_memory_fraction(allocator, 0.5));
        ok(hw_allocate(allocator, 8 << 20, 0, &raw mut ptr));
        ok(hw_set_limit_bytes(allocator, u64::MAX));
        refused(hw_set_memory_fraction(allocator, 1.5), hw_status::InvalidArgument, "1.5");
        refused(hw_set_memory_fraction(allocator, f64::NAN), hw_status::InvalidArgument, "NaN");
        give_back(allocator, ptr);
        ok(hw_trim(allocator, 0, null_mut()));
    }
    done(allocator, device);
}

#[test]
fn destroying_with_live_blocks_is_refused_with_their_number_unless_forced() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    allocate(allocator, 1000, 0);
    allocate(allocator, 500, 0);
    let mut other = null_mut();
    // SAFETY: no other thread.
    unsafe {
        refused(hw_allocator_destroy(allocator, 0), hw_status::StillInUse, "2 blocks (1500 bytes)");
        refused(hw_allocator_destroy(allocator, 2), hw_status::InvalidArgument, "force");
        // Another handle keeps the memory, so this one may go.
        ok(hw_allocator_create_limited(allocator, 1 << 20, &raw mut other));
        ok(hw_allocator_destroy(allocator, 0));
        refused(hw_allocator_destroy(allocator, 0), hw_status::InvalidHandle, "destroyed");
        refused(hw_give_back(allocator, 0), hw_status::InvalidHandle, "destroyed");
        refused(hw_allocator_destroy(other, 0), hw_status::StillInUse, "2 blocks");
        ok(hw_allocator_destroy(other, 1));
        ok(hw_device_close(device));
    }
}

#[test]
fn a_limited_handle_counts_its_own_callers() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Binned));
    let mut limited = null_mut();
    // SAFETY: places.
    unsafe { ok(hw_allocator_create_limited(allocator, 1000, &raw mut limited)) };
    let outside = allocate(allocator, 1 << 20, 0);
    let inside = allocate(limited, 1000, 0);
    let mut ptr = 0;
    // SAFETY: a place.
    unsafe { refused(hw_allocate(limited, 1, 0, &raw mut ptr), hw_status::OutOfMemory, "1000") };
    give_back(limited, inside);
    give_back(limited, allocate(limited, 900, 0));
    give_back(allocator, outside);
    // SAFETY: no other thread.
    unsafe { ok(hw_allocator_destroy(limited, 0)) };
    done(allocator, device);
}

#[test]
fn memory_of_one_stream_waits_for_another_that_was_recorded() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Classic));
    let (mut first, mut second, mut event) = (0, 0, 0);
    let data = vec![7_u8; 1 << 20];
    let mut back = vec![0_u8; 1 << 20];
    // SAFETY: the buffers live through the synchronisation.
    unsafe {
        ok(hw_stream_create(device, 1, 0, &raw mut first));
        ok(hw_stream_create(device, 1, -1, &raw mut second));
        ok(hw_event_create(device, 1, &raw mut event));
        let ptr = allocate(allocator, 1 << 20, first);
        ok(hw_copy_to_device(device, ptr, data.as_ptr().cast(), 1 << 20, first));
        ok(hw_event_record(device, event, first));
        ok(hw_stream_wait_event(device, second, event));
        ok(hw_record_stream(allocator, ptr, second));
        let copy = allocate(allocator, 1 << 20, second);
        ok(hw_copy_on_device(device, copy, ptr, 1 << 20, second));
        give_back(allocator, ptr);
        let mut facts =
            hw_block_facts { struct_bytes: size_of::<hw_block_facts>() as u64, ..Default::default() };
        ok(hw_block_at(allocator, ptr, &raw mut facts));
        assert_eq!(facts.state, hw_block_state::Pending as u32);
        assert_ne!(allocate(allocator, 1 << 20, first), ptr, "still read by the second stream");
        ok(hw_copy_to_host(device, back.as_mut_ptr().cast(), copy, 1 << 20, second));
        ok(hw_stream_synchronize(device, second));
        assert_eq!(data, back);
        ok(hw_fill(device, copy, 9, 1 << 20, second));
        ok(hw_event_synchronize(device, event));
        let (mut is_done, mut waits) = (0, 0);
        ok(hw_event_query(device, event, &raw mut is_done));
        assert_eq!(is_done, 1);
        ok(hw_poll(allocator, &raw mut waits));
        ok(hw_stream_synchronize(device, second));
        ok(hw_stream_query(device, second, &raw mut is_done));
        assert_eq!(is_done, 1);
        for stream in [first, second] {
            ok(hw_forget_stream(allocator, stream));
            ok(hw_stream_destroy(device, stream));
            refused(hw_stream_synchronize(device, stream), hw_status::InvalidStream, "stream");
        }
        ok(hw_event_destroy(device, event));
        refused(hw_event_record(device, event, 0), hw_status::InvalidStream, "event");
        ok(hw_allocator_destroy(allocator, 1));
        ok(hw_device_close(device));
    }
}

#[test]
fn more_allocators_than_short_cuts_work_all_the_same() {
    let device = sim();
    let allocators: Vec<_> = (0..300).map(|_| create(device, &options(hw_policy::Direct))).collect();
    for &allocator in &allocators {
        give_back(allocator, allocate(allocator, 512, 0));
    }
    for &allocator in &allocators {
        // SAFETY: no other thread.
        unsafe {
            ok(hw_allocator_destroy(allocator, 0));
            refused(hw_give_back(allocator, 0), hw_status::InvalidHandle, "destroyed");
        }
    }
    // SAFETY: nothing uses it.
    unsafe { ok(hw_device_close(device)) };
}

unsafe extern "C" fn free_the_spare(user: *mut c_void, report: *const hw_oom_report) -> u32 {
    // SAFETY: the test's own state, and a report that is good for the call.
    let (spare, report) = unsafe { (&*user.cast::<(usize, AtomicU64)>(), &*report) };
    assert_eq!(report.requested_bytes, 20 << 20);
    match spare.1.swap(0, Ordering::Relaxed) {
        0 => 0,
        ptr => {
            // Calls back into the library, as it may.
            give_back(spare.0 as *const hw_allocator, ptr);
            1
        }
    }
}

#[test]
fn the_out_of_memory_callback_frees_something_and_the_request_succeeds() {
    for policy in [hw_policy::Paged, hw_policy::Direct] {
        let device = sim();
        let allocator = create(device, &hw_allocator_options { limit_bytes: 32 << 20, ..options(policy) });
        let state = (allocator as usize, AtomicU64::new(allocate(allocator, 20 << 20, 0)));
        let user = (&raw const state).cast_mut().cast();
        // SAFETY: the state lives longer than the callback is set.
        unsafe { ok(hw_set_oom_callback(allocator, Some(free_the_spare), user)) };
        let ptr = allocate(allocator, 20 << 20, 0);
        let mut second = 0;
        // SAFETY: a place.
        unsafe {
            let status = hw_allocate(allocator, 20 << 20, 0, &raw mut second);
            refused(status, hw_status::OutOfMemory, "20.0 MiB");
            ok(hw_set_oom_callback(allocator, None, null_mut()));
        }
        give_back(allocator, ptr);
        done(allocator, device);
    }
}

#[test]
fn sleeping_blocks_give_their_memory_to_others_and_wake_with_their_contents() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Paged));
    let bytes = 8 << 20;
    let data = vec![5_u8; bytes as usize];
    let mut back = vec![0_u8; bytes as usize];
    let ptr = allocate(allocator, bytes, 0);
    let (mut group, mut released) = (null_mut(), 0);
    // SAFETY: the buffers live through the synchronisation; nothing uses the block while it sleeps.
    unsafe {
        ok(hw_copy_to_device(device, ptr, data.as_ptr().cast(), bytes, 0));
        ok(hw_sleep_blocks(allocator, &raw const ptr, 1, 0, 0, &raw mut group, &raw mut released));
        assert_eq!(released, bytes);
        refused(hw_give_back(allocator, ptr), hw_status::InvalidPointer, "asleep");
        ok(hw_wake(group, 0));
        refused(hw_wake(group, 0), hw_status::InvalidHandle, "destroyed");
        ok(hw_copy_to_host(device, back.as_mut_ptr().cast(), ptr, bytes, 0));
        ok(hw_stream_synchronize(device, 0));
    }
    assert_eq!(data, back);
    give_back(allocator, ptr);
    done(allocator, device);
}

#[test]
fn structs_of_older_and_newer_programs_are_filled_as_far_as_they_go() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    let ptr = allocate(allocator, 1000, 0);
    let stats_bytes = size_of::<hw_stats>();
    let mut words = vec![0xAAAA_AAAA_AAAA_AAAA_u64; stats_bytes / 8 + 4];
    // SAFETY: the words are longer than any struct that they are said to be.
    unsafe {
        words[0] = 16;
        ok(hw_get_stats(allocator, words.as_mut_ptr().cast()));
        assert_eq!((words[0], words[1]), (16, 1), "the size stays, and the first number is there");
        assert_eq!(words[2], 0xAAAA_AAAA_AAAA_AAAA, "nothing is written beyond what the caller has");
        words[0] = stats_bytes as u64 + 8;
        ok(hw_get_stats(allocator, words.as_mut_ptr().cast()));
        assert_eq!(words[stats_bytes / 8], 0, "what is not known here is zero");
        assert_eq!(words[stats_bytes / 8 + 1], 0xAAAA_AAAA_AAAA_AAAA);
        for bad in [0, 7, u64::MAX] {
            words[0] = bad;
            refused(
                hw_get_stats(allocator, words.as_mut_ptr().cast()),
                hw_status::InvalidArgument,
                "struct_bytes",
            );
        }
    }
    #[repr(C)]
    struct Newer {
        options: hw_allocator_options,
        unknown: u64,
    }
    let mut newer = Newer { options: options(hw_policy::Direct), unknown: 0 };
    newer.options.struct_bytes = size_of::<Newer>() as u64;
    let mut made = null_mut();
    // SAFETY: the struct is as long as it says.
    unsafe {
        ok(hw_allocator_create(device, (&raw const newer).cast(), &raw mut made));
        ok(hw_allocator_destroy(made, 0));
        newer.unknown = 1;
        let status = hw_allocator_create(device, (&raw const newer).cast(), &raw mut made);
        refused(status, hw_status::InvalidArgument, "does not know");
    }
    give_back(allocator, ptr);
    done(allocator, device);
}

#[test]
fn messages_belong_to_their_thread() {
    let device = sim();
    let mut opened = null_mut();
    // SAFETY: a text and a place.
    unsafe { refused(hw_device_open(c"tpu".as_ptr(), &raw mut opened), hw_status::InvalidArgument, "tpu") };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!((hw_last_status(), message().as_str()), (hw_status::Ok, ""));
            // SAFETY: a text and a place of this thread's.
            let status =
                // SAFETY: as above.
                unsafe { hw_device_open(c"vpu".as_ptr(), &raw mut *Box::leak(Box::new(null_mut()))) };
            refused(status, hw_status::InvalidArgument, "vpu");
        });
    });
    assert!(message().contains("tpu"));
    // SAFETY: nothing uses it.
    unsafe { ok(hw_device_close(device)) };
}

#[test]
fn threads_share_an_allocator() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Binned));
    let handle = allocator as usize;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let allocator = handle as *const hw_allocator;
                for round in 0..500 {
                    give_back(allocator, allocate(allocator, 512 << ((round + thread) % 8), 0));
                }
            });
        }
    });
    assert_eq!(stats(allocator).allocation.all.allocated, 2000);
    done(allocator, device);
}

#[test]
fn a_device_says_what_it_is() {
    let device = sim();
    let mut info = hw_device_info { struct_bytes: size_of::<hw_device_info>() as u64, ..Default::default() };
    let (mut name, mut version, mut why) = (null_mut(), null_mut(), null_mut());
    // SAFETY: places.
    unsafe {
        ok(hw_device_get_info(device, &raw mut info));
        ok(hw_device_name(device, &raw mut name));
        ok(hw_device_driver_version(device, &raw mut version));
        ok(hw_device_why(device, &raw mut why));
        assert_eq!((info.is_simulated, info.ordinal, info.has_virtual_memory), (1, 0, 1));
        assert_eq!(info.total_bytes, info.free_bytes);
        assert!(!taken(name).is_empty() && !taken(version).is_empty() && taken(why).contains("asked for"));
        let mut pinned = null_mut();
        ok(hw_host_allocate(device, 4096, &raw mut pinned));
        pinned.cast::<u8>().write_bytes(3, 4096);
        ok(hw_host_free(device, pinned));
        ok(hw_host_free(device, null_mut()));
        ok(hw_device_close(device));
        refused(hw_device_close(device), hw_status::InvalidHandle, "device");
    }
}
