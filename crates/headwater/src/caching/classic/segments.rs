//! The segments: what the driver gave us, in the order of addresses.

use std::collections::BTreeMap;

use super::blocks::BlockId;
use super::tags::Tag;
use crate::stats::PoolKind;

/// A segment by its first address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SegmentId(pub(crate) u64);

/// One piece of memory from the driver.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) bytes: u64,
    pub(crate) pool: PoolKind,
    /// The stream it was made for.
    pub(crate) tag: Tag,
    /// The block at its beginning. It stays the first: splitting and merging keep the front block's number.
    pub(crate) first: BlockId,
    /// Whether it is on its way to the driver.
    pub(crate) offered: bool,
}

/// How many returned segments are remembered, to tell a block given back twice from an address that was never ours.
const REMEMBERED: usize = 64;

/// All segments, and those returned last.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    present: BTreeMap<SegmentId, Segment>,
    returned: std::collections::VecDeque<(u64, u64)>,
}

impl Segments {
    pub(crate) fn insert(&mut self, id: SegmentId, segment: Segment) {
        // The driver gives addresses out again: what is ours once more was not returned.
        let end = id.0 + segment.bytes;
        self.returned.retain(|(start, bytes)| start + bytes <= id.0 || *start >= end);
        self.present.insert(id, segment);
    }

    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<Segment> {
        let segment = self.present.remove(&id)?;
        if self.returned.len() == REMEMBERED {
            self.returned.pop_front();
        }
        self.returned.push_back((id.0, segment.bytes));
        Some(segment)
    }

    pub(crate) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.present.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.present.get_mut(&id)
    }

    /// The segment that contains `address`.
    pub(crate) fn around(&self, address: u64) -> Option<(SegmentId, &Segment)> {
        let (id, segment) = self.present.range(..=SegmentId(address)).next_back()?;
        (address - id.0 < segment.bytes).then_some((*id, segment))
    }

    /// Whether `address` was ours and went back to the driver not long ago.
    pub(crate) fn was_ours(&self, address: u64) -> bool {
        self.returned.iter().any(|(start, bytes)| (*start..start + bytes).contains(&address))
    }

    /// In the order of addresses.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (SegmentId, &Segment)> {
        self.present.iter().map(|(id, segment)| (*id, segment))
    }
}
