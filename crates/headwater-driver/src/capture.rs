//! Stream capture and graphs.
//!
//! While a stream is captured, work given to it becomes nodes of a graph instead of running. A stream that waits for an
//! event recorded in the capture joins it, and must be joined back (the captured stream waits for an event of it) before
//! the end.
//!
//! What a thread may call meanwhile depends on the modes. A *potentially unsafe* call (plain alloc and free, pinned host
//! memory, event and stream query and synchronise) is illegal, fails whatever its arguments, and invalidates the captures
//! concerned when
//! - the calling thread's mode is `Global` and any thread has a capture begun in `Global` mode, or
//! - the calling thread's mode is `Global` or `ThreadLocal` and this thread has a capture begun in `Global` or
//!   `ThreadLocal` mode.
//!
//! In `Relaxed` thread mode it is legal, except query and synchronise of the captured stream itself, which never are. A
//! thread's mode is `Global` until exchanged. Virtual memory calls, event and stream create and destroy, record on other
//! streams, module load and memory info are legal always. Anything on the legacy default stream, which would have to order
//! itself against a captured blocking stream, is illegal in every mode. All measured: docs/cuda-facts.md.

use crate::{CaptureId, DeviceId, Graph, GraphExec, Result, Stream};

/// How strictly potentially unsafe calls are refused during a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// Refused in every thread.
    #[default]
    Global,
    /// Refused in the capturing thread.
    ThreadLocal,
    /// Not refused.
    Relaxed,
}

/// Whether a stream is being captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// It is not.
    None,
    /// It takes part in this capture.
    Active(CaptureId),
    /// It took part in a capture that an illegal call made invalid and that has not been ended yet.
    Invalidated,
}

/// A piece of captured work: a node of the graph that a capture makes. It means something while the capture goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CaptureNode(pub u64);

/// Stream capture and the graphs it makes.
pub trait Capture {
    /// Starts capturing `stream`.
    ///
    /// # Errors
    /// `IllegalInCapture` where the stream is being captured already (that capture goes on) or is the legacy default stream,
    /// which cannot be; `InvalidHandle`.
    fn capture_begin(&self, stream: Stream, mode: CaptureMode) -> Result<()>;

    /// Whether `stream` is being captured, and by which capture. Legal always.
    ///
    /// # Errors
    /// `InvalidHandle`; `IllegalInCapture` for the legacy default stream while a blocking stream of its device is captured
    /// (CUDA cannot answer then).
    fn capture_status(&self, stream: Stream) -> Result<CaptureStatus>;

    /// Ends the capture begun on `stream` and returns its graph. After an error the stream is no longer captured and the
    /// graph is lost, except where the capture was begun on another stream: that one is then invalid and still to be ended.
    ///
    /// # Errors
    /// `CaptureInvalidated` where an illegal call made it invalid; `IllegalInCapture` where a joined stream has work and was
    /// not joined back, the capture was begun on another stream, or (modes other than `Relaxed`) by another thread, or the
    /// stream is not captured at all.
    fn capture_end(&self, stream: Stream) -> Result<Graph>;

    /// Where the captured work of `stream` ends at this moment: the nodes that its next work would come directly after. Empty
    /// where the capture has no work yet. Legal always; counted as [`capture_status`](Self::capture_status), whose call it is.
    ///
    /// # Errors
    /// `InvalidHandle`; `InvalidValue` where the stream is in no valid capture.
    fn capture_frontier(&self, stream: Stream) -> Result<Vec<CaptureNode>>;

    /// Whether the next work of `stream` would come after all of `nodes`, which were the frontier of a stream in the same capture:
    /// what the graph will keep in order whenever it is launched. Where part of the order is of a kind that does not wait for
    /// all of a node (programmatic launches), the answer is no. Legal always.
    ///
    /// # Errors
    /// `InvalidHandle`; `InvalidValue` where the stream is in no valid capture; `NotSupported` where the driver cannot be asked.
    fn capture_is_after(&self, stream: Stream, nodes: &[CaptureNode]) -> Result<bool>;

    /// Sets the calling thread's mode and returns the former one.
    ///
    /// # Errors
    /// `Unavailable` where the driver has no such call.
    fn capture_mode_exchange(&self, mode: CaptureMode) -> Result<CaptureMode>;

    /// Makes a graph runnable on `device`. The graph can be instantiated more than once.
    ///
    /// # Errors
    /// `InvalidHandle`; `OutOfMemory`.
    fn graph_instantiate(&self, device: DeviceId, graph: Graph) -> Result<GraphExec>;

    /// Runs the graph as one piece of work of `stream`.
    ///
    /// # Safety
    /// What the graph's nodes touch is still valid, as for the copies and launches that were captured.
    ///
    /// # Errors
    /// `InvalidHandle` where one of them does not exist; `IllegalInCapture` where the stream is being captured.
    unsafe fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()>;

    /// Destroys a graph; what was instantiated from it lives on.
    ///
    /// # Errors
    /// `InvalidHandle` where it does not exist (any more).
    fn graph_destroy(&self, graph: Graph) -> Result<()>;

    /// Destroys a runnable graph; a launch that is running still finishes.
    ///
    /// # Errors
    /// `InvalidHandle` where it does not exist (any more).
    fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()>;
}
