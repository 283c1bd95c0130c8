//! What can go wrong between a caller and the tiers.

use std::time::Duration;

use headwater::AllocError;
use headwater_driver::{DriverError, Stream};

use crate::disk::DiskError;
pub use crate::shortage::Shortage;
use crate::tier::SpaceId;

/// The tiers could not do what they were asked. Nothing changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// No waiting helps: the request is above what any candidate can ever promise.
    #[error("can never be granted: {0}")]
    NeverFits(Box<Shortage>),
    /// The deadline came first.
    #[error("not granted within {waited:?}: {shortage}")]
    TimedOut {
        /// How long the request waited.
        waited: Duration,
        /// How its first candidate stood when it gave up.
        shortage: Box<Shortage>,
    },
    /// The caller's token was cancelled.
    #[error("the wait was cancelled")]
    Cancelled,
    /// The tiers are shutting down.
    #[error("the tiers are shut down")]
    ShutDown,
    /// Too many requests wait already.
    #[error("{waiters_max} requests wait already (waiters_max); this one was turned away")]
    QueueFull {
        /// The most requests that can wait.
        waiters_max: usize,
    },
    /// There is not enough room now, and the call does not wait.
    #[error("not enough room now: {0}")]
    NoRoom(Box<Shortage>),
    /// An allocation does not fit into its reservation, and the policy forbids more.
    #[error("beyond the reservation of {reservation_bytes} bytes ({in_use_bytes} in use): {shortage}")]
    OverReservation {
        /// What the reservation promises.
        reservation_bytes: u64,
        /// What is allocated from it.
        in_use_bytes: u64,
        /// The request, and how its space stood.
        shortage: Box<Shortage>,
    },
    /// An allocation would take the space beyond its hard cap.
    #[error("beyond the hard cap: {0}")]
    OverCapacity(Box<Shortage>),
    /// The memory below ran out although the accounts had room, after everything the policy tried.
    #[error("the memory itself ran out after {attempts} attempts: {shortage}: {source}")]
    OutOfMemory {
        /// The request, and how its space stood.
        shortage: Box<Shortage>,
        /// How often the allocator was asked.
        attempts: u32,
        /// Its last answer.
        source: AllocError,
    },
    /// An allocation was tried in a reservation that was given back.
    #[error("the reservation was given back, and {bytes} bytes cannot be allocated from it in {space}")]
    ReservationGivenBack {
        /// Its space.
        space: SpaceId,
        /// What was asked for.
        bytes: u64,
    },
    /// More was to be split off than the reservation has unused.
    #[error("{requested_bytes} bytes cannot be split off: {unused_bytes} of {reservation_bytes} are unused")]
    NotUnused {
        /// What was asked for.
        requested_bytes: u64,
        /// What no allocation uses.
        unused_bytes: u64,
        /// What the reservation promises.
        reservation_bytes: u64,
    },
    /// Two things that must be in one space are in two.
    #[error("{got} is not {expected}: reservations and allocations stay in one space")]
    WrongSpace {
        /// The space it must be in.
        expected: SpaceId,
        /// The space it is in.
        got: SpaceId,
    },
    /// There is no such space.
    #[error("there is no space {0}")]
    UnknownSpace(SpaceId),
    /// The strategy names no space that exists.
    #[error("no space fits the strategy {strategy}")]
    NoCandidate {
        /// The strategy, in words.
        strategy: String,
    },
    /// A space was asked for something that only another tier has.
    #[error("{space} has no {what}")]
    NotThisTier {
        /// The space.
        space: SpaceId,
        /// What was asked for.
        what: &'static str,
    },
    /// The stream, or this thread, has a reservation already.
    #[error("{} has a reservation attached already; detach it first",
        .stream.map_or_else(|| "this thread".to_owned(), |stream| stream.to_string()))]
    AlreadyAttached {
        /// The stream; none where threads are tracked.
        stream: Option<Stream>,
    },
    /// The stream pool is at its most streams, and all are lent.
    #[error("all {streams_max} streams are lent (streams_max)")]
    NoStream {
        /// The most streams the pool may have.
        streams_max: u64,
    },
    /// A setting makes no sense.
    #[error("{setting}: {why}")]
    BadSetting {
        /// Its name.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system refused something.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// Its answer.
        why: String,
    },
    /// The disk failed. What was to be moved is still where it was.
    #[error(transparent)]
    Disk(Box<DiskError>),
    /// Data cannot be used now: another task uses it, or it is on its way, and the caller does not wait.
    #[error("the data is in use: {readers} readers, {} a writer, {} on its way",
        if *has_writer { "and" } else { "not" }, if *is_moving { "and" } else { "not" })]
    InUse {
        /// Who reads it.
        readers: u32,
        /// Whether somebody writes it.
        has_writer: bool,
        /// Whether it is on its way to another tier.
        is_moving: bool,
    },
    /// The data has left its buffer and could not be put back: an earlier driver failure that could not be undone.
    #[error("the data of buffer {id} is lost after an earlier failure")]
    Lost {
        /// The buffer's number.
        id: u64,
    },
    /// More was to be read or written than the buffer has, or there is no such part.
    #[error("{bytes} bytes at {offset} of part {part} are beyond its {part_bytes} bytes")]
    OutOfRange {
        /// The part.
        part: usize,
        /// Where it was to begin.
        offset: u64,
        /// How much.
        bytes: u64,
        /// How much there is; zero where there is no such part.
        part_bytes: u64,
    },
    /// An image that was read back does not describe the table it was made from.
    #[error("the packed image of table {id} does not describe it")]
    WrongImage {
        /// The table's number.
        id: u64,
    },
    /// All tasks wait for each other, and this one is the lowest in priority: it must give back everything it holds and
    /// try again.
    #[error(
        "{tasks} tasks wait for each other; this one is the lowest in priority and must roll back and try again \
        (the {rollbacks}. time)"
    )]
    RollBack {
        /// How many tasks there are.
        tasks: usize,
        /// How often this task was asked.
        rollbacks: u32,
    },
    /// Rolling back is not enough: even with nobody else in the way the task's work does not fit.
    #[error(
        "the work does not fit even with nobody else in the way: it must be split and tried again (the {splits}. time)"
    )]
    SplitWork {
        /// How often this task was asked.
        splits: u32,
    },
    /// A task was rolled back and split as often as is allowed.
    #[error(
        "given up after {rollbacks} rollbacks (rollbacks_max) and {splits} splits (splits_max): give the task more \
        priority, or the space more capacity_bytes"
    )]
    GaveUp {
        /// How often it was rolled back.
        rollbacks: u32,
        /// How often its work was split.
        splits: u32,
    },
    /// An allocator refused for another reason than memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(Box<DriverError>),
}

impl TierError {
    pub(crate) fn bad_setting(setting: &'static str, why: impl Into<String>) -> Self {
        Self::BadSetting { setting, why: why.into() }
    }

    pub(crate) fn system(what: impl Into<String>, why: &std::io::Error) -> Self {
        Self::System { what: what.into(), why: why.to_string() }
    }

    /// The numbers, where this is about room.
    pub fn shortage(&self) -> Option<&Shortage> {
        match self {
            Self::NeverFits(shortage) | Self::NoRoom(shortage) | Self::OverCapacity(shortage) => {
                Some(shortage)
            }
            Self::TimedOut { shortage, .. }
            | Self::OverReservation { shortage, .. }
            | Self::OutOfMemory { shortage, .. } => Some(shortage),
            _ => None,
        }
    }
}

impl From<DiskError> for TierError {
    fn from(error: DiskError) -> Self {
        Self::Disk(Box::new(error))
    }
}

impl From<DriverError> for TierError {
    fn from(error: DriverError) -> Self {
        Self::Driver(Box::new(error))
    }
}
