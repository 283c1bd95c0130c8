//! Statistics, and the numbers of a failure, in C's terms.
//!
//! The structures are read by `python/headwater/torch/shim/calls.h`, which declares the same fields in the same order; their
//! sizes are compared when the shim is loaded.

use std::ffi::c_char;

use headwater::stats::{DeviceStats, Stat, StatArray};
use headwater::{AllocError, OutOfMemoryReport};

/// One count that rises and falls.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFigures {
    /// What it is now.
    pub current: i64,
    /// The most it was.
    pub peak: i64,
    /// All it rose by.
    pub allocated: i64,
    /// All it fell by.
    pub freed: i64,
}

impl From<&Stat> for StatFigures {
    fn from(stat: &Stat) -> Self {
        let [current, peak, allocated, freed] = [stat.current, stat.peak, stat.allocated, stat.freed]
            .map(|value| i64::try_from(value).unwrap_or(i64::MAX));
        Self { current, peak, allocated, freed }
    }
}

/// All statistics of a device. Arrays are: all, small pool, large pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Blocks that callers hold.
    pub allocation: [StatFigures; 3],
    /// Segments.
    pub segment: [StatFigures; 3],
    /// Blocks that callers hold or a stream still uses.
    pub active: [StatFigures; 3],
    /// Free blocks of segments that are partly in use.
    pub inactive_split: [StatFigures; 3],
    /// Bytes of `allocation`.
    pub allocated_bytes: [StatFigures; 3],
    /// Bytes that the driver gave.
    pub reserved_bytes: [StatFigures; 3],
    /// Bytes of `active`.
    pub active_bytes: [StatFigures; 3],
    /// Bytes of `inactive_split`.
    pub inactive_split_bytes: [StatFigures; 3],
    /// Bytes that callers asked for.
    pub requested_bytes: [StatFigures; 3],
    /// Blocks of at least `max_split_size`.
    pub oversize_allocations: StatFigures,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: StatFigures,
    /// Requests tried again.
    pub num_alloc_retries: i64,
    /// Requests that ended in an error.
    pub num_ooms: i64,
    /// How often all streams with pending give-backs were waited for.
    pub num_sync_all_streams: i64,
    /// Segments or handles got.
    pub num_device_alloc: i64,
    /// Segments or handles returned.
    pub num_device_free: i64,
    /// In bytes; -1: unlimited.
    pub max_split_size: i64,
    /// Requests refused at the limit.
    pub num_oom_rejections: i64,
}

impl From<&DeviceStats> for Figures {
    fn from(stats: &DeviceStats) -> Self {
        let array =
            |array: &StatArray| [(&array.all).into(), (&array.small_pool).into(), (&array.large_pool).into()];
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Self {
            allocation: array(&stats.allocation),
            segment: array(&stats.segment),
            active: array(&stats.active),
            inactive_split: array(&stats.inactive_split),
            allocated_bytes: array(&stats.allocated_bytes),
            reserved_bytes: array(&stats.reserved_bytes),
            active_bytes: array(&stats.active_bytes),
            inactive_split_bytes: array(&stats.inactive_split_bytes),
            requested_bytes: array(&stats.requested_bytes),
            oversize_allocations: (&stats.oversize_allocations).into(),
            oversize_segments: (&stats.oversize_segments).into(),
            num_alloc_retries: number(stats.num_alloc_retries),
            num_ooms: number(stats.num_ooms),
            num_sync_all_streams: number(stats.num_sync_all_streams),
            num_device_alloc: number(stats.num_device_alloc),
            num_device_free: number(stats.num_device_free),
            max_split_size: stats.max_split_size.map_or(-1, number),
            num_oom_rejections: number(stats.num_oom_rejections),
        }
    }
}

/// The longest message of a failure, with the zero at its end.
pub const MESSAGE_BYTES: usize = 512;

/// Why a call failed, with the numbers where memory ran out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Whether memory ran out, or the request was beyond any memory.
    pub out_of_memory: bool,
    /// Whether a limit stood in the way.
    pub over_limit: bool,
    /// What callers hold, rounded.
    pub allocated_bytes: u64,
    /// What the driver gave.
    pub reserved_bytes: u64,
    /// What private pools have of that.
    pub private_bytes: u64,
    /// The limit; the largest number where there is none.
    pub limit_bytes: u64,
    /// Free memory of the device, as far as it is known.
    pub device_free_bytes: u64,
    /// All memory of the device.
    pub device_total_bytes: u64,
    /// The message, with a zero at its end.
    pub message: [c_char; MESSAGE_BYTES],
}

impl Failure {
    /// A failure with nothing but a message.
    pub fn of(why: &dyn std::fmt::Display) -> Self {
        let mut failure = Self {
            out_of_memory: false,
            over_limit: false,
            allocated_bytes: 0,
            reserved_bytes: 0,
            private_bytes: 0,
            limit_bytes: u64::MAX,
            device_free_bytes: 0,
            device_total_bytes: 0,
            message: [0; MESSAGE_BYTES],
        };
        let text = why.to_string();
        // The last byte stays zero.
        for (place, byte) in failure.message.iter_mut().zip(text.bytes().take(MESSAGE_BYTES - 1)) {
            *place = byte as c_char;
        }
        failure
    }

    /// The failure of a request.
    pub(super) fn of_request(error: &AllocError) -> Self {
        let mut failure = Self::of(error);
        match error {
            AllocError::OutOfMemory(report) => failure.take_over(report),
            // Beyond any address space: there is no memory for it either.
            AllocError::TooLarge { .. } => failure.out_of_memory = true,
            _ => {}
        }
        failure
    }

    fn take_over(&mut self, report: &OutOfMemoryReport) {
        self.out_of_memory = true;
        self.over_limit = report.over_limit;
        self.allocated_bytes = report.allocated_bytes;
        self.reserved_bytes = report.reserved_bytes;
        self.limit_bytes = report.limit_bytes.unwrap_or(u64::MAX);
        if let Some(memory) = report.memory {
            self.device_free_bytes = memory.free_bytes;
            self.device_total_bytes = memory.total_bytes;
        }
    }
}
