//! What is tried for a request that the free blocks of its stream cannot serve, in order, before it fails.
//!
//! | step | what | counted as |
//! |---|---|---|
//! | 1 | blocks whose other uses have finished | hit |
//! | 2 | finished blocks of other streams (`cross_stream_reuse`) | hit |
//! | 3 | collection of old cached segments above the threshold, then a new segment | miss |
//! | 4 | return the oversize cached segments that would be enough, then a new segment | miss |
//! | 5 | return all cached segments, then a new segment, then one of just the size | miss, retry |
//! | 6 | the failure callback, then everything above once more | |
//! | 7 | wait for pending blocks, the oldest event first, searching after each | hit, sync |
//! | 8 | return all cached segments, a last try | miss, retry |
//! | 9 | an error with the full picture | out of memory |
//!
//! PyTorch waits at step 5 and never searches again afterwards; here waiting comes last, and what was waited for is used.
//! Steps 4 to 8 are taken by one thread at a time, because each would undo what the other just did: one releases, the
//! other takes what became free, and the first fails for no reason. Nothing on the hit path needs that lock, so it may be held
//! while the driver works. The callback runs without any lock.
//!
//! What threads keep in their caches (`front/`) was given to the engine before the first step, and is again before each step that
//! takes something away from somebody, asks the driver once more or gives up.

use headwater_driver::{DevicePtr, Stream};

use super::CachingAllocator;
use super::chores::FILLS_A_CALL;
use super::classic::Wanted;
use super::growth::{Grown, Refusal};
use super::history::Action;
use crate::AllocError;
use crate::error::OutOfMemoryReport;

/// How many other streams are looked at for a finished block.
const STREAMS_ASKED: usize = 8;

/// A request on its way up.
pub(super) struct Climb {
    pub(super) wanted: Wanted,
    pub(super) stream: Stream,
}

/// A block, or nothing yet.
type Step = Result<Option<DevicePtr>, AllocError>;

impl CachingAllocator {
    /// Serves a request that needs more than a search.
    #[cold]
    pub(super) fn climb(&self, climb: &Climb) -> Result<DevicePtr, AllocError> {
        if self.is_paged() {
            return self.climb_paged(climb);
        }
        if let Some(ptr) = self.search_further(climb)? {
            return Ok(ptr);
        }
        let refusal = match self.collect_and_grow(climb)? {
            Ok(ptr) => return Ok(ptr),
            Err(refusal) => refusal,
        };
        if refusal == Refusal::Limit && self.config.throw_on_cudamalloc_oom() {
            return Err(self.out_of_memory(climb, refusal, true));
        }
        if let Some(ptr) = self.make_room(climb)? {
            return Ok(ptr);
        }
        if self.call_back(climb, refusal)
            && let Some(ptr) = self.once_more(climb)?
        {
            return Ok(ptr);
        }
        match self.wait_and_retry(climb)? {
            Ok(ptr) => Ok(ptr),
            Err(refusal) => Err(self.out_of_memory(climb, refusal, false)),
        }
    }

    /// Steps 1 and 2.
    fn search_further(&self, climb: &Climb) -> Step {
        if self.state.lock().has_chores() {
            self.do_chores(usize::MAX, usize::MAX)?;
            if let Some(ptr) = self.search(climb) {
                return Ok(Some(ptr));
            }
        }
        if self.config.cross_stream_reuse() { self.search_other_streams(climb) } else { Ok(None) }
    }

    pub(super) fn search(&self, climb: &Climb) -> Option<DevicePtr> {
        self.state.lock().take(&climb.wanted, climb.stream)
    }

    /// Takes a finished block of another stream. Where none is known to be finished, asks the streams that have one: an event
    /// is recorded and asked, and where it has not been reached yet, a later request finds it on the way.
    fn search_other_streams(&self, climb: &Climb) -> Step {
        let candidates = {
            let mut state = self.state.lock();
            if let Some(ptr) = state.take_finished(&climb.wanted, climb.stream) {
                return Ok(Some(ptr));
            }
            let tag = state.tag_of(climb.stream);
            let Some(core) = state.core.classic_mut() else { return Ok(None) };
            let candidates = core.candidates(&climb.wanted, tag, STREAMS_ASKED);
            for candidate in &candidates {
                state.uses.want_mark(candidate.tag, candidate.given_back_at);
            }
            candidates
        };
        if candidates.is_empty() {
            return Ok(None);
        }
        self.do_chores(usize::MAX, FILLS_A_CALL)?;
        let mut state = self.state.lock();
        // What the questions freed may have been the request's own.
        let own = state.take(&climb.wanted, climb.stream);
        Ok(own.or_else(|| state.take_finished(&climb.wanted, climb.stream)))
    }

    /// Step 3.
    fn collect_and_grow(&self, climb: &Climb) -> Result<Grown, AllocError> {
        let garbage = self.state.lock().core.classic_mut().map(|core| core.offer_garbage());
        // What the driver refuses stays cached, and is no reason to fail.
        self.release(garbage.unwrap_or_default());
        self.grow(&climb.wanted, climb.stream)
    }

    /// Steps 4 and 5.
    fn make_room(&self, climb: &Climb) -> Step {
        // Other threads may have kept something since.
        self.collect();
        let _turn = match self.pressure.try_lock() {
            Some(turn) => turn,
            None => {
                let turn = self.pressure.lock();
                // Whoever had it may have made room enough.
                if let Some(ptr) = self.search(climb) {
                    return Ok(Some(ptr));
                }
                if let Ok(ptr) = self.grow(&climb.wanted, climb.stream)? {
                    return Ok(Some(ptr));
                }
                turn
            }
        };
        let oversize = {
            let mut state = self.state.lock();
            let tag = state.tag_of(climb.stream);
            let core = state.core.classic_mut();
            core.map(|core| core.offer_oversize(&climb.wanted, tag)).unwrap_or_default()
        };
        if self.release(oversize).0 > 0
            && let Ok(ptr) = self.grow(&climb.wanted, climb.stream)?
        {
            return Ok(Some(ptr));
        }
        let (released_bytes, _) = self.release_all();
        if released_bytes > 0
            && let Some(ptr) = self.retry(climb)?
        {
            return Ok(Some(ptr));
        }
        self.grow_tightly(&climb.wanted, climb.stream)
    }

    /// Searches and grows after something was released.
    fn retry(&self, climb: &Climb) -> Step {
        if let Some(ptr) = self.search(climb) {
            return Ok(Some(ptr));
        }
        self.state.lock().core.stats_mut().num_alloc_retries += 1;
        Ok(self.grow(&climb.wanted, climb.stream)?.ok())
    }

    /// Step 6, the first half: says whether the callback freed something.
    pub(super) fn call_back(&self, climb: &Climb, refusal: Refusal) -> bool {
        let callback = self.failure_callback.lock().clone();
        callback.is_some_and(|callback| callback(&self.report(climb, refusal)))
    }

    /// Step 6, the second half.
    fn once_more(&self, climb: &Climb) -> Step {
        self.collect();
        if let Some(ptr) = self.search(climb) {
            return Ok(Some(ptr));
        }
        if let Some(ptr) = self.search_further(climb)? {
            return Ok(Some(ptr));
        }
        if let Ok(ptr) = self.grow(&climb.wanted, climb.stream)? {
            return Ok(Some(ptr));
        }
        self.make_room(climb)
    }

    /// Steps 7 and 8.
    fn wait_and_retry(&self, climb: &Climb) -> Result<Grown, AllocError> {
        let _turn = self.pressure.lock();
        let mut waited = false;
        while self.wait_for_oldest()? {
            if !std::mem::replace(&mut waited, true) {
                self.state.lock().core.stats_mut().num_sync_all_streams += 1;
            }
            self.collect();
            // New events become due while others are waited for, and blocks may have to be overwritten.
            self.do_chores(usize::MAX, usize::MAX)?;
            if let Some(ptr) = self.search(climb) {
                return Ok(Ok(ptr));
            }
            if let Some(ptr) = self.search_further(climb)? {
                return Ok(Ok(ptr));
            }
        }
        self.collect();
        self.release_all();
        if let Some(ptr) = self.search(climb) {
            return Ok(Ok(ptr));
        }
        self.state.lock().core.stats_mut().num_alloc_retries += 1;
        match self.grow(&climb.wanted, climb.stream)? {
            Ok(ptr) => Ok(Ok(ptr)),
            Err(refusal) => Ok(self.grow_tightly(&climb.wanted, climb.stream)?.ok_or(refusal)),
        }
    }

    /// Step 9.
    pub(super) fn out_of_memory(&self, climb: &Climb, refusal: Refusal, rejected: bool) -> AllocError {
        {
            let mut state = self.state.lock();
            state.core.stats_mut().num_ooms += 1;
            state.core.stats_mut().num_oom_rejections += u64::from(rejected);
            state.history.note(Action::Oom, DevicePtr::NULL, climb.wanted.requested_bytes, climb.stream);
        }
        self.report(climb, refusal).into()
    }

    fn report(&self, climb: &Climb, refusal: Refusal) -> OutOfMemoryReport {
        let mut report = OutOfMemoryReport::new(self.device, climb.wanted.requested_bytes);
        self.at_rest(|state| {
            report.fill_from(&state.stats());
            report.limit_bytes = state.core.limit_bytes();
        });
        // Without an answer the report is still worth having.
        report.memory = self.driver.memory_info(self.device).ok();
        report.over_limit = refusal == Refusal::Limit;
        report.remedy = remedy(&report, self.is_paged());
        report
    }
}

/// What would help, judged by where the memory is.
fn remedy(report: &OutOfMemoryReport, is_paged: bool) -> &'static str {
    let requested_bytes = report.requested_bytes;
    if report.cached_bytes >= requested_bytes && is_paged {
        // Free between live blocks of the same handles, or on streams that are being captured.
        return "much is cached beside live blocks: give those back, or raise the limit";
    }
    if report.cached_bytes >= requested_bytes {
        // Cached, and not to be had: pieces between live blocks, or of other streams.
        return "much is cached in pieces: try backing:paged (expandable_segments:True), or max_split_size_mb";
    }
    if report.pending_bytes >= requested_bytes {
        return "streams still use much of what was given back: give back earlier, or let those streams finish";
    }
    if report.over_limit {
        return "raise memory_limit or per_process_memory_fraction, or give memory back";
    }
    "give memory back, here or in the other programs on this device"
}
