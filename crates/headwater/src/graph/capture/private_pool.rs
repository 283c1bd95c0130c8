//! One private pool: its state behind a short lock, its memory behind locks that only growth needs.
//!
//! Lock order: memory (small, then large), holders, core. Only the memory locks are held across driver calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater_driver::{DevicePtr, Stream};
use parking_lot::Mutex;

use super::PoolId;
use super::common::Common;
use super::core::{Core, GivenBack};
use super::lanes::LaneKey;
use super::retire::Patience;
use super::wanted::{Half, Wanted};
use crate::allocator::Request;
use crate::error::AllocError;
use crate::graph::fixed_memory::{FixedMemory, Source};
use crate::graph::shared_physical::SharedPhysical;

/// Addresses for small blocks; a second arena follows where that is not enough.
const SMALL_ARENA_BYTES: u64 = 1 << 30;

/// Who needs the pool's addresses to stay.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// Graphs, runnable or not.
    pub(super) graphs: usize,
    /// Captures and other routes under way.
    pub(super) routes: usize,
    /// Uses by somebody whose graphs we do not see.
    pub(super) foreign: usize,
    /// Handles: they keep the pool's name, not its memory.
    pub(super) handles: usize,
    /// Where graphs of the pool were launched.
    pub(super) launched: BTreeSet<Stream>,
    /// Whether graphs may have been launched where we did not see it.
    pub(super) launched_unseen: bool,
}

impl Holders {
    pub(super) fn need_memory(&self) -> bool {
        self.graphs > 0 || self.routes > 0 || self.foreign > 0
    }
}

#[derive(Debug)]
pub(super) struct PrivatePool {
    id: PoolId,
    pub(super) common: Arc<Common>,
    pub(super) group: Option<Arc<SharedPhysical>>,
    /// Whether frees wait by themselves.
    pub(super) plain: bool,
    pub(super) small: Mutex<FixedMemory>,
    pub(super) large: Mutex<FixedMemory>,
    pub(super) holders: Mutex<Holders>,
    pub(super) core: Mutex<Core>,
}

impl PrivatePool {
    pub(super) fn new(
        id: PoolId,
        common: Arc<Common>,
        source: Source,
        group: Option<Arc<SharedPhysical>>,
    ) -> Self {
        let memory = |row: usize, arena_bytes| {
            let source = match &group {
                Some(group) => Source::Shared(Arc::clone(group), row),
                None => source.clone(),
            };
            Mutex::new(FixedMemory::new(Arc::clone(&common.driver), common.device, source, arena_bytes))
        };
        Self {
            id,
            plain: group.is_none() && matches!(source, Source::Plain),
            small: memory(0, SMALL_ARENA_BYTES),
            large: memory(1, common.total_bytes),
            common,
            group,
            holders: Mutex::default(),
            core: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> PoolId {
        self.id
    }

    pub(super) fn memory(&self, half: Half) -> &Mutex<FixedMemory> {
        match half {
            Half::Small => &self.small,
            Half::Large => &self.large,
        }
    }

    /// Gives out memory for a stream, in a capture or outside.
    pub(super) fn allocate(
        self: &Arc<Self>,
        request: &Request,
        lane: LaneKey,
    ) -> Result<DevicePtr, AllocError> {
        match self.hit(request, lane) {
            Some(ptr) => Ok(ptr),
            None => self.climb(&Wanted::new(request, lane)),
        }
    }

    /// The same from what the pool has: no driver call, and no lock but the one of the state.
    #[inline]
    pub(super) fn hit(&self, request: &Request, lane: LaneKey) -> Option<DevicePtr> {
        let wanted = Wanted::new(request, lane);
        let mut core = self.core.lock();
        let ptr = core.take(&wanted)?;
        core.stats.hits += 1;
        Some(ptr)
    }

    /// Looks after a pool to which a block was given back. Where it was the last one that kept the memory of a pool without
    /// graphs, the memory goes back too.
    pub(super) fn after_give_back(self: &Arc<Self>, ptr: DevicePtr, given_back: GivenBack) {
        if given_back.is_pending && self.common.reads_captured_order {
            self.note_ends(ptr);
        }
        // A capture under way keeps the memory, and looks again when it ends.
        if given_back.was_last && !self.holders.lock().need_memory() {
            // What still runs keeps it for now; a later call tries again.
            let _ = self.retire(Patience::Ask);
        }
    }

    /// Somebody needs the addresses to stay.
    pub(super) fn hold(&self, change: impl FnOnce(&mut Holders)) {
        change(&mut self.holders.lock());
    }

    /// What the driver gave this pool.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.core.lock().stats.reserved_bytes.all.current
    }
}
