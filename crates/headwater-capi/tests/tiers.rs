//! Tiers through the C functions: reservations, memory inside of them, data that moves.

mod common;

use std::ptr::null_mut;

use common::*;
use headwater_capi::allocator::*;
use headwater_capi::copies::*;
use headwater_capi::reservations::*;
use headwater_capi::spill::*;
use headwater_capi::status::*;
use headwater_capi::streams::*;
use headwater_capi::tiers::*;

const GPU: [u32; 1] = [hw_tier::Gpu as u32];

fn tiers_of(allocator: *const hw_allocator, change: impl FnOnce(&mut hw_tiers_options)) -> *mut hw_tiers {
    let mut options =
        hw_tiers_options { allocator, gpu_bytes: 8 << 20, reservation_limit: 1.0, ..Default::default() };
    change(&mut options);
    let mut tiers = null_mut();
    // SAFETY: a struct with its size, and a place.
    ok(unsafe { hw_tiers_create(&raw const options, &raw mut tiers) });
    tiers
}

fn reserve(tiers: *const hw_tiers, bytes: u64) -> *mut hw_reservation {
    let mut reservation = null_mut();
    // SAFETY: a list and a place.
    ok(unsafe { hw_reserve(tiers, GPU.as_ptr(), 1, bytes, 100, &raw mut reservation) });
    reservation
}

fn facts(reservation: *const hw_reservation) -> hw_reservation_facts {
    let size = size_of::<hw_reservation_facts>() as u64;
    let mut facts = hw_reservation_facts { struct_bytes: size, ..Default::default() };
    // SAFETY: a struct with its size.
    ok(unsafe { hw_reservation_get_facts(reservation, &raw mut facts) });
    facts
}

#[test]
fn a_reservation_is_kept_grown_shrunk_and_given_back() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    let tiers = tiers_of(allocator, |_| {});
    let reservation = reserve(tiers, 4 << 20);
    let (mut other, mut block, mut ptr, mut given_back) = (null_mut(), null_mut(), 0, 0);
    let mut usage = hw_space_use { struct_bytes: size_of::<hw_space_use>() as u64, ..Default::default() };
    // SAFETY: places and structs with their sizes.
    unsafe {
        let late = hw_reserve(tiers, GPU.as_ptr(), 1, 6 << 20, 1, &raw mut other);
        refused(late, hw_status::TimedOut, "6.0 MiB");
        let never = hw_reserve(tiers, GPU.as_ptr(), 1, 60 << 20, 1000, &raw mut other);
        refused(never, hw_status::NoRoom, "never");
        ok(hw_reserve_or_null(tiers, GPU.as_ptr(), 1, 6 << 20, &raw mut other));
        assert!(other.is_null());
        ok(hw_reserve_upto(tiers, 0, 0, 6 << 20, &raw mut other));
        assert_eq!(facts(other).bytes, 4 << 20);
        refused(hw_reservation_grow(reservation, 1 << 20, 0), hw_status::NoRoom, "not enough room now");
        ok(hw_reservation_release(other));
        ok(hw_reservation_grow(reservation, 1 << 20, 50));
        ok(hw_reservation_allocate(reservation, 3 << 20, 4096, 0, &raw mut block, &raw mut ptr));
        assert_eq!(ptr % 4096, 0);
        let (mut none, mut nowhere) = (null_mut(), 0);
        let over = hw_reservation_allocate(reservation, 3 << 20, 0, 0, &raw mut none, &raw mut nowhere);
        refused(over, hw_status::NoRoom, "beyond the reservation");
        ok(hw_reserved_block_record_stream(block, 2));
        let now = facts(reservation);
        assert_eq!((now.bytes, now.in_use_bytes, now.unused_bytes), (5 << 20, 3 << 20, 2 << 20));
        refused(hw_reservation_shrink(reservation, 3 << 20), hw_status::NoRoom, "split off");
        ok(hw_reservation_shrink(reservation, 1 << 20));
        ok(hw_reservation_shrink_to_fit(reservation, &raw mut given_back));
        assert_eq!(given_back, 1 << 20);
        ok(hw_tiers_space_use(tiers, 0, 0, &raw mut usage));
        assert_eq!((usage.reserved_bytes, usage.capacity_bytes), (3 << 20, 8 << 20));
        refused(hw_tiers_space_use(tiers, 1, 0, &raw mut usage), hw_status::NotSupported, "HOST");
        refused(hw_tiers_space_use(tiers, 3, 0, &raw mut usage), hw_status::InvalidArgument, "hw_tier");
        refused(hw_tiers_make_room(tiers, 0, 0, 1, null_mut()), hw_status::NotSupported, "spill");
        ok(hw_reserved_block_free(block));
        refused(hw_reserved_block_free(block), hw_status::InvalidHandle, "reserved block");
        ok(hw_reservation_release(reservation));
        let mut text = null_mut();
        ok(hw_tiers_json(tiers, &raw mut text));
        let json: serde_json::Value = serde_json::from_str(&taken(text)).unwrap();
        assert_eq!(json["spaces"][0]["reserved_bytes"], 0);
        ok(hw_tiers_destroy(tiers));
        refused(hw_tiers_destroy(tiers), hw_status::InvalidHandle, "tiers");
    }
    done(allocator, device);
}

#[test]
fn data_that_does_not_fit_moves_down_and_comes_back_unchanged() {
    let folder = c(std::env::temp_dir().to_str().unwrap());
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    let tiers = tiers_of(allocator, |options| {
        options.host_bytes = 64 << 20;
        options.host_blocks_per_slab = 8;
        options.disk_directory = folder.as_ptr();
        options.disk_bytes = 64 << 20;
        options.spill = 1;
    });
    let bytes = 1_u64 << 20;
    let data = |number: u8| vec![number; bytes as usize];
    // SAFETY: buffers live through the calls.
    unsafe {
        let buffers: Vec<_> = (0..12_u8)
            .map(|number| {
                let mut buffer = null_mut();
                let data = data(number);
                ok(hw_spill_buffer_create(tiers, 0, data.as_ptr().cast(), bytes, 10_000, &raw mut buffer));
                buffer
            })
            .collect();
        let mut back = vec![0_u8; bytes as usize];
        for (number, &buffer) in (0..).zip(&buffers) {
            let (mut access, mut ptr) = (null_mut(), 0);
            ok(hw_spill_buffer_access(buffer, 0, 1, 10_000, &raw mut access, &raw mut ptr));
            ok(hw_copy_to_host(device, back.as_mut_ptr().cast(), ptr, bytes, 0));
            ok(hw_stream_synchronize(device, 0));
            assert_eq!(back, data(number));
            ok(hw_fill(device, ptr, number + 100, bytes, 0));
            let busy = hw_spill_buffer_spill_to(buffer, 1, 1);
            refused(busy, hw_status::StillInUse, "in use");
            ok(hw_spill_access_end(access));
        }
        let (mut tier, mut length) = (9, 0);
        let first = buffers[0];
        ok(hw_spill_buffer_set_priority(first, 5));
        ok(hw_spill_buffer_spill_to(first, 2, 10_000));
        ok(hw_spill_buffer_where(first, &raw mut tier, &raw mut length));
        assert_eq!((tier, length), (2, bytes));
        ok(hw_spill_buffer_read(first, 5, back.as_mut_ptr().cast(), 3, 10_000));
        assert_eq!(back[..3], [100, 100, 100]);
        let word = [1_u8, 2, 3];
        ok(hw_spill_buffer_write(first, bytes - 3, word.as_ptr().cast(), 3, 10_000));
        ok(hw_spill_buffer_read(first, bytes - 3, back.as_mut_ptr().cast(), 3, 10_000));
        assert_eq!(back[..3], word);
        let beyond = hw_spill_buffer_read(first, bytes - 3, back.as_mut_ptr().cast(), 4, 10_000);
        refused(beyond, hw_status::InvalidArgument, "beyond the buffer's");
        ok(hw_spill_buffer_prefetch(first, 10_000));
        ok(hw_spill_buffer_where(first, &raw mut tier, null_mut()));
        assert_eq!(tier, 0);
        let mut zeros = null_mut();
        ok(hw_spill_buffer_create(tiers, 1, std::ptr::null(), 100, 10_000, &raw mut zeros));
        ok(hw_spill_buffer_read(zeros, 0, back.as_mut_ptr().cast(), 100, 10_000));
        assert!(back[..100].iter().all(|byte| *byte == 0));
        ok(hw_tiers_make_room(tiers, 0, 0, 1 << 20, null_mut()));
        let mut text = null_mut();
        ok(hw_tiers_json(tiers, &raw mut text));
        let json: serde_json::Value = serde_json::from_str(&taken(text)).unwrap();
        assert!(json["spill"]["routes"]["gpu_to_host"]["moves"].as_u64().unwrap() >= 4);
        for buffer in buffers.into_iter().chain([zeros]) {
            ok(hw_spill_buffer_destroy(buffer));
        }
        ok(hw_tiers_destroy(tiers));
    }
    done(allocator, device);
}

#[test]
fn tiers_without_an_allocator_or_with_settings_that_make_no_sense_are_refused() {
    let device = sim();
    let allocator = create(device, &options(hw_policy::Auto));
    let good = hw_tiers_options { allocator, gpu_bytes: 8 << 20, ..Default::default() };
    let mut tiers = null_mut();
    let mut create = |options: hw_tiers_options| {
        // SAFETY: a struct with its size, and a place.
        unsafe { hw_tiers_create(&raw const options, &raw mut tiers) }
    };
    refused(create(hw_tiers_options { allocator: nothing(), ..good }), hw_status::InvalidArgument, "null");
    refused(
        create(hw_tiers_options { reservation_limit: 2.0, ..good }),
        hw_status::BadConfig,
        "between 0 and 1",
    );
    refused(
        create(hw_tiers_options { downgrade_stop: 0.99, ..good }),
        hw_status::BadConfig,
        "downgrade_stop",
    );
    refused(create(hw_tiers_options { spill: 1, ..good }), hw_status::BadConfig, "HOST");
    refused(create(hw_tiers_options { spill: 9, ..good }), hw_status::InvalidArgument, "spill");
    refused(
        create(hw_tiers_options { host_bytes: 1 << 20, host_block_bytes: 1000, ..good }),
        hw_status::BadConfig,
        "4096",
    );
    done(allocator, device);
}
