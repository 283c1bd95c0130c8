//! Which addresses are what: libcuda has one address space, and many calls get an address with no device beside it.

use std::collections::BTreeMap;

use headwater_driver::DeviceId;

/// Ranges of addresses that do not overlap, each with what is known about it.
#[derive(Debug)]
pub(crate) struct Spans<T>(BTreeMap<u64, (u64, T)>);

/// One range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span<T> {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) about: T,
}

impl<T: Copy> Spans<T> {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a range.
    pub(crate) fn insert(&mut self, start: u64, bytes: u64, about: T) {
        self.0.insert(start, (bytes, about));
    }

    /// Removes the range that starts at exactly `start`.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Span<T>> {
        self.0.remove(&start).map(|(bytes, about)| Span { start, bytes, about })
    }

    /// The range that starts at exactly `start`.
    pub(crate) fn at(&self, start: u64) -> Option<Span<T>> {
        self.0.get(&start).map(|(bytes, about)| Span { start, bytes: *bytes, about: *about })
    }

    /// The range that `address` lies in.
    pub(crate) fn containing(&self, address: u64) -> Option<Span<T>> {
        let (start, (bytes, about)) = self.0.range(..=address).next_back()?;
        (address - start < *bytes).then_some(Span { start: *start, bytes: *bytes, about: *about })
    }

    /// Removes the ranges that start in `start..start + bytes`.
    pub(crate) fn take_within(&mut self, start: u64, bytes: u64) -> Vec<Span<T>> {
        let end = start.saturating_add(bytes);
        let starts: Vec<u64> = self.0.range(start..end).map(|(start, _)| *start).collect();
        starts.into_iter().filter_map(|start| self.remove(start)).collect()
    }

    /// Changes what is known about the ranges that start in `start..start + bytes`.
    pub(crate) fn change_within(&mut self, start: u64, bytes: u64, change: impl Fn(&mut T)) {
        for (_, (_, about)) in self.0.range_mut(start..start.saturating_add(bytes)) {
            change(about);
        }
    }

    /// Removes the ranges that match.
    pub(crate) fn take(&mut self, matches: impl Fn(&T) -> bool) -> Vec<Span<T>> {
        let starts: Vec<u64> =
            self.0.iter().filter(|(_, (_, about))| matches(about)).map(|(start, _)| *start).collect();
        starts.into_iter().filter_map(|start| self.remove(start)).collect()
    }

    /// How many ranges there are.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// A mapped piece of a reserved range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// Whose physical memory it is.
    pub(crate) device: DeviceId,
    /// The value of its handle.
    pub(crate) handle: u64,
    /// The devices given access, one bit each.
    pub(crate) access: u64,
}

/// Host memory that is pinned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    /// The device in whose context it was pinned.
    pub(crate) device: DeviceId,
    /// Registered where it was, not allocated by us.
    pub(crate) registered: bool,
    /// The flags it was pinned with.
    pub(crate) flags: u32,
}

/// All addresses in use. One lock guards them; it is never held across a call into the simulator.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(crate) plain: Spans<DeviceId>,
    /// With the device the simulator was told, which CUDA's call does not name.
    pub(crate) reserved: Spans<DeviceId>,
    pub(crate) mapped: Spans<Mapping>,
    pub(crate) pinned: Spans<Pinned>,
}

impl Addresses {
    /// Nothing in use yet.
    pub(crate) const fn new() -> Self {
        Self { plain: Spans::new(), reserved: Spans::new(), mapped: Spans::new(), pinned: Spans::new() }
    }

    /// The allocation or mapping that holds `address`, and whose memory it is.
    pub(crate) fn device_memory(&self, address: u64) -> Option<Span<DeviceId>> {
        self.plain.containing(address).or_else(|| {
            let Span { start, bytes, about } = self.mapped.containing(address)?;
            Some(Span { start, bytes, about: about.device })
        })
    }

    /// Allocations and reservations that their owner has not given back. A mapping is no owner's: its range is.
    pub(crate) fn leaked(&self) -> u64 {
        self.plain.len() + self.reserved.len() + self.pinned.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_its_range_only() {
        let mut spans = Spans::new();
        spans.insert(100, 10, 'a');
        spans.insert(120, 10, 'b');
        assert_eq!(spans.containing(109).map(|span| span.about), Some('a'));
        assert_eq!(spans.containing(110), None);
        assert_eq!(spans.containing(99), None);
        assert_eq!(spans.take_within(100, 30).len(), 2);
    }
}
