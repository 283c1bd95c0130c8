//! What a request asks of a pool: its size rounded, and the half of the pool that it is for.

use super::lanes::LaneKey;
use crate::allocator::Request;
use crate::stats::PoolKind;

/// What sizes and addresses are multiples of, as in the caching allocator.
const GRAIN_BYTES: u64 = 512;
/// Requests up to this size keep to themselves, so that they do not cut up the memory of large ones.
const SMALL_BYTES: u64 = 1 << 20;

/// Small or large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Small,
    Large,
}

impl Half {
    pub(super) const BOTH: [Self; 2] = [Self::Small, Self::Large];

    pub(super) fn kind(self) -> PoolKind {
        match self {
            Self::Small => PoolKind::SmallPool,
            Self::Large => PoolKind::LargePool,
        }
    }
}

/// A request, rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) requested_bytes: u64,
    pub(super) bytes: u64,
    pub(super) alignment_bytes: u64,
    pub(super) half: Half,
    pub(super) lane: LaneKey,
}

impl Wanted {
    pub(super) fn new(request: &Request, lane: LaneKey) -> Self {
        let bytes = request.bytes.max(1).next_multiple_of(GRAIN_BYTES);
        Self {
            requested_bytes: request.bytes,
            bytes,
            alignment_bytes: request.alignment_bytes.max(GRAIN_BYTES),
            half: if bytes <= SMALL_BYTES { Half::Small } else { Half::Large },
            lane,
        }
    }

    /// What memory at any address needs to hold it.
    pub(super) fn worst_bytes(&self) -> u64 {
        self.bytes + (self.alignment_bytes - GRAIN_BYTES)
    }
}
