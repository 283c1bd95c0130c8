//! A pool's state looked at from outside: one block, or everything compared with what is counted.

use headwater_driver::{DevicePtr, Stream};

use super::carver::Carver;
use super::core::{Core, Live, Pending};
use super::shelf::Shelved;
use super::wanted::Half;
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
        let piece = Half::BOTH.iter().find_map(|half| self.carver(*half).piece_at(address))?;
        if let Some(block) = self.live_at(piece.address) {
            return Some(facts(piece.address, block, BlockState::Live));
        }
        let inside =
            |pending: &&Pending| (pending.address..pending.address + pending.block.bytes).contains(&address);
        if let Some(pending) = self.pending.iter().find(inside) {
            return Some(facts(pending.address, &pending.block, BlockState::Pending));
        }
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
                if piece.free.is_none() && !self.shelf(half).has(piece.address) {
                    walked.active.add(half.kind(), 1);
                    walked.active_bytes.add(half.kind(), piece.bytes);
                }
            }
        }
        for (_, block) in self.live() {
            walked.allocation.add(block.half.kind(), 1);
            walked.allocated_bytes.add(block.half.kind(), block.bytes);
            walked.requested_bytes.add(block.half.kind(), block.requested_bytes);
        }
        self.stats.reconcile(&walked)
    }

    /// Walks everything.
    pub(super) fn verify(&self) -> Result<(), String> {
        for half in Half::BOTH {
            self.carver(half).verify()?;
            self.verify_shelf(half)?;
        }
        if self.live().count() != self.live_len() {
            return Err(format!("{} blocks are held, {} have a piece", self.live_len(), self.live().count()));
        }
        let pending = self.pending.iter().map(|pending| (pending.address, &pending.block));
        for (address, block) in self.live().chain(pending) {
            if !is_used(self.carver(block.half), address, block.bytes) {
                return Err(format!("the block at {address:#x} is not the piece there"));
            }
        }
        self.reconcile().map_err(|differences| differences.to_string())
    }

    /// What lies on a shelf is a used piece that nobody holds and nothing waits for.
    fn verify_shelf(&self, half: Half) -> Result<(), String> {
        let shelved = self.shelf(half).blocks();
        for (place, Shelved { address, bytes, .. }) in shelved.iter().enumerate() {
            let is_twice = shelved.iter().skip(place + 1).any(|other| other.address == *address);
            let is_pending = self.pending.iter().any(|pending| pending.address == *address);
            let is_piece = is_used(self.carver(half), *address, *bytes);
            if is_twice || is_pending || self.live_at(*address).is_some() || !is_piece {
                return Err(format!("the block at {address:#x} is on the shelf and not free"));
            }
        }
        Ok(())
    }
}

/// Whether exactly these bytes are a used piece.
fn is_used(carver: &Carver, address: u64, bytes: u64) -> bool {
    let piece = carver.piece_at(address);
    piece.is_some_and(|piece| (piece.address, piece.bytes, piece.free) == (address, bytes, None))
}

fn tally(array: &StatArray) -> Tally {
    Tally {
        all: array.all.current,
        small_pool: array.small_pool.current,
        large_pool: array.large_pool.current,
    }
}
