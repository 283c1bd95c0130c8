//! Memory from the driver that stays where it is: the ground under every graph pool.
//!
//! A graph has addresses baked into it, so what a pool got it keeps, at the same address, until nobody needs any of it.
//! Three sources:
//! - *virtual*: ranges of reserved addresses ("arenas"), filled from the front with one handle a growth. Consecutive
//!   growths are contiguous, so a free piece at the end is extended by just what is missing. Legal during capture in every mode.
//! - *plain*: one `cuMemAlloc` a growth, made in the thread's relaxed mode.
//! - *shared*: an arena of its own, over the handles of a [`SharedPhysical`] group, which other pools map too.
//!
//! A growth makes several driver calls. Where one fails, those before it are undone; where even undoing is refused, the piece
//! is kept aside and undone by a later call. No lock is needed here: whoever owns a `FixedMemory` calls it from one thread at a time,
//! and never while holding a lock of the hit path.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use headwater_driver::{Capabilities, DeviceId, DevicePtr, Driver, Handle, Result};

use super::shared_physical::SharedPhysical;
use crate::capture_guard;

/// Where memory comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Plain,
    Virtual,
    /// A row of the group.
    Shared(Arc<SharedPhysical>, usize),
}

impl Source {
    /// Virtual memory where the device has it.
    pub(super) fn best(capabilities: Capabilities) -> Self {
        if capabilities.virtual_memory { Self::Virtual } else { Self::Plain }
    }
}

/// What came from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grown {
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// Whether the memory just before it is not ours, or cannot be used as one with it.
    pub(super) starts_region: bool,
    /// How much more physical memory there is: less than `bytes` where a group had some of it already.
    pub(super) added_bytes: u64,
}

/// One handle or one plain allocation.
#[derive(Clone, Copy, Debug)]
struct Region {
    bytes: u64,
    /// `None`: plain memory.
    mapped: Option<Mapped>,
}

#[derive(Clone, Copy, Debug)]
enum Mapped {
    Own(Handle),
    /// By its place in the group.
    Shared(usize),
}

#[derive(Debug)]
struct Arena {
    base: u64,
    bytes: u64,
    /// How much of it was ever filled, from the front. What is returned leaves a hole: addresses are plentiful.
    filled: u64,
}

/// Driver memory at fixed addresses.
#[derive(Debug)]
pub(super) struct FixedMemory {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    source: Source,
    /// The device's page size, asked once; 0 before.
    granularity: u64,
    arena_bytes: u64,
    arenas: Vec<Arena>,
    regions: BTreeMap<u64, Region>,
    /// Mapped by a growth that failed, and not unmapped yet.
    broken: BTreeMap<u64, Region>,
    /// Unmapped and not released yet.
    owed: Vec<Handle>,
}

impl FixedMemory {
    /// Nothing yet. Arenas are of `arena_bytes`, or more where one growth needs more.
    pub(super) fn new(driver: Arc<dyn Driver>, device: DeviceId, source: Source, arena_bytes: u64) -> Self {
        Self {
            driver,
            device,
            source,
            granularity: 0,
            arena_bytes,
            arenas: Vec::new(),
            regions: BTreeMap::new(),
            broken: BTreeMap::new(),
            owed: Vec::new(),
        }
    }

    /// What `bytes` are rounded up to.
    pub(super) fn rounded(&mut self, bytes: u64) -> Result<u64> {
        match self.source {
            Source::Plain => Ok(bytes),
            _ => Ok(bytes.next_multiple_of(self.granularity()?)),
        }
    }

    /// The address at which the next growth continues the last one.
    pub(super) fn end(&self) -> Option<u64> {
        let arena = self.arenas.last()?;
        let end = arena.base + arena.filled;
        (arena.filled < arena.bytes && self.ends_at(end)).then_some(end)
    }

    /// How much the driver gave.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.regions.values().map(|region| region.bytes).sum()
    }

    /// The pieces that can be returned each for itself, in the order of addresses.
    pub(super) fn regions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.regions.iter().map(|(base, region)| (*base, region.bytes))
    }

    /// Those that begin in a range.
    pub(super) fn regions_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.regions.range(range).map(|(base, region)| (*base, region.bytes))
    }

    /// Whether it is undone to the last: nothing mapped, nothing owed.
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.broken.is_empty() && self.owed.is_empty() && self.arenas.is_empty()
    }

    /// Gets at least `bytes` more, a multiple of [`rounded`](Self::rounded).
    ///
    /// # Errors
    /// What the driver answered; then nothing is held that was not held before.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<Grown> {
        // What an earlier failure left is not worth failing for.
        let _ = self.pay_debts();
        match self.source.clone() {
            Source::Plain => self.grow_plain(bytes),
            Source::Virtual => self.grow_virtual(bytes),
            Source::Shared(group, row) => self.grow_shared(bytes, &group, row),
        }
    }

    fn grow_plain(&mut self, bytes: u64) -> Result<Grown> {
        let ptr = capture_guard::relaxed(&*self.driver, || self.driver.mem_alloc(self.device, bytes))?;
        self.regions.insert(ptr.raw(), Region { bytes, mapped: None });
        Ok(Grown { base: ptr.raw(), bytes, starts_region: true, added_bytes: bytes })
    }

    fn grow_virtual(&mut self, bytes: u64) -> Result<Grown> {
        let base = self.place(bytes)?;
        let handle = self.driver.handle_create(self.device, bytes)?;
        let starts_region = !self.ends_at(base);
        self.map(base, bytes, handle, Mapped::Own(handle))?;
        Ok(Grown { base, bytes, starts_region, added_bytes: bytes })
    }

    fn grow_shared(&mut self, bytes: u64, group: &SharedPhysical, row: usize) -> Result<Grown> {
        let first = self.first_free_place();
        let (handles, added_bytes) = group.handles(row, first, bytes)?;
        let bytes = handles.iter().map(|(_, bytes)| bytes).sum();
        let starts = self.place(bytes).map(|base| (base, !self.ends_at(base)));
        let (base, starts_region) = match starts {
            Ok(starts) => starts,
            Err(error) => {
                group.let_go(row, first..first + handles.len());
                return Err(error);
            }
        };
        let mut at = base;
        for (place, (handle, bytes)) in (first..).zip(&handles) {
            if let Err(error) = self.map(at, *bytes, *handle, Mapped::Shared(place)) {
                // `map` has let go of this place; those behind it were never mapped, those before it are undone.
                group.let_go(row, place + 1..first + handles.len());
                let mapped: Vec<u64> = self.regions.range(base..at).map(|(base, _)| *base).collect();
                for base in mapped.into_iter().rev() {
                    // Where that is refused, a later call tries again.
                    let _ = self.give_up(base);
                }
                return Err(error);
            }
            at += bytes;
        }
        Ok(Grown { base, bytes, starts_region, added_bytes })
    }

    /// Where the next `bytes` go: the end of the last arena, or a new one.
    fn place(&mut self, bytes: u64) -> Result<u64> {
        if let Some(arena) = self.arenas.last()
            && arena.bytes - arena.filled >= bytes
        {
            return Ok(arena.base + arena.filled);
        }
        let arena_bytes = self.rounded(self.arena_bytes.max(bytes))?;
        let base = self.driver.address_reserve(self.device, arena_bytes, 0)?.raw();
        self.arenas.push(Arena { base, bytes: arena_bytes, filled: 0 });
        Ok(base)
    }

    /// Maps a handle at the end of the last arena. On failure the handle is released, or let go of where it is shared.
    fn map(&mut self, base: u64, bytes: u64, handle: Handle, mapped: Mapped) -> Result<()> {
        let region = Region { bytes, mapped: Some(mapped) };
        let ptr = DevicePtr::new(base);
        if let Err(error) = self.driver.handle_map(ptr, bytes, handle) {
            self.let_go(mapped);
            return Err(error);
        }
        if let Some(arena) = self.arenas.last_mut() {
            arena.filled = arena.filled.max(base + bytes - arena.base);
        }
        if let Err(error) = self.driver.access_set(ptr, bytes, &[self.device]) {
            self.broken.insert(base, region);
            let _ = self.mend(base);
            return Err(error);
        }
        self.regions.insert(base, region);
        Ok(())
    }

    /// Unmaps what a failed growth left mapped.
    fn mend(&mut self, base: u64) -> Result<()> {
        let Some(region) = self.broken.get(&base).copied() else { return Ok(()) };
        self.driver.handle_unmap(self.device, DevicePtr::new(base), region.bytes)?;
        self.broken.remove(&base);
        self.take_back_the_end(base, region.bytes);
        if let Some(mapped) = region.mapped {
            self.let_go(mapped);
        }
        Ok(())
    }

    /// Returns one piece to the driver, and says how much physical memory that was. The caller makes sure that nothing uses it
    /// any more; plain memory waits by itself.
    ///
    /// # Errors
    /// What the driver answered; then the piece is still there.
    pub(super) fn release(&mut self, base: u64) -> Result<u64> {
        let Some(region) = self.regions.get(&base).copied() else { return Ok(0) };
        let ptr = DevicePtr::new(base);
        match region.mapped {
            None => capture_guard::relaxed(&*self.driver, || self.driver.mem_free(self.device, ptr))?,
            Some(_) => self.driver.handle_unmap(self.device, ptr, region.bytes)?,
        }
        self.regions.remove(&base);
        Ok(region.mapped.map_or(region.bytes, |mapped| self.let_go(mapped).unwrap_or(region.bytes)))
    }

    /// Undoes one mapping of a growth that failed further on.
    fn give_up(&mut self, base: u64) -> Result<()> {
        if let Some(region) = self.regions.remove(&base) {
            self.broken.insert(base, region);
        }
        self.mend(base)
    }

    /// Pays what earlier failures left, and frees the addresses once nothing is mapped.
    ///
    /// # Errors
    /// The last refusal; what was refused is kept for another time.
    pub(super) fn pay_debts(&mut self) -> Result<()> {
        let mut refusal = Ok(());
        let broken: Vec<u64> = self.broken.keys().copied().collect();
        for base in broken.into_iter().rev() {
            refusal = refusal.and(self.mend(base));
        }
        for handle in std::mem::take(&mut self.owed) {
            if let Err(error) = self.driver.handle_release(handle) {
                self.owed.push(handle);
                refusal = Err(error);
            }
        }
        if self.regions.is_empty() && self.broken.is_empty() {
            for arena in std::mem::take(&mut self.arenas) {
                let ptr = DevicePtr::new(arena.base);
                if let Err(error) = self.driver.address_free(self.device, ptr, arena.bytes) {
                    self.arenas.push(Arena { filled: 0, ..arena });
                    refusal = Err(error);
                }
            }
        }
        refusal
    }

    /// Lets go of a handle that is not mapped here any more. Says how much a group became smaller, where it was a group's.
    fn let_go(&mut self, mapped: Mapped) -> Option<u64> {
        match (mapped, &self.source) {
            (Mapped::Own(handle), _) => {
                if self.driver.handle_release(handle).is_err() {
                    self.owed.push(handle);
                }
                None
            }
            (Mapped::Shared(place), Source::Shared(group, row)) => Some(group.let_go(*row, place..place + 1)),
            (Mapped::Shared(_), _) => None,
        }
    }

    /// What was mapped last and is unmapped again leaves no hole.
    fn take_back_the_end(&mut self, base: u64, bytes: u64) {
        if let Some(arena) = self.arenas.last_mut()
            && base + bytes == arena.base + arena.filled
        {
            arena.filled -= bytes;
        }
    }

    fn ends_at(&self, address: u64) -> bool {
        let before = self.regions.range(..address).next_back();
        before.is_some_and(|(base, region)| base + region.bytes == address && region.mapped.is_some())
    }

    /// The place of a shared group behind the last one that is mapped here.
    fn first_free_place(&self) -> usize {
        let mapped = self.regions.values().chain(self.broken.values()).filter_map(|region| region.mapped);
        let places = mapped.filter_map(|mapped| match mapped {
            Mapped::Shared(place) => Some(place + 1),
            Mapped::Own(_) => None,
        });
        places.max().unwrap_or(0)
    }

    fn granularity(&mut self) -> Result<u64> {
        if self.granularity == 0 {
            self.granularity = self.driver.granularity(self.device)?;
        }
        Ok(self.granularity)
    }
}
