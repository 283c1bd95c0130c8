//! What is counted adds up, to the byte, and everything goes back to the driver in the end.

use std::sync::Arc;

use headwater::{Allocator, Request};

use super::ground::{AllocatorGround, give_back, is_empty};
use crate::case::Failure;
use crate::check::{Check, ensure, same};

/// What an allocator says it holds at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accounts {
    pub(super) live_blocks: u64,
    pub(super) live_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) active_bytes: u64,
    pub(super) reserved_bytes: u64,
}

impl Accounts {
    pub(super) fn of(allocator: &Arc<dyn Allocator>) -> Self {
        let stats = allocator.stats();
        Self {
            live_blocks: stats.allocation.all.current,
            live_bytes: stats.requested_bytes.all.current,
            allocated_bytes: stats.allocated_bytes.all.current,
            active_bytes: stats.active_bytes.all.current,
            reserved_bytes: stats.reserved_bytes.all.current,
        }
    }

    #[track_caller]
    pub(super) fn are_empty(self) -> Check {
        let empty =
            Self { live_blocks: 0, live_bytes: 0, allocated_bytes: 0, active_bytes: 0, reserved_bytes: 0 };
        same("the accounts after everything was given back", empty, self)
    }
}

/// What is counted is what is there.
#[track_caller]
pub(super) fn reconciles(allocator: &Arc<dyn Allocator>) -> Check {
    allocator.reconcile().map_err(|differences| Failure::new(differences.to_string()).into())
}

fn every_step_adds_up_to_the_byte(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let mut held = Vec::new();
    let (mut live_bytes, mut seed) = (0, 12_345_u64);
    for step in 0..400 {
        // Knuth's linear congruential generator: the same program on every machine.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = seed >> 33;
        if draw.is_multiple_of(3) && !held.is_empty() {
            let (ptr, bytes) = held.swap_remove(draw as usize % held.len());
            give_back(&allocator, ptr)?;
            live_bytes -= bytes;
        } else {
            // Every magnitude from a byte to 16 MiB is as likely.
            let bytes = 1 + (draw >> 5) % (1 << (draw % 25));
            let request = Request::new(bytes, stream.id()).aligned_to(1 << (draw % 13));
            held.push((allocator.allocate(request)?, bytes));
            live_bytes += bytes;
        }
        if step % 97 == 0 {
            allocator.empty_cache()?;
        }
        let accounts = Accounts::of(&allocator);
        same("live bytes", live_bytes, accounts.live_bytes)?;
        same("live blocks", held.len() as u64, accounts.live_blocks)?;
        reconciles(&allocator)?;
    }
    for (ptr, _) in held {
        give_back(&allocator, ptr)?;
    }
    is_empty(&allocator)
}

fn live_is_within_allocated_within_active_within_reserved(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let mut held = Vec::new();
    for bytes in [0, 1, 511, 513, 1 << 20, (1 << 20) + 1, 11 << 20] {
        held.push(ground.block(&allocator, bytes, stream.id())?);
        let accounts = Accounts::of(&allocator);
        ensure(accounts.live_bytes <= accounts.allocated_bytes, "live is within allocated")?;
        ensure(accounts.allocated_bytes <= accounts.active_bytes, "allocated is within active")?;
        ensure(accounts.active_bytes <= accounts.reserved_bytes, "active is within reserved")?;
    }
    drop(held);
    is_empty(&allocator)
}

fn peaks_stay_and_can_be_reset(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    drop(ground.block(&allocator, 3 << 20, stream.id())?);
    let _small = ground.block(&allocator, 1000, stream.id())?;
    same("the peak of live bytes", 3 << 20, allocator.stats().requested_bytes.all.peak)?;
    same("all bytes ever asked for", (3 << 20) + 1000, allocator.stats().requested_bytes.all.allocated)?;
    allocator.reset_peaks();
    allocator.reset_totals();
    let live = allocator.stats().requested_bytes.all;
    same("the peak after the reset", 1000, live.peak)?;
    same("the total after the reset", 0, live.allocated)?;
    same("what is live after the reset", 1000, live.current)?;
    drop(_small);
    is_empty(&allocator)
}

fn an_emptied_cache_is_with_the_driver_again(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let before_bytes = ground.driver().memory_info(ground.device())?.free_bytes;
    let held =
        [1 << 10, 1 << 20, 64 << 20, 256 << 20].map(|bytes| ground.block(&allocator, bytes, stream.id()));
    let kept = ground.block(&allocator, 1 << 10, stream.id())?;
    for block in held {
        drop(block?);
    }
    let reserved_bytes = Accounts::of(&allocator).reserved_bytes;
    let returned_bytes = allocator.empty_cache()?;
    let kept_bytes = Accounts::of(&allocator).reserved_bytes;
    same("reserved bytes after the cache was emptied", reserved_bytes - returned_bytes, kept_bytes)?;
    ensure(kept_bytes <= 64 << 20, "what one small block keeps back is small")?;
    drop(kept);
    is_empty(&allocator)?;
    let after_bytes = ground.driver().memory_info(ground.device())?.free_bytes;
    // Other programs may use the device too: only what was allocated here must be back.
    ensure(after_bytes + (128 << 20) >= before_bytes, "the device has its memory back")
}

fn a_dropped_allocator_leaves_nothing_behind(ground: &AllocatorGround<'_>) -> Check {
    let stream = ground.stream()?;
    let before_bytes = ground.driver().memory_info(ground.device())?.free_bytes;
    let allocator = ground.allocator()?;
    allocator.allocate(Request::new(512 << 20, stream.id()))?;
    give_back(&allocator, allocator.allocate(Request::new(256 << 20, stream.id()))?)?;
    drop(allocator);
    let after_bytes = ground.driver().memory_info(ground.device())?.free_bytes;
    ensure(after_bytes + (128 << 20) >= before_bytes, "the device has its memory back")
}

super::list_cases!(accounts:
    every_step_adds_up_to_the_byte,
    live_is_within_allocated_within_active_within_reserved,
    peaks_stay_and_can_be_reset,
    an_emptied_cache_is_with_the_driver_again,
    a_dropped_allocator_leaves_nothing_behind,
);
