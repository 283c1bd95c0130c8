//! The parts of a snapshot, by the names of DESIGN's words; the pickle's own keys are beside them.

use serde_json::{Map, Value};

use crate::names::{LabelId, Names};

/// A caching allocator's state and history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The streams are not in here (entries have them raw); the texts and stacks are.
    pub names: Names,
    /// `segments`: what the allocator has from the driver, in order of address.
    pub segments: Vec<Segment>,
    /// `device_traces`: for each device what happened, oldest first.
    pub device_traces: Vec<Vec<TraceEntry>>,
    /// `allocator_settings`.
    pub allocator_settings: Map<String, Value>,
    /// `external_annotations`: marks of the program.
    pub external_annotations: Vec<ExternalAnnotation>,
    /// Keys of the file's outermost dictionary that are not kept.
    pub ignored_keys: Vec<String>,
}

/// A pool's id (`segment_pool_id`, `pool_id`): two numbers, (0, 0) for the default pool.
pub type PoolId = (u64, u64);

/// One piece of memory from the driver, or one mapped range of an expandable segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// `device`.
    pub device: u8,
    /// `address`.
    pub address: u64,
    /// `total_size`.
    pub bytes: u64,
    /// `allocated_size`: rounded bytes of blocks given out.
    pub allocated_bytes: u64,
    /// `active_size`: those, and given back but still used.
    pub active_bytes: u64,
    /// `requested_size`: what callers asked for.
    pub requested_bytes: u64,
    /// `stream`.
    pub stream: u64,
    /// `segment_type`.
    pub kind: SegmentKind,
    /// `segment_pool_id`.
    pub pool_id: PoolId,
    /// `is_expandable`.
    pub is_expandable: bool,
    /// `frames`: the stack that made it.
    pub stack: LabelId,
    /// `blocks`: side by side from the segment's address to its end.
    pub blocks: Vec<Block>,
}

/// Which pool of the caching allocator a segment is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentKind {
    /// `small`: requests of up to 1 MiB.
    Small,
    /// `large`: all others.
    #[default]
    Large,
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// `address`.
    pub address: u64,
    /// `size`: rounded.
    pub bytes: u64,
    /// `requested_size`: as asked for.
    pub requested_bytes: u64,
    /// `state`.
    pub state: BlockState,
    /// `frames`: the stack that allocated it.
    pub stack: LabelId,
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// `active_allocated`: given out.
    Allocated,
    /// `active_pending_free` (also read as `active_awaiting_free`, the name in PyTorch's documentation): given back,
    /// and still used by a stream.
    PendingFree,
    /// `inactive`: free.
    Inactive,
}

/// One entry of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// `action`.
    pub action: Action,
    /// `addr`; for [`Action::Oom`] this is `device_free`, the bytes the device had free.
    pub address: u64,
    /// `size`: as asked for in the case of blocks.
    pub bytes: u64,
    /// `stream`.
    pub stream: u64,
    /// `time_us`: since 1970.
    pub t_us: u64,
    /// `frames`; the key is absent where this is none.
    pub stack: LabelId,
    /// `compile_context`, where it is not `N/A`.
    pub compile_context: LabelId,
    /// `user_metadata`, where it is a text that is not empty.
    pub user_metadata: LabelId,
    /// `pool_id`, from PyTorch 2.15 on.
    pub pool_id: Option<(u32, u32)>,
}

/// What an entry of the history records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `alloc`
    Alloc,
    /// `free_requested`
    FreeRequested,
    /// `free_completed`: follows at once, unless another stream still used the block.
    FreeCompleted,
    /// `segment_alloc`
    SegmentAlloc,
    /// `segment_free`
    SegmentFree,
    /// `segment_map`
    SegmentMap,
    /// `segment_unmap`
    SegmentUnmap,
    /// `snapshot`: one was taken.
    Snapshot,
    /// `oom`
    Oom,
    /// `annotate`, from PyTorch 2.14 on.
    Annotate,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
        Self::Annotate,
    ];

    /// The word in the file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
            Self::Annotate => "annotate",
        }
    }
}

/// A mark of the program: some texts, a device and a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalAnnotation {
    /// `device`.
    pub device: u8,
    /// `time_us`.
    pub t_us: u64,
    /// Everything else, such as `name` and `stage`, as text labels in the order of the file.
    pub texts: Vec<(LabelId, LabelId)>,
}
