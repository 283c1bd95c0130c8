//! The size rules in force: PyTorch's numbers with the settings of one configuration.
//!
//! Everything here is a pure function of sizes. The numbers themselves are in [`crate::config`].

use crate::allocator::{DEFAULT_ALIGNMENT_BYTES, Request};
use crate::config::{
    Config, LARGE_SEGMENT_UNIT_BYTES, MIB, MIN_BLOCK_BYTES, RoundupDivisions, is_small, round_size,
    segment_bytes,
};
use crate::stats::PoolKind;

/// A rest of a large block is split off where it is larger than this.
const LARGE_SPLIT_MIN_REST_BYTES: u64 = MIB;

/// The rules of one allocator.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    divisions: RoundupDivisions,
    large_segment_bytes: u64,
    /// `u64::MAX` where all blocks may be split.
    max_split_bytes: u64,
    max_non_split_rounding_bytes: u64,
    caching: bool,
}

/// What a request needs: the outcome of the rules, computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// What the caller asked for.
    pub(crate) requested_bytes: u64,
    /// The smallest block that holds it, alignment apart.
    pub(crate) block_bytes: u64,
    /// The smallest block that holds it wherever the block begins.
    pub(crate) padded_bytes: u64,
    /// What the address given out is a multiple of.
    pub(crate) alignment_bytes: u64,
    /// The pool it is served from.
    pub(crate) pool: PoolKind,
}

impl Rules {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            divisions: *config.roundup_divisions(),
            large_segment_bytes: config.large_segment_bytes(),
            max_split_bytes: config.max_split_bytes().unwrap_or(u64::MAX),
            max_non_split_rounding_bytes: config.max_non_split_rounding_bytes(),
            caching: config.caching(),
        }
    }

    /// What `request` needs.
    pub(crate) fn wanted(&self, request: &Request) -> Wanted {
        let block_bytes = self.block_bytes(request.bytes);
        // Segments begin at multiples of what the driver promises, and blocks are cut in multiples of it: an aligned
        // address is at most this far from a block's beginning.
        let padding_bytes = request.alignment_bytes.saturating_sub(DEFAULT_ALIGNMENT_BYTES);
        let padded_bytes =
            if padding_bytes == 0 { block_bytes } else { self.block_bytes(request.bytes + padding_bytes) };
        let pool = if is_small(padded_bytes) { PoolKind::SmallPool } else { PoolKind::LargePool };
        Wanted {
            requested_bytes: request.bytes,
            block_bytes,
            padded_bytes,
            alignment_bytes: request.alignment_bytes,
            pool,
        }
    }

    fn block_bytes(&self, bytes: u64) -> u64 {
        round_size(bytes, &self.divisions)
    }

    /// The segment to ask the driver for. Without caching a segment is one block.
    pub(crate) fn segment_bytes(&self, wanted: &Wanted) -> u64 {
        if self.caching {
            segment_bytes(wanted.padded_bytes, self.large_segment_bytes)
        } else {
            wanted.padded_bytes
        }
    }

    /// The smallest segment that would do, for when the usual one cannot be had. Nothing where the usual one is no larger.
    pub(crate) fn tight_segment_bytes(&self, wanted: &Wanted) -> Option<u64> {
        let tight_bytes = wanted.padded_bytes.checked_next_multiple_of(LARGE_SEGMENT_UNIT_BYTES)?;
        (tight_bytes < self.segment_bytes(wanted)).then_some(tight_bytes)
    }

    /// Whether a free block of `block_bytes`, the smallest that is large enough, may serve a request of `wanted_bytes`:
    /// oversize blocks are kept for oversize requests of about their size.
    pub(crate) fn may_serve(&self, wanted_bytes: u64, block_bytes: u64) -> bool {
        if self.is_oversize(wanted_bytes) {
            block_bytes < wanted_bytes.saturating_add(self.max_non_split_rounding_bytes)
        } else {
            !self.is_oversize(block_bytes)
        }
    }

    /// Whether what is left of a block is worth a block of its own.
    pub(crate) fn should_split(&self, pool: PoolKind, wanted_bytes: u64, rest_bytes: u64) -> bool {
        match pool {
            PoolKind::SmallPool => rest_bytes >= MIN_BLOCK_BYTES,
            _ => !self.is_oversize(wanted_bytes) && rest_bytes > LARGE_SPLIT_MIN_REST_BYTES,
        }
    }

    /// Whether blocks of this size are never split.
    pub(crate) fn is_oversize(&self, block_bytes: u64) -> bool {
        block_bytes >= self.max_split_bytes
    }

    /// The size from which blocks are oversize, where there is one.
    pub(crate) fn max_split_bytes(&self) -> Option<u64> {
        (self.max_split_bytes != u64::MAX).then_some(self.max_split_bytes)
    }
}

#[cfg(test)]
mod tests {
    use headwater_driver::{DeviceId, Stream};

    use super::*;

    fn wanted(bytes: u64, alignment_bytes: u64) -> Wanted {
        let request = Request::new(bytes, Stream::legacy_default(DeviceId(0)));
        Rules::new(&Config::default()).wanted(&request.aligned_to(alignment_bytes))
    }

    #[test]
    fn an_alignment_beyond_the_drivers_adds_room_and_may_change_the_pool() {
        assert_eq!((wanted(1000, 256).block_bytes, wanted(1000, 256).padded_bytes), (1024, 1024));
        assert_eq!(wanted(1000, 512).padded_bytes, 1536);
        assert_eq!(wanted(MIB, 256).pool, PoolKind::SmallPool);
        assert_eq!(wanted(MIB, 4096).pool, PoolKind::LargePool);
    }

    #[test]
    fn oversize_blocks_are_for_oversize_requests_of_about_their_size() {
        let rules = Rules::new(&Config::parse("max_split_size_mb:64,max_non_split_rounding_mb:32").unwrap());
        assert!(rules.may_serve(63 * MIB, 63 * MIB));
        assert!(!rules.may_serve(63 * MIB, 64 * MIB));
        assert!(rules.may_serve(64 * MIB, 95 * MIB));
        assert!(!rules.may_serve(64 * MIB, 96 * MIB));
        assert!(!rules.should_split(PoolKind::LargePool, 64 * MIB, 20 * MIB));
        assert!(rules.should_split(PoolKind::LargePool, 62 * MIB, 2 * MIB));
        assert!(!rules.should_split(PoolKind::LargePool, 62 * MIB, MIB));
    }

    #[test]
    fn without_caching_a_segment_is_one_block() {
        let rules = Rules::new(&Config::parse("caching_allocator:False").unwrap());
        assert_eq!(rules.segment_bytes(&wanted(1000, 256)), 1024);
        assert_eq!(Rules::new(&Config::default()).segment_bytes(&wanted(1000, 256)), 2 * MIB);
    }
}
