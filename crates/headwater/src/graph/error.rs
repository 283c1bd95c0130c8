//! What can go wrong with graph memory, with the numbers.

use headwater_driver::{DevicePtr, DriverError, Stream};

use super::by_hand::BlockId;
use super::capture::PoolId;
use crate::HumanBytes;
use crate::error::AllocError;

/// A pool for graphs could not do what it was asked. Nothing has changed, except where a variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The pool was closed, and its memory is gone.
    #[error("the graph pool is closed: its memory was freed")]
    Closed,
    /// The request would take the pool beyond its maximum capacity.
    #[error("the graph pool would need {needed_bytes} bytes ({}) in all for {requested_bytes} more, and its maximum \
        capacity is {max_capacity_bytes} bytes ({})", HumanBytes(*needed_bytes), HumanBytes(*max_capacity_bytes))]
    CapacityExceeded {
        /// What was asked for.
        requested_bytes: u64,
        /// What the pool would have afterwards.
        needed_bytes: u64,
        /// The most it may have.
        max_capacity_bytes: u64,
    },
    /// A pool cannot start with more than it may ever have.
    #[error(
        "an initial capacity of {initial_capacity_bytes} bytes is more than the maximum of {max_capacity_bytes}"
    )]
    BadCapacity {
        /// The initial capacity.
        initial_capacity_bytes: u64,
        /// The maximum capacity.
        max_capacity_bytes: u64,
    },
    /// There is no such block in this pool, or it was cut up since it was returned.
    #[error("{id} does not exist in this pool (any more)")]
    UnknownBlock {
        /// The id.
        id: BlockId,
    },
    /// The block is available already.
    #[error("{id} was already returned")]
    AlreadyReturned {
        /// The id.
        id: BlockId,
    },
    /// No capture was begun on this stream here.
    #[error("no capture was begun on {stream} through this allocator")]
    NotCapturing {
        /// The stream.
        stream: Stream,
    },
    /// The pool belongs to another allocator.
    #[error("{pool} belongs to another allocator")]
    ForeignPool {
        /// The pool.
        pool: PoolId,
    },
    /// Requests are routed to this pool already.
    #[error("requests are routed to {pool} already")]
    AlreadyRouted {
        /// The pool.
        pool: PoolId,
    },
    /// Requests are not routed to this pool.
    #[error("requests are not routed to {pool}")]
    NotRouted {
        /// The pool.
        pool: PoolId,
    },
    /// The pool was released more often than it was taken into use.
    #[error("{pool} was released more often than it was taken into use")]
    NotInUse {
        /// The pool.
        pool: PoolId,
    },
    /// A graph whose memory this one shares may still run.
    #[error(
        "a graph of {running} may still run in {stream}, and {pool} shares its physical memory: launch in the \
        same stream, or wait for it first"
    )]
    RunningTogether {
        /// The pool of the graph that was to be launched.
        pool: PoolId,
        /// The pool of the graph that may still run.
        running: PoolId,
        /// Where it runs.
        stream: Stream,
    },
    /// The state cannot be restored: the memory at this address is not the pool's (any more), or is still used.
    #[error("the state of {pool} cannot be restored: {bytes} bytes at {ptr} are {}",
        if *.busy { "still used by a stream" } else { "no longer the pool's" })]
    CannotRestore {
        /// The pool.
        pool: PoolId,
        /// Where.
        ptr: DevicePtr,
        /// How much.
        bytes: u64,
        /// Whether a stream still uses it; otherwise the memory was returned to the driver.
        busy: bool,
    },
    /// An allocator could not do what it was asked.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

impl From<DriverError> for GraphError {
    fn from(error: DriverError) -> Self {
        Self::Alloc(error.into())
    }
}
