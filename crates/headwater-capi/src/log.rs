//! The log callback: every call and its outcome, told to the caller's program.

use std::ffi::c_void;
use std::sync::Arc;

use headwater::allocator::BlockFacts;
use headwater::stats::{DeviceStats, Differences};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};
use parking_lot::RwLock;

use crate::allocator::hw_allocator;
use crate::device::{hw_device_ptr, hw_stream};
use crate::guard::guarded;
use crate::handles;
use crate::layers::Extra;
use crate::oom::User;
use crate::status::{Failure, hw_status};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum hw_log_kind {
    /// Memory was asked for.
    Allocate = 0,
    /// A block was given back.
    GiveBack = 1,
    /// A stream was announced.
    RecordStream = 2,
    /// The cache was emptied; `bytes` is what was released.
    EmptyCache = 3,
}

/// One call and its outcome.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct hw_log_event {
    /// The struct's size in the library.
    pub struct_bytes: u64,
    /// An `hw_log_kind`.
    pub kind: u32,
    /// An `hw_status`.
    pub status: u32,
    /// What was asked for, or released.
    pub bytes: u64,
    /// The alignment that was asked for.
    pub alignment_bytes: u64,
    /// The block; 0 where there is none.
    pub ptr: hw_device_ptr,
    /// The stream; 0 where there is none.
    pub stream: hw_stream,
}

/// Called after every call to the allocator, in the thread that made it, with no lock held, and from several threads at once. The event
/// is good until it returns. A call that it makes to the same allocator is told as well: it is for the callback to end that.
pub type hw_log_callback = Option<unsafe extern "C" fn(user: *mut c_void, event: *const hw_log_event)>;

/// The callback in force.
#[derive(Debug, Default)]
pub(crate) struct LogSwitch {
    callback: RwLock<Option<(unsafe extern "C" fn(*mut c_void, *const hw_log_event), User)>>,
}

impl LogSwitch {
    pub(crate) fn clear(&self) {
        *self.callback.write() = None;
    }

    fn tell<T>(&self, answer: &Result<T, AllocError>, event: impl FnOnce() -> hw_log_event) {
        let Some((callback, user)) = *self.callback.read() else { return };
        let status = match answer {
            Ok(_) => hw_status::Ok,
            Err(error) => Failure::from(error.clone()).status(),
        };
        let event = hw_log_event { status: status as u32, ..event() };
        // SAFETY: whoever set it promised that it can be called from any thread with its pointer.
        unsafe { callback(user.0, &raw const event) };
    }
}

const fn event(kind: hw_log_kind) -> hw_log_event {
    hw_log_event {
        struct_bytes: size_of::<hw_log_event>() as u64,
        kind: kind as u32,
        status: 0,
        bytes: 0,
        alignment_bytes: 0,
        ptr: 0,
        stream: 0,
    }
}

/// Passes everything on, and tells of it.
#[derive(Debug)]
pub(crate) struct Told {
    inner: Arc<dyn Allocator>,
    switch: Arc<LogSwitch>,
}

impl Told {
    pub(crate) fn new(inner: Arc<dyn Allocator>, switch: Arc<LogSwitch>) -> Self {
        Self { inner, switch }
    }

    fn told_give_back(&self, ptr: DevicePtr, answer: Result<(), AllocError>) -> Result<(), AllocError> {
        self.switch.tell(&answer, || hw_log_event { ptr: ptr.raw(), ..event(hw_log_kind::GiveBack) });
        answer
    }
}

impl Allocator for Told {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        self.inner.driver()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn allocate(&self, request: Request) -> Result<DevicePtr, AllocError> {
        let answer = self.inner.allocate(request);
        self.switch.tell(&answer, || hw_log_event {
            bytes: request.bytes,
            alignment_bytes: request.alignment_bytes,
            ptr: answer.as_ref().map_or(0, |ptr| ptr.raw()),
            stream: request.stream.raw(),
            ..event(hw_log_kind::Allocate)
        });
        answer
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        self.told_give_back(ptr, unsafe { self.inner.give_back(ptr) })
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        self.told_give_back(ptr, unsafe { self.inner.give_back_or_owe(ptr) })
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        let answer = self.inner.record_stream(ptr, stream);
        self.switch.tell(&answer, || hw_log_event {
            ptr: ptr.raw(),
            stream: stream.raw(),
            ..event(hw_log_kind::RecordStream)
        });
        answer
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        let answer = self.inner.empty_cache();
        self.switch.tell(&answer, || hw_log_event {
            bytes: answer.as_ref().copied().unwrap_or(0),
            ..event(hw_log_kind::EmptyCache)
        });
        answer
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockFacts> {
        self.inner.block_at(ptr)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn reset_peaks(&self) {
        self.inner.reset_peaks();
    }

    fn reset_totals(&self) {
        self.inner.reset_totals();
    }

    fn reconcile(&self) -> Result<(), Differences> {
        self.inner.reconcile()
    }
}

/// Sets the log callback of this handle; null takes it out. It replaces an earlier one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_set_log_callback(
    allocator: *const hw_allocator,
    callback: hw_log_callback,
    user: *mut c_void,
) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        *object.log.callback.write() = callback.map(|callback| (callback, User(user)));
        if callback.is_some() {
            object.put_in(Extra::Log);
        }
        Ok(())
    })
}
