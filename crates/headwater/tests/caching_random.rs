//! Random programs against a plain model, on the simulated device.
//!
//! A program asks for memory on several streams, uses it there and on others, gives it back, destroys streams, captures, runs
//! into limits, and has driver calls fail under the allocator's feet. After every step: the tables are whole and add up to
//! the byte, what the model holds is what the allocator holds, no two live blocks overlap, no limit was passed, no capture
//! was harmed, and the device saw no race, no use after free and no early removal.
//!
//! The seed is printed. `HEADWATER_SEED=n` starts from another one, `HEADWATER_STEPS=10000000` runs longer:
//! `HEADWATER_STEPS=10000000 cargo test --release -p headwater --test caching_random -- --nocapture`.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::program::run;
use headwater_driver::Call;

/// What the allocator calls, and a fault plan may fail.
const ALLOCATOR_CALLS: [Call; 10] = [
    Call::MemAlloc,
    Call::MemFree,
    Call::EventCreate,
    Call::EventDestroy,
    Call::EventRecord,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::CaptureStatus,
    Call::FillBytes,
    Call::MemoryInfo,
];

const SETTINGS: [&str; 12] = [
    "backing:classic",
    "backing:classic,cross_stream_reuse:False",
    "backing:classic,memory_limit:200M",
    "backing:classic,memory_limit:150M,garbage_collection_threshold:0.6",
    "backing:classic,max_split_size_mb:24,max_non_split_rounding_mb:21,memory_limit:300M",
    "backing:classic,roundup_power2_divisions:[1:8,>:4]",
    "backing:classic,fill_on_free:zero",
    "backing:classic,fill_on_free:0xA5,memory_limit:220M,history_events:100",
    "backing:classic,large_segment_size_mb:12,per_process_memory_fraction:0.7",
    "backing:classic,thread_cache_mb:8",
    "backing:classic,thread_cache_mb:1,memory_limit:150M,roundup_power2_divisions:4",
    "caching_allocator:False,memory_limit:250M",
];

#[test]
fn random_programs_hold_what_the_model_holds() {
    run(&SETTINGS, &ALLOCATOR_CALLS, 60_000, false);
}

#[test]
fn random_programs_with_failing_driver_calls_hold_what_the_model_holds() {
    run(&SETTINGS, &ALLOCATOR_CALLS, 40_000, true);
}
