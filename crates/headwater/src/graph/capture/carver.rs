//! Pieces of fixed memory, used or free, and the best fit among the free. No lock, no driver, no streams.
//!
//! A free piece has a *lane*: who may use it next without waiting. Lane [`Lane::ANYONE`] is for everybody; any other number means
//! what the owner of the carver says. Neighbours of the same lane are one piece. A free piece also has a *stamp*, the time it became
//! free (the latest of its parts), so that "everything freed in this lane until then" can be moved to another lane.

use std::collections::{BTreeMap, BTreeSet};

/// Who may use a free piece next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Lane(pub(super) u32);

impl Lane {
    pub(super) const ANYONE: Self = Self(0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Used,
    Free { lane: Lane, stamp: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    usage: Use,
    /// Whether it cannot be one with the piece before it.
    walled: bool,
}

/// A piece as it is told to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceFacts {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// `None`: used.
    pub(super) free: Option<(Lane, u64)>,
}

/// All pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Carver {
    pieces: BTreeMap<u64, Piece>,
    /// Free pieces by lane, size and address.
    free: BTreeSet<(Lane, u64, u64)>,
}

impl Carver {
    /// Takes over memory, free in `lane` since `stamp`. `walled`: it cannot be one with what lies before it.
    pub(super) fn admit(&mut self, base: u64, bytes: u64, walled: bool, lane: Lane, stamp: u64) {
        let touches =
            self.pieces.range(..base).next_back().is_some_and(|(at, piece)| at + piece.bytes == base);
        self.insert(base, Piece { bytes, usage: Use::Used, walled: walled || !touches });
        self.release(base, lane, stamp);
    }

    /// The free bytes that end at `end`, and their lane.
    pub(super) fn free_before(&self, end: u64) -> Option<(Lane, u64)> {
        let (address, piece) = self.pieces.range(..end).next_back()?;
        match piece.usage {
            Use::Free { lane, .. } if address + piece.bytes == end => Some((lane, piece.bytes)),
            _ => None,
        }
    }

    /// Uses `bytes` of the smallest free piece in `lane` that was freed at `until` or before.
    pub(super) fn take(&mut self, lane: Lane, until: u64, bytes: u64, alignment_bytes: u64) -> Option<u64> {
        let fitting = self.free.range((lane, bytes, 0)..=(lane, u64::MAX, u64::MAX));
        let at = fitting.into_iter().find_map(|(_, piece_bytes, address)| {
            let piece = self.pieces.get(address)?;
            let fresh_enough = matches!(piece.usage, Use::Free { stamp, .. } if stamp <= until);
            let at = address.checked_next_multiple_of(alignment_bytes)?;
            (fresh_enough && at.checked_add(bytes)? <= address + piece_bytes).then_some(at)
        })?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Uses exactly these bytes, where they lie in free pieces without a gap or a wall between them.
    pub(super) fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let end = at + bytes;
        let mut covered = at;
        let mut parts = Vec::new();
        let first = self.pieces.range(..=at).next_back().map_or(at, |(address, _)| *address);
        for (address, piece) in self.pieces.range(first..end) {
            let usable = piece.usage != Use::Used && *address <= covered && !(piece.walled && *address > at);
            if !usable {
                return false;
            }
            covered = address + piece.bytes;
            parts.push(*address);
        }
        if covered < end {
            return false;
        }
        let mut walled = false;
        for address in parts {
            let Some(piece) = self.remove(address) else { continue };
            let piece_end = address + piece.bytes;
            if address < at {
                self.insert(address, Piece { bytes: at - address, ..piece });
            } else if address == at {
                walled = piece.walled;
            }
            if piece_end > end {
                self.insert(end, Piece { bytes: piece_end - end, walled: false, ..piece });
            }
        }
        self.insert(at, Piece { bytes, usage: Use::Used, walled });
        true
    }

    /// A used piece is free.
    pub(super) fn release(&mut self, address: u64, lane: Lane, stamp: u64) {
        let Some(piece) = self.remove(address) else { return };
        let usage = Use::Free { lane, stamp };
        self.insert(address, Piece { usage, ..piece });
        self.merge_around(address);
    }

    /// Makes a free piece one with its free neighbours of the same lane.
    fn merge_around(&mut self, address: u64) {
        let next = self.pieces.range(address + 1..).next().map(|(next, _)| *next);
        if let Some(next) = next {
            self.merge(address, next);
        }
        let before = self.pieces.range(..address).next_back().map(|(before, _)| *before);
        if let Some(before) = before {
            self.merge(before, address);
        }
    }

    fn merge(&mut self, first: u64, second: u64) {
        let (Some(a), Some(b)) = (self.pieces.get(&first).copied(), self.pieces.get(&second).copied()) else {
            return;
        };
        if let (Use::Free { lane, stamp }, Use::Free { lane: other, stamp: later }) = (a.usage, b.usage)
            && lane == other
            && !b.walled
            && first + a.bytes == second
        {
            self.remove(first);
            self.remove(second);
            let usage = Use::Free { lane, stamp: stamp.max(later) };
            self.insert(first, Piece { bytes: a.bytes + b.bytes, usage, walled: a.walled });
        }
    }

    /// What was freed in `from` until `until` is free in `to`.
    pub(super) fn move_lane(&mut self, from: Lane, to: Lane, until: u64) {
        let pieces: Vec<u64> = self
            .free
            .range((from, 0, 0)..=(from, u64::MAX, u64::MAX))
            .map(|(.., address)| *address)
            .filter(|address| match self.pieces.get(address).map(|piece| piece.usage) {
                Some(Use::Free { stamp, .. }) => stamp <= until,
                _ => false,
            })
            .collect();
        for address in pieces {
            // It may have become part of its neighbour meanwhile.
            if let Some(Piece { usage: Use::Free { lane, stamp }, .. }) = self.pieces.get(&address).copied()
                && lane == from
            {
                self.release(address, to, stamp);
            }
        }
    }

    /// Gives the free parts of a range another lane.
    pub(super) fn move_range(&mut self, base: u64, bytes: u64, to: Lane, stamp: u64) {
        let end = base + bytes;
        let first = self.pieces.range(..=base).next_back().map_or(base, |(address, _)| *address);
        let free: Vec<(u64, u64)> = self
            .pieces
            .range(first..end)
            .filter(|(_, piece)| piece.usage != Use::Used)
            .map(|(address, piece)| ((*address).max(base), (address + piece.bytes).min(end)))
            .filter(|(from, until)| from < until)
            .collect();
        for (from, until) in free {
            if self.take_at(from, until - from) {
                self.release(from, to, stamp);
            }
        }
    }

    /// Lets go of a range where all of it is free for anyone.
    pub(super) fn remove_range(&mut self, base: u64, bytes: u64) -> bool {
        let end = base + bytes;
        let Some((address, piece)) = self.pieces.range(..=base).next_back() else { return false };
        let free = matches!(piece.usage, Use::Free { lane: Lane::ANYONE, .. });
        if !free || address + piece.bytes < end || !self.take_at(base, bytes) {
            return false;
        }
        self.remove(base);
        // What lies behind has nothing before it now.
        if let Some(next) = self.pieces.get_mut(&end) {
            next.walled = true;
        }
        true
    }

    /// Whether any piece is free in `lane`.
    pub(super) fn has_free(&self, lane: Lane) -> bool {
        self.free.range((lane, 0, 0)..=(lane, u64::MAX, u64::MAX)).next().is_some()
    }

    /// The piece that contains `address`.
    pub(super) fn piece_at(&self, address: u64) -> Option<PieceFacts> {
        let (at, piece) = self.pieces.range(..=address).next_back()?;
        (address - at < piece.bytes).then(|| facts(*at, piece))
    }

    /// All pieces, in the order of addresses.
    pub(super) fn pieces(&self) -> impl Iterator<Item = PieceFacts> + '_ {
        self.pieces.iter().map(|(address, piece)| facts(*address, piece))
    }

    /// The same memory, all of it free for anyone.
    pub(super) fn all_free(&self) -> Self {
        let mut fresh = Self::default();
        for (address, piece) in &self.pieces {
            fresh.admit(*address, piece.bytes, piece.walled, Lane::ANYONE, 0);
        }
        fresh
    }

    fn insert(&mut self, address: u64, piece: Piece) {
        if let Use::Free { lane, .. } = piece.usage {
            self.free.insert((lane, piece.bytes, address));
        }
        self.pieces.insert(address, piece);
    }

    fn remove(&mut self, address: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&address)?;
        if let Use::Free { lane, .. } = piece.usage {
            self.free.remove(&(lane, piece.bytes, address));
        }
        Some(piece)
    }

    /// Walks everything: no overlap, neighbours merged, the index right.
    pub(super) fn verify(&self) -> Result<(), String> {
        let mut before: Option<(u64, Piece)> = None;
        let mut free = 0;
        for (address, piece) in &self.pieces {
            if let Use::Free { lane, .. } = piece.usage {
                free += 1;
                if !self.free.contains(&(lane, piece.bytes, *address)) {
                    return Err(format!("the free piece at {address:#x} is not in the index"));
                }
            }
            if let Some((at, last)) = before {
                let end = at + last.bytes;
                if end > *address || (end < *address && !piece.walled) {
                    return Err(format!(
                        "the piece at {at:#x} ends at {end:#x}, the next is at {address:#x}"
                    ));
                }
                if let (Use::Free { lane, .. }, Use::Free { lane: other, .. }) = (last.usage, piece.usage)
                    && lane == other
                    && !piece.walled
                {
                    return Err(format!("the free pieces at {at:#x} and {address:#x} are not one"));
                }
            }
            before = Some((*address, *piece));
        }
        if free == self.free.len() {
            Ok(())
        } else {
            Err(format!("{} of {free} free pieces indexed", self.free.len()))
        }
    }
}

fn facts(address: u64, piece: &Piece) -> PieceFacts {
    let free = match piece.usage {
        Use::Used => None,
        Use::Free { lane, stamp } => Some((lane, stamp)),
    };
    PieceFacts { address, bytes: piece.bytes, free }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ALWAYS: u64 = u64::MAX;

    fn carver(bytes: u64) -> Carver {
        let mut carver = Carver::default();
        carver.admit(0x1000_0000, bytes, true, Lane::ANYONE, 0);
        carver
    }

    #[test]
    fn the_smallest_piece_that_fits_is_taken_and_cut() {
        let mut carver = carver(16 * MIB);
        let a = carver.take(Lane::ANYONE, ALWAYS, 4 * MIB, 256).unwrap();
        let b = carver.take(Lane::ANYONE, ALWAYS, MIB, 256).unwrap();
        assert_eq!((a, b), (0x1000_0000, 0x1000_0000 + 4 * MIB));
        carver.release(a, Lane::ANYONE, 1);
        // 4 MiB are free before `b`, 11 behind it.
        assert_eq!(carver.take(Lane::ANYONE, ALWAYS, 3 * MIB, 256), Some(a));
        carver.verify().unwrap();
        carver.release(a, Lane::ANYONE, 2);
        carver.release(b, Lane::ANYONE, 3);
        assert_eq!(carver.pieces().count(), 1);
    }

    #[test]
    fn an_aligned_piece_leaves_what_is_before_it_free() {
        let mut carver = carver(16 * MIB);
        carver.take(Lane::ANYONE, ALWAYS, 512, 512).unwrap();
        let aligned = carver.take(Lane::ANYONE, ALWAYS, MIB, 2 * MIB).unwrap();
        assert_eq!(aligned % (2 * MIB), 0);
        assert_eq!(carver.piece_at(aligned - 1).unwrap().free, Some((Lane::ANYONE, 0)));
        carver.verify().unwrap();
    }

    #[test]
    fn lanes_keep_pieces_apart_until_they_are_moved() {
        let mut carver = carver(4 * MIB);
        let a = carver.take(Lane::ANYONE, ALWAYS, 2 * MIB, 256).unwrap();
        let b = carver.take(Lane::ANYONE, ALWAYS, 2 * MIB, 256).unwrap();
        carver.release(a, Lane(1), 5);
        carver.release(b, Lane(2), 6);
        assert_eq!(carver.take(Lane::ANYONE, ALWAYS, MIB, 256), None);
        assert_eq!(carver.take(Lane(1), 4, MIB, 256), None);
        carver.move_lane(Lane(2), Lane(1), 5);
        assert!(carver.has_free(Lane(2)));
        carver.move_lane(Lane(2), Lane(1), 6);
        assert_eq!(carver.take(Lane(1), ALWAYS, 4 * MIB, 256), Some(a));
        carver.verify().unwrap();
    }

    #[test]
    fn walls_are_not_crossed_and_extensions_are_one() {
        let mut carver = carver(2 * MIB);
        carver.admit(0x1000_0000 + 2 * MIB, 2 * MIB, false, Lane::ANYONE, 1);
        assert_eq!(carver.free_before(0x1000_0000 + 4 * MIB), Some((Lane::ANYONE, 4 * MIB)));
        carver.admit(0x1000_0000 + 4 * MIB, 2 * MIB, true, Lane::ANYONE, 2);
        assert_eq!(carver.take(Lane::ANYONE, ALWAYS, 6 * MIB, 256), None);
        assert!(!carver.take_at(0x1000_0000 + 3 * MIB, 2 * MIB));
        assert!(carver.take_at(0x1000_0000 + MIB, MIB));
        carver.verify().unwrap();
        assert!(!carver.remove_range(0x1000_0000, 2 * MIB));
        assert!(carver.remove_range(0x1000_0000 + 4 * MIB, 2 * MIB));
        assert!(carver.remove_range(0x1000_0000 + 2 * MIB, 2 * MIB));
        carver.verify().unwrap();
    }
}
