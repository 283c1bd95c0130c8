//! What programs do wrong without CUDA saying so, with both parties named.

use std::fmt;
use std::ops::Range;

use headwater_driver::{Call, DeviceId, Stream};

/// How a piece of work used memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseKind {
    /// It read.
    Read,
    /// It wrote.
    Write,
    /// It updated atomically.
    Atomic,
}

impl fmt::Display for UseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Atomic => "updates",
        })
    }
}

/// One piece of work that takes part in a hazard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// What it is called; `(forgotten)` where it is too long ago.
    pub label: String,
    /// The stream it was given to; none where it is too long ago.
    pub stream: Option<Stream>,
    /// How it used the memory.
    pub kind: UseKind,
    /// Virtual time from its start to its end.
    pub time_ns: Range<u64>,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.label)?;
        if let Some(stream) = self.stream {
            write!(f, " in {stream}")?;
        }
        write!(f, " ({} to {}, {})", Micros(self.time_ns.start), Micros(self.time_ns.end), self.kind)
    }
}

/// A free, an unmap or the like that took memory away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The call.
    pub call: Call,
    /// When it was made, in virtual time.
    pub at_ns: u64,
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.call, Micros(self.at_ns))
    }
}

/// Where memory of a hazard is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Device addresses.
    Device(Range<u64>),
    /// Bytes of a pinned host block, by the block's number in the order of pinning. Not by address: that differs from run to run.
    Host {
        /// Which block.
        block: u64,
        /// Which bytes of it.
        bytes: Range<u64>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(range) => write!(f, "{:#x}..{:#x}", range.start, range.end),
            Self::Host { block, bytes } => {
                write!(f, "bytes {}..{} of pinned host block {block}", bytes.start, bytes.end)
            }
        }
    }
}

/// Something a program did that CUDA would not have reported, or only by a lost device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hazard {
    /// Two pieces of work that nothing orders use the same bytes, and at least one changes them.
    Race {
        /// Submitted first.
        first: Party,
        /// Submitted second.
        second: Party,
        /// The bytes both use.
        place: Place,
    },
    /// Memory was freed, unmapped or unpinned although nothing orders its last use before that.
    RemovedInUse {
        /// The use.
        user: Party,
        /// What took the memory away.
        removal: Removal,
        /// The bytes.
        place: Place,
    },
    /// Work uses memory that had been freed or unmapped.
    UseAfterFree {
        /// The use.
        user: Party,
        /// What had taken the memory away.
        removal: Removal,
        /// The bytes, from the first bad one on.
        place: Place,
    },
    /// Work uses reserved addresses where nothing is mapped and, as far as is remembered, nothing was.
    Unmapped {
        /// The use.
        user: Party,
        /// The bytes, from the first bad one on.
        place: Place,
    },
    /// Work uses memory that its device was not given access to.
    NoAccess {
        /// The use.
        user: Party,
        /// The device without access.
        device: DeviceId,
        /// The bytes, from the first bad one on.
        place: Place,
    },
    /// Work uses addresses that are nobody's and, as far as is remembered, never were.
    NeverAllocated {
        /// The use.
        user: Party,
        /// The bytes, from the first bad one on.
        place: Place,
    },
    /// Work reads bytes that nobody wrote since they were allocated.
    Unwritten {
        /// The use.
        user: Party,
        /// The bytes, from the first unwritten one on.
        place: Place,
    },
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Race { first, second, place } => {
                write!(f, "race on {place}: nothing orders {first} and {second}")
            }
            Self::RemovedInUse { user, removal, place } => {
                write!(f, "removed in use: {removal} took {place}, and nothing orders {user} before it")
            }
            Self::UseAfterFree { user, removal, place } => {
                write!(f, "use after free: {user} uses {place}, which {removal} took away")
            }
            Self::Unmapped { user, place } => {
                write!(f, "unmapped: {user} uses {place}, where nothing is mapped")
            }
            Self::NoAccess { user, device, place } => {
                write!(f, "no access: {user} uses {place}, which {device} may not")
            }
            Self::NeverAllocated { user, place } => {
                write!(f, "never allocated: {user} uses {place}, which is nobody's")
            }
            Self::Unwritten { user, place } => {
                write!(f, "unwritten: {user} reads {place}, which nobody wrote")
            }
        }
    }
}

/// Nanoseconds, printed as microseconds.
pub(crate) struct Micros(pub(crate) u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} us", self.0 / 1000, self.0 % 1000)
    }
}

/// The hazards found so far, up to a limit: a program that races once often does it a million times.
#[derive(Debug)]
pub(crate) struct HazardLog {
    found: Vec<Hazard>,
    limit: usize,
    dropped: u64,
}

impl HazardLog {
    /// A log that keeps the first `limit` hazards.
    pub(crate) fn new(limit: usize) -> Self {
        Self { found: Vec::new(), limit, dropped: 0 }
    }

    /// Adds one, or counts it where the log is full.
    pub(crate) fn add(&mut self, hazard: Hazard) {
        if self.found.len() < self.limit {
            self.found.push(hazard);
        } else {
            self.dropped += 1;
        }
    }

    /// Those kept.
    pub(crate) fn found(&self) -> &[Hazard] {
        &self.found
    }

    /// How many did not fit.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes all out and starts again.
    pub(crate) fn take(&mut self) -> Vec<Hazard> {
        self.dropped = 0;
        std::mem::take(&mut self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(label: &str, raw: u64, kind: UseKind) -> Party {
        let stream = Some(Stream::from_raw(DeviceId(0), raw));
        Party { label: label.into(), stream, kind, time_ns: 1_000..2_500 }
    }

    #[test]
    fn a_race_names_both_parties_their_streams_the_bytes_and_the_times() {
        let hazard = Hazard::Race {
            first: party("gemm", 16, UseKind::Write),
            second: party("softmax", 32, UseKind::Read),
            place: Place::Device(0x1000..0x1200),
        };
        assert_eq!(
            hazard.to_string(),
            "race on 0x1000..0x1200: nothing orders `gemm` in stream 0x10 of device 0 (1.000 us to 2.500 us, writes) \
             and `softmax` in stream 0x20 of device 0 (1.000 us to 2.500 us, reads)"
        );
    }

    #[test]
    fn a_full_log_counts_what_it_drops() {
        let mut log = HazardLog::new(1);
        for _ in 0..3 {
            log.add(Hazard::Unmapped { user: party("k", 16, UseKind::Read), place: Place::Device(0..1) });
        }
        assert_eq!((log.found().len(), log.dropped()), (1, 2));
        assert_eq!(log.take().len(), 1);
        assert_eq!((log.found().len(), log.dropped()), (0, 0));
    }
}
