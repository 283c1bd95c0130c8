//! The recorder: an allocator around another.

use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use headwater::allocator::BlockFacts;
use headwater::caching::label;
use headwater::stats::{DeviceStats, Differences};
use headwater::{AllocError, Allocator, Request};
use headwater_driver::{DeviceId, DevicePtr, Driver, Stream};
use parking_lot::Mutex;

use super::entry::{Entry, What};
use super::queue::Queue;
use super::sampling::{Sampler, Sampling};
use super::scribe::Scribe;
use super::waits::{Waits, is_pending};
use crate::error::{Format, Result, TraceError};
use crate::model::{Reported, TraceHeader};

/// How a program is recorded.
#[derive(Clone, Debug, Default)]
pub struct RecordOptions {
    /// What the trace is called.
    pub name: String,
    /// Which requests are recorded.
    pub sampling: Sampling,
}

/// What was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// Events in the file.
    pub events: u64,
}

/// Passes everything on to another allocator, and writes down what it was asked for.
///
/// Blocks that were given out before the recorder was made are not in the trace. Labels are those of
/// [`headwater::caching::label`]. [`finish`](Self::finish) closes the file; a recorder that is dropped closes it too, but
/// cannot tell of an error.
///
/// ```
/// use std::sync::Arc;
/// use headwater::{Allocator, Block, Direct, Request};
/// use headwater_driver::{DeviceId, Stream};
/// use headwater_trace::record::Recorder;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// # let driver = headwater_sim::SimDriver::new();
/// # let folder = std::env::temp_dir().join(format!("headwater-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let path = folder.join("program.hwt");
/// let direct = Arc::new(Direct::new(driver, DeviceId(0))?);
/// let recorder = Arc::new(Recorder::new(direct, std::fs::File::create(&path)?)?);
///
/// drop(Block::allocate(recorder.clone(), Request::new(4096, Stream::legacy_default(DeviceId(0))))?);
/// recorder.finish()?;
/// assert_eq!(headwater_trace::open(&path)?.summary().peak_live_bytes, 4096);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<dyn Allocator>,
    options: RecordOptions,
    sampler: Sampler,
    queue: Arc<Queue>,
    waits: Waits,
    start: Instant,
    /// The writing thread; `None` once finished.
    thread: Mutex<Option<JoinHandle<Result<Scribe>>>>,
}

impl Recorder {
    /// Records all that `inner` is asked for into `sink`. No buffer is needed around a file: whole blocks are written.
    ///
    /// # Errors
    /// A sink that does not take the file's head, or a system that gives no thread.
    pub fn new(inner: Arc<dyn Allocator>, sink: impl Write + Send + 'static) -> Result<Self> {
        Self::with_options(inner, sink, RecordOptions::default())
    }

    /// As [`new`](Self::new), by `options`.
    ///
    /// # Errors
    /// As [`new`](Self::new); a device with an ordinal beyond 255.
    pub fn with_options(
        inner: Arc<dyn Allocator>,
        sink: impl Write + Send + 'static,
        options: RecordOptions,
    ) -> Result<Self> {
        let device = u8::try_from(inner.device().0).map_err(|_| TraceError::Unwritable {
            format: Format::Hwt,
            problem: format!("{} has an ordinal beyond 255", inner.device()),
        })?;
        let start = Instant::now();
        let scribe = Scribe::new(Box::new(sink), &header(&options, Reported::default()), device, start)?;
        let queue = Arc::new(Queue::new());
        let taken = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("headwater-record".to_owned())
            .spawn(move || scribe.write_all(&taken))
            .map_err(TraceError::Write)?;
        Ok(Self {
            inner,
            sampler: Sampler::new(options.sampling),
            options,
            queue,
            waits: Waits::default(),
            start,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Marks this moment in the trace.
    pub fn mark(&self, text: impl Into<Arc<str>>) {
        self.queue.push(Entry { at: Instant::now(), label: Some(text.into()), what: What::Mark });
    }

    /// Writes the rest and what the allocator says of itself, and closes the file. What happens afterwards is passed on
    /// and not recorded.
    ///
    /// # Errors
    /// A sink that did not take everything: the file then ends with its last whole block. A recorder that was finished
    /// before.
    pub fn finish(&self) -> Result<Recorded> {
        let unwritable =
            |problem: &str| TraceError::Unwritable { format: Format::Hwt, problem: problem.to_owned() };
        let thread =
            self.thread.lock().take().ok_or_else(|| unwritable("the recorder was finished before"))?;
        self.queue.close();
        let ended = thread.join();
        let scribe = ended.map_err(|_| unwritable("the writing thread came to a bad end"))??;
        let reported = reported(&self.inner.stats(), self.start.elapsed().as_secs_f64());
        Ok(Recorded { events: scribe.finish(&header(&self.options, reported))? })
    }

    #[inline]
    fn note(&self, what: What) {
        self.queue.push(Entry { at: Instant::now(), label: label::current(), what });
    }

    fn note_waits_that_ended(&self) {
        for ptr in self.waits.over(&*self.inner) {
            self.note(What::Complete { ptr });
        }
    }

    /// Notes a give-back, and makes it with `give_back`.
    fn give_back_by(
        &self,
        ptr: DevicePtr,
        give_back: impl FnOnce() -> std::result::Result<(), AllocError>,
    ) -> std::result::Result<(), AllocError> {
        if ptr.is_null() {
            return give_back();
        }
        let shared = self.waits.unshare(ptr);
        self.note(What::Free { ptr: ptr.raw(), shared });
        let answer = give_back();
        match &answer {
            Ok(()) if shared && is_pending(&*self.inner, ptr) => self.waits.add(ptr),
            Ok(()) if shared => self.note(What::Complete { ptr: ptr.raw() }),
            Ok(()) => {}
            Err(_) => self.note_still_held(ptr, shared),
        }
        answer
    }

    /// A give-back failed after it was noted. Where the address names a block that a caller holds, it is still held.
    #[cold]
    fn note_still_held(&self, ptr: DevicePtr, shared: bool) {
        use headwater::allocator::BlockState;
        let facts = self.inner.block_at(ptr);
        if let Some(facts) = facts.filter(|facts| facts.ptr == ptr && facts.state == BlockState::Live) {
            let (bytes, stream) = (facts.requested_bytes, facts.stream.raw());
            self.note(What::Alloc { ptr: ptr.raw(), bytes, stream });
            if shared {
                self.waits.share(ptr);
            }
        }
    }
}

fn header(options: &RecordOptions, reported: Reported) -> TraceHeader {
    let mut header =
        TraceHeader { name: options.name.clone(), source: Format::Hwt, reported, ..Default::default() };
    if let Some(sampling) = options.sampling.describe() {
        header.extra.insert("sampling".to_owned(), sampling.into());
    }
    header
}

fn reported(stats: &DeviceStats, seconds: f64) -> Reported {
    Reported {
        peak_allocated: Some(stats.allocated_bytes.all.peak),
        peak_requested: Some(stats.requested_bytes.all.peak),
        peak_active: Some(stats.active_bytes.all.peak),
        peak_reserved: Some(stats.reserved_bytes.all.peak),
        seconds: Some(seconds),
        retries: Some(stats.num_alloc_retries),
        device_alloc: Some(stats.num_device_alloc),
        device_free: Some(stats.num_device_free),
        allocs: Some(stats.allocation.all.allocated),
    }
}

impl Allocator for Recorder {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        self.inner.driver()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn allocate(&self, request: Request) -> std::result::Result<DevicePtr, AllocError> {
        let grown_before = self.waits.any().then(|| self.inner.stats().num_device_alloc);
        let answer = self.inner.allocate(request);
        let stream = request.stream.raw();
        match &answer {
            Ok(ptr) if !ptr.is_null() => {
                // Waits that ended in time to serve the request come before it. Where the allocator had to grow, none did:
                // they ended while it asked the driver, and come after.
                let grew = grown_before.is_some_and(|before| before != self.inner.stats().num_device_alloc);
                if !grew {
                    self.note_waits_that_ended();
                }
                if self.sampler.takes(request.bytes) {
                    self.note(What::Alloc { ptr: ptr.raw(), bytes: request.bytes, stream });
                }
                if grew {
                    self.note_waits_that_ended();
                }
            }
            Err(AllocError::OutOfMemory(report)) => {
                let free_bytes = report.memory.map_or(0, |memory| memory.free_bytes);
                self.note(What::Oom { bytes: request.bytes, free_bytes, stream });
            }
            _ => {}
        }
        answer
    }

    unsafe fn give_back(&self, ptr: DevicePtr) -> std::result::Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        self.give_back_by(ptr, || unsafe { self.inner.give_back(ptr) })
    }

    unsafe fn give_back_or_owe(&self, ptr: DevicePtr) -> std::result::Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        self.give_back_by(ptr, || unsafe { self.inner.give_back_or_owe(ptr) })
    }

    fn record_stream(&self, ptr: DevicePtr, stream: Stream) -> std::result::Result<(), AllocError> {
        self.inner.record_stream(ptr, stream)?;
        if !ptr.is_null() {
            self.waits.share(ptr);
        }
        Ok(())
    }

    fn empty_cache(&self) -> std::result::Result<u64, AllocError> {
        let answer = self.inner.empty_cache();
        self.note_waits_that_ended();
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

    fn reconcile(&self) -> std::result::Result<(), Differences> {
        self.inner.reconcile()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.thread.get_mut().is_some() {
            // Nobody is left to tell; `finish` is for those who want to know.
            let _ = self.finish();
        }
    }
}
