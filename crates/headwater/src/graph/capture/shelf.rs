//! Blocks that were given back a moment ago, whole and cut to size.
//!
//! A captured program mostly asks for the sizes that it has just given back. Such a block would be made one with its free
//! neighbours and cut out of them again a moment later, which is most of what a pair costs (some ten searches in trees). So it lies on
//! a shelf first, and the next request of the same lane and size takes it off. The carver has it as a used piece meanwhile, so
//! nothing can become part of it.
//!
//! A shelf changes nothing about who may use what: each block keeps the lane and the stamp of its give-back, only its own lane is served
//! from here, and before anybody takes or moves free pieces the shelf is *settled*: its blocks go where they would have gone at once
//! (`Core::settle`).

use super::lanes::LaneKey;
use super::wanted::Wanted;

/// Not many, because they are looked through from the newest: 32 of 80 bytes lie in a first-level cache.
const ROOM: usize = 32;

#[derive(Clone, Copy, Debug)]
pub(super) struct Shelved {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) lane: LaneKey,
    /// When it became free.
    pub(super) stamp: u64,
}

/// The blocks, oldest first.
#[derive(Debug, Default)]
pub(super) struct Shelf(Vec<Shelved>);

impl Shelf {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= ROOM
    }

    #[inline]
    pub(super) fn put(&mut self, block: Shelved) {
        self.0.push(block);
    }

    /// The newest block that is what is wanted, to the byte.
    #[inline]
    pub(super) fn take(&mut self, wanted: &Wanted) -> Option<u64> {
        let place = self.0.iter().rposition(|block| {
            block.bytes == wanted.bytes
                && block.lane == wanted.lane
                // A power of two: no division here.
                && block.address & (wanted.alignment_bytes - 1) == 0
        })?;
        let address = self.0[place].address;
        // Nearly always the newest.
        if place + 1 == self.0.len() {
            self.0.truncate(place);
        } else {
            self.0.remove(place);
        }
        Some(address)
    }

    /// All of them, oldest first; the shelf is empty then.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Shelved> + '_ {
        self.0.drain(..)
    }

    pub(super) fn blocks(&self) -> &[Shelved] {
        &self.0
    }

    pub(super) fn has(&self, address: u64) -> bool {
        self.0.iter().any(|block| block.address == address)
    }
}

#[cfg(test)]
mod tests {
    use headwater_driver::{DeviceId, Stream};

    use super::super::lanes::Scope;
    use super::*;
    use crate::allocator::Request;

    fn lane(stream: u64, capture: u64) -> LaneKey {
        LaneKey::new(Stream::from_raw(DeviceId(0), stream), Some(Scope { route: 1, capture }))
    }

    fn wanted(bytes: u64, alignment_bytes: u64, lane: LaneKey) -> Wanted {
        Wanted::new(&Request::new(bytes, lane.stream).aligned_to(alignment_bytes), lane)
    }

    #[test]
    fn only_the_same_lane_size_and_alignment_is_served_and_the_newest_first() {
        let mut shelf = Shelf::default();
        for (address, lane) in [(0x10_0000, lane(10, 1)), (0x10_0200, lane(10, 1)), (0x10_0400, lane(11, 1))]
        {
            shelf.put(Shelved { address, bytes: 512, lane, stamp: address });
        }
        assert_eq!(shelf.take(&wanted(513, 256, lane(10, 1))), None);
        assert_eq!(shelf.take(&wanted(512, 256, lane(10, 2))), None, "another capture");
        assert_eq!(shelf.take(&wanted(512, 256, lane(12, 1))), None, "another stream");
        assert_eq!(shelf.take(&wanted(512, 4096, lane(10, 1))), Some(0x10_0000));
        assert_eq!(shelf.take(&wanted(100, 256, lane(10, 1))), Some(0x10_0200));
        assert_eq!(shelf.take(&wanted(100, 256, lane(10, 1))), None);
        assert!(shelf.has(0x10_0400) && !shelf.has(0x10_0200));
    }

    #[test]
    fn it_has_an_end_and_is_emptied_oldest_first() {
        let mut shelf = Shelf::default();
        for address in 0.. {
            if shelf.is_full() {
                break;
            }
            shelf.put(Shelved { address, bytes: 512, lane: lane(10, 1), stamp: address });
        }
        let stamps: Vec<u64> = shelf.clear().map(|block| block.stamp).collect();
        assert_eq!(stamps, (0..ROOM as u64).collect::<Vec<_>>());
        assert!(shelf.is_empty());
    }
}
