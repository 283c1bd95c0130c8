//! Recording what an allocator is asked for into an `.hwt` file, and labels for what a thread is doing.

use std::cell::RefCell;
use std::ffi::c_char;
use std::fs::File;
use std::sync::Arc;

use headwater::allocator::BlockFacts;
use headwater::caching::label::{self, LabelScope};
use headwater::stats::{DeviceStats, Differences};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};
use headwater_trace::record::{RecordOptions, Recorder};
use parking_lot::RwLock;

use crate::allocator::hw_allocator;
use crate::arguments::{optional_text, text};
use crate::guard::guarded;
use crate::handles;
use crate::layers::Extra;
use crate::memory::optional_out;
use crate::status::{Failure, hw_status};

/// The recording under way.
#[derive(Debug, Default)]
pub(crate) struct RecordingSwitch {
    inner: RwLock<Option<Arc<dyn Allocator>>>,
    recorder: RwLock<Option<Arc<Recorder>>>,
}

impl RecordingSwitch {
    /// Closes a recording that nobody stopped.
    pub(crate) fn clear(&self) {
        // Dropped without the lock: a recorder writes the rest of its file first.
        let recorder = self.recorder.write().take();
        drop(recorder);
    }
}

/// Passes everything on, through the recorder where there is one.
#[derive(Debug)]
pub(crate) struct RecordingLayer {
    inner: Arc<dyn Allocator>,
    switch: Arc<RecordingSwitch>,
}

impl RecordingLayer {
    pub(crate) fn new(inner: Arc<dyn Allocator>, switch: Arc<RecordingSwitch>) -> Self {
        *switch.inner.write() = Some(Arc::clone(&inner));
        Self { inner, switch }
    }

    fn now(&self) -> Option<Arc<Recorder>> {
        self.switch.recorder.read().clone()
    }
}

impl Allocator for RecordingLayer {
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
        match self.now() {
            Some(recorder) => recorder.allocate(request),
            None => self.inner.allocate(request),
        }
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.now() {
            // SAFETY: the caller's promise, passed on.
            Some(recorder) => unsafe { recorder.give_back(ptr) },
            // SAFETY: as above.
            None => unsafe { self.inner.give_back(ptr) },
        }
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        match self.now() {
            // SAFETY: the caller's promise, passed on.
            Some(recorder) => unsafe { recorder.give_back_or_owe(ptr) },
            // SAFETY: as above.
            None => unsafe { self.inner.give_back_or_owe(ptr) },
        }
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> Result<(), AllocError> {
        match self.now() {
            Some(recorder) => recorder.record_stream(ptr, stream),
            None => self.inner.record_stream(ptr, stream),
        }
    }

    fn empty_cache(&self) -> Result<u64, AllocError> {
        match self.now() {
            Some(recorder) => recorder.empty_cache(),
            None => self.inner.empty_cache(),
        }
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

/// Records all that this handle is asked for from now on into the file `path`, which is made or emptied. `name` (may be null) is what
/// the trace is called. Blocks that are held already are not in it. Every call then costs some 100 ns more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_recording_start(
    allocator: *const hw_allocator,
    path: *const c_char,
    name: *const c_char,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { text(path, "path") }?;
        // SAFETY: as above.
        let name = unsafe { optional_text(name, "name") }?.unwrap_or_default().to_owned();
        let object = handles::get(allocator)?;
        object.put_in(Extra::Recording);
        let switch = &object.recording;
        let mut recorder = switch.recorder.write();
        if recorder.is_some() {
            return Err(Failure::new(hw_status::WrongState, "the allocator is being recorded already"));
        }
        let file = File::create(path)
            .map_err(|error| Failure::new(hw_status::Io, format!("{path} cannot be made: {error}")))?;
        let below = switch.inner.read().clone();
        let below =
            below.ok_or_else(|| Failure::new(hw_status::Internal, "the recording layer is missing"))?;
        let options = RecordOptions { name, ..RecordOptions::default() };
        *recorder = Some(Arc::new(Recorder::with_options(below, file, options)?));
        Ok(())
    })
}

/// Ends the recording and closes its file. `events` (may be null) gets the number of events in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_recording_stop(allocator: *const hw_allocator, events: *mut u64) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        let recorder = object.recording.recorder.write().take();
        let recorded = recorder.ok_or_else(not_recorded)?.finish()?;
        // SAFETY: the caller's promise.
        unsafe { optional_out(events, "events", recorded.events) }
    })
}

/// Marks this moment in the recording.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_recording_mark(allocator: *const hw_allocator, mark: *const c_char) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let mark = unsafe { text(mark, "mark") }?;
        let object = handles::get(allocator)?;
        let recorder = object.recording.recorder.read().clone();
        recorder.ok_or_else(not_recorded)?.mark(mark);
        Ok(())
    })
}

fn not_recorded() -> Failure {
    Failure::new(hw_status::WrongState, "the allocator is not being recorded")
}

thread_local! {
    static SCOPES: RefCell<Vec<LabelScope>> = const { RefCell::new(Vec::new()) };
}

/// Labels nest; a program that pushes and never pops has made a mistake.
const LABELS_MAX: usize = 1024;

/// Labels what the calling thread does until `hw_label_pop`: recordings and histories show it. Labels nest, the innermost counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_label_push(label: *const c_char) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let label = unsafe { text(label, "label") }?;
        SCOPES.with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            if scopes.len() >= LABELS_MAX {
                return Err(Failure::new(
                    hw_status::WrongState,
                    format!("{LABELS_MAX} labels are pushed already"),
                ));
            }
            scopes.push(label::scope(label));
            Ok(())
        })
    })
}

/// Ends the calling thread's innermost label.
#[unsafe(no_mangle)]
pub extern "C" fn hw_label_pop() -> hw_status {
    guarded(|| {
        let popped = SCOPES.with(|scopes| scopes.borrow_mut().pop());
        popped.map(drop).ok_or_else(|| Failure::new(hw_status::WrongState, "the thread has no label"))
    })
}
