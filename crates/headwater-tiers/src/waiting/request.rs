//! What the book is asked and what it answers.

use smallvec::SmallVec;

/// One account of the book.
pub(crate) type AccountIndex = usize;

/// A place in the queue. Later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl Ticket {
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Tickets whose fate is decided.
pub(crate) type Decided = SmallVec<[Ticket; 4]>;

/// A space that would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) account: AccountIndex,
    /// Smaller is wanted more.
    pub(crate) rank: u8,
}

/// A request for room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) candidates: SmallVec<[Candidate; 4]>,
    pub(crate) bytes: u64,
}

impl Ask {
    pub(crate) fn of(account: AccountIndex, bytes: u64) -> Self {
        Self { candidates: SmallVec::from_iter([Candidate { account, rank: 0 }]), bytes }
    }
}

/// Room that was given: how much, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) account: AccountIndex,
    pub(crate) bytes: u64,
}

/// The answer to a request that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted(Grant),
    Waiting(Ticket),
}

/// Why a request was not even taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NeverFits,
    ShutDown,
    QueueFull {
        waiters_max: usize,
    },
    /// Only where the caller does not wait.
    NoRoom,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted(Grant),
    TimedOut,
    Cancelled,
    NeverFits,
    ShutDown,
}

/// What a growing charge is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ceiling {
    /// The reservation limit, behind those who wait.
    Limit,
    /// The capacity. What is allocated already exists or is about to, so it does not queue.
    Capacity,
}
