//! How a private pool gets memory, and what is tried before a request fails.

use std::sync::Arc;

use headwater_driver::DevicePtr;

use super::carver::Lane;
use super::private_pool::PrivatePool;
use super::retire::Patience;
use super::wanted::{Half, Wanted};
use crate::error::{AllocError, OutOfMemoryReport};

/// What small requests grow by, and what large ones below half of it do: PyTorch's sizes.
const SMALL_GROWTH_BYTES: u64 = 2 << 20;
const LARGE_GROWTH_BYTES: u64 = 20 << 20;

/// Why the pool did not grow.
enum Refusal {
    Limit,
    Device,
}

impl PrivatePool {
    /// What is tried before a request fails: captured streams whose order is known, streams that have finished, growth, growth after others made room, growth by just
    /// what is missing, waiting.
    #[cold]
    pub(super) fn climb(self: &Arc<Self>, wanted: &Wanted) -> Result<DevicePtr, AllocError> {
        if (self.learn_order(wanted.lane) | self.ask_streams())
            && let Some(ptr) = self.search(wanted)
        {
            return Ok(ptr);
        }
        if let Ok(ptr) = self.grow(wanted, false)? {
            return Ok(ptr);
        }
        // What the other allocator cannot give is no reason to fail before the device was asked again.
        let _ = self.common.default.empty_cache();
        for pool in self.common.pools() {
            let _ = pool.retire(Patience::Wait);
        }
        self.core.lock().stats.num_alloc_retries += 1;
        if let Ok(ptr) = self.grow(wanted, false)? {
            return Ok(ptr);
        }
        if let Ok(ptr) = self.grow(wanted, true)? {
            return Ok(ptr);
        }
        if !self.core.lock().unfinished().is_empty() {
            let until = self.core.lock().now();
            self.common.fence.wait()?;
            let mut core = self.core.lock();
            core.stats.num_sync_all_streams += 1;
            core.all_finished(until);
        }
        match self.grow(wanted, true)? {
            Ok(ptr) => Ok(ptr),
            Err(refusal) => Err(self.out_of_memory(wanted, &refusal)),
        }
    }

    fn search(&self, wanted: &Wanted) -> Option<DevicePtr> {
        let mut core = self.core.lock();
        let ptr = core.take(wanted)?;
        core.stats.hits += 1;
        Some(ptr)
    }

    /// Asks the streams outside of captures that freed memory here. Says whether one has finished.
    fn ask_streams(&self) -> bool {
        let (unfinished, until) = {
            let mut core = self.core.lock();
            (core.unfinished(), core.now())
        };
        let mut any = false;
        for key in unfinished {
            // Captured, gone or refused: not now.
            if key.is_within_reach() && self.has_finished(key.stream).unwrap_or(false) {
                self.core.lock().finished(key, until);
                any = true;
            }
        }
        any
    }

    /// Gets more memory and serves the request. `tightly`: by no more than is missing.
    fn grow(
        self: &Arc<Self>,
        wanted: &Wanted,
        tightly: bool,
    ) -> Result<Result<DevicePtr, Refusal>, AllocError> {
        let mut memory = self.memory(wanted.half).lock();
        loop {
            let (lane, missing_bytes) = {
                let mut core = self.core.lock();
                // Whoever grew before may have left enough.
                if let Some(ptr) = core.take(wanted) {
                    core.stats.hits += 1;
                    return Ok(Ok(ptr));
                }
                let end = memory.end();
                let (lane, end_bytes) = end.map_or((Lane::ANYONE, 0), |end| core.usable_before(end, wanted));
                (lane, wanted.worst_bytes().saturating_sub(end_bytes).max(1))
            };
            let usual_bytes = match wanted.half {
                Half::Small => SMALL_GROWTH_BYTES,
                Half::Large if wanted.bytes < LARGE_GROWTH_BYTES / 2 => LARGE_GROWTH_BYTES,
                Half::Large => SMALL_GROWTH_BYTES,
            };
            let least_bytes = if tightly { 1 } else { usual_bytes };
            let bytes = missing_bytes.max(least_bytes).next_multiple_of(SMALL_GROWTH_BYTES);
            let bytes = memory.rounded(bytes)?;
            if !self.common.promise(bytes) {
                return Ok(Err(Refusal::Limit));
            }
            let grown = match memory.grow(bytes) {
                Ok(grown) => grown,
                Err(error) => {
                    self.common.withdraw(bytes);
                    return if error.is_out_of_memory() {
                        Ok(Err(Refusal::Device))
                    } else {
                        Err(error.into())
                    };
                }
            };
            self.common.withdraw(bytes - grown.added_bytes.min(bytes));
            let mut segments = 0;
            for (base, bytes) in memory.regions_in(grown.base..grown.base + grown.bytes) {
                self.register(base, bytes);
                segments += 1;
            }
            let mut core = self.core.lock();
            core.admit(wanted.half, grown, segments, lane);
            if let Some(ptr) = core.take(wanted) {
                core.stats.misses += 1;
                return Ok(Ok(ptr));
            }
            // The piece before it has gone to another thread meanwhile.
        }
    }

    pub(super) fn register(&self, base: u64, bytes: u64) {
        self.common.add_range(base, bytes, self.id());
    }

    fn out_of_memory(&self, wanted: &Wanted, refusal: &Refusal) -> AllocError {
        let mut report = OutOfMemoryReport::new(self.common.device, wanted.requested_bytes);
        {
            let mut core = self.core.lock();
            core.stats.num_ooms += 1;
            report.fill_from(&core.stats);
        }
        report.limit_bytes = self.common.limit_bytes();
        report.over_limit = matches!(refusal, Refusal::Limit);
        // Without an answer the report is still worth having.
        report.memory = self.common.driver.memory_info(self.common.device).ok();
        report.remedy = if report.over_limit {
            "raise the limit, or release graphs"
        } else {
            "release graphs, let graphs that never run at once share a pool, or give memory back"
        };
        report.into()
    }
}
