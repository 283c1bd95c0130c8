//! One address space for all devices: who has which addresses, and what is behind them.
//!
//! Plain allocations and reserved ranges live in two windows. Addresses are given out next-fit: upwards through the
//! window, and from its start again only at its end. So a freed address is not given out again for a long time, and a
//! use of it is found. CUDA reuses addresses at once; nothing correct can tell the difference.
//!
//! The windows lie below 2^47 and away from where Linux puts programs, heaps and mappings, so a device address is never a
//! host address by accident.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use headwater_driver::DeviceId;

use super::physical::PhysicalId;
use crate::hazards::Removal;
use crate::work::Reach;

const PLAIN_WINDOW: Range<u64> = 0x0800_0000_0000..0x1000_0000_0000;
/// 2^46 addresses: an H200 reserves as many in one range (measured).
const RESERVED_WINDOW: Range<u64> = 0x1000_0000_0000..0x5000_0000_0000;

/// How many removals are remembered, to tell a use after free from a wild address.
const REMOVALS_REMEMBERED: usize = 4096;

/// Which device may use what, and where it is.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    regions: BTreeMap<u64, Region>,
    removed: VecDeque<(Range<u64>, Removal)>,
    plain_cursor: u64,
    reserved_cursor: u64,
    /// Counts removals, so that work knows at its end that nothing it resolved at its start can be gone.
    removals: u64,
    /// For each device, a bit for every device whose plain memory its kernels may use.
    peers: Vec<u64>,
}

/// A plain allocation or a reserved range.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) bytes: u64,
    pub(crate) device: DeviceId,
    pub(crate) made_at_ns: u64,
    pub(crate) backing: Backing,
}

/// What is behind a region.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Its own memory.
    Plain(PhysicalId),
    /// What is mapped, by address.
    Reserved(BTreeMap<u64, Mapping>),
}

/// A handle at an address.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) physical: PhysicalId,
    /// A bit for every device with access.
    pub(crate) access: u64,
    pub(crate) made_at_ns: u64,
    /// Of the places where its memory is mapped, the one with the largest number is where tools show it.
    pub(crate) shown: u64,
}

/// A piece of an address range with one piece of physical memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) physical: PhysicalId,
    /// Where in the physical memory it begins.
    pub(crate) offset: u64,
}

/// Why an address cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Removed(Removal),
    Unmapped,
    NoAccess(DeviceId),
    NeverAllocated,
}

impl AddressSpace {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            regions: BTreeMap::new(),
            removed: VecDeque::new(),
            plain_cursor: PLAIN_WINDOW.start,
            reserved_cursor: RESERVED_WINDOW.start,
            removals: 0,
            peers: vec![0; devices],
        }
    }

    /// Lets kernels of `from` use plain memory of `to`.
    pub(crate) fn enable_peer(&mut self, from: DeviceId, to: DeviceId) {
        if let Some(mask) = self.peers.get_mut(from.0 as usize) {
            *mask |= 1 << to.0;
        }
    }

    /// Addresses for a plain allocation: 2 MiB apart from 1 MiB on, else 512 bytes, as CUDA aligns them.
    pub(crate) fn place_plain(&mut self, bytes: u64) -> Option<u64> {
        let alignment = if bytes >= 1 << 20 { 2 << 20 } else { 512 };
        let start = self.place(PLAIN_WINDOW, self.plain_cursor, bytes, alignment)?;
        self.plain_cursor = start + bytes;
        Some(start)
    }

    /// Addresses for a reserved range.
    pub(crate) fn place_reserved(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let start = self.place(RESERVED_WINDOW, self.reserved_cursor, bytes, alignment)?;
        self.reserved_cursor = start + bytes;
        Some(start)
    }

    fn place(&self, window: Range<u64>, cursor: u64, bytes: u64, alignment: u64) -> Option<u64> {
        let mut start = cursor.checked_next_multiple_of(alignment)?;
        let mut wrapped = false;
        loop {
            let Some(end) = start.checked_add(bytes).filter(|end| *end <= window.end) else {
                if wrapped {
                    return None;
                }
                wrapped = true;
                start = window.start.checked_next_multiple_of(alignment)?;
                continue;
            };
            match self.regions.range(..end).next_back() {
                Some((other, region)) if other + region.bytes > start => {
                    start = (other + region.bytes).checked_next_multiple_of(alignment)?;
                }
                _ => return Some(start),
            }
        }
    }

    pub(crate) fn insert(&mut self, start: u64, region: Region) {
        self.regions.insert(start, region);
    }

    /// The region that begins at `start`.
    pub(crate) fn get(&self, start: u64) -> Option<&Region> {
        self.regions.get(&start)
    }

    /// Takes away the region that begins at `start`, and remembers who did it.
    pub(crate) fn remove(&mut self, start: u64, removal: Removal) -> Option<Region> {
        let region = self.regions.remove(&start)?;
        self.remember(start..start + region.bytes, removal);
        Some(region)
    }

    /// Remembers that `removal` took `range` away.
    pub(crate) fn remember(&mut self, range: Range<u64>, removal: Removal) {
        self.removals += 1;
        if self.removed.len() == REMOVALS_REMEMBERED {
            self.removed.pop_front();
        }
        self.removed.push_back((range, removal));
    }

    /// How often addresses were taken away so far.
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// The reserved range with all of `range` in it, and its mappings.
    pub(crate) fn mappings_mut(&mut self, range: &Range<u64>) -> Option<&mut BTreeMap<u64, Mapping>> {
        let (start, region) = self.regions.range_mut(..=range.start).next_back()?;
        match &mut region.backing {
            Backing::Reserved(mappings) if range.end <= start + region.bytes => Some(mappings),
            _ => None,
        }
    }

    /// All regions by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Region)> {
        self.regions.iter().map(|(start, region)| (*start, region))
    }

    /// Splits `range` into pieces of physical memory, up to the first address that `reach` cannot use.
    pub(crate) fn resolve(
        &self,
        range: &Range<u64>,
        reach: Reach,
        mut piece: impl FnMut(Segment),
    ) -> Result<(), Fault> {
        let mut at = range.start;
        while at < range.end {
            let Some((start, region)) =
                self.regions.range(..=at).next_back().filter(|(start, region)| at < *start + region.bytes)
            else {
                return Err(self.fault(at, FaultKind::NeverAllocated));
            };
            match &region.backing {
                Backing::Plain(physical) => {
                    if let Reach::Kernel(device) = reach
                        && device != region.device
                        && self
                            .peers
                            .get(device.0 as usize)
                            .is_none_or(|mask| mask >> region.device.0 & 1 == 0)
                    {
                        return Err(Fault { address: at, kind: FaultKind::NoAccess(device) });
                    }
                    let end = range.end.min(start + region.bytes);
                    piece(Segment { start: at, bytes: end - at, physical: *physical, offset: at - start });
                    if end < range.end {
                        // One access never spans two allocations, even where they touch.
                        return Err(self.fault(end, FaultKind::NeverAllocated));
                    }
                    at = end;
                }
                Backing::Reserved(mappings) => {
                    let end = range.end.min(start + region.bytes);
                    at = self.resolve_mapped(mappings, at..end, reach, &mut piece)?;
                }
            }
        }
        Ok(())
    }

    fn resolve_mapped(
        &self,
        mappings: &BTreeMap<u64, Mapping>,
        range: Range<u64>,
        reach: Reach,
        piece: &mut impl FnMut(Segment),
    ) -> Result<u64, Fault> {
        let mut at = range.start;
        let first = mappings.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, mapping) in mappings.range(first..range.end) {
            if at < *start {
                break;
            }
            let end = range.end.min(start + mapping.bytes);
            if end <= at {
                continue;
            }
            if let Reach::Kernel(device) | Reach::Copy(device) = reach
                && mapping.access >> device.0 & 1 == 0
            {
                return Err(Fault { address: at, kind: FaultKind::NoAccess(device) });
            }
            piece(Segment { start: at, bytes: end - at, physical: mapping.physical, offset: at - start });
            at = end;
        }
        if at < range.end { Err(self.fault(at, FaultKind::Unmapped)) } else { Ok(at) }
    }

    /// The fault at `address`: a removal that is remembered, or else `kind`.
    fn fault(&self, address: u64, kind: FaultKind) -> Fault {
        let removal = self.removed.iter().rev().find(|(range, _)| range.contains(&address));
        Fault { address, kind: removal.map_or(kind, |(_, removal)| FaultKind::Removed(*removal)) }
    }
}

#[cfg(test)]
mod tests {
    use headwater_driver::Call;

    use super::*;

    const KERNEL: Reach = Reach::Kernel(DeviceId(0));

    fn plain(bytes: u64) -> Region {
        Region { bytes, device: DeviceId(0), made_at_ns: 0, backing: Backing::Plain(PhysicalId(0)) }
    }

    fn reserved(bytes: u64) -> Region {
        Region { bytes, device: DeviceId(0), made_at_ns: 0, backing: Backing::Reserved(BTreeMap::new()) }
    }

    #[test]
    fn a_full_window_is_searched_again_from_its_start() {
        let mut space = AddressSpace::new(1);
        let half = (RESERVED_WINDOW.end - RESERVED_WINDOW.start) / 2;
        for _ in 0..2 {
            let start = space.place_reserved(half, 1).unwrap();
            space.insert(start, reserved(half));
        }
        assert_eq!(space.place_reserved(1 << 21, 1 << 21), None);
        space.remove(RESERVED_WINDOW.start, Removal { call: Call::AddressFree, at_ns: 7 });
        assert_eq!(space.place_reserved(1 << 21, 1 << 21), Some(RESERVED_WINDOW.start));
    }

    #[test]
    fn a_freed_address_is_told_from_one_that_never_was() {
        let mut space = AddressSpace::new(1);
        let start = space.place_plain(4096).unwrap();
        space.insert(start, plain(4096));
        let removal = Removal { call: Call::MemFree, at_ns: 5 };
        space.remove(start, removal);
        let freed = space.resolve(&(start..start + 1), KERNEL, |_| ()).unwrap_err();
        assert_eq!(freed.kind, FaultKind::Removed(removal));
        let wild = space.resolve(&(0x10..0x20), KERNEL, |_| ()).unwrap_err();
        assert_eq!(wild, Fault { address: 0x10, kind: FaultKind::NeverAllocated });
    }

    #[test]
    fn an_access_beyond_an_allocation_fails_even_where_the_next_one_touches_it() {
        let mut space = AddressSpace::new(1);
        let first = space.place_plain(512).unwrap();
        space.insert(first, plain(512));
        let second = space.place_plain(512).unwrap();
        space.insert(second, plain(512));
        assert_eq!(second, first + 512);
        let fault = space.resolve(&(first..first + 513), KERNEL, |_| ()).unwrap_err();
        assert_eq!(fault.address, second);
    }

    #[test]
    fn a_range_over_two_mappings_becomes_two_pieces() {
        let mut space = AddressSpace::new(1);
        let start = space.place_reserved(4 << 21, 1 << 21).unwrap();
        space.insert(start, reserved(4 << 21));
        let mappings = space.mappings_mut(&(start..start + 1)).unwrap();
        for page in 0..2 {
            let mapping =
                Mapping { bytes: 1 << 21, physical: PhysicalId(page), access: 1, made_at_ns: 0, shown: 0 };
            mappings.insert(start + (u64::from(page) << 21), mapping);
        }
        let mut pieces = Vec::new();
        let across = start + (1 << 21) - 8..start + (1 << 21) + 8;
        space
            .resolve(&across, KERNEL, |piece| pieces.push((piece.physical, piece.offset, piece.bytes)))
            .unwrap();
        assert_eq!(pieces, [(PhysicalId(0), (1 << 21) - 8, 8), (PhysicalId(1), 0, 8)]);
        let fault = space.resolve(&(start..start + (3 << 21)), KERNEL, |_| ()).unwrap_err();
        assert_eq!(fault, Fault { address: start + (2 << 21), kind: FaultKind::Unmapped });
        let other = space.resolve(&across, Reach::Kernel(DeviceId(1)), |_| ()).unwrap_err();
        assert_eq!(other.kind, FaultKind::NoAccess(DeviceId(1)));
    }
}
