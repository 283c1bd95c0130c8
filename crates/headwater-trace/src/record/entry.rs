//! What a caller notes: small, and with no lookup in any table.

use std::sync::Arc;
use std::time::Instant;

/// Something that happened, as the caller knows it: blocks by address, streams by handle, labels by text.
#[derive(Debug)]
pub(super) struct Entry {
    /// When. Made into microseconds by the writing thread: a division is a tenth of what a caller pays.
    pub(super) at: Instant,
    /// What the calling thread was doing, where it said so.
    pub(super) label: Option<Arc<str>>,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// A block was given out.
    Alloc { ptr: u64, bytes: u64, stream: u64 },
    /// A block is about to be given back; `shared` where other streams were recorded on it.
    Free { ptr: u64, shared: bool },
    /// A shared block that was given back is no longer waited for.
    Complete { ptr: u64 },
    /// A request failed for want of memory.
    Oom { bytes: u64, free_bytes: u64, stream: u64 },
    /// The program marked this moment with the label.
    Mark,
}
