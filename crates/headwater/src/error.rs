//! What can go wrong between a caller and an allocator.
//!
//! Every error but [`AllocError::OutOfMemory`] and [`AllocError::Driver`] is bad input, and bad input changes nothing.
//! The type is kept small, because it travels in the result of the hit path: what is big is boxed.

use std::fmt;

use headwater_driver::{DeviceId, DevicePtr, DriverError, MemoryInfo, Stream};

use crate::HumanBytes;
use crate::stats::DeviceStats;

/// An allocator could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// There is not enough memory, after everything the allocator can do about it.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemoryReport>),
    /// No address space holds this many bytes.
    #[error("a request of {requested_bytes} bytes ({}) is beyond the address space; the most is {max_bytes} bytes ({})",
        HumanBytes(*requested_bytes), HumanBytes(*max_bytes))]
    TooLarge {
        /// What was asked for.
        requested_bytes: u64,
        /// The most that can be asked for.
        max_bytes: u64,
    },
    /// The alignment is no power of two, or more than is supported.
    #[error("an alignment of {alignment_bytes} bytes is not a power of two up to {max_bytes} ({})",
        HumanBytes(*max_bytes))]
    BadAlignment {
        /// What was asked for.
        alignment_bytes: u64,
        /// The largest alignment.
        max_bytes: u64,
    },
    /// The address is not one that this allocator gave out.
    #[error("{ptr} was not given out by this allocator")]
    ForeignPointer {
        /// The address.
        ptr: DevicePtr,
    },
    /// The address lies inside a block, but only its first address names a block.
    #[error("{ptr} lies inside the block at {block}, {} bytes from its start: only its first address names it",
        ptr.raw() - block.raw())]
    InsideBlock {
        /// The address.
        ptr: DevicePtr,
        /// The first address of the block around it.
        block: DevicePtr,
    },
    /// The block was given back earlier.
    #[error("the block at {ptr} was already given back")]
    AlreadyGivenBack {
        /// The block's address.
        ptr: DevicePtr,
    },
    /// The block sleeps: its memory is put away.
    #[error("the block at {ptr} is asleep: wake it first")]
    Asleep {
        /// The block's address.
        ptr: DevicePtr,
    },
    /// Other processes use the block's memory: it cannot be put away.
    #[error("the block at {ptr} is exported: end its exports first")]
    Exported {
        /// The block's address.
        ptr: DevicePtr,
    },
    /// The stream belongs to another device than the memory.
    #[error("{stream} cannot be used with memory of {device}")]
    WrongDevice {
        /// The stream.
        stream: Stream,
        /// The allocator's device.
        device: DeviceId,
    },
    /// A copy that the host waits for was asked of a stream that is being captured.
    #[error("{stream} is being captured: work that the host waits for cannot run in it")]
    StreamCapturing {
        /// The stream.
        stream: Stream,
    },
    /// A host slice and a device buffer that must have the same length do not.
    #[error("the host slice has {host} elements, the device buffer {device}")]
    LengthMismatch {
        /// Elements of the host slice.
        host: usize,
        /// Elements of the device buffer.
        device: usize,
    },
    /// A driver call failed for another reason than memory.
    #[error(transparent)]
    Driver(Box<DriverError>),
}

impl AllocError {
    /// Whether freeing memory may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_))
    }

    /// The report, where this is out of memory.
    pub fn out_of_memory(&self) -> Option<&OutOfMemoryReport> {
        match self {
            Self::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }
}

impl From<DriverError> for AllocError {
    fn from(error: DriverError) -> Self {
        Self::Driver(Box::new(error))
    }
}

impl From<OutOfMemoryReport> for AllocError {
    fn from(report: OutOfMemoryReport) -> Self {
        Self::OutOfMemory(Box::new(report))
    }
}

/// The full picture when memory ran out: what was asked for, who holds what, and what would help.
///
/// ```
/// use headwater::OutOfMemoryReport;
/// use headwater_driver::DeviceId;
///
/// let mut report = OutOfMemoryReport::new(DeviceId(0), 20 << 20);
/// report.limit_bytes = Some(64 << 20);
/// report.live_bytes = 50 << 20;
/// report.reserved_bytes = 50 << 20;
/// report.remedy = "raise the limit";
/// assert_eq!(
///     report.to_string(),
///     "out of memory on device 0: 20.0 MiB (20971520 bytes) asked for; 50.0 MiB live, 0 B cached, 0 B pending, \
///      50.0 MiB reserved of a limit of 64.0 MiB; raise the limit"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemoryReport {
    /// The device.
    pub device: DeviceId,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What callers asked for earlier and hold.
    pub live_bytes: u64,
    /// The same, rounded as the allocator does.
    pub allocated_bytes: u64,
    /// What the allocator holds ready for reuse.
    pub cached_bytes: u64,
    /// What was given back and is still used by a stream, or could not be returned to the driver yet.
    pub pending_bytes: u64,
    /// What the driver gave the allocator.
    pub reserved_bytes: u64,
    /// The limit in force, where there is one.
    pub limit_bytes: Option<u64>,
    /// Whether the limit stood in the way, rather than the device.
    pub over_limit: bool,
    /// Free and total memory of the device, where it could still be asked.
    pub memory: Option<MemoryInfo>,
    /// What would help, in words; empty where nothing is known to.
    pub remedy: &'static str,
}

impl OutOfMemoryReport {
    /// A report on a request of `requested_bytes`, the rest to be filled in.
    pub fn new(device: DeviceId, requested_bytes: u64) -> Self {
        Self {
            device,
            requested_bytes,
            live_bytes: 0,
            allocated_bytes: 0,
            cached_bytes: 0,
            pending_bytes: 0,
            reserved_bytes: 0,
            limit_bytes: None,
            over_limit: false,
            memory: None,
            remedy: "",
        }
    }

    /// Takes over what an allocator counts.
    pub fn fill_from(&mut self, stats: &DeviceStats) {
        self.live_bytes = stats.requested_bytes.all.current;
        self.allocated_bytes = stats.allocated_bytes.all.current;
        self.cached_bytes = stats.cached_bytes();
        self.pending_bytes = stats.pending_bytes();
        self.reserved_bytes = stats.reserved_bytes.all.current;
    }
}

impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory on {}: {} ({} bytes) asked for; {} live, {} cached, {} pending, {} reserved",
            self.device,
            HumanBytes(self.requested_bytes),
            self.requested_bytes,
            HumanBytes(self.live_bytes),
            HumanBytes(self.cached_bytes),
            HumanBytes(self.pending_bytes),
            HumanBytes(self.reserved_bytes),
        )?;
        if let Some(limit) = self.limit_bytes {
            write!(f, " of a limit of {}", HumanBytes(limit))?;
        }
        if let Some(memory) = self.memory {
            let (free, total) = (HumanBytes(memory.free_bytes), HumanBytes(memory.total_bytes));
            write!(f, "; the device has {free} free of {total}")?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small_enough_for_the_hit_path() {
        assert!(size_of::<AllocError>() <= 32);
    }

    #[test]
    fn messages_are_one_line_and_carry_the_numbers() {
        let mut report = OutOfMemoryReport::new(DeviceId(1), 4096);
        report.memory = Some(MemoryInfo { free_bytes: 1024, total_bytes: 2048 });
        let ptr = DevicePtr::new(0x1010);
        let errors: [(AllocError, &[&str]); 6] = [
            (report.into(), &["device 1", "4096 bytes", "1.0 KiB free of 2.0 KiB"]),
            (
                AllocError::TooLarge { requested_bytes: u64::MAX, max_bytes: 1 << 47 },
                &["16.0 EiB", "128.0 TiB"],
            ),
            (AllocError::BadAlignment { alignment_bytes: 3, max_bytes: 2 << 20 }, &["3 bytes", "2.0 MiB"]),
            (AllocError::ForeignPointer { ptr }, &["0x1010"]),
            (
                AllocError::InsideBlock { ptr, block: DevicePtr::new(0x1000) },
                &["0x1010", "0x1000", "16 bytes"],
            ),
            (
                AllocError::WrongDevice { stream: Stream::from_raw(DeviceId(1), 7), device: DeviceId(0) },
                &["stream 0x7 of device 1", "device 0"],
            ),
        ];
        for (error, parts) in errors {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            for part in parts {
                assert!(text.contains(part), "{part:?} is missing in {text:?}");
            }
        }
    }
}
