//! Being seen: statistics, facts and walks as if there were no caches.

use headwater_driver::DevicePtr;

use super::counts::{Amounts, put_walk_right};
use super::office::Office;
use crate::allocator::{BlockFacts, BlockState};
use crate::caching::CachingAllocator;
use crate::caching::state::State;
use crate::stats::{DeviceStats, WalkedTotals};

impl Office {
    /// Puts the engine's facts of a block right.
    pub(in crate::caching) fn facts(&self, mut facts: BlockFacts) -> BlockFacts {
        let Some(ticket) = self.writer.get(facts.ptr.raw()) else { return facts };
        if ticket.is_in_cache() {
            (facts.state, facts.requested_bytes) = (BlockState::Cached, 0);
        } else if facts.state == BlockState::Live {
            facts.requested_bytes = ticket.requested_bytes();
        }
        facts
    }

    /// What a caller asked for, of a block that is live for the engine; nothing where no caller holds it.
    pub(in crate::caching) fn held_bytes(&self, ptr: DevicePtr, engines_bytes: u64) -> Option<u64> {
        match self.writer.get(ptr.raw()) {
            Some(ticket) if ticket.is_in_cache() => None,
            Some(ticket) => Some(ticket.requested_bytes()),
            None => Some(engines_bytes),
        }
    }
}

impl State {
    /// The statistics. Exact where every thread has told.
    pub(in crate::caching) fn stats(&self) -> DeviceStats {
        let stats = self.core.stats().clone();
        if self.office.is_on() { self.office.ledger.put_right(stats) } else { stats }
    }

    /// Lets every peak start again from now.
    pub(in crate::caching) fn reset_peaks(&mut self) {
        self.core.stats_mut().reset_peaks();
        self.office.ledger.reset_peaks(self.core.stats());
    }

    /// Lets every total start again from zero.
    pub(in crate::caching) fn reset_totals(&mut self) {
        self.core.stats_mut().reset_totals();
        self.office.ledger.reset_totals();
    }

    /// What is there, counted anew.
    pub(in crate::caching) fn walked_totals(&self) -> WalkedTotals {
        let mut walked = self.core.walked_totals();
        for (address, ticket) in self.office.writer.iter() {
            let Ok(id) = self.core.find_live(DevicePtr::new(address)) else { continue };
            let Some(block) = self.core.block(id) else { continue };
            let engines = Amounts::one(block.bytes, block.requested_bytes);
            let held = if ticket.is_in_cache() { Amounts::default() } else { Amounts::of(ticket) };
            put_walk_right(&mut walked, ticket.pool_place(), held - engines);
        }
        walked
    }

    /// Every ticket is about a block that is live for the engine.
    pub(in crate::caching) fn tickets_add_up(&self) -> Result<(), String> {
        if !self.office.is_on() {
            return Ok(());
        }
        for (address, ticket) in self.office.writer.iter() {
            if ticket.ptr().raw() != address {
                return Err(format!("the ticket of {address:#x} is about {:#x}", ticket.ptr().raw()));
            }
            if self.core.block_at(DevicePtr::new(address), self.device()).is_none_or(|facts| {
                facts.state != BlockState::Live
                    || facts.ptr.raw() != address
                    || facts.allocated_bytes != ticket.block_bytes()
            }) {
                return Err(format!("{ticket:?} is about no live block"));
            }
        }
        Ok(())
    }
}

impl CachingAllocator {
    /// `f` with the state, and every thread has told and is kept out of its cache.
    pub(in crate::caching) fn at_rest<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        if !self.front.is_on() {
            return f(&mut self.state.lock());
        }
        self.front.caches.stop(|stopped| {
            let mut state = self.state.lock();
            stopped.each(|_, cache| state.absorb(cache.take_counts()));
            f(&mut state)
        })
    }

    /// Whether bins hold what they say, and nothing but blocks that no caller holds.
    pub(in crate::caching) fn bins_add_up(&self) -> Result<(), String> {
        if !self.front.is_on() {
            return Ok(());
        }
        self.front.caches.stop(|stopped| {
            let mut verdict = Ok(());
            stopped.each(|_, cache| {
                let (mut bytes, mut defect) = (0, None);
                cache.bins.walk(|ticket| {
                    bytes += ticket.block_bytes();
                    if !ticket.is_in_cache() {
                        defect = Some(format!("{ticket:?} is in a bin"));
                    }
                });
                if bytes != cache.bins.bytes() {
                    defect = Some(format!("{bytes} bytes in bins, {} counted", cache.bins.bytes()));
                }
                if let Some(defect) = defect {
                    verdict = Err(defect);
                }
            });
            verdict
        })
    }
}
