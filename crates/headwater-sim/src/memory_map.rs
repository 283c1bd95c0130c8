//! Which addresses have device memory behind them now: for tools that draw it.

use std::collections::BTreeMap;

use headwater_driver::DeviceId;

use crate::machine::{Backing, Machine, PhysicalId};
use crate::sim_driver::SimDriver;

/// Addresses with memory of a device behind them: a plain allocation, or one mapping of a reserved range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryRange {
    /// The first address.
    pub address: u64,
    /// How many there are.
    pub bytes: u64,
    /// The first address of the plain allocation or of the reserved range that it is part of.
    pub region: u64,
    /// The device that the addresses belong to.
    pub device: DeviceId,
}

impl SimDriver {
    /// All device memory that can be used now, in the order of addresses. No driver call. Memory that is mapped at several
    /// addresses is shown at the one it was mapped or [shown](Self::show_memory_at) at last, so that the sum is what there is.
    ///
    /// ```
    /// use headwater_driver::{DeviceId, PlainMemory};
    /// # fn main() -> headwater_driver::Result<()> {
    /// let sim = headwater_sim::SimDriver::new();
    /// let ptr = sim.mem_alloc(DeviceId(0), 4096)?;
    /// let there = sim.memory_map();
    /// assert_eq!((there[0].address, there[0].bytes), (ptr.raw(), 4096));
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_map(&self) -> Vec<MemoryRange> {
        self.machine().memory_map()
    }

    /// Lets [`memory_map`](Self::memory_map) show the memory behind these addresses here, wherever else it is mapped: an allocator
    /// that keeps old mappings may use one again without a driver call. No driver call.
    pub fn show_memory_at(&self, address: u64, bytes: u64) {
        self.machine().show_memory_at(address, bytes);
    }
}

impl Machine {
    fn show_memory_at(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let Some(mappings) = self.space.mappings_mut(&(address..end)) else { return };
        let first = mappings.range(..=address).next_back().map_or(address, |(start, _)| *start);
        for (start, mapping) in mappings.range_mut(first..end) {
            if start + mapping.bytes > address {
                self.shown += 1;
                mapping.shown = self.shown;
            }
        }
    }

    fn memory_map(&self) -> Vec<MemoryRange> {
        let mut plain = Vec::new();
        // By physical memory: when it was mapped, and where.
        let mut mapped: BTreeMap<PhysicalId, (u64, MemoryRange)> = BTreeMap::new();
        for (region, state) in self.space.iter() {
            let device = state.device;
            match &state.backing {
                Backing::Plain(_) => {
                    plain.push(MemoryRange { address: region, bytes: state.bytes, region, device });
                }
                Backing::Reserved(mappings) => {
                    for (address, mapping) in mappings {
                        let range = MemoryRange { address: *address, bytes: mapping.bytes, region, device };
                        let newest = mapped.entry(mapping.physical).or_insert((mapping.shown, range));
                        *newest = (*newest).max((mapping.shown, range));
                    }
                }
            }
        }
        let mut map: Vec<_> = plain.into_iter().chain(mapped.into_values().map(|(_, range)| range)).collect();
        map.sort_unstable();
        map
    }
}

#[cfg(test)]
mod tests {
    use headwater_driver::{PlainMemory, VirtualMemory};

    use super::*;

    #[test]
    fn the_map_has_plain_memory_and_mappings_and_no_bare_addresses() {
        let sim = SimDriver::new();
        let device = DeviceId(0);
        let page = 2 << 20;
        let arena = sim.address_reserve(device, 4 * page, 0).unwrap();
        let handle = sim.handle_create(device, page).unwrap();
        assert!(sim.memory_map().is_empty());
        let second = headwater_driver::DevicePtr::new(arena.raw() + page);
        sim.handle_map(second, page, handle).unwrap();
        let plain = sim.mem_alloc(device, 512).unwrap();
        let mapped = MemoryRange { address: second.raw(), bytes: page, region: arena.raw(), device };
        let alone = MemoryRange { address: plain.raw(), bytes: 512, region: plain.raw(), device };
        assert_eq!(sim.memory_map(), [alone, mapped]);
        sim.handle_map(arena, page, handle).unwrap();
        let again = MemoryRange { address: arena.raw(), ..mapped };
        assert_eq!(sim.memory_map(), [alone, again], "at the address it was mapped at last");
        sim.show_memory_at(second.raw() + 512, 512);
        assert_eq!(sim.memory_map(), [alone, mapped], "or where somebody says that it is used");
        sim.handle_unmap(device, arena, 2 * page).unwrap();
        sim.mem_free(device, plain).unwrap();
        assert!(sim.memory_map().is_empty());
    }
}
