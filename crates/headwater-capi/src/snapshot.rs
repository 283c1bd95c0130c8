//! Everything at one moment, in the shape that PyTorch's tools know: as JSON and as their pickle.

use std::ffi::c_char;
use std::time::UNIX_EPOCH;

use headwater::allocator::BlockState as State;
use headwater::graph::capture::{PoolBlock, PoolSnapshot};
use headwater_driver::Stream;
use headwater_trace::LabelId;
use headwater_trace::snapshot::{Action, Block, BlockState, Segment, SegmentKind, Snapshot, TraceEntry};
use serde_json::{Value, json};

use crate::allocator::hw_allocator;
use crate::arguments::{out, owned_bytes, owned_text};
use crate::guard::guarded;
use crate::handles;
use crate::layers::Base;
use crate::status::{Failure, hw_status};

/// Segments, blocks and (with the setting `history_events`) the latest events, as one JSON object with the keys of
/// `torch.cuda.memory._snapshot()`; private pools come as segments with their pool's id. Give the text back with `hw_string_free`.
/// Caching policies only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_snapshot_json(
    allocator: *const hw_allocator,
    text: *mut *mut c_char,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(text, "text") }?;
        let taken = take(&handles::get(allocator)?.base)?;
        place.write(owned_text(&to_json(&taken).to_string())?);
        Ok(())
    })
}

/// The same as the pickle that `torch.cuda.memory._dump_snapshot` writes, for PyTorch's viewer and `headwater replay`. Give the bytes
/// back with `hw_bytes_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_snapshot_pickle(
    allocator: *const hw_allocator,
    bytes: *mut *mut u8,
    count: *mut usize,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (place, length) = unsafe { (out(bytes, "bytes")?, out(count, "count")?) };
        let taken = take(&handles::get(allocator)?.base)?;
        let (bytes, count) = owned_bytes(taken.write(Vec::new())?);
        place.write(bytes);
        length.write(count);
        Ok(())
    })
}

/// The caching allocator's own snapshot, with wall-clock times and the private pools.
fn take(base: &Base) -> Result<Snapshot, Failure> {
    let mut taken = Snapshot::from_allocator(&base.caching()?.snapshot())?;
    let made_us = base.made.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let made_us = u64::try_from(made_us).unwrap_or(u64::MAX);
    for entry in taken.device_traces.iter_mut().flatten() {
        entry.t_us = entry.t_us.saturating_add(made_us);
    }
    // Ordinals beyond 255 were refused above.
    let device = u8::try_from(base.device.id().0).unwrap_or(u8::MAX);
    let stream = Stream::legacy_default(base.device.id()).raw();
    for pool in base.graphs.iter().flat_map(|graphs| graphs.pool_snapshots()) {
        taken.segments.extend(pool_segments(&pool, device, stream));
    }
    Ok(taken)
}

/// What of a pool lies side by side, as segments of its own. A pool's blocks have no stream: captures decide.
fn pool_segments(pool: &PoolSnapshot, device: u8, stream: u64) -> Vec<Segment> {
    let follows = |one: &PoolBlock, next: &PoolBlock| one.ptr.checked_add(one.bytes) == Some(next.ptr);
    pool.blocks
        .chunk_by(follows)
        .map(|run| {
            let sum = |keep: fn(&PoolBlock) -> bool| {
                run.iter().filter(|block| keep(block)).map(|block| block.bytes).sum()
            };
            Segment {
                device,
                address: run.first().map_or(0, |block| block.ptr.raw()),
                bytes: sum(|_| true),
                allocated_bytes: sum(|block| block.state == State::Live),
                active_bytes: sum(|block| block.state != State::Cached),
                requested_bytes: run.iter().map(|block| block.requested_bytes).sum(),
                stream,
                kind: SegmentKind::Large,
                pool_id: (0, pool.id.raw()),
                is_expandable: false,
                stack: LabelId::NONE,
                blocks: run.iter().map(pool_block).collect(),
            }
        })
        .collect()
}

fn pool_block(block: &PoolBlock) -> Block {
    Block {
        address: block.ptr.raw(),
        bytes: block.bytes,
        requested_bytes: block.requested_bytes,
        state: match block.state {
            State::Live => BlockState::Allocated,
            State::Cached => BlockState::Inactive,
            _ => BlockState::PendingFree,
        },
        stack: LabelId::NONE,
    }
}

fn to_json(taken: &Snapshot) -> Value {
    let segments: Vec<Value> = taken.segments.iter().map(segment_json).collect();
    let traces: Vec<Vec<Value>> = taken
        .device_traces
        .iter()
        .map(|trace| trace.iter().map(|entry| entry_json(taken, entry)).collect())
        .collect();
    json!({ "segments": segments, "device_traces": traces, "allocator_settings": taken.allocator_settings })
}

fn segment_json(segment: &Segment) -> Value {
    let blocks: Vec<Value> = segment
        .blocks
        .iter()
        .map(|block| {
            json!({
                "address": block.address,
                "size": block.bytes,
                "requested_size": block.requested_bytes,
                "state": match block.state {
                    BlockState::Allocated => "active_allocated",
                    BlockState::PendingFree => "active_pending_free",
                    BlockState::Inactive => "inactive",
                },
            })
        })
        .collect();
    json!({
        "device": segment.device,
        "address": segment.address,
        "total_size": segment.bytes,
        "allocated_size": segment.allocated_bytes,
        "active_size": segment.active_bytes,
        "requested_size": segment.requested_bytes,
        "stream": segment.stream,
        "segment_type": if segment.kind == SegmentKind::Small { "small" } else { "large" },
        "segment_pool_id": [segment.pool_id.0, segment.pool_id.1],
        "is_expandable": segment.is_expandable,
        "blocks": blocks,
    })
}

fn entry_json(taken: &Snapshot, entry: &TraceEntry) -> Value {
    let address = if entry.action == Action::Oom { "device_free" } else { "addr" };
    let label =
        if entry.user_metadata.is_none() { String::new() } else { taken.names.describe(entry.user_metadata) };
    json!({
        "action": entry.action.word(),
        address: entry.address,
        "size": entry.bytes,
        "stream": entry.stream,
        "time_us": entry.t_us,
        "user_metadata": label,
    })
}
