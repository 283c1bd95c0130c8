//! How a call ended: a code, and for the calling thread a message and the numbers.
//!
//! A call that fails leaves its message in the thread it was made in; the next failure in that thread replaces it. Calls that succeed
//! leave it alone, so that the hit path never touches it.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use headwater::OutOfMemoryReport;

use crate::arguments::{Versioned, fill_versioned};

/// How a call ended. Zero is success; numbers are never given a new meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[must_use]
pub enum hw_status {
    /// It did what it was asked.
    Ok = 0,
    /// A null pointer, a number out of its range, an unknown constant, a text that is not UTF-8.
    InvalidArgument = 1,
    /// A handle that was destroyed, that never was one, or that is one of another kind.
    InvalidHandle = 2,
    /// Not enough memory, after everything that could be tried. `hw_last_oom` has the numbers.
    OutOfMemory = 3,
    /// A device address that names no block: foreign, inside of one, already given back, or asleep.
    InvalidPointer = 4,
    /// A stream or event that does not exist, or is of another device.
    InvalidStream = 5,
    /// The device, the allocator's policy or its options do not have this.
    NotSupported = 6,
    /// No such driver, device or call on this machine.
    Unavailable = 7,
    /// A setting that is unknown, malformed or contradicts another.
    BadConfig = 8,
    /// Not allowed while a stream is being captured; or the capture is lost.
    IllegalInCapture = 9,
    /// Work that must have finished has not.
    NotReady = 10,
    /// The device is lost to this process.
    DeviceLost = 11,
    /// The driver refused for another reason.
    Driver = 12,
    /// Somebody still uses it: blocks are live, data is pinned, a pool is routed to already.
    StillInUse = 13,
    /// The object is not in a state for this: closed, finished, not capturing, of another allocator.
    WrongState = 14,
    /// The deadline came first.
    TimedOut = 15,
    /// The tiers have no room: now, ever, or within the reservation.
    NoRoom = 16,
    /// A file could not be read or written.
    Io = 17,
    /// The tiers are shut down, or the wait was called off.
    Cancelled = 18,
    /// A mistake in Headwater itself, stopped before it crossed into the caller.
    Internal = 19,
}

/// What was asked for, who holds what, and what the device has: the numbers of an out-of-memory error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct hw_oom_report {
    /// Set by the caller to `sizeof(hw_oom_report)`.
    pub struct_bytes: u64,
    /// The device's ordinal; `UINT32_MAX` where it is not known.
    pub device: u32,
    /// 1 where a limit stood in the way rather than the device.
    pub over_limit: u32,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What callers asked for earlier and hold.
    pub live_bytes: u64,
    /// The same, rounded as the allocator does.
    pub allocated_bytes: u64,
    /// What the allocator holds ready for reuse.
    pub cached_bytes: u64,
    /// What was given back and is still used by a stream.
    pub pending_bytes: u64,
    /// What the driver gave the allocator.
    pub reserved_bytes: u64,
    /// The limit in force; `UINT64_MAX` where there is none.
    pub limit_bytes: u64,
    /// Free memory of the device; `UINT64_MAX` where it could not be asked.
    pub device_free_bytes: u64,
    /// All memory of the device; `UINT64_MAX` where it could not be asked.
    pub device_total_bytes: u64,
}

impl From<&OutOfMemoryReport> for hw_oom_report {
    fn from(report: &OutOfMemoryReport) -> Self {
        Self {
            struct_bytes: size_of::<Self>() as u64,
            device: report.device.0,
            over_limit: u32::from(report.over_limit),
            requested_bytes: report.requested_bytes,
            live_bytes: report.live_bytes,
            allocated_bytes: report.allocated_bytes,
            cached_bytes: report.cached_bytes,
            pending_bytes: report.pending_bytes,
            reserved_bytes: report.reserved_bytes,
            limit_bytes: report.limit_bytes.unwrap_or(u64::MAX),
            device_free_bytes: report.memory.map_or(u64::MAX, |memory| memory.free_bytes),
            device_total_bytes: report.memory.map_or(u64::MAX, |memory| memory.total_bytes),
        }
    }
}

/// Why a call failed. Boxed, so that a result fits into registers on the hit path.
#[derive(Debug)]
pub struct Failure(Box<Details>);

#[derive(Debug)]
struct Details {
    status: hw_status,
    message: String,
    oom: Option<hw_oom_report>,
}

impl Failure {
    /// A failure with a code and a message.
    #[cold]
    pub fn new(status: hw_status, message: impl Into<String>) -> Self {
        Self(Box::new(Details { status, message: message.into(), oom: None }))
    }

    /// Out of memory, with its numbers.
    #[cold]
    pub(crate) fn out_of_memory(report: &OutOfMemoryReport, message: String) -> Self {
        Self(Box::new(Details { status: hw_status::OutOfMemory, message, oom: Some(report.into()) }))
    }

    /// A wrong argument.
    #[cold]
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(hw_status::InvalidArgument, message)
    }

    /// A panic that was stopped.
    #[cold]
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let words = panic.downcast_ref::<&str>().copied();
        let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::new(hw_status::Internal, format!("a mistake in Headwater: {}", words.unwrap_or("no message")))
    }

    /// The code.
    pub fn status(&self) -> hw_status {
        self.0.status
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Leaves message and numbers for the calling thread, and says the code.
    #[cold]
    pub(crate) fn report(self) -> hw_status {
        let Details { status, message, oom } = *self.0;
        // A message never has a zero byte; one that had would end there.
        let bytes: Vec<u8> = message.into_bytes().into_iter().take_while(|byte| *byte != 0).collect();
        let message = CString::new(bytes).unwrap_or_default();
        // A thread that is ending has nobody left to ask.
        let _ = LAST.try_with(|last| *last.borrow_mut() = Some(Last { status, message, oom }));
        status
    }
}

struct Last {
    status: hw_status,
    message: CString,
    oom: Option<hw_oom_report>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// The code of the calling thread's latest failed call; `HW_STATUS_OK` where none has failed.
#[unsafe(no_mangle)]
pub extern "C" fn hw_last_status() -> hw_status {
    let status = LAST.try_with(|last| last.borrow().as_ref().map(|last| last.status));
    status.ok().flatten().unwrap_or(hw_status::Ok)
}

/// The message of the calling thread's latest failed call, in one line; empty where none has failed. The text is
/// Headwater's, and good until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn hw_last_error_message() -> *const c_char {
    const NOTHING: &CStr = c"";
    let message = LAST.try_with(|last| last.borrow().as_ref().map(|last| last.message.as_ptr()));
    message.ok().flatten().unwrap_or(NOTHING.as_ptr())
}

/// The numbers of the calling thread's latest failed call, where that was `HW_STATUS_OUT_OF_MEMORY`; otherwise
/// `HW_STATUS_WRONG_STATE`, and nothing is written (nor does the message change).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_last_oom(report: *mut hw_oom_report) -> hw_status {
    // Not through the guard: asking for the numbers must not replace them.
    let found = LAST.try_with(|last| last.borrow().as_ref().and_then(|last| last.oom));
    let Some(found) = found.ok().flatten() else { return hw_status::WrongState };
    // SAFETY: the caller's promise about the struct, passed on.
    match unsafe { fill_versioned(report, &found, "report") } {
        Ok(()) => hw_status::Ok,
        Err(failure) => failure.status(),
    }
}

/// A status in a few words that never change: for logs.
#[unsafe(no_mangle)]
pub extern "C" fn hw_status_text(status: i32) -> *const c_char {
    let text = match status {
        0 => c"ok",
        1 => c"invalid argument",
        2 => c"invalid handle",
        3 => c"out of memory",
        4 => c"invalid pointer",
        5 => c"invalid stream",
        6 => c"not supported",
        7 => c"unavailable",
        8 => c"bad configuration",
        9 => c"illegal in capture",
        10 => c"not ready",
        11 => c"device lost",
        12 => c"driver error",
        13 => c"still in use",
        14 => c"wrong state",
        15 => c"timed out",
        16 => c"no room",
        17 => c"input or output error",
        18 => c"cancelled",
        19 => c"internal error",
        _ => c"unknown status",
    };
    text.as_ptr()
}

// SAFETY: numbers alone, and the size first.
unsafe impl Versioned for hw_oom_report {}
