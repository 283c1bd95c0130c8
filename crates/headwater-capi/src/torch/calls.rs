//! The table of calls that the C++ shim is given: everything it needs of Headwater, by address.
//!
//! A table and not symbols, because the shim is built on the user's machine and loaded beside the extension, and neither links
//! with the other. `python/headwater/torch/shim/calls.h` declares the same table; version and size are compared before the first
//! call. Functions that can fail return whether they succeeded and fill in a [`Failure`]; none throws, but what a pool's filter
//! throws passes through.

use std::ffi::{c_int, c_void};

use headwater_driver::{DeviceId, DevicePtr};

use super::checkpoints::{CheckpointVisitor, PoolState};
use super::device_memory::DeviceMemory;
use super::figures::{Failure, Figures};
use super::hooks::{memory, process};
use super::process::Process;
use super::walk::Walker;

/// Changes with every change of the table.
pub const CALLS_VERSION: u32 = 1;

/// What the block around an address is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The block's first address.
    pub address: u64,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What it takes up.
    pub bytes: u64,
    /// The stream it belongs to.
    pub stream: u64,
    /// The ordinal of its device.
    pub device: c_int,
}

/// A caller's `bool accepts(stream)`, owned from the call on.
#[repr(C)]
#[derive(Debug)]
pub struct Filter {
    context: *mut c_void,
    accepts: unsafe extern "C-unwind" fn(*mut c_void, u64) -> bool,
    drop: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: the shim's filters are PyTorch's, which PyTorch calls from every thread that allocates.
unsafe impl Send for Filter {}
// SAFETY: as above.
unsafe impl Sync for Filter {}

impl Filter {
    fn asks(&self, stream: u64) -> bool {
        // SAFETY: the function belongs to the context, and both are alive until `drop`.
        unsafe { (self.accepts)(self.context, stream) }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: once, and last.
        unsafe { (self.drop)(self.context) };
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $answer:ty)? $body:block)*) => {
        /// The table. Its fields are in the order of `calls.h`.
        #[repr(C)]
        #[derive(Debug)]
        pub struct Calls {
            /// [`CALLS_VERSION`].
            pub version: u32,
            /// The size of the table.
            pub table_bytes: u32,
            $($(#[$doc])* pub $name: unsafe extern "C-unwind" fn($($kind),*) $(-> $answer)?,)*
        }

        /// The table itself.
        pub static CALLS: Calls = Calls {
            version: CALLS_VERSION,
            table_bytes: size_of::<Calls>() as u32,
            $($name,)*
        };

        $($(#[$doc])* unsafe extern "C-unwind" fn $name($($arg: $kind),*) $(-> $answer)? $body)*
    };
}

/// Writes down why a call failed.
///
/// # Safety
/// `failure` is null or can be written to.
#[cold]
unsafe fn failed(failure: *mut Failure, why: Failure) -> bool {
    if !failure.is_null() {
        // SAFETY: the caller's promise.
        unsafe { failure.write(why) };
    }
    false
}

/// The answer of a call that may have failed.
///
/// # Safety
/// As [`failed`].
unsafe fn answer(result: Result<(), impl std::fmt::Display>, failure: *mut Failure) -> bool {
    match result {
        Ok(()) => true,
        // SAFETY: the caller's promise.
        Err(error) => unsafe { failed(failure, Failure::of(&error)) },
    }
}

fn on_device<E: std::fmt::Display>(
    device: c_int,
    work: impl FnOnce(&'static DeviceMemory) -> Result<(), E>,
) -> Result<(), String> {
    let memory = memory(device).map_err(|error| error.to_string())?;
    work(memory).map_err(|error| error.to_string())
}

fn used_devices() -> impl Iterator<Item = &'static DeviceMemory> {
    Process::get().into_iter().flat_map(Process::all_used)
}

calls! {
    /// Opens the driver, so that what is wrong shows now.
    fn start(failure: *mut Failure) -> bool {
        // SAFETY: the caller's promise about `failure`, here and below.
        unsafe { answer(process().map(|_| ()), failure) }
    }

    /// Gives out memory for use in a stream.
    fn allocate(bytes: u64, device: c_int, stream: u64, ptr: *mut u64, failure: *mut Failure) -> bool {
        let memory = match memory(device) {
            Ok(memory) => memory,
            // SAFETY: as above.
            Err(error) => return unsafe { failed(failure, Failure::of(&error)) },
        };
        match memory.allocate(bytes, stream) {
            Ok(address) => {
                // SAFETY: `ptr` can be written to.
                unsafe { ptr.write(address.raw()) };
                true
            }
            Err(error) => {
                let mut why = Failure::of_request(&error);
                why.private_bytes = memory.graphs().private_bytes();
                // SAFETY: as above.
                unsafe { failed(failure, why) }
            }
        }
    }

    /// Takes memory back, whichever device it is of.
    fn give_back(ptr: u64, failure: *mut Failure) -> bool {
        let address = DevicePtr::new(ptr);
        let mut refusal = None;
        for memory in used_devices() {
            // SAFETY: PyTorch gives back once what it was given.
            match unsafe { memory.give_back(address) } {
                Ok(()) => return true,
                Err(headwater::AllocError::ForeignPointer { .. }) if refusal.is_some() => {}
                Err(error) => refusal = Some(error),
            }
        }
        let why = refusal.map_or_else(|| Failure::of(&"no device has given anything out"), |error| Failure::of(&error));
        // SAFETY: as above.
        unsafe { failed(failure, why) }
    }

    /// Notes that work in a stream uses the block. Says whether there is such a block.
    fn record_stream(ptr: u64, stream: u64) -> bool {
        used_devices().any(|memory| memory.record_stream(DevicePtr::new(ptr), stream).is_ok())
    }

    /// The block around an address. Says whether there is one.
    fn place_of(ptr: u64, place: *mut Place) -> bool {
        let found = used_devices().find_map(|memory| Some((memory, memory.front().block_at(DevicePtr::new(ptr))?)));
        let Some((memory, facts)) = found else { return false };
        // SAFETY: `place` can be written to.
        unsafe {
            place.write(Place {
                address: facts.ptr.raw(),
                requested_bytes: facts.requested_bytes,
                bytes: facts.allocated_bytes,
                stream: facts.stream.raw(),
                device: memory.device().0 as c_int,
            });
        }
        true
    }

    /// Returns what nobody uses to the driver, on all devices.
    fn empty_cache(failure: *mut Failure) -> bool {
        // SAFETY: as above.
        unsafe { answer(used_devices().try_for_each(|memory| memory.empty_cache().map(|_| ())), failure) }
    }

    /// A limit, as a share of the device's memory.
    fn set_fraction(fraction: f64, device: c_int, failure: *mut Failure) -> bool {
        // SAFETY: as above.
        unsafe { answer(on_device(device, |memory| memory.set_fraction(fraction)), failure) }
    }

    /// The limit in force as such a share; 1 where there is none.
    fn fraction(device: c_int) -> f64 {
        let Ok(memory) = memory(device) else { return 1.0 };
        memory.limit_bytes().map_or(1.0, |limit| limit as f64 / memory.total_bytes() as f64)
    }

    /// What is counted. Zeros for a device that nobody has used.
    fn figures(device: c_int, figures: *mut Figures) {
        let used = usize::try_from(device).ok().and_then(|device| Process::get()?.used(device));
        let counted = used.map_or_else(Figures::default, |memory| (&memory.stats()).into());
        // SAFETY: `figures` can be written to.
        unsafe { figures.write(counted) };
    }

    /// Lets every peak start again from now.
    fn reset_peaks(device: c_int) {
        if let Ok(memory) = memory(device) {
            headwater::Allocator::reset_peaks(&**memory.graphs());
        }
    }

    /// Lets every total start again from zero.
    fn reset_totals(device: c_int) {
        if let Ok(memory) = memory(device) {
            headwater::Allocator::reset_totals(&**memory.graphs());
        }
    }

    /// The largest free block.
    fn largest_free_bytes(device: c_int) -> u64 {
        memory(device).map_or(0, |memory| memory.caching().fragmentation().largest_free_bytes)
    }

    /// Lets another device reach this one's memory.
    fn enable_peer(device: c_int, peer: c_int, failure: *mut Failure) -> bool {
        let peer = DeviceId(u32::try_from(peer).unwrap_or(u32::MAX));
        // SAFETY: as above.
        unsafe { answer(on_device(device, |memory| memory.caching().enable_peer(peer)), failure) }
    }

    /// Shows all segments and blocks of a device.
    fn walk(device: c_int, walker: *const Walker) {
        if let Some(memory) = usize::try_from(device).ok().and_then(|device| Process::get()?.used(device)) {
            // SAFETY: `walker` is good for the time of the call.
            unsafe { memory.walk(None, &*walker) };
        }
    }

    /// Shows those of a pool.
    fn walk_pool(device: c_int, first: u64, second: u64, walker: *const Walker) {
        if let Some(memory) = usize::try_from(device).ok().and_then(|device| Process::get()?.used(device)) {
            // SAFETY: as above.
            unsafe { memory.walk(Some((first, second)), &*walker) };
        }
    }

    /// One more user of a pool.
    fn pool_retain(device: c_int, first: u64, second: u64, failure: *mut Failure) -> bool {
        // SAFETY: as above.
        unsafe { answer(on_device(device, |memory| memory.retain_pool((first, second))), failure) }
    }

    /// One user less.
    fn pool_release(device: c_int, first: u64, second: u64, failure: *mut Failure) -> bool {
        // SAFETY: as above.
        unsafe { answer(on_device(device, |memory| memory.release_pool((first, second))), failure) }
    }

    /// How many users a pool has.
    fn pool_uses(device: c_int, first: u64, second: u64) -> u64 {
        memory(device).map_or(0, |memory| memory.pool_uses((first, second)) as u64)
    }

    /// Routes requests to a pool. The filter is taken over, also where that fails.
    fn pool_begin(device: c_int, first: u64, second: u64, filter: *mut Filter, failure: *mut Failure) -> bool {
        // SAFETY: the filter is the caller's to give away.
        let filter = unsafe { filter.read() };
        let accepts = move |stream| filter.asks(stream);
        let begun = on_device(device, |memory| memory.begin_allocate_to_pool((first, second), accepts));
        // SAFETY: as above.
        unsafe { answer(begun, failure) }
    }

    /// The end of that.
    fn pool_end(device: c_int, first: u64, second: u64, failure: *mut Failure) -> bool {
        // SAFETY: as above.
        unsafe { answer(on_device(device, |memory| memory.end_allocate_to_pool((first, second))), failure) }
    }

    /// A pool's state, to be dropped with `state_drop`; null where there is no such pool.
    fn state_take(device: c_int, first: u64, second: u64, failure: *mut Failure) -> *mut PoolState {
        let mut state = None;
        let taken = on_device(device, |memory| memory.pool_state((first, second)).map(|taken| state = Some(taken)));
        // SAFETY: as above.
        match (unsafe { answer(taken, failure) }, state) {
            (true, Some(state)) => Box::into_raw(Box::new(state)),
            _ => std::ptr::null_mut(),
        }
    }

    /// Drops a state.
    fn state_drop(state: *mut PoolState) {
        if !state.is_null() {
            // SAFETY: from `state_take`, and dropped once.
            drop(unsafe { Box::from_raw(state) });
        }
    }

    /// Brings a pool back into a state.
    fn state_restore(
        device: c_int,
        state: *const PoolState,
        visitor: *const CheckpointVisitor,
        failure: *mut Failure,
    ) -> bool {
        // SAFETY: both are good for the time of the call; PyTorch lets its stale tensors go.
        unsafe { answer(on_device(device, |memory| memory.restore_pool(&*state, &*visitor)), failure) }
    }
}
