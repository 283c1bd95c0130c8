//! A block with its claim.

use std::sync::Arc;

use headwater::{AllocError, Allocator, Block, Request};
use headwater_driver::{DevicePtr, Stream};

use super::oom::{OomPolicy, ask_with};
use crate::error::TierError;
use crate::reservation::Claim;
use crate::tier::SpaceId;

/// Device memory that belongs to a reservation, or to a space: dropped anywhere, it goes back to both the allocator and
/// the account it came from.
#[derive(Debug)]
pub struct ReservedBlock {
    // In this order: the memory is free before the account says so.
    block: Block,
    claim: Claim,
}

impl ReservedBlock {
    pub(crate) fn allocate(
        allocator: &Arc<dyn Allocator>,
        claim: Claim,
        request: Request,
        oom: &dyn OomPolicy,
    ) -> Result<Self, TierError> {
        let ask = || Block::allocate(allocator.clone(), request);
        let block = ask_with(&**allocator, request.bytes, oom, claim.ledger(), ask)?;
        Ok(Self { block, claim })
    }

    /// The first address.
    pub fn ptr(&self) -> DevicePtr {
        self.block.ptr()
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> u64 {
        self.block.bytes()
    }

    /// The stream that the block belongs to.
    pub fn stream(&self) -> Stream {
        self.block.stream()
    }

    /// The space.
    pub fn space(&self) -> SpaceId {
        self.claim.space()
    }

    /// Announces that work in `stream` uses the block too.
    ///
    /// # Errors
    /// Those of [`Allocator::record_stream`].
    pub fn record_stream(&self, stream: Stream) -> Result<(), AllocError> {
        self.block.record_stream(stream)
    }
}
