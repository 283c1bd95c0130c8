//! Physical memory: pieces that hold bytes, whatever addresses they are seen at.
//!
//! Uses are remembered by physical place, not by address: then two addresses of one handle are the same bytes, a handle
//! mapped elsewhere takes its history along, and new pages at an old address start with none. Every piece gets its own
//! range of *places* for that, which is never given out again.

use headwater_driver::DeviceId;

use super::address_space::Segment;
use crate::bytes::Bytes;

/// A piece of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PhysicalId(pub(crate) u32);

/// One piece.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: DeviceId,
    pub(crate) bytes: Bytes,
    /// The first of its places in the shadow.
    pub(crate) place: u64,
    /// What it takes of the device's memory.
    pub(crate) charged_bytes: u64,
    /// How many handles hold it: one, and more where it was imported. One for plain memory that was not freed.
    pub(crate) holds: u32,
    /// At how many addresses it is mapped.
    pub(crate) mappings: u32,
}

/// All pieces, and the places given out so far.
#[derive(Debug)]
pub(crate) struct PhysicalMemory {
    pieces: Vec<Option<Physical>>,
    free: Vec<u32>,
    next_place: u64,
    /// Whether the host is to see what is mapped.
    host_visible: bool,
}

impl PhysicalMemory {
    pub(crate) fn new(host_visible: bool) -> Self {
        Self { pieces: Vec::new(), free: Vec::new(), next_place: 1 << 20, host_visible }
    }

    /// A range of places that nobody had before. There are 2^64, and no machine lasts that long.
    pub(crate) fn new_places(&mut self, bytes: u64) -> u64 {
        let place = self.next_place;
        // A gap, so that uses of two pieces are never taken for one range.
        self.next_place = self.next_place.saturating_add(bytes).saturating_add(8192) & !4095;
        place
    }

    /// A new piece that holds nothing yet, held once and mapped nowhere.
    pub(crate) fn create(&mut self, device: DeviceId, bytes: u64, charged_bytes: u64) -> PhysicalId {
        let place = self.new_places(bytes);
        let content = if self.host_visible { Bytes::visible(bytes) } else { Bytes::new(bytes) };
        let piece = Physical { device, bytes: content, place, charged_bytes, holds: 1, mappings: 0 };
        match self.free.pop() {
            Some(index) => {
                self.pieces[index as usize] = Some(piece);
                PhysicalId(index)
            }
            None => {
                self.pieces.push(Some(piece));
                PhysicalId((self.pieces.len() - 1) as u32)
            }
        }
    }

    pub(crate) fn get(&self, id: PhysicalId) -> Option<&Physical> {
        self.pieces.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: PhysicalId) -> Option<&mut Physical> {
        self.pieces.get_mut(id.0 as usize)?.as_mut()
    }

    /// The piece whose first place this is. Places are never given out again, so that none is mistaken for another.
    pub(crate) fn at_place(&self, place: u64) -> Option<PhysicalId> {
        let found =
            self.pieces.iter().position(|piece| piece.as_ref().is_some_and(|piece| piece.place == place));
        found.map(|index| PhysicalId(index as u32))
    }

    /// Lets the host see the piece at `address`, where it may.
    pub(crate) fn show(&mut self, id: PhysicalId, address: u64) {
        if let Some(pages) = self.get_mut(id).and_then(|piece| piece.bytes.pages_mut()) {
            // Where somebody else has the address, the host does not see it there, and is told so when it asks.
            pages.show_at(address);
        }
    }

    /// The end of that.
    pub(crate) fn hide(&mut self, id: PhysicalId, address: u64) {
        if let Some(pages) = self.get_mut(id).and_then(|piece| piece.bytes.pages_mut()) {
            pages.hide_at(address);
        }
    }

    /// Whether the host sees a segment at its own address.
    pub(crate) fn is_shown(&self, segment: &Segment) -> bool {
        let pages = self.get(segment.physical).and_then(|piece| piece.bytes.pages());
        pages.is_some_and(|pages| pages.is_shown_at(segment.start - segment.offset))
    }

    /// Removes the piece if nobody holds or maps it any more, and returns it.
    pub(crate) fn reap(&mut self, id: PhysicalId) -> Option<Physical> {
        let slot = self.pieces.get_mut(id.0 as usize)?;
        let gone = slot.take_if(|piece| piece.holds == 0 && piece.mappings == 0)?;
        self.free.push(id.0);
        Some(gone)
    }

    /// Host memory that the contents of all pieces take.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.pieces.iter().flatten().map(|piece| piece.bytes.host_bytes()).sum()
    }

    /// The place of a segment's first byte.
    pub(crate) fn place_of(&self, segment: &Segment) -> u64 {
        self.get(segment.physical).map_or(0, |piece| piece.place + segment.offset)
    }

    /// Copies `bytes` bytes between two pieces or within one.
    pub(crate) fn copy(&mut self, dst: (PhysicalId, u64), src: (PhysicalId, u64), bytes: u64) {
        if dst.0 == src.0 {
            if let Some(piece) = self.get_mut(dst.0) {
                piece.bytes.copy_within(src.1, dst.1, bytes);
            }
            return;
        }
        // Taken out for a moment: two pieces cannot be borrowed at once.
        let Some(mut target) = self.pieces.get_mut(dst.0.0 as usize).and_then(Option::take) else { return };
        if let Some(source) = self.get(src.0) {
            target.bytes.copy_from(&source.bytes, src.1, dst.1, bytes);
        }
        self.pieces[dst.0.0 as usize] = Some(target);
    }
}
