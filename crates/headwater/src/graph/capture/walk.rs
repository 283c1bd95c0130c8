//! A pool's state looked at from outside: one block, or everything compared with what is counted.

use headwater_driver::{DevicePtr, Stream};

use super::core::{Core, Half, Live, Pending};
use crate::allocator::{BlockFacts, BlockState};
use crate::stats::{Differences, StatArray, Tally, WalkedTotals};

impl Core {
    /// The block or free piece around an address.
    pub(super) fn block_at(&self, ptr: DevicePtr, nobody: Stream) -> Option<BlockFacts> {
        let address = ptr.raw();
        let facts = |at: u64, block: &Live, state| {
            let ptr = DevicePtr::new(at);
            BlockFacts::new(ptr, block.requested_bytes, block.bytes, block.lane.stream, state)
        };
        if let Some((at, block)) = self.live.range(..=address).next_back()
            && address - at < block.bytes
        {
            return Some(facts(*at, block, BlockState::Live));
        }
        let inside =
            |pending: &&Pending| (pending.address..pending.address + pending.block.bytes).contains(&address);
        if let Some(pending) = self.pending.iter().find(inside) {
            return Some(facts(pending.address, &pending.block, BlockState::Pending));
        }
        let piece = Half::BOTH.iter().find_map(|half| self.carver(*half).piece_at(address))?;
        let ptr = DevicePtr::new(piece.address);
        Some(BlockFacts::new(ptr, 0, piece.bytes, nobody, BlockState::Cached))
    }

    /// Compares what is counted with what is there.
    pub(super) fn reconcile(&self) -> Result<(), Differences> {
        let mut walked = WalkedTotals {
            // Not told apart by pieces: counted and found by the same figure.
            segment: tally(&self.stats.segment),
            ..WalkedTotals::default()
        };
        for half in Half::BOTH {
            for piece in self.carver(half).pieces() {
                walked.reserved_bytes.add(half.kind(), piece.bytes);
                if piece.free.is_none() {
                    walked.active.add(half.kind(), 1);
                    walked.active_bytes.add(half.kind(), piece.bytes);
                }
            }
        }
        for block in self.live.values() {
            walked.allocation.add(block.half.kind(), 1);
            walked.allocated_bytes.add(block.half.kind(), block.bytes);
            walked.requested_bytes.add(block.half.kind(), block.requested_bytes);
        }
        self.stats.reconcile(&walked)
    }

    /// Walks everything.
    pub(super) fn verify(&self) -> Result<(), String> {
        Half::BOTH.iter().try_for_each(|half| self.carver(*half).verify())?;
        let used = |address: u64, half, bytes| {
            let piece = self.carver(half).piece_at(address);
            piece.is_some_and(|piece| (piece.address, piece.bytes, piece.free) == (address, bytes, None))
        };
        let live = self.live.iter().map(|(address, block)| (*address, block));
        let pending = self.pending.iter().map(|pending| (pending.address, &pending.block));
        for (address, block) in live.chain(pending) {
            if !used(address, block.half, block.bytes) {
                return Err(format!("the block at {address:#x} is not the piece there"));
            }
        }
        self.reconcile().map_err(|differences| differences.to_string())
    }
}

fn tally(array: &StatArray) -> Tally {
    Tally {
        all: array.all.current,
        small_pool: array.small_pool.current,
        large_pool: array.large_pool.current,
    }
}
