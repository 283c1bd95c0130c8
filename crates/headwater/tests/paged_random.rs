//! Random programs against a plain model, on the paged backing: what `caching_random.rs` does, with virtual memory calls failing.
//!
//! `HEADWATER_SEED=n` starts from another seed, `HEADWATER_STEPS=10000000` runs longer.

#![allow(clippy::unwrap_used, reason = "a helper of a test may end it")]

mod caching_support;

use caching_support::program::run;
use headwater_driver::Call;

/// What the allocator calls, and a fault plan may fail.
const ALLOCATOR_CALLS: [Call; 15] = [
    Call::HandleCreate,
    Call::HandleRelease,
    Call::HandleMap,
    Call::HandleUnmap,
    Call::AccessSet,
    Call::EventCreate,
    Call::EventDestroy,
    Call::EventRecord,
    Call::EventQuery,
    Call::EventSynchronize,
    Call::StreamWaitEvent,
    Call::CaptureStatus,
    Call::FillBytes,
    Call::MemoryInfo,
    Call::HostAlloc,
];

const SETTINGS: [&str; 7] = [
    "backing:paged",
    "backing:paged,cross_stream_reuse:False",
    "backing:paged,memory_limit:200M",
    "backing:paged,memory_limit:150M,roundup_power2_divisions:[1:8,>:4]",
    "backing:paged,fill_on_free:zero",
    "backing:paged,fill_on_free:0xA5,memory_limit:220M,history_events:100",
    "backing:paged,per_process_memory_fraction:0.7",
];

#[test]
fn random_programs_hold_what_the_model_holds() {
    run(&SETTINGS, &ALLOCATOR_CALLS, 28_000, false);
}

#[test]
fn random_programs_with_failing_driver_calls_hold_what_the_model_holds() {
    run(&SETTINGS, &ALLOCATOR_CALLS, 21_000, true);
}
