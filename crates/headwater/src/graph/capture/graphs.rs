//! Graphs that keep the memory they were captured with.

use headwater_driver::{Graph, GraphExec, Stream};

use super::handles::{GraphHold, PoolHandle};
use crate::capture_guard;
use crate::graph::error::GraphError;

/// A captured graph. The memory of its pool stays where it is for as long as it, or something instantiated from it, lives.
#[derive(Debug)]
pub struct CapturedGraph {
    graph: Graph,
    hold: GraphHold,
}

impl CapturedGraph {
    pub(super) fn new(graph: Graph, hold: GraphHold) -> Self {
        Self { graph, hold }
    }

    /// The driver's graph. It goes with this value.
    pub fn graph(&self) -> Graph {
        self.graph
    }

    /// The pool it was captured into.
    pub fn pool(&self) -> PoolHandle {
        PoolHandle::new(self.hold.pool.clone())
    }

    /// Makes it runnable on the device it was captured on.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn instantiate(&self) -> Result<RunnableGraph, GraphError> {
        let common = &self.hold.pool.common;
        let driver = &*common.driver;
        // Not part of anybody's graph, so no other capture has a reason to forbid it.
        let exec = capture_guard::relaxed(driver, || driver.graph_instantiate(common.device, self.graph))?;
        Ok(RunnableGraph { exec, hold: GraphHold::new(self.hold.pool.clone()) })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.hold.pool.common.driver.graph_destroy(self.graph);
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub struct RunnableGraph {
    exec: GraphExec,
    hold: GraphHold,
}

impl RunnableGraph {
    /// The driver's executable graph. It goes with this value. Whoever launches it by this id sees to it that it has finished
    /// before this value is dropped, and that the order of its pool is kept.
    pub fn exec(&self) -> GraphExec {
        self.exec
    }

    /// The pool it was captured into.
    pub fn pool(&self) -> PoolHandle {
        PoolHandle::new(self.hold.pool.clone())
    }

    /// Launches it in `stream`. Launches are remembered: the pool's memory does not go before they have finished, also when this
    /// value is dropped meanwhile.
    ///
    /// # Safety
    /// Memory outside of the pool that the graph's nodes touch is still valid. No other graph of the pool runs at the same
    /// time, and nothing else uses the pool's memory at the same time.
    ///
    /// # Errors
    /// [`GraphError::RunningTogether`] where the pool shares physical memory; what the driver answered.
    pub unsafe fn launch(&self, stream: Stream) -> Result<(), GraphError> {
        let pool = &self.hold.pool;
        // Before the launch: there must be no moment at which it runs and nobody knows.
        pool.hold(|holders| {
            holders.launched.insert(stream);
            // Another thread's default stream has the same name as ours.
            holders.launched_unseen |= stream.is_per_thread_default();
        });
        // SAFETY: the pool's memory is held by this value; the rest is the caller's promise.
        let launch = || unsafe { pool.common.driver.graph_launch(self.exec, stream) };
        match &pool.group {
            Some(group) => group.launch(pool.id(), stream, launch),
            None => Ok(launch()?),
        }
    }
}

impl Drop for RunnableGraph {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.hold.pool.common.driver.graph_exec_destroy(self.exec);
    }
}
