//! Views: old mappings of handles that were taken elsewhere, left in place.
//!
//! One handle can be mapped at two addresses (measured), and addresses are plentiful. So the mapping at the old address is not
//! removed when a handle moves on: that would cost 26 of the 66 us that moving takes. It is not an address that anybody uses:
//! memory is counted, and given out, where its handle is at home. A view is good for two things. What its stream still had
//! under way at the old address goes on undisturbed. And a place whose views all belong to handles that are free as a whole
//! can be had again with no driver call at all: the handles come home. So a program that alternates between
//! a few layouts, as loops do, maps each of them once.
//!
//! A view is removed where its addresses are needed, where its handle is to be released or put to sleep, and the oldest where there
//! are too many.

use std::collections::BTreeMap;
use std::ops::Range;

use headwater_driver::{DevicePtr, Handle};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Core;
use super::extents::Region;
use super::handles::HandleId;
use super::plan::{Fill, Piece, Source};
use super::policy::VIEWS_MAX;
use crate::caching::classic::{BlockId, Tag, Wanted};

/// A second mapping of a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) bytes: u64,
    pub(crate) extent: usize,
    pub(crate) handle: Handle,
    /// It can be removed when this stream has finished what it had at this tick.
    pub(crate) tag: Tag,
    pub(crate) tick: u64,
    /// Whether memory can be reached through it: not where giving access failed, and the mapping could not be removed.
    pub(crate) has_access: bool,
    /// Whether a plan or a driver call has it.
    pub(crate) under_way: bool,
    /// Whether the driver would not remove it.
    pub(crate) is_stuck: bool,
    /// The tick at which it came to be one.
    pub(crate) since: u64,
}

/// All views.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// By address.
    by_address: BTreeMap<u64, View>,
    /// How many a handle has.
    of: BTreeMap<Handle, u32>,
}

impl Views {
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether a handle has any.
    pub(crate) fn has(&self, handle: Handle) -> bool {
        self.of.contains_key(&handle)
    }

    /// The views and their addresses, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &View)> {
        self.by_address.iter().map(|(address, view)| (*address, view))
    }

    pub(crate) fn insert(&mut self, address: u64, view: View) {
        *self.of.entry(view.handle).or_default() += 1;
        self.by_address.insert(address, view);
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<View> {
        let view = self.by_address.remove(&address)?;
        if let Some(count) = self.of.get_mut(&view.handle) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&view.handle);
            }
        }
        Some(view)
    }

    pub(super) fn set_under_way(&mut self, address: u64, under_way: bool) {
        if let Some(view) = self.by_address.get_mut(&address) {
            view.under_way = under_way;
        }
    }

    /// Whether the handles' counts are those of the views, for the walk.
    pub(super) fn add_up(&self) -> bool {
        self.of.values().map(|count| *count as usize).sum::<usize>() == self.by_address.len()
    }
}

/// A place that needs no driver call: views of handles that can come home, and free ranges at both ends.
#[derive(Debug)]
pub(super) struct Revival {
    extent: usize,
    before: Option<BlockId>,
    /// Addresses, and the handles that come home.
    views: Vec<(u64, HandleId)>,
    behind: Option<(BlockId, u64)>,
}

impl Core {
    /// The tightest place in `region` where `bytes` can be had for nothing.
    pub(super) fn revivable_place(&self, region: Region, bytes: u64, tag: Tag) -> Option<Revival> {
        if self.views.len() == 0 {
            return None;
        }
        let at_home: FxHashMap<Handle, HandleId> = self
            .handles
            .whole_free()
            .filter_map(|id| Some((self.handles.get(id)?.handle?, id)))
            .filter(|(handle, _)| self.views.has(*handle))
            .collect();
        let mut best: Option<(u64, Revival)> = None;
        let mut run: Vec<(u64, HandleId)> = Vec::new();
        let mut run_range: Range<u64> = 0..0;
        let mut consider = |run: &[(u64, HandleId)], range: &Range<u64>| {
            let Some((total_bytes, revival)) = self.revival_of(run, range, bytes, tag) else { return };
            if best.as_ref().is_none_or(|(least, _)| total_bytes < *least) {
                best = Some((total_bytes, revival));
            }
        };
        for (address, view) in
            self.views.iter().filter(|(_, view)| self.extents[view.extent].region == region)
        {
            let home = at_home.get(&view.handle).copied().filter(|id| self.can_come_home(*id, tag));
            let home = home.filter(|_| view.has_access && !view.under_way);
            let goes_on =
                address == run_range.end && home.is_some_and(|id| !run.iter().any(|(_, other)| *other == id));
            if !goes_on {
                consider(&run, &run_range);
                run.clear();
                run_range = address..address;
            }
            if let Some(id) = home {
                run.push((address, id));
                run_range.end = address + view.bytes;
            }
        }
        consider(&run, &run_range);
        best.map(|(_, revival)| revival)
    }

    /// Whether a whole-free handle may be used by stream `tag` where it has a view.
    fn can_come_home(&self, id: HandleId, tag: Tag) -> bool {
        let free = self.blocks_on(id);
        !free.is_empty() && free.iter().all(|id| self.may_use(*id, tag))
    }

    /// A run of views as a place for `bytes`, and how much free memory is there altogether.
    fn revival_of(
        &self,
        run: &[(u64, HandleId)],
        range: &Range<u64>,
        bytes: u64,
        tag: Tag,
    ) -> Option<(u64, Revival)> {
        let extent = self.extent_of(run.first()?.0)?;
        let usable = |id: &BlockId| self.blocks[*id].segment.0 as usize == extent && self.may_use(*id, tag);
        // Free ranges on handles that come home are no longer there then.
        let stays = |id: &BlockId| {
            let block = &self.blocks[*id];
            let homes = run.iter().filter_map(|(_, id)| self.handles.get(*id));
            !homes.into_iter().any(|home| home.address < block.ptr + block.bytes && block.ptr < home.end())
        };
        let before = self.by_address.range(..range.start).next_back().map(|(_, id)| *id);
        let ends_here = |id: &BlockId| self.blocks[*id].ptr + self.blocks[*id].bytes == range.start;
        let before = before.filter(ends_here).filter(usable).filter(stays);
        let before_bytes = before.map_or(0, |id| self.blocks[id].bytes);
        let behind = self.by_address.get(&range.end).copied().filter(usable).filter(stays);
        let behind_bytes = behind.map_or(0, |id| self.blocks[id].bytes);
        let total_bytes = before_bytes + (range.end - range.start) + behind_bytes;
        if total_bytes < bytes {
            return None;
        }
        let needed_end = range.start + bytes.saturating_sub(before_bytes).max(1);
        let views = run.iter().copied().take_while(|(address, _)| *address < needed_end).collect();
        let behind = behind.filter(|_| needed_end > range.end).map(|id| (id, needed_end - range.end));
        Some((total_bytes, Revival { extent, before, views, behind }))
    }

    /// Speaks for a place that needs no driver call.
    pub(super) fn plan_revival(&mut self, revival: Revival, wanted: &Wanted, tag: Tag) -> Fill {
        let Revival { extent, before, views, behind } = revival;
        let held = self.hold_ends(before, behind);
        let mut pieces = Vec::with_capacity(views.len());
        for (address, id) in views {
            let Some(mut taken) = self.speak_for(id, tag) else { continue };
            taken.keeps_view = true;
            self.views.set_under_way(address, true);
            pieces.push(Piece { address, bytes: taken.bytes(), source: Source::View(taken) });
        }
        Fill { extent, held, pieces, promised_bytes: 0, tag, wanted: *wanted }
    }

    /// Whether a view can be removed now, as far as is known.
    pub(super) fn is_removable(&self, view: &View) -> bool {
        !view.under_way && !view.is_stuck && self.tags.is_finished(view.tag, view.tick)
    }

    /// Speaks for the views in a range, to be removed: there is nothing in it but gaps and views that can be.
    pub(super) fn clear_views(&mut self, range: Range<u64>) -> Vec<(DevicePtr, u64)> {
        let before = self.views.by_address.range(..range.start).next_back();
        let reaches_in = before.filter(|(address, view)| **address + view.bytes > range.start);
        let first = reaches_in.map_or(range.start, |(address, _)| *address);
        let inside = self.views.by_address.range_mut(first..range.end);
        inside
            .map(|(address, view)| {
                view.under_way = true;
                (DevicePtr::new(*address), view.bytes)
            })
            .collect()
    }

    /// Views to be removed: all that can be, or the oldest where there are too many. They are spoken for until
    /// [`view_removed`](Self::view_removed).
    pub(crate) fn begin_removing_views(&mut self, all: bool) -> Vec<(DevicePtr, u64)> {
        if !all && self.views.len() < VIEWS_MAX {
            return Vec::new();
        }
        let mut due: SmallVec<[(u64, u64, u64); 8]> = SmallVec::new();
        for (address, view) in self.views.iter() {
            if !view.under_way && self.tags.is_finished(view.tag, view.tick) {
                due.push((view.since, address, view.bytes));
            }
        }
        due.sort_unstable();
        // A quarter at once, so that not every miss has to.
        due.truncate(if all { usize::MAX } else { VIEWS_MAX / 4 });
        for (_, address, _) in &due {
            self.views.set_under_way(*address, true);
        }
        due.into_iter().map(|(_, address, bytes)| (DevicePtr::new(address), bytes)).collect()
    }

    /// A view is gone, or the driver would not remove it.
    pub(crate) fn view_removed(&mut self, address: DevicePtr, is_gone: bool) {
        if !is_gone {
            if let Some(view) = self.views.by_address.get_mut(&address.raw()) {
                (view.under_way, view.is_stuck) = (false, true);
            }
            self.stats.num_owed_give_backs += 1;
            return;
        }
        if let Some(view) = self.views.remove(address.raw()) {
            self.extents[view.extent].add_gap(address.raw()..address.raw() + view.bytes);
        }
    }

    /// The streams that views wait for.
    pub(crate) fn viewing_tags(&self) -> Vec<(Tag, u64)> {
        let mut tags = BTreeMap::new();
        for (_, view) in self.views.iter().filter(|(_, view)| !self.tags.is_finished(view.tag, view.tick)) {
            let tick: &mut u64 = tags.entry(view.tag).or_default();
            *tick = view.tick.max(*tick);
        }
        tags.into_iter().collect()
    }
}
