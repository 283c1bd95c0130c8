//! What is tried for a request that no free range serves, in order, before it fails.
//!
//! | step | what | counted as |
//! |---|---|---|
//! | 1 | blocks whose other uses have finished | hit |
//! | 2 | finished memory of other streams (`cross_stream_reuse`) | hit |
//! | 3 | a plan: views, handles taken from elsewhere, new handles up to the limit | hit or miss |
//! | 4 | free memory among large blocks of the other kind | hit |
//! | 5 | memory that another stream gave back and may still use, with a wait on the device | hit or miss |
//! | 6 | free memory of any region | hit |
//! | 7 | return what is free as a whole, then a plan with new handles | miss, retry |
//! | 8 | the failure callback, then everything above once more | |
//! | 9 | wait for pending blocks and for streams with free memory, the oldest first | hit or miss, sync |
//! | 10 | an error with the full picture | out of memory |
//!
//! **Growing comes before ordering streams** (step 5): a wait on the device makes two streams run one after the other that the
//! program wrote to run side by side. That price is paid only where the limit or the device leaves no other way, and
//! never where `cross_stream_reuse` is off or one of the streams is being captured. It cannot make a cycle: the event waited
//! for is recorded at the end of what the other stream has at this moment, so it waits for nothing that comes later.

use headwater_driver::DevicePtr;

use super::Core;
use super::carry_out::Pager;
use super::plan::{Fill, Plan};
use super::policy::{ASK_FIRST_BYTES, STREAMS_ASKED};
use crate::AllocError;
use crate::caching::CachingAllocator;
use crate::caching::chores::{Recorded, only_fatal};
use crate::caching::classic::{Tag, Wanted};
use crate::caching::growth::{Grown, Refusal};
use crate::caching::history::Action;
use crate::caching::ladder::Climb;

/// A block, or nothing yet.
type Step = Result<Option<DevicePtr>, AllocError>;

/// How often a plan is made anew because another thread came in between, before that counts as a refusal.
const PLANS_A_REQUEST: usize = 8;

impl CachingAllocator {
    /// Serves a request that needs more than a search.
    #[cold]
    pub(in crate::caching) fn climb_paged(&self, climb: &Climb) -> Result<DevicePtr, AllocError> {
        let refusal = match self.search_and_plan(climb)? {
            Ok(ptr) => return Ok(ptr),
            Err(refusal) => refusal,
        };
        // Rather among blocks of the other kind than not at all.
        if let Some(ptr) = self.take_where(climb, Core::take_crossing) {
            return Ok(ptr);
        }
        if refusal == Refusal::Limit && self.config.throw_on_cudamalloc_oom() {
            return Err(self.out_of_memory(climb, refusal, true));
        }
        if let Some(ptr) = self.press(climb)? {
            return Ok(ptr);
        }
        if self.call_back(climb, refusal) {
            if let Ok(ptr) = self.search_and_plan(climb)? {
                return Ok(ptr);
            }
            if let Some(ptr) = self.press(climb)? {
                return Ok(ptr);
            }
        }
        match self.wait_and_plan(climb)? {
            Ok(ptr) => Ok(ptr),
            Err(refusal) => Err(self.out_of_memory(climb, refusal, false)),
        }
    }

    /// Steps 1 to 3.
    fn search_and_plan(&self, climb: &Climb) -> Result<Grown, AllocError> {
        if self.state.lock().has_chores() {
            self.do_chores(usize::MAX, usize::MAX)?;
            if let Some(ptr) = self.search(climb) {
                return Ok(Ok(ptr));
            }
        }
        self.ask_marks()?;
        self.remove_views(false);
        if self.config.cross_stream_reuse()
            && let Some(ptr) = self.search_other_streams_paged(climb)?
        {
            return Ok(Ok(ptr));
        }
        self.plan_and_carry_out(climb)
    }

    /// Step 2: learns what other streams have finished, and searches again.
    fn search_other_streams_paged(&self, climb: &Climb) -> Step {
        let (tag, others) = {
            let mut state = self.state.lock();
            let tag = state.tag_of(climb.stream);
            let Some(core) = state.core.paged() else { return Ok(None) };
            if core.others_with_free(tag).is_empty() {
                return Ok(None);
            }
            (tag, core.unfinished_elsewhere(tag))
        };
        for (other, _) in others.iter().take(STREAMS_ASKED) {
            self.mark_stream(*other)?;
        }
        self.ask_marks()?;
        self.remove_views(false);
        let mut state = self.state.lock();
        let Some(core) = state.core.paged_mut() else { return Ok(None) };
        for other in core.others_with_free(tag) {
            core.share_finished(other, Some(tag));
        }
        for (other, _) in core.unfinished_elsewhere(tag) {
            state.marks.watch(other);
        }
        Ok(state.take(&climb.wanted, climb.stream))
    }

    /// Step 3.
    fn plan_and_carry_out(&self, climb: &Climb) -> Result<Grown, AllocError> {
        for _ in 0..PLANS_A_REQUEST {
            let (tag, plan) = {
                let mut state = self.state.lock();
                let tag = state.tag_of(climb.stream);
                let Some(core) = state.core.paged_mut() else { return Ok(Err(Refusal::Device)) };
                (tag, core.plan(&climb.wanted, tag))
            };
            match plan {
                Plan::Serve => {
                    if let Some(ptr) = self.search(climb) {
                        return Ok(Ok(ptr));
                    }
                }
                Plan::Clear(views) => self.unmap_views(views),
                Plan::Fill(fill) => {
                    if let Some(grown) = self.carry_out_fill(fill, climb, tag)? {
                        return Ok(grown);
                    }
                }
                Plan::OverLimit => return Ok(Err(Refusal::Limit)),
                Plan::NoAddresses => self.reserve_arena(climb.wanted.padded_bytes)?,
            }
        }
        Ok(Err(Refusal::Device))
    }

    /// Nothing where another thread came in between.
    fn carry_out_fill(&self, fill: Fill, climb: &Climb, tag: Tag) -> Result<Option<Grown>, AllocError> {
        let new_bytes = fill.new_bytes();
        let has_room = new_bytes < ASK_FIRST_BYTES
            || self.driver.memory_info(self.device).map_or(true, |memory| memory.free_bytes >= new_bytes);
        if !has_room {
            let mut state = self.state.lock();
            if let Some(core) = state.core.paged_mut() {
                core.abandon(fill);
            }
            return Ok(Some(Err(Refusal::Device)));
        }
        let (done, error) = self.with_pager(|pager| pager.fill(&fill));
        let pieces: Vec<_> = fill.mapped_pieces().map(|piece| (piece.address, piece.bytes)).collect();
        let leaves_unfinished_views = fill.leaves_unfinished_views();
        let ptr = {
            let mut state = self.state.lock();
            let ptr = state.core.paged_mut().and_then(|core| core.commit_fill(fill, &done));
            if let Some(ptr) = ptr {
                let stats = state.core.stats_mut();
                // What needed no call is a hit.
                *(if pieces.is_empty() { &mut stats.hits } else { &mut stats.misses }) += 1;
                if state.history.is_on() {
                    for (address, bytes) in pieces {
                        state.history.note(Action::SegmentMap, DevicePtr::new(address), bytes, climb.stream);
                    }
                }
                state.history.note(Action::Alloc, ptr, climb.wanted.requested_bytes, climb.stream);
            }
            ptr
        };
        if leaves_unfinished_views {
            // Their addresses can be had when the stream has passed this: a later miss asks.
            self.mark_stream(tag)?;
        }
        match (ptr, error) {
            (Some(ptr), _) => Ok(Some(Ok(ptr))),
            (None, None) => Ok(None),
            (None, Some(error)) if error.is_out_of_memory() => Ok(Some(Err(Refusal::Device))),
            (None, Some(error)) => Err(error.into()),
        }
    }

    /// Steps 5 to 7, one thread at a time: each would undo what the other just did.
    fn press(&self, climb: &Climb) -> Step {
        // Other threads may have kept something since.
        self.collect();
        let _turn = self.pressure.lock();
        // Whoever had it before may have made room enough.
        if let Some(ptr) = self.take_where(climb, Core::take_crossing).or_else(|| self.search(climb)) {
            return Ok(Some(ptr));
        }
        if self.config.cross_stream_reuse()
            && let Some(ptr) = self.order_streams(climb)?
        {
            return Ok(Some(ptr));
        }
        if let Some(ptr) = self.take_where(climb, Core::take_anywhere) {
            return Ok(Some(ptr));
        }
        // First what may be enough, then everything.
        for bytes in [climb.wanted.padded_bytes, u64::MAX] {
            let (released_bytes, _) = self.release_at_least(bytes);
            if released_bytes > 0 {
                self.state.lock().core.stats_mut().num_alloc_retries += 1;
                if let Ok(ptr) = self.plan_and_carry_out(climb)? {
                    return Ok(Some(ptr));
                }
            }
        }
        Ok(None)
    }

    /// Serves a request from free memory where it does not belong.
    fn take_where(
        &self,
        climb: &Climb,
        take: impl FnOnce(&mut Core, &Wanted, Tag) -> Option<DevicePtr>,
    ) -> Option<DevicePtr> {
        let mut state = self.state.lock();
        let tag = state.tag_of(climb.stream);
        let ptr = take(state.core.paged_mut()?, &climb.wanted, tag)?;
        state.note_hit(ptr, &climb.wanted, climb.stream);
        Some(ptr)
    }

    /// Step 5: one other stream after another, the one with the largest free range first.
    fn order_streams(&self, climb: &Climb) -> Step {
        let (tag, others) = {
            let mut state = self.state.lock();
            let tag = state.tag_of(climb.stream);
            (tag, state.core.paged().map(|core| core.unfinished_elsewhere(tag)).unwrap_or_default())
        };
        for (other, _) in others {
            if !self.order_after(other, tag, climb)? {
                continue;
            }
            if let Some(ptr) = self.search(climb) {
                return Ok(Some(ptr));
            }
            if let Ok(ptr) = self.plan_and_carry_out(climb)? {
                return Ok(Some(ptr));
            }
        }
        Ok(None)
    }

    /// Makes the request's stream wait on the device for what `other` has now. Says whether it does.
    fn order_after(&self, other: Tag, tag: Tag, climb: &Climb) -> Result<bool, AllocError> {
        let (stream, mark) = {
            let state = self.state.lock();
            let here = crate::caching::threads::ThreadMark::current().number;
            match state.core.tags().get(other) {
                Some(entry) if entry.is_within_reach(here) && !entry.is_lost => {
                    (entry.stream, state.core.now())
                }
                _ => return Ok(false),
            }
        };
        // An event from outside would destroy the capture of the stream that waits for it.
        if only_fatal(self.is_captured(climb.stream).map(Some))?.unwrap_or(true) {
            return Ok(false);
        }
        let event = match self.record(stream) {
            Ok(Recorded::Event(event)) => event,
            Ok(Recorded::Captured) => return Ok(false),
            Err(error) => return only_fatal(Err(error)),
        };
        let waits = self.driver.stream_wait_event(climb.stream, event);
        // Waits that are queued keep their point when the event is recorded again.
        self.state.lock().uses.keep_event(event);
        if let Err(error) = waits {
            return only_fatal(Err(error));
        }
        let mut state = self.state.lock();
        if let Some(core) = state.core.paged_mut() {
            core.hand_over(other, mark, tag);
        }
        Ok(true)
    }

    /// Step 9.
    fn wait_and_plan(&self, climb: &Climb) -> Result<Grown, AllocError> {
        let mut refusal = Refusal::Device;
        let mut waited = false;
        for tag in self.tags_with_free() {
            self.mark_stream(tag)?;
        }
        loop {
            let progress =
                self.wait_for_oldest()? || self.wait_for_mark()? || (!waited && self.wait_for_device()?);
            if std::mem::replace(&mut waited, true) {
                if !progress {
                    break;
                }
            } else {
                self.state.lock().core.stats_mut().num_sync_all_streams += u64::from(progress);
            }
            match self.search_and_plan(climb)? {
                Ok(ptr) => return Ok(Ok(ptr)),
                Err(other) => refusal = other,
            }
            if let Some(ptr) = self.press(climb)? {
                return Ok(Ok(ptr));
            }
            if !progress {
                break;
            }
        }
        Ok(Err(refusal))
    }

    /// Runs driver calls that map memory.
    pub(super) fn with_pager<T>(&self, run: impl FnOnce(&Pager<'_>) -> T) -> T {
        let access = self.access.lock().clone();
        let makes_exportable = self.config.shareable();
        run(&Pager { driver: &*self.driver, device: self.device, access: &access, makes_exportable })
    }
}
