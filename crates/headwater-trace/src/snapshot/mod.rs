//! PyTorch's memory snapshot: what `torch.cuda.memory._snapshot()` returns and `_dump_snapshot` pickles.
//!
//! [`Snapshot`] holds what the file says, addresses included: the state of the allocator when it was taken
//! ([`Segment`], [`Block`]) and the history before that ([`TraceEntry`], per device). `frames` become labels of
//! [`Names`](crate::Names).
//!
//! | from | to | by |
//! |---|---|---|
//! | pickle | [`Snapshot`] | [`Snapshot::from_pickle`] |
//! | [`Snapshot`] | pickle | [`Snapshot::write`] |
//! | [`Snapshot`] | [`Trace`](crate::Trace) | [`Snapshot::to_trace`] |
//! | [`Trace`](crate::Trace) | [`Snapshot`] | [`Snapshot::from_trace`] |
//! | Headwater's own [`Snapshot`](headwater::caching::snapshot::Snapshot) | [`Snapshot`] | [`Snapshot::from_allocator`] |
//!
//! Keys are those of PyTorch 2.6 to 2.15. Not kept: `host_segments` and `host_traces` of 2.15 (pinned host memory), and
//! the `fx_*` keys of frames; [`Snapshot::ignored_keys`] names what was in a file and is not here.

mod from_allocator;
mod from_pickle;
mod from_trace;
mod initial;
mod keys;
mod model;
mod place;
mod to_pickle;
mod to_trace;

pub use model::{
    Action, Block, BlockState, ExternalAnnotation, PoolId, Segment, SegmentKind, Snapshot, TraceEntry,
};

#[cfg(test)]
mod tests;
