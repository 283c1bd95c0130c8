//! What a program still holds when it says it is done.

use std::fmt;

use headwater_driver::DeviceId;

use crate::hazards::Micros;

/// The kind of thing that was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LeakKind {
    /// `cuMemAlloc` without `cuMemFree`.
    PlainMemory,
    /// `cuMemAddressReserve` without `cuMemAddressFree`.
    AddressRange,
    /// `cuMemMap` without `cuMemUnmap`.
    Mapping,
    /// `cuMemCreate` without `cuMemRelease`.
    Handle,
    /// `cuMemHostAlloc` without `cuMemFreeHost`.
    HostMemory,
    /// `cuMemHostRegister` without `cuMemHostUnregister`.
    HostRegistration,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A graph.
    Graph,
    /// An executable graph.
    GraphExec,
    /// A module.
    Module,
    /// A capture that was begun and not ended.
    Capture,
}

impl LeakKind {
    /// The kind in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::PlainMemory => "plain memory",
            Self::AddressRange => "address range",
            Self::Mapping => "mapping",
            Self::Handle => "handle",
            Self::HostMemory => "pinned host memory",
            Self::HostRegistration => "host registration",
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Graph => "graph",
            Self::GraphExec => "executable graph",
            Self::Module => "module",
            Self::Capture => "capture",
        }
    }
}

/// One thing that was not given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leak {
    /// What it is.
    pub kind: LeakKind,
    /// The device it belongs to; none for host memory.
    pub device: Option<DeviceId>,
    /// Its number or address; for host memory the number of the block in the order of pinning.
    pub raw: u64,
    /// Its size, zero for things without one.
    pub bytes: u64,
    /// When it was made, in virtual time.
    pub made_at_ns: u64,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.kind.describe(), self.raw)?;
        if let Some(device) = self.device {
            write!(f, " of {device}")?;
        }
        if self.bytes > 0 {
            write!(f, ", {} bytes", self.bytes)?;
        }
        write!(f, ", made at {}", Micros(self.made_at_ns))
    }
}
