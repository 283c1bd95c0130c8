//! What was there before a history began.
//!
//! PyTorch keeps the last so many entries, and recording may start late: a history frees blocks it never allocated, and
//! never mentions others that are there at its end. A replay that ignored them would start with too little live.
//!
//! - A block freed in the history, at an address that the history did not touch before: was there. Its size and stream
//!   are those of the free. (`to_trace.rs` finds these as it goes.)
//! - A block allocated at the end, at an address the history never touched, and that overlaps nothing the history
//!   allocated: was there. (One that overlaps was allocated after recording had stopped.)
//! - Segments: going backwards from those at the end, each `segment_alloc` and `segment_map` takes its range away and
//!   each `segment_free` and `segment_unmap` puts its range back. What is left was there.

use std::collections::BTreeMap;

use super::model::{Action, BlockState, Snapshot, TraceEntry};
use crate::names::LabelId;

/// A block that was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitialBlock {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) stack: LabelId,
    /// Given back before the history began, and still used.
    pub(super) pending: bool,
}

/// The blocks of `device` at the end of `entries` that were there before them, by address.
pub(super) fn untouched_blocks(
    snapshot: &Snapshot,
    device: u8,
    entries: &[TraceEntry],
    touched: impl Fn(u64) -> bool,
) -> impl Iterator<Item = InitialBlock> {
    let mut never_touched = BTreeMap::new();
    for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
        for block in &segment.blocks {
            if block.state == BlockState::Inactive || touched(block.address) {
                continue;
            }
            let pending = block.state == BlockState::PendingFree;
            let (address, bytes, stack) = (block.address, block.requested_bytes, block.stack);
            never_touched
                .insert(address, InitialBlock { address, bytes, stream: segment.stream, stack, pending });
        }
    }
    for entry in entries.iter().filter(|entry| entry.action == Action::Alloc) {
        if never_touched.is_empty() {
            break;
        }
        let end = entry.address.saturating_add(entry.bytes);
        while let Some((&address, block)) = never_touched.range(..end).next_back()
            && address.saturating_add(block.bytes) > entry.address
        {
            never_touched.remove(&address);
        }
    }
    never_touched.into_values()
}

/// A range that was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitialRange {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

/// The ranges of `device` that were mapped before `entries`, by address.
pub(super) fn segments(snapshot: &Snapshot, device: u8, entries: &[TraceEntry]) -> Vec<InitialRange> {
    let mut mapped = Mapped::default();
    for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
        mapped.add(segment.address, segment.bytes, segment.stream);
    }
    for entry in entries.iter().rev() {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => mapped.remove(entry.address, entry.bytes),
            Action::SegmentFree | Action::SegmentUnmap => {
                mapped.add(entry.address, entry.bytes, entry.stream)
            }
            _ => {}
        }
    }
    let range = |(address, (end, stream))| InitialRange { address, bytes: end - address, stream };
    mapped.0.into_iter().map(range).collect()
}

/// Ranges that do not overlap: start to end and stream. Neighbours stay apart, as segments do.
#[derive(Debug, Default)]
struct Mapped(BTreeMap<u64, (u64, u64)>);

impl Mapped {
    fn add(&mut self, address: u64, bytes: u64, stream: u64) {
        self.remove(address, bytes);
        let end = address.saturating_add(bytes);
        if end > address {
            self.0.insert(address, (end, stream));
        }
    }

    fn remove(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        while let Some((&start, &(range_end, stream))) = self.0.range(..end).next_back()
            && range_end > address
        {
            self.0.remove(&start);
            if range_end > end {
                self.0.insert(end, (range_end, stream));
            }
            if start < address {
                self.0.insert(start, (address, stream));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_middle_leaves_both_sides() {
        let mut mapped = Mapped::default();
        mapped.add(100, 50, 1);
        mapped.add(150, 50, 2);
        mapped.remove(120, 60);
        assert_eq!(mapped.0, BTreeMap::from([(100, (120, 1)), (180, (200, 2))]));
        mapped.remove(0, u64::MAX);
        assert!(mapped.0.is_empty());
    }
}
