//! Being seen through the C functions: the log callback, recordings, snapshots and statistics.

mod common;

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use headwater_capi::allocator::*;
use headwater_capi::arguments::hw_bytes_free;
use headwater_capi::log::*;
use headwater_capi::memory::*;
use headwater_capi::recording::*;
use headwater_capi::snapshot::*;
use headwater_capi::statistics::*;
use headwater_capi::status::*;

unsafe extern "C" fn count(user: *mut c_void, event: *const hw_log_event) {
    // SAFETY: the test's own counters, and an event that is good for the call.
    let (counts, event) = unsafe { (&*user.cast::<[AtomicU64; 5]>(), &*event) };
    counts[event.kind as usize].fetch_add(1, Ordering::Relaxed);
    counts[4].fetch_add(u64::from(event.status != 0), Ordering::Relaxed);
}

#[test]
fn the_log_callback_hears_of_every_call_until_it_is_taken_out() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Binned));
    let counts: [AtomicU64; 5] = Default::default();
    // SAFETY: the counters live longer than the callback is set.
    unsafe {
        ok(hw_set_log_callback(allocator, Some(count), (&raw const counts).cast_mut().cast()));
        let ptr = allocate(allocator, 100, 0);
        ok(hw_record_stream(allocator, ptr, 2));
        give_back(allocator, ptr);
        refused(hw_give_back(allocator, 77), hw_status::InvalidPointer, "0x4d");
        ok(hw_empty_cache(allocator, null_mut()));
        ok(hw_set_log_callback(allocator, None, null_mut()));
        give_back(allocator, allocate(allocator, 100, 0));
    }
    assert_eq!(counts.map(AtomicU64::into_inner), [1, 2, 1, 1, 1]);
    done(allocator, device);
}

#[test]
fn a_recording_is_a_trace_of_what_was_asked_with_labels_and_marks() {
    let path = std::env::temp_dir().join(format!("headwater-capi-{}.hwt", std::process::id()));
    let text = c(path.to_str().unwrap());
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    let before = allocate(allocator, 4096, 0);
    // SAFETY: texts and places.
    unsafe {
        refused(hw_recording_stop(allocator, null_mut()), hw_status::WrongState, "not being recorded");
        ok(hw_recording_start(allocator, text.as_ptr(), c"from C".as_ptr()));
        refused(hw_recording_start(allocator, text.as_ptr(), null()), hw_status::WrongState, "already");
        ok(hw_label_push(c"step".as_ptr()));
        let ptr = allocate(allocator, 1 << 20, 0);
        ok(hw_label_pop());
        refused(hw_label_pop(), hw_status::WrongState, "no label");
        ok(hw_recording_mark(allocator, c"half".as_ptr()));
        give_back(allocator, ptr);
        give_back(allocator, before);
        let mut events = 0;
        ok(hw_recording_stop(allocator, &raw mut events));
        assert_eq!(events, 3);
        give_back(allocator, allocate(allocator, 1 << 21, 0));
        refused(
            hw_recording_start(allocator, c"/nowhere/at all.hwt".as_ptr(), null()),
            hw_status::Io,
            "/nowhere/at all.hwt",
        );
    }
    let trace = headwater_trace::open(&path).unwrap();
    trace.check().unwrap();
    assert_eq!((trace.header.name.as_str(), trace.summary().peak_live_bytes), ("from C", 1 << 20));
    std::fs::remove_file(&path).unwrap();
    done(allocator, device);
}

#[test]
fn snapshots_are_json_and_pytorchs_pickle() {
    let settings = c("history_events:1000");
    let device = sim();
    let allocator = create(device, &with_settings(hw_policy::Classic, &settings));
    let ptr = allocate(allocator, 3 << 20, 0);
    let (mut text, mut bytes, mut length) = (null_mut(), null_mut(), 0);
    // SAFETY: places; what was given out is given back once.
    unsafe {
        ok(hw_snapshot_json(allocator, &raw mut text));
        let json: serde_json::Value = serde_json::from_str(&taken(text)).unwrap();
        assert_eq!(json["segments"][0]["requested_size"], 3 << 20);
        assert_eq!(json["segments"][0]["blocks"][0]["state"], "active_allocated");
        assert_eq!(json["device_traces"][0].as_array().unwrap().len(), 2);
        ok(hw_snapshot_pickle(allocator, &raw mut bytes, &raw mut length));
        let pickle = std::slice::from_raw_parts(bytes, length);
        let limits = headwater_trace::Limits::default();
        let read = headwater_trace::snapshot::Snapshot::from_pickle(pickle, &limits).unwrap();
        assert_eq!(read.segments[0].requested_bytes, 3 << 20);
        hw_bytes_free(bytes, length);
        ok(hw_stats_json(allocator, &raw mut text));
        let json: serde_json::Value = serde_json::from_str(&taken(text)).unwrap();
        assert_eq!(json["stats"]["requested_bytes.all.current"], 3 << 20);
        assert_eq!(json["device"]["backend"], "sim");
        ok(hw_stats_summary(allocator, &raw mut text));
        assert!(taken(text).contains("3.0 MiB"));
    }
    give_back(allocator, ptr);
    // SAFETY: no arguments but the handle.
    unsafe {
        ok(hw_reset_peaks(allocator));
        ok(hw_reset_totals(allocator));
    }
    let after = stats(allocator);
    assert_eq!((after.requested_bytes.all.peak, after.requested_bytes.all.allocated), (0, 0));
    done(allocator, device);
}
