//! What is behind an allocator handle: a policy, the adaptors around it, and a short cut to the outermost of them.
//!
//! ```text
//! handle ──► short cut ──► Layer ──► recording ──► log ──► out-of-memory callback ──► limit ──► graph pools ──► policy
//!                                    each only where it was asked for
//! ```
//!
//! **The short cut.** A request must not pay for a lock and a reference count that all threads share: that alone would cost more
//! than a hit. So up to 255 allocators have a place in a fixed table that holds their handle and their outermost layer; a request
//! compares the one and follows the other. A stale handle does not compare equal. What this cannot see is a handle that is
//! destroyed by one thread while another is still inside of a call with it: that is the caller's to avoid, as with `free`.
//! (Allocators beyond 255 work too, by the slower lookup that all other handles take.)
//!
//! **Changing layers.** Callbacks and recording are switched on while other threads allocate. Each kind of layer is put in at most
//! once, when it is first wanted, and then stays: switched off, it passes everything on. Layers that were outermost before
//! live until the allocator is destroyed, so a thread that is still in one is safe, and there are at most four of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::SystemTime;

use headwater::caching::CachingAllocator;
use headwater::graph::GraphAllocator;
use headwater::{Allocator, Binned};
use headwater_driver::Stream;
use parking_lot::Mutex;

use crate::allocator::hw_allocator;
use crate::device::{Device, hw_stream};
use crate::handles::{self, Handle, PLACE_BITS, no_such};
use crate::log::{LogSwitch, Told};
use crate::oom::{OomSwitch, with_switch};
use crate::recording::{RecordingLayer, RecordingSwitch};
use crate::status::{Failure, hw_status};

/// The memory itself, shared by all handles around it.
#[derive(Debug)]
pub struct Base {
    pub(crate) device: Arc<Device>,
    pub(crate) caching: Option<Arc<CachingAllocator>>,
    pub(crate) binned: Option<Arc<Binned>>,
    pub(crate) graphs: Option<Arc<GraphAllocator>>,
    /// The outermost of these.
    pub(crate) allocator: Arc<dyn Allocator>,
    /// When it was made: history counts from here.
    pub(crate) made: SystemTime,
}

impl Base {
    /// The caching allocator.
    ///
    /// # Errors
    /// `HW_STATUS_NOT_SUPPORTED` where the policy has none.
    pub fn caching(&self) -> Result<&Arc<CachingAllocator>, Failure> {
        self.caching.as_ref().ok_or_else(|| {
            let policy = self.allocator.name();
            Failure::new(
                hw_status::NotSupported,
                format!("the policy {policy} does not cache: use classic or paged"),
            )
        })
    }

    /// The private pools for captures.
    ///
    /// # Errors
    /// `HW_STATUS_NOT_SUPPORTED` where the allocator was made without.
    pub fn graphs(&self) -> Result<&Arc<GraphAllocator>, Failure> {
        let missing = "the allocator was made without graph pools: set `graph_pools` in its options";
        self.graphs.as_ref().ok_or_else(|| Failure::new(hw_status::NotSupported, missing))
    }
}

/// What the short cut leads to.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) allocator: Arc<dyn Allocator>,
    device: Arc<Device>,
}

impl Layer {
    /// The stream with CUDA's value, adopted if need be.
    ///
    /// # Safety
    /// As [`Device::stream`].
    #[inline]
    pub(crate) unsafe fn stream(&self, raw: hw_stream) -> Result<Stream, Failure> {
        // SAFETY: passed on.
        unsafe { self.device.stream(raw) }
    }
}

/// What an allocator handle stands for.
#[derive(Debug)]
pub struct AllocatorObject {
    pub(crate) base: Arc<Base>,
    layers: Mutex<Layers>,
    place: AtomicU64,
    pub(crate) oom: Arc<OomSwitch>,
    pub(crate) log: Arc<LogSwitch>,
    pub(crate) recording: Arc<RecordingSwitch>,
}

#[derive(Debug)]
struct Layers {
    /// All that ever were outermost. The last is it now.
    #[expect(clippy::vec_box, reason = "the short cut points to them: they stay where they are")]
    all: Vec<Box<Layer>>,
    has_oom: bool,
    has_log: bool,
    has_recording: bool,
}

/// A layer that can be put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    Oom,
    Log,
    Recording,
}

impl AllocatorObject {
    /// `allocator` around `base`.
    pub(crate) fn new(base: Arc<Base>, allocator: Arc<dyn Allocator>) -> Self {
        let layer = Box::new(Layer { allocator, device: Arc::clone(&base.device) });
        Self {
            base,
            layers: Mutex::new(Layers {
                all: vec![layer],
                has_oom: false,
                has_log: false,
                has_recording: false,
            }),
            place: AtomicU64::new(0),
            oom: Arc::default(),
            log: Arc::default(),
            recording: Arc::default(),
        }
    }

    /// The outermost allocator.
    pub(crate) fn top(&self) -> Arc<dyn Allocator> {
        Arc::clone(&self.layers.lock().outermost().allocator)
    }

    /// The stream with CUDA's value, adopted if need be.
    ///
    /// # Safety
    /// As [`Device::stream`].
    pub(crate) unsafe fn stream(&self, raw: hw_stream) -> Result<Stream, Failure> {
        // SAFETY: passed on.
        unsafe { self.base.device.stream(raw) }
    }

    /// The handle is gone: nothing calls back any more, and a recording is closed.
    pub(crate) fn end(&self) {
        self.oom.clear();
        self.log.clear();
        self.recording.clear();
    }

    /// Puts a layer in, unless it is there.
    pub(crate) fn put_in(&self, extra: Extra) {
        let mut layers = self.layers.lock();
        let is_there = match extra {
            Extra::Oom => &mut layers.has_oom,
            Extra::Log => &mut layers.has_log,
            Extra::Recording => &mut layers.has_recording,
        };
        if std::mem::replace(is_there, true) {
            return;
        }
        let inner = Arc::clone(&layers.outermost().allocator);
        let allocator: Arc<dyn Allocator> = match extra {
            Extra::Oom => with_switch(inner, Arc::clone(&self.oom)),
            Extra::Log => Arc::new(Told::new(inner, Arc::clone(&self.log))),
            Extra::Recording => Arc::new(RecordingLayer::new(inner, Arc::clone(&self.recording))),
        };
        let layer = Box::new(Layer { allocator, device: Arc::clone(&self.base.device) });
        layers.all.push(layer);
        publish(self.place.load(Ordering::Relaxed), layers.outermost());
    }
}

impl Layers {
    fn outermost(&self) -> &Layer {
        self.all.last().expect("an allocator begins with one layer, and none is ever taken out")
    }
}

/// A place of the short cut.
#[derive(Debug)]
#[repr(align(64))] // one cache line: what is written when another allocator is made does not slow this one down
struct Place {
    handle: AtomicU64,
    layer: AtomicPtr<Layer>,
}

const PLACES: usize = 1 << PLACE_BITS;

/// Place 0 is nobody's: it is the place of handles without one.
static SHORT_CUT: [Place; PLACES] =
    [const { Place { handle: AtomicU64::new(0), layer: AtomicPtr::new(std::ptr::null_mut()) } }; PLACES];

/// Which places are taken, and the lock under which they are.
static TAKEN: Mutex<[bool; PLACES]> = Mutex::new([false; PLACES]);

fn publish(place: u64, layer: &Layer) {
    if place != 0 {
        // Release: who finds the layer finds what is in it.
        SHORT_CUT[place as usize].layer.store(std::ptr::from_ref(layer).cast_mut(), Ordering::Release);
    }
}

/// A handle for a new allocator.
pub(crate) fn make_allocator(object: AllocatorObject) -> *mut hw_allocator {
    let place = {
        let mut taken = TAKEN.lock();
        let free = (1..PLACES).find(|place| !taken[*place]);
        free.inspect(|place| taken[*place] = true).unwrap_or(0)
    };
    let table = hw_allocator::table();
    let number = table.fresh(hw_allocator::KIND, place as u64);
    object.place.store(place as u64, Ordering::Relaxed);
    let object = Arc::new(object);
    publish(place as u64, object.layers.lock().outermost());
    table.insert(number, object);
    if place != 0 {
        // Release, and last: who finds the handle finds its layer.
        SHORT_CUT[place].handle.store(number, Ordering::Release);
    }
    number as usize as *mut hw_allocator
}

/// Ends a handle: from now on it is none.
///
/// # Errors
/// As [`handles::take`].
pub(crate) fn take_allocator(handle: *const hw_allocator) -> Result<Arc<AllocatorObject>, Failure> {
    let object = handles::take(handle)?;
    let place = object.place.load(Ordering::Relaxed) as usize;
    if place != 0 {
        SHORT_CUT[place].handle.store(0, Ordering::Release);
        TAKEN.lock()[place] = false;
    }
    Ok(object)
}

/// Does something with the outermost layer of an allocator.
///
/// # Errors
/// As [`handles::get`], and those of `work`.
///
/// # Safety
/// No other thread destroys the allocator meanwhile.
#[inline]
pub(crate) unsafe fn with_layer<T>(
    handle: *const hw_allocator,
    work: impl FnOnce(&Layer) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let number = handle as usize as u64;
    let place = number as usize % PLACES;
    // Acquire: pairs with making the handle.
    if place == 0 || SHORT_CUT[place].handle.load(Ordering::Acquire) != number {
        return with_layer_slowly(handle, work);
    }
    // Acquire: pairs with `publish`.
    let layer = SHORT_CUT[place].layer.load(Ordering::Acquire);
    // SAFETY: the handle is the one in this place, so its object is in the table, which keeps every layer it ever had; it is
    // not destroyed meanwhile by the caller's promise.
    work(unsafe { &*layer })
}

/// For null, stale and foreign handles, and for allocators without a place.
#[cold]
fn with_layer_slowly<T>(
    handle: *const hw_allocator,
    work: impl FnOnce(&Layer) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if !(handle as usize).is_multiple_of(PLACES) {
        return Err(no_such(handle));
    }
    let object = handles::get(handle)?;
    let layers = object.layers.lock();
    // A reference of its own: callbacks may change layers, which takes the lock.
    let layer = Layer {
        allocator: Arc::clone(&layers.outermost().allocator),
        device: Arc::clone(&object.base.device),
    };
    drop(layers);
    work(&layer)
}
