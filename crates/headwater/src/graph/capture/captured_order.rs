//! The order of captured work, read off the capture: for programs that order their streams by events of their own.
//!
//! A block that a second stream of the capture used waits, when it is given back, until its own stream is known to come after that
//! use. Callers of [`order_streams`](super::GraphAllocator::order_streams) say so. Where the setting
//! `graph_capture_record_stream_reuse` is on, the capture itself is asked: at the give-back, where the second stream's work
//! ends; and on a miss, before the pool grows, whether the block's stream has come after that by now. What is captured later in
//! the second stream does not matter, because the block was given back before it.
//!
//! Both are driver calls, made without a lock, and only for blocks that several captured streams used. Without an answer the
//! block waits for the end of the capture, as it does with the setting off.

use std::sync::Arc;

use headwater_driver::{CaptureNode, DevicePtr};

use super::core::Core;
use super::lanes::LaneKey;
use super::private_pool::PrivatePool;

/// A pending block by its address and the time of its give-back: another one at the same address has another time.
type PendingKey = (u64, u64);

/// Where the captured work of a stream ended when a block that it used was given back.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) user: LaneKey,
    nodes: Vec<CaptureNode>,
}

impl Core {
    /// The captured streams that a pending block waits for.
    fn captured_waits(&self, address: u64) -> Option<(PendingKey, Vec<LaneKey>)> {
        let pending = self.pending.iter().find(|pending| pending.address == address)?;
        let waits = pending.waits.iter().copied().filter(|wait| wait.scope.is_some());
        Some(((address, pending.given_back_at), waits.collect()))
    }

    fn set_ends(&mut self, key: PendingKey, ends: Vec<End>) {
        let pending = self.pending.iter_mut().find(|pending| (pending.address, pending.given_back_at) == key);
        if let Some(pending) = pending {
            pending.ends = ends;
        }
    }

    /// Blocks that go to this lane once its stream comes after where others ended.
    fn waiting_for_order(&self, lane: LaneKey) -> Vec<(PendingKey, End)> {
        let here = self.pending.iter().filter(|pending| pending.target == lane);
        here.flat_map(|pending| {
            let key = (pending.address, pending.given_back_at);
            pending.ends.iter().map(move |end| (key, end.clone()))
        })
        .collect()
    }

    /// The block's stream comes after all that `user` did with the block.
    fn passed(&mut self, key: PendingKey, user: LaneKey) {
        self.end_waits(|_, pending, wait| (pending.address, pending.given_back_at) == key && wait == user);
    }
}

impl PrivatePool {
    /// A block was given back: notes where the streams that it waits for are now.
    pub(super) fn note_ends(&self, ptr: DevicePtr) {
        let Some((key, users)) = self.core.lock().captured_waits(ptr.raw()) else { return };
        let ends = users.into_iter().filter_map(|user| {
            // A stream that has left the capture, or a driver that cannot tell: no end is noted, and the block waits.
            let nodes = self.common.driver.capture_frontier(user.stream).ok()?;
            Some(End { user, nodes })
        });
        let ends: Vec<End> = ends.collect();
        if !ends.is_empty() {
            self.core.lock().set_ends(key, ends);
        }
    }

    /// Asks whether `lane`'s stream has come after what its pending blocks wait for. Says whether it has for one.
    pub(super) fn learn_order(self: &Arc<Self>, lane: LaneKey) -> bool {
        if !self.common.reads_captured_order || lane.scope.is_none() {
            return false;
        }
        let mut any = false;
        let waiting = self.core.lock().waiting_for_order(lane);
        for (key, End { user, nodes }) in waiting {
            if self.common.driver.capture_is_after(lane.stream, &nodes).unwrap_or(false) {
                self.core.lock().passed(key, user);
                any = true;
            }
        }
        any
    }
}
