//! Graph memory through the C functions: pools by hand, captures, routes for foreign captures, checkpoints.

mod common;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use common::*;
use headwater_capi::allocator::*;
use headwater_capi::captures::*;
use headwater_capi::copies::*;
use headwater_capi::device::*;
use headwater_capi::graph_pool::*;
use headwater_capi::memory::*;
use headwater_capi::pools::*;
use headwater_capi::status::*;
use headwater_capi::streams::*;

fn with_pools(device: *const hw_device, policy: hw_policy) -> *mut hw_allocator {
    create(device, &hw_allocator_options { graph_pools: 1, ..options(policy) })
}

fn block() -> hw_graph_block {
    hw_graph_block { struct_bytes: size_of::<hw_graph_block>() as u64, ..Default::default() }
}

#[test]
fn blocks_of_a_pool_by_hand_keep_their_addresses() {
    let device = sim();
    let mut pool = null_mut();
    let (mut first, mut second, mut again) = (block(), block(), block());
    // SAFETY: places and structs with their sizes.
    unsafe {
        let refusal = hw_graph_pool_create(device, 2 << 20, 1 << 20, 0, &raw mut pool);
        refused(refusal, hw_status::InvalidArgument, "more than the maximum");
        ok(hw_graph_pool_create(device, 4 << 20, 8 << 20, 0, &raw mut pool));
        ok(hw_graph_pool_allocate(pool, 1 << 20, 0, &raw mut first));
        ok(hw_graph_pool_allocate(pool, 1 << 20, 4096, &raw mut second));
        assert_eq!((second.ptr % 4096, second.in_use), (0, 1));
        refused(hw_graph_pool_allocate(pool, 16 << 20, 0, &raw mut again), hw_status::NoRoom, "maximum");
        ok(hw_graph_pool_return(pool, first.id));
        refused(hw_graph_pool_return(pool, first.id), hw_status::InvalidPointer, "already returned");
        refused(hw_graph_pool_return(pool, 999_999), hw_status::InvalidPointer, "does not exist");
        ok(hw_graph_pool_block_at(pool, second.ptr + 5, &raw mut again));
        assert_eq!(again.id, second.id);
        refused(hw_graph_pool_block_at(pool, 64, &raw mut again), hw_status::InvalidPointer, "no block");
        let mut were = 0;
        ok(hw_graph_pool_reset(pool, &raw mut were));
        assert_eq!(were, 1);
        ok(hw_graph_pool_allocate(pool, 1 << 20, 0, &raw mut again));
        assert_eq!(again.ptr, first.ptr);
        ok(hw_graph_pool_block(pool, again.id, &raw mut again));
        let mut stats = hw_graph_pool_stats {
            struct_bytes: size_of::<hw_graph_pool_stats>() as u64,
            ..Default::default()
        };
        ok(hw_graph_pool_get_stats(pool, &raw mut stats));
        assert_eq!(
            (stats.in_use_blocks, stats.initial_bytes, stats.max_capacity_bytes),
            (1, 4 << 20, 8 << 20)
        );
        ok(hw_graph_pool_destroy(pool));
        refused(hw_graph_pool_reset(pool, null_mut()), hw_status::InvalidHandle, "graph pool");
        ok(hw_device_close(device));
    }
}

#[test]
fn a_captured_graph_runs_in_memory_that_was_given_back() {
    for policy in [hw_policy::Paged, hw_policy::Binned] {
        let device = sim();
        let allocator = with_pools(device, policy);
        let (mut stream, mut pool, mut graph, mut exec) = (0, null_mut(), null_mut(), null_mut());
        let mut back = vec![0_u8; 1 << 20];
        // SAFETY: the graph keeps its memory; the buffer lives through the synchronisation.
        unsafe {
            ok(hw_stream_create(device, 1, 0, &raw mut stream));
            let result = allocate(allocator, 1 << 20, stream);
            ok(hw_capture_begin(allocator, stream, 0, null(), &raw mut pool));
            let scratch = allocate(allocator, 1 << 20, stream);
            ok(hw_fill(device, scratch, 42, 1 << 20, stream));
            ok(hw_copy_on_device(device, result, scratch, 1 << 20, stream));
            give_back(allocator, scratch);
            ok(hw_capture_end(allocator, stream, &raw mut graph));
            ok(hw_graph_instantiate(graph, &raw mut exec));
            let (mut raw_graph, mut raw_exec) = (0, 0);
            ok(hw_graph_raw(graph, &raw mut raw_graph));
            ok(hw_graph_exec_raw(exec, &raw mut raw_exec));
            assert!(raw_graph != 0 && raw_exec != 0);
            ok(hw_graph_destroy(graph));
            for _ in 0..3 {
                ok(hw_graph_launch(exec, stream));
            }
            ok(hw_copy_to_host(device, back.as_mut_ptr().cast(), result, 1 << 20, stream));
            ok(hw_stream_synchronize(device, stream));
            assert!(back.iter().all(|byte| *byte == 42));

            let (mut text, mut id) = (null_mut(), 0);
            ok(hw_pool_id(pool, &raw mut id));
            ok(hw_pools_json(allocator, &raw mut text));
            let json: serde_json::Value = serde_json::from_str(&taken(text)).unwrap();
            assert_eq!((json[0]["id"].as_u64(), json[0]["graphs"].as_u64()), (Some(id), Some(1)));

            give_back(allocator, result);
            ok(hw_graph_exec_destroy(exec));
            refused(hw_graph_launch(exec, stream), hw_status::InvalidHandle, "executable graph");
            ok(hw_pool_destroy(pool));
            ok(hw_empty_cache(allocator, null_mut()));
            assert_eq!(stats(allocator).reserved_bytes.all.current, 0);
            ok(hw_forget_stream(allocator, stream));
            ok(hw_stream_destroy(device, stream));
        }
        done(allocator, device);
    }
}

#[test]
fn captures_that_were_not_begun_and_modes_that_are_none_are_errors() {
    let device = sim();
    let allocator = with_pools(device, hw_policy::Auto);
    let plain = create(device, &options(hw_policy::Auto));
    let (mut stream, mut graph, mut pool) = (0, null_mut(), null_mut());
    // SAFETY: places.
    unsafe {
        ok(hw_stream_create(device, 1, 0, &raw mut stream));
        refused(hw_capture_end(allocator, stream, &raw mut graph), hw_status::WrongState, "no capture");
        refused(hw_capture_abandon(allocator, stream), hw_status::WrongState, "no capture");
        let status = hw_capture_begin(allocator, stream, 3, null(), null_mut());
        refused(status, hw_status::InvalidArgument, "hw_capture_mode");
        let status = hw_capture_begin(plain, stream, 0, null(), null_mut());
        refused(status, hw_status::NotSupported, "graph_pools");
        refused(hw_pool_create(plain, &raw mut pool), hw_status::NotSupported, "graph_pools");
        // A pool of another allocator.
        let other = with_pools(device, hw_policy::Auto);
        ok(hw_pool_create(other, &raw mut pool));
        let status = hw_capture_begin(allocator, stream, 0, pool, null_mut());
        refused(status, hw_status::WrongState, "another allocator");
        ok(hw_capture_begin(allocator, stream, 2, null(), null_mut()));
        ok(hw_capture_abandon(allocator, stream));
        ok(hw_pool_destroy(pool));
        ok(hw_allocator_destroy(other, 0));
        ok(hw_allocator_destroy(plain, 0));
        ok(hw_stream_destroy(device, stream));
    }
    done(allocator, device);
}

unsafe extern "C" fn is_the_one(user: *mut c_void, stream: hw_stream) -> u32 {
    // SAFETY: the test's own number.
    u32::from(stream == unsafe { *user.cast::<u64>() })
}

#[test]
fn foreign_captures_allocate_to_the_pool_that_their_filter_names() {
    let device = sim();
    let allocator = with_pools(device, hw_policy::Paged);
    let (mut pool, mut stream) = (null_mut(), 0_u64);
    // SAFETY: the number that the filter compares with lives as long as the route.
    unsafe {
        ok(hw_stream_create(device, 1, 0, &raw mut stream));
        ok(hw_pool_create(allocator, &raw mut pool));
        refused(hw_pool_end_allocate(pool), hw_status::WrongState, "not routed");
        refused(hw_pool_release(pool), hw_status::WrongState, "released more often");
        ok(hw_pool_begin_allocate(pool, Some(is_the_one), (&raw mut stream).cast()));
        let again = hw_pool_begin_allocate(pool, None, null_mut());
        refused(again, hw_status::StillInUse, "already");
        let inside = allocate(allocator, 1 << 20, stream);
        let outside = allocate(allocator, 1 << 20, 0);
        ok(hw_pool_end_allocate(pool));
        let mut text = null_mut();
        ok(hw_pools_json(allocator, &raw mut text));
        let json: serde_json::Value = serde_json::from_str(&taken(text)).unwrap();
        assert_eq!(json[0]["requested_bytes"], 1 << 20, "one of the two blocks");
        assert_eq!(json[0]["foreign_uses"], 1);
        give_back(allocator, inside);
        give_back(allocator, outside);
        ok(hw_pool_release(pool));
        ok(hw_pool_destroy(pool));
        ok(hw_forget_stream(allocator, stream));
        ok(hw_stream_destroy(device, stream));
    }
    done(allocator, device);
}

#[test]
fn a_pool_goes_back_to_its_checkpoint() {
    let device = sim();
    let allocator = with_pools(device, hw_policy::Paged);
    let (mut pool, mut checkpoint) = (null_mut(), null_mut());
    // SAFETY: blocks that the restoration frees are not used any more.
    unsafe {
        ok(hw_pool_create(allocator, &raw mut pool));
        ok(hw_pool_begin_allocate(pool, None, null_mut()));
        let kept = allocate(allocator, 1 << 20, 0);
        ok(hw_pool_checkpoint_take(pool, &raw mut checkpoint));
        give_back(allocator, kept);
        let later = allocate(allocator, 3 << 20, 0);
        ok(hw_pool_end_allocate(pool));
        let (mut freed, mut freed_count, mut held, mut held_count) = (null_mut(), 0, null_mut(), 0);
        ok(hw_pool_restore(
            pool,
            checkpoint,
            &raw mut freed,
            &raw mut freed_count,
            &raw mut held,
            &raw mut held_count,
        ));
        assert_eq!(std::slice::from_raw_parts(freed, freed_count), [later]);
        assert_eq!(std::slice::from_raw_parts(held, held_count), [kept]);
        hw_ptrs_free(freed, freed_count);
        hw_ptrs_free(held, held_count);
        give_back(allocator, kept);
        ok(hw_pool_checkpoint_destroy(checkpoint));
        ok(hw_pool_release(pool));
        ok(hw_pool_destroy(pool));
    }
    done(allocator, device);
}
