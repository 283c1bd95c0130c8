//! Opening and closing, returning memory, addresses and peers: driver calls that no single request is the reason of.

use headwater_driver::{DeviceId, DevicePtr, Driver, DriverError};

use super::Core;
use super::policy::ARENA_MAX_BYTES;
use crate::AllocError;
use crate::caching::CachingAllocator;
use crate::caching::classic::Tag;
use crate::caching::history::Action;
use crate::capture_guard;
use crate::config::Config;

/// A core with its arena, and the arena to give back in the end.
pub(in crate::caching) fn open(
    driver: &dyn Driver,
    device: DeviceId,
    config: &Config,
    total_bytes: u64,
) -> Result<(Core, (DevicePtr, u64)), AllocError> {
    let granularity_bytes = driver.granularity(device)?;
    if config.shareable() {
        super::share::check(driver, device, granularity_bytes)?;
    }
    let mut core = Core::new(config, total_bytes, granularity_bytes);
    let mut bytes = Core::arena_bytes(config, total_bytes, granularity_bytes);
    loop {
        match driver.address_reserve(device, bytes, 0) {
            Ok(base) => {
                core.add_arena(base, bytes);
                return Ok((core, (base, bytes)));
            }
            // Other parts of the process may have much of the address space: less will do, down to twice the memory.
            Err(error) if error.is_out_of_memory() && bytes / 2 >= total_bytes.saturating_mul(2) => {
                bytes = (bytes / 2).next_multiple_of(8 * granularity_bytes);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl CachingAllocator {
    /// Returns physical memory to the driver until at most `keep_bytes` are reserved, where so much is free, and says how many
    /// bytes went. Addresses stay. With the classic backing all or nothing of the cache goes.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where the driver refused some of it; the rest is returned nevertheless.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.collect();
        self.do_chores(usize::MAX, usize::MAX)?;
        let _turn = self.pressure.lock();
        let (released_bytes, refusal) = if self.is_paged() {
            self.release_pages(keep_bytes)?
        } else if self.state.lock().core.stats().reserved_bytes.all.current > keep_bytes {
            self.release_all()
        } else {
            (0, None)
        };
        refusal.map_or(Ok(released_bytes), |error| Err(error.into()))
    }

    /// Gives kernels of `peer` access to the memory of this allocator, what there is and what will be. Twice is no error. With
    /// the classic backing it is plain memory, and the driver does it for all of the device's.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where the devices cannot be peers or the driver refused; then some memory may have it already.
    pub fn enable_peer(&self, peer: DeviceId) -> Result<(), AllocError> {
        if peer == self.device {
            return Ok(());
        }
        if !self.is_paged() {
            return Ok(self.driver.peer_access_enable(peer, self.device)?);
        }
        if !self.driver.peer_access_possible(peer, self.device)? {
            // The driver's own refusal names the devices.
            return Ok(self.driver.peer_access_enable(peer, self.device)?);
        }
        {
            let mut access = self.access.lock();
            if access.contains(&peer) {
                return Ok(());
            }
            // What is mapped from now on has it.
            access.push(peer);
        }
        let _turn = self.pressure.lock();
        let (mappings, _) = self.state.lock().core.paged().map(Core::all_mappings).unwrap_or_default();
        for (ptr, bytes) in mappings {
            if let Err(error) = self.driver.access_set(ptr, bytes, &[peer]) {
                // It may have been taken elsewhere meanwhile, with access for the peer.
                let is_there = self.state.lock().core.paged().is_some_and(|core| core.is_mapped(ptr, bytes));
                if is_there {
                    self.access.lock().retain(|device| *device != peer);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Reserves more addresses, because a region has none left for `bytes`.
    pub(super) fn reserve_arena(&self, bytes: u64) -> Result<(), AllocError> {
        let granularity_bytes = match self.state.lock().core.paged() {
            Some(core) => core.granularity_bytes,
            None => return Ok(()),
        };
        // The smallest region has an eighth.
        let least_bytes = bytes.saturating_mul(16).next_multiple_of(8 * granularity_bytes);
        let arena_bytes = least_bytes.max(ARENA_MAX_BYTES / 8);
        let base = self.driver.address_reserve(self.device, arena_bytes, 0)?;
        self.arenas.lock().push((base, arena_bytes));
        if let Some(core) = self.state.lock().core.paged_mut() {
            core.add_arena(base, arena_bytes);
        }
        Ok(())
    }

    /// Removes views whose streams have finished with them: all, or the oldest where there are too many. What the driver refuses
    /// is tried again.
    pub(super) fn remove_views(&self, all: bool) {
        let due = self.state.lock().core.paged_mut().map(|core| core.begin_removing_views(all));
        self.unmap_views(due.unwrap_or_default());
    }

    pub(super) fn unmap_views(&self, views: Vec<(DevicePtr, u64)>) {
        for (ptr, bytes) in views {
            let is_gone = self.driver.handle_unmap(self.device, ptr, bytes).is_ok();
            if let Some(core) = self.state.lock().core.paged_mut() {
                core.view_removed(ptr, is_gone);
            }
        }
    }

    /// Removes every view, after waiting for the streams that views wait for.
    ///
    /// # Errors
    /// Where waiting failed.
    pub(super) fn remove_all_views(&self) -> Result<(), AllocError> {
        let waiting = self.state.lock().core.paged().map(Core::viewing_tags).unwrap_or_default();
        for (tag, _) in &waiting {
            self.mark_stream(*tag)?;
        }
        while !waiting.is_empty() && self.wait_for_mark()? {}
        self.remove_views(true);
        Ok(())
    }

    /// The streams that have free memory.
    pub(super) fn tags_with_free(&self) -> Vec<Tag> {
        self.state.lock().core.paged().map(|core| core.others_with_free(Tag::ANY)).unwrap_or_default()
    }

    /// Returns what is free as a whole and finished, until at most `keep_bytes` are reserved.
    ///
    /// # Errors
    /// Only where the device is lost.
    pub(in crate::caching) fn release_pages(
        &self,
        keep_bytes: u64,
    ) -> Result<(u64, Option<DriverError>), AllocError> {
        self.learn_all()?;
        if self.wait_for_device()? && self.fill.is_some() {
            // What waited for a stream that is gone is overwritten only now.
            self.do_chores(usize::MAX, usize::MAX)?;
            while self.wait_for_oldest()? {
                self.do_chores(usize::MAX, usize::MAX)?;
            }
            self.learn_all()?;
        }
        let reserved_bytes = self.state.lock().core.stats().reserved_bytes.all.current;
        Ok(self.release_at_least(reserved_bytes.saturating_sub(keep_bytes)))
    }

    /// Asks every stream that has free memory, or views, what it has finished.
    fn learn_all(&self) -> Result<(), AllocError> {
        let waiting = self.state.lock().core.paged().map(Core::viewing_tags).unwrap_or_default();
        for tag in self.tags_with_free().into_iter().chain(waiting.into_iter().map(|(tag, _)| tag)) {
            self.mark_stream(tag)?;
        }
        self.ask_marks()?;
        if self.fill.is_some() {
            // What still runs may be our own overwriting of what was given back, queued a moment ago.
            while self.wait_for_mark()? {}
        }
        Ok(())
    }

    /// Returns at least `bytes` of what is free as a whole and finished, where there is so much.
    pub(super) fn release_at_least(&self, bytes: u64) -> (u64, Option<DriverError>) {
        if bytes == 0 {
            return (0, None);
        }
        // A handle with a second mapping would not go.
        self.remove_views(true);
        let offers = self.state.lock().core.paged_mut().map(|core| core.offer(bytes)).unwrap_or_default();
        let (mut released_bytes, mut refusal) = (0, None);
        for offer in offers {
            let (released, error) = self.with_pager(|pager| pager.release(&offer));
            let mut state = self.state.lock();
            if error.is_none() {
                released_bytes += offer.bytes();
                if let Some(ptr) = offer.address() {
                    let stream = headwater_driver::Stream::legacy_default(self.device);
                    state.history.note(Action::SegmentUnmap, ptr, offer.bytes(), stream);
                }
            }
            refusal = error.or(refusal);
            if let Some(core) = state.core.paged_mut() {
                core.settle_offer(offer, released);
            }
        }
        (released_bytes, refusal)
    }

    /// Waits for the whole device, where something was last used by a stream that no event can be recorded on: it was
    /// destroyed without a word, or is another thread's. Says whether it did. The one call that waits and needs no stream is
    /// the release of pinned memory.
    ///
    /// # Errors
    /// Only where the device is lost.
    pub(super) fn wait_for_device(&self) -> Result<bool, AllocError> {
        let mark = {
            let mut state = self.state.lock();
            state.give_up_on_other_threads();
            let is_lost = state.uses.has_lost() || state.core.paged().is_some_and(Core::has_orphans);
            if !is_lost {
                return Ok(false);
            }
            state.core.now()
        };
        let waited = self.wait_through_pinned_memory();
        if waited.is_err() {
            return crate::caching::chores::only_fatal(waited.map(|()| true));
        }
        self.state.lock().device_was_waited_for(mark);
        Ok(true)
    }

    fn wait_through_pinned_memory(&self) -> Result<(), DriverError> {
        capture_guard::relaxed(&*self.driver, || {
            let page = self.driver.host_alloc(4096)?;
            // SAFETY: the page was just allocated, and nothing else knows its address.
            let freed = unsafe { self.driver.host_free(page) };
            // SAFETY: the same; a failed free leaves it allocated.
            freed.or_else(|_| unsafe { self.driver.host_free(page) })
        })
    }

    /// Returns everything when the allocator goes, after waiting for whatever still uses it.
    pub(in crate::caching) fn close_pages(&mut self) {
        self.forget_naps();
        let tags = self.tags_with_use();
        let marked: Vec<_> = tags.iter().map(|tag| self.mark_stream(*tag)).collect();
        let all_marked = marked.iter().all(|marked| matches!(marked, Ok(true)));
        while self.wait_for_mark().unwrap_or(false) {}
        if !all_marked || self.state.lock().uses.has_lost() {
            // There is nobody left to tell.
            let _ = self.wait_through_pinned_memory();
        }
        while self.wait_for_oldest().unwrap_or(false) {}
        let state = self.state.get_mut();
        let (mappings, handles) = state.core.paged().map(Core::all_mappings).unwrap_or_default();
        let mut events = state.uses.take_all_events();
        events.extend(state.marks.take_all());
        let arenas = std::mem::take(self.arenas.get_mut());
        // There is nobody left to tell, and the next one may still go.
        for (ptr, bytes) in mappings {
            let _ = self.driver.handle_unmap(self.device, ptr, bytes);
        }
        for handle in handles {
            let _ = self.driver.handle_release(handle);
        }
        for (base, bytes) in arenas {
            let _ = self.driver.address_free(self.device, base, bytes);
        }
        for event in events {
            let _ = self.driver.event_destroy(event);
        }
    }

    /// The streams that may still use anything.
    fn tags_with_use(&self) -> Vec<Tag> {
        let state = self.state.lock();
        state.core.tags().iter().filter(|(_, entry)| entry.died_at.is_none()).map(|(tag, _)| tag).collect()
    }
}
