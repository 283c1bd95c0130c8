//! The memory of one device, as PyTorch, CuPy, Numba and Python use it.

use std::cell::Cell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headwater::config::Config;
use headwater::graph::GraphError;
use headwater::stats::DeviceStats;
use headwater::{AllocError, Allocator, CachingAllocator, GraphAllocator, OutOfMemoryReport, Request};
use headwater_driver::{DeviceId, DevicePtr, Driver, ErrorClass, Stream};
use headwater_trace::TraceError;
use headwater_trace::record::{RecordOptions, Recorded, Recorder};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashSet;

use super::pools::Pools;

/// A device's memory could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// An allocator refused.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A graph pool refused.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The recording failed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A fraction of memory that is none.
    #[error("{0} is no share of a device's memory: it must be from 0 to 1")]
    BadFraction(f64),
    /// There is no pool of this id.
    #[error("there is no memory pool ({}, {})", .0.0, .0.1)]
    NoSuchPool((u64, u64)),
    /// A recording is under way.
    #[error("a recording of this device is under way already")]
    RecordingAlready,
    /// No recording is under way.
    #[error("no recording of this device is under way")]
    NotRecording,
}

/// The allocators of one device.
#[derive(Debug)]
pub struct DeviceMemory {
    device: DeviceId,
    total_bytes: u64,
    caching: Arc<CachingAllocator>,
    graphs: Arc<GraphAllocator>,
    /// Whether `recorder` is to be used: one load on the way of every request.
    is_recording: AtomicBool,
    recorder: RwLock<Option<Arc<Recorder>>>,
    /// Streams of somebody else that the driver was told of.
    adopted: RwLock<FxHashSet<u64>>,
    pub(super) pools: Mutex<Pools>,
}

thread_local! {
    /// The stream that this thread used last, which needs no look into the set. A thread mostly stays with one.
    static LAST_ADOPTED: Cell<(u32, u64)> = const { Cell::new((u32::MAX, 0)) };
}

impl DeviceMemory {
    /// Allocators for `device` by `config`.
    ///
    /// # Errors
    /// Where the device cannot be used so.
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId, config: &Config) -> Result<Self, AllocError> {
        let total_bytes = driver.device_properties(device)?.total_bytes;
        let caching = CachingAllocator::new(driver, device, config.clone())?;
        let graphs = GraphAllocator::over_caching(&caching).map_err(|error| match error {
            GraphError::Alloc(error) => error,
            // Nothing else is in the way of making one; were it so, the device would not serve.
            _ => AllocError::WrongDevice { stream: Stream::legacy_default(device), device },
        })?;
        Ok(Self {
            device,
            total_bytes,
            caching,
            graphs,
            is_recording: AtomicBool::new(false),
            recorder: RwLock::new(None),
            adopted: RwLock::default(),
            pools: Mutex::default(),
        })
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The driver behind it.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.caching.driver()
    }

    /// The device's memory, all of it.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The caching allocator: everything outside of private pools.
    pub fn caching(&self) -> &Arc<CachingAllocator> {
        &self.caching
    }

    /// The allocator with private pools around it.
    pub fn graphs(&self) -> &Arc<GraphAllocator> {
        &self.graphs
    }

    /// The allocator that requests go to: the recorder while there is one.
    pub fn front(&self) -> Arc<dyn Allocator> {
        match self.recorder.read().as_ref() {
            Some(recorder) => Arc::clone(recorder) as Arc<dyn Allocator>,
            None => Arc::clone(&self.graphs) as Arc<dyn Allocator>,
        }
    }

    /// Does `work` with the allocator that requests go to.
    #[inline]
    fn with_front<R>(&self, work: impl FnOnce(&dyn Allocator) -> R) -> R {
        // Acquire: who sees the flag sees the recorder.
        if self.is_recording.load(Ordering::Acquire) { work(&*self.front()) } else { work(&*self.graphs) }
    }

    /// The stream that CUDA knows as `raw`, made known to the driver if it is somebody else's.
    ///
    /// # Errors
    /// Where the driver can tell that there is no such stream.
    #[inline]
    pub fn stream(&self, raw: u64) -> Result<Stream, AllocError> {
        let stream = Stream::from_raw(self.device, raw);
        if stream.is_legacy_default() || LAST_ADOPTED.get() == (self.device.0, raw) {
            return Ok(stream);
        }
        self.adopt(stream)
    }

    fn adopt(&self, stream: Stream) -> Result<Stream, AllocError> {
        let raw = stream.raw();
        if !stream.is_per_thread_default() && !self.adopted.read().contains(&raw) {
            // SAFETY: whoever calls a hook with a stream has it. PyTorch's own streams are never destroyed; those of others
            // are told of when they are (`forget_stream`), or are noticed when an event is recorded on them.
            unsafe { self.caching.driver().stream_adopt(self.device, raw)? };
            self.adopted.write().insert(raw);
        }
        LAST_ADOPTED.set((self.device.0, raw));
        Ok(stream)
    }

    /// Takes leave of a stream of somebody else that is about to be destroyed.
    ///
    /// # Errors
    /// What the allocator or the driver answered.
    pub fn forget_stream(&self, raw: u64) -> Result<(), AllocError> {
        if !self.adopted.write().remove(&raw) {
            return Ok(());
        }
        if LAST_ADOPTED.get() == (self.device.0, raw) {
            LAST_ADOPTED.set((u32::MAX, 0));
        }
        let stream = Stream::from_raw(self.device, raw);
        self.caching.forget_stream(stream)?;
        Ok(self.caching.driver().stream_forget(stream)?)
    }

    /// Memory for use in the stream `raw`.
    ///
    /// # Errors
    /// Those of [`Allocator::allocate`].
    #[inline]
    pub fn allocate(&self, bytes: u64, raw: u64) -> Result<DevicePtr, AllocError> {
        let request = Request::new(bytes, self.stream(raw)?);
        self.with_front(|front| front.allocate(request)).map_err(|error| self.told_apart(error, bytes))
    }

    /// A driver that has no memory, or no addresses, for a request that nobody can serve: out of memory as any other, with the
    /// numbers.
    #[cold]
    fn told_apart(&self, error: AllocError, bytes: u64) -> AllocError {
        match &error {
            AllocError::Driver(refusal) if matches!(refusal.class(), ErrorClass::OutOfMemory { .. }) => {
                let mut report = OutOfMemoryReport::new(self.device, bytes);
                report.fill_from(&self.stats());
                report.limit_bytes = self.limit_bytes();
                report.memory = self.driver().memory_info(self.device).ok();
                report.into()
            }
            _ => error,
        }
    }

    /// Takes memory back.
    ///
    /// # Safety
    /// As [`Allocator::give_back_or_owe`].
    ///
    /// # Errors
    /// Bad input only.
    #[inline]
    pub unsafe fn give_back(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        self.with_front(|front| unsafe { front.give_back_or_owe(ptr) })
    }

    /// Notes that work in the stream `raw` uses the block.
    ///
    /// # Errors
    /// Those of [`Allocator::record_stream`].
    #[inline]
    pub fn record_stream(&self, ptr: DevicePtr, raw: u64) -> Result<(), AllocError> {
        let stream = self.stream(raw)?;
        self.with_front(|front| front.record_stream(ptr, stream))
    }

    /// Returns what nobody uses to the driver.
    ///
    /// # Errors
    /// Those of [`Allocator::empty_cache`].
    pub fn empty_cache(&self) -> Result<u64, AllocError> {
        self.with_front(|front| front.empty_cache())
    }

    /// What is counted.
    pub fn stats(&self) -> DeviceStats {
        self.graphs.stats()
    }

    /// At most this share of the device's memory is reserved from now on; 1 is no limit.
    ///
    /// # Errors
    /// [`MemoryError::BadFraction`].
    pub fn set_fraction(&self, fraction: f64) -> Result<(), MemoryError> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(MemoryError::BadFraction(fraction));
        }
        // PyTorch's rule, rounded down; `as` saturates.
        let limit_bytes = (fraction < 1.0).then_some((fraction * self.total_bytes as f64) as u64);
        self.set_limit_bytes(limit_bytes);
        Ok(())
    }

    /// At most so much is reserved from now on, private pools included.
    pub fn set_limit_bytes(&self, limit_bytes: Option<u64>) {
        self.graphs.set_limit_bytes(limit_bytes);
    }

    /// The limit in force.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.graphs.limit_bytes()
    }

    /// Records what is asked for from now on into `sink`.
    ///
    /// # Errors
    /// [`MemoryError::RecordingAlready`]; a sink that takes nothing.
    pub fn start_recording(
        &self,
        sink: impl Write + Send + 'static,
        options: RecordOptions,
    ) -> Result<(), MemoryError> {
        let mut place = self.recorder.write();
        if place.is_some() {
            return Err(MemoryError::RecordingAlready);
        }
        let graphs = Arc::clone(&self.graphs) as Arc<dyn Allocator>;
        *place = Some(Arc::new(Recorder::with_options(graphs, sink, options)?));
        self.is_recording.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the recording and closes its file.
    ///
    /// # Errors
    /// [`MemoryError::NotRecording`]; a sink that did not take everything.
    pub fn stop_recording(&self) -> Result<Recorded, MemoryError> {
        let recorder = self.recorder.write().take().ok_or(MemoryError::NotRecording)?;
        self.is_recording.store(false, Ordering::Release);
        Ok(recorder.finish()?)
    }

    /// Whether a recording is under way.
    pub fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Acquire)
    }
}
