//! Pieces of work: what callers submit, and what the machine makes of every launch, copy and fill.

use std::borrow::Cow;
use std::ops::Range;

use headwater_driver::{DeviceId, Stream};
use smallvec::SmallVec;

use crate::builtin_kernels;
use crate::shadow::AccessKind;

/// A piece of device work with what it touches and how long it takes: a kernel, as far as memory is concerned.
///
/// Reads are checked for bytes that nobody wrote; writes count as written and leave a fixed pattern.
///
/// ```
/// use headwater_sim::Work;
/// let work = Work::new("softmax", 20_000).reads(0x1000..0x2000).writes(0x2000..0x3000);
/// assert_eq!(work.writes.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// What hazards call it.
    pub label: Cow<'static, str>,
    /// Addresses it reads.
    pub reads: Vec<Range<u64>>,
    /// Addresses it writes.
    pub writes: Vec<Range<u64>>,
    /// How long it runs.
    pub duration_ns: u64,
}

impl Work {
    /// Work that touches nothing yet.
    pub fn new(label: impl Into<Cow<'static, str>>, duration_ns: u64) -> Self {
        Self { label: label.into(), reads: Vec::new(), writes: Vec::new(), duration_ns }
    }

    /// The same work, reading `range` too.
    #[must_use]
    pub fn reads(mut self, range: Range<u64>) -> Self {
        self.reads.push(range);
        self
    }

    /// The same work, writing `range` too.
    #[must_use]
    pub fn writes(mut self, range: Range<u64>) -> Self {
        self.writes.push(range);
        self
    }
}

/// The pattern that declared writes leave behind: recognisable, and no sensible number.
pub(crate) const WORK_PATTERN: [u8; 4] = [0xA5; 4];

/// One piece of work as the machine runs it, now or at every launch of the graph it was captured into.
#[derive(Debug)]
pub(crate) struct Operation {
    /// What hazards call it.
    pub(crate) label: Cow<'static, str>,
    /// The stream it was given to.
    pub(crate) stream: Stream,
    /// What it touches.
    pub(crate) accesses: SmallVec<[Access; 2]>,
    /// How long it runs.
    pub(crate) duration_ns: u64,
    /// What it does to bytes when it ends.
    pub(crate) effect: Effect,
}

/// A range that an operation touches.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) range: Range<u64>,
    pub(crate) kind: AccessKind,
    pub(crate) reach: Reach,
}

/// How an operation gets at a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// From a kernel of this device: plain memory of another device needs peer access.
    Kernel(DeviceId),
    /// By a copy: plain memory of every device can be reached; mapped memory needs access for this device.
    Copy(DeviceId),
    /// Host memory, pinned or not.
    Host,
}

impl Access {
    /// Reading `range`.
    pub(crate) fn read(range: Range<u64>, reach: Reach) -> Self {
        Self { range, kind: AccessKind::Read, reach }
    }

    /// Writing `range`.
    pub(crate) fn write(range: Range<u64>, reach: Reach) -> Self {
        Self { range, kind: AccessKind::Write, reach }
    }

    /// Whether it depends on what was there before.
    pub(crate) fn is_read(&self) -> bool {
        self.kind != AccessKind::Write
    }
}

/// What an operation does to bytes when virtual time passes its end. Addresses are looked up then, so that a launched
/// graph uses the pages that are mapped now.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Declared writes: they count as written.
    Declared,
    /// Host to device. `src` is read at the end, unless the bytes were staged at the call.
    ToDevice { dst: u64, src: usize, bytes: u64 },
    /// Device to host.
    ToHost { dst: usize, src: u64, bytes: u64 },
    /// Device to device.
    OnDevice { dst: u64, src: u64, bytes: u64 },
    /// `pattern`, over and over.
    Fill { dst: u64, bytes: u64, pattern: [u8; 4] },
    /// What the kernel's plan says.
    Kernel(builtin_kernels::Effect),
}
