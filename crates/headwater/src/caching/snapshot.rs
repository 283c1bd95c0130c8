//! Everything at one moment: segments, blocks and their states, shaped as `torch.cuda.memory._snapshot()` is.

use headwater_driver::{DeviceId, DevicePtr, Stream};

use super::CachingAllocator;
use super::classic::blocks::Block;
use super::classic::{State, Tag};
use super::core::Core;
use super::front::office::Office;
use super::history::HistoryEvent;
use crate::Allocator;
use crate::stats::PoolKind;

/// An allocator at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The device.
    pub device: DeviceId,
    /// In the order of addresses.
    pub segments: Vec<SegmentSnapshot>,
    /// The latest events, oldest first; empty where no history is kept.
    pub trace: Vec<HistoryEvent>,
    /// How many older events were dropped.
    pub trace_dropped: u64,
    /// The settings that are not the default, as a settings string.
    pub settings: String,
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentSnapshot {
    /// Its first address.
    pub address: DevicePtr,
    /// What the driver gave: `total_size`.
    pub total_bytes: u64,
    /// Of blocks that callers hold: `allocated_size`.
    pub allocated_bytes: u64,
    /// The same, and those that are still used: `active_size`.
    pub active_bytes: u64,
    /// What callers asked for: `requested_size`.
    pub requested_bytes: u64,
    /// The stream it was made for.
    pub stream: Stream,
    /// Its pool: `segment_type`.
    pub pool: PoolKind,
    /// Whether it can grow: `is_expandable`. Always in the paged backing, never in the classic one.
    pub is_expandable: bool,
    /// In the order of addresses, without gaps.
    pub blocks: Vec<BlockSnapshot>,
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockSnapshot {
    /// Its first address.
    pub address: DevicePtr,
    /// What it takes up: `size`.
    pub bytes: u64,
    /// What was asked for: `requested_size`; 0 where nobody holds it.
    pub requested_bytes: u64,
    /// What it is doing.
    pub state: SnapshotState,
}

/// What a block is doing, in PyTorch's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotState {
    /// A caller holds it.
    ActiveAllocated,
    /// It was given back, and a stream still uses it.
    ActivePendingFree,
    /// It is free.
    Inactive,
}

impl SnapshotState {
    /// PyTorch's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// How much of what the driver gave is of no use at this moment, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fragmentation {
    /// 1 - live / reserved, now.
    pub current: f64,
    /// 1 - peak live / peak reserved.
    pub peak: f64,
    /// Free, in segments that are partly in use: cannot go back to the driver.
    pub split_bytes: u64,
    /// Free, in whole segments: goes back when asked for.
    pub releasable_bytes: u64,
    /// Lost to rounding and alignment.
    pub rounding_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
}

/// The largest request that could be served now, without waiting for any stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LargestAvailable {
    /// From the free blocks of the stream, without a driver call.
    pub cached_bytes: u64,
    /// From a new segment, after returning what is cached: the limit and the device's free memory allow it. Whether the
    /// driver has it in one piece is for the driver to say.
    pub growable_bytes: u64,
}

impl LargestAvailable {
    /// The larger of both.
    pub fn bytes(&self) -> u64 {
        self.cached_bytes.max(self.growable_bytes)
    }
}

impl BlockSnapshot {
    fn new(office: &Office, block: &Block) -> Self {
        // What a thread keeps is live for the engine alone.
        let held_bytes = if block.state == State::Live {
            office.held_bytes(block.outer_ptr(), block.requested_bytes)
        } else {
            None
        };
        Self {
            address: DevicePtr::new(block.ptr),
            bytes: block.bytes,
            requested_bytes: held_bytes.unwrap_or(0),
            state: match block.state {
                State::Live if held_bytes.is_some() => SnapshotState::ActiveAllocated,
                State::Pending => SnapshotState::ActivePendingFree,
                State::Live | State::Free | State::Offered => SnapshotState::Inactive,
            },
        }
    }
}

impl SegmentSnapshot {
    /// The segment that consists of `blocks`.
    fn new(office: &Office, blocks: &[&Block], stream: Stream, pool: PoolKind, is_expandable: bool) -> Self {
        let blocks: Vec<BlockSnapshot> =
            blocks.iter().map(|block| BlockSnapshot::new(office, block)).collect();
        let sum = |keep: fn(&BlockSnapshot) -> bool| {
            blocks.iter().filter(|block| keep(block)).map(|block| block.bytes).sum()
        };
        Self {
            address: blocks.first().map_or(DevicePtr::NULL, |block| block.address),
            total_bytes: sum(|_| true),
            allocated_bytes: sum(|block| block.state == SnapshotState::ActiveAllocated),
            active_bytes: sum(|block| block.state != SnapshotState::Inactive),
            requested_bytes: blocks.iter().map(|block| block.requested_bytes).sum(),
            stream,
            pool,
            is_expandable,
            blocks,
        }
    }
}

impl CachingAllocator {
    /// Everything at this moment. Stops the allocator for the time of copying it.
    pub fn snapshot(&self) -> Snapshot {
        self.at_rest(|state| self.snapshot_of(state))
    }

    fn snapshot_of(&self, state: &super::state::State) -> Snapshot {
        let office = &state.office;
        let segments = match &state.core {
            Core::Classic(core) => core
                .walk()
                .map(|(_, segment, blocks)| {
                    let stream = core.stream_of(segment.tag, self.device);
                    SegmentSnapshot::new(office, &blocks, stream, segment.pool, false)
                })
                .collect(),
            // What is mapped without a gap is one segment that can grow, as PyTorch shows its own.
            Core::Paged(core) => core
                .runs()
                .iter()
                .map(|run| {
                    let tag = run.blocks.first().map_or(Tag::ANY, |block| block.tag);
                    let stream = core.stream_of(tag, self.device);
                    SegmentSnapshot::new(office, &run.blocks, stream, run.region.pool(), true)
                })
                .collect(),
        };
        let (trace, trace_dropped) = state.history.read();
        let settings = self.config.to_settings_string();
        Snapshot { device: self.device, segments, trace, trace_dropped, settings }
    }

    /// How much of what the driver gave is of no use, and why. What threads keep goes to the engine first, so that it is seen
    /// as what it is: free.
    pub fn fragmentation(&self) -> Fragmentation {
        self.collect();
        let state = self.state.lock();
        let stats = &state.stats();
        Fragmentation {
            current: stats.current_fragmentation(),
            peak: stats.fragmentation(),
            split_bytes: stats.inactive_split_bytes.all.current,
            releasable_bytes: state.core.releasable_bytes(),
            rounding_bytes: stats.allocated_bytes.all.current - stats.requested_bytes.all.current,
            largest_free_bytes: state.core.largest_free_bytes(),
        }
    }

    /// The largest request of `stream` that could be served now. What threads keep goes to the engine first.
    ///
    /// # Errors
    /// Where the device cannot be asked for its free memory.
    pub fn largest_available(&self, stream: Stream) -> Result<LargestAvailable, crate::AllocError> {
        crate::allocator::check_stream(stream, self.device)?;
        let memory = self.driver().memory_info(self.device)?;
        self.collect();
        let state = self.state.lock();
        let core = &state.core;
        let releasable_bytes = core.releasable_bytes();
        let held_bytes = core.stats().reserved_bytes.all.current + core.promised_bytes();
        let under_limit = core.limit_bytes().map_or(u64::MAX, |limit| limit.saturating_sub(held_bytes));
        let growable_bytes = memory.free_bytes.min(under_limit).saturating_add(releasable_bytes);
        let cached_bytes = core.largest_free_bytes_of(core.tags().find(stream));
        // Segments are made to measure in steps of 2 MiB.
        let step = crate::config::LARGE_SEGMENT_UNIT_BYTES;
        Ok(LargestAvailable { cached_bytes, growable_bytes: growable_bytes / step * step })
    }
}
