//! Memory out and back. The first three functions are the hit path.

use headwater::Request;
use headwater::allocator::BlockState;
use headwater_driver::DevicePtr;

use crate::allocator::hw_allocator;
use crate::arguments::{Versioned, check_versioned, fill_versioned, out};
use crate::device::{hw_device_ptr, hw_stream};
use crate::guard::guarded;
use crate::handles;
use crate::layers::with_layer;
use crate::status::{Failure, hw_status};

/// Gives out `bytes` of device memory for use in `stream`; the address is a multiple of 256 at least, and the content
/// undefined. Zero bytes get the address zero. Work in `stream` may use it at once; work in other streams is ordered after that
/// stream by the caller, and announced with `hw_record_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_allocate(
    allocator: *const hw_allocator,
    bytes: u64,
    stream: hw_stream,
    ptr: *mut hw_device_ptr,
) -> hw_status {
    guarded(|| {
        // SAFETY: good for a write: the caller's promise.
        let place = unsafe { out(ptr, "ptr") }?;
        // SAFETY: the stream is alive, and nobody destroys the allocator meanwhile: the caller's promises.
        let found = unsafe {
            with_layer(allocator, |layer| {
                Ok(layer.allocator.allocate(Request::new(bytes, layer.stream(stream)?))?)
            })
        }?;
        place.write(found.raw());
        Ok(())
    })
}

/// Takes a block back. Work that was queued before in its own stream and in recorded streams may still use it. Zero is taken back as
/// often as one likes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_give_back(allocator: *const hw_allocator, ptr: hw_device_ptr) -> hw_status {
    guarded(|| {
        // SAFETY: the block is the caller's to give back, and the allocator is not destroyed meanwhile: its promises.
        unsafe { with_layer(allocator, |layer| Ok(layer.allocator.give_back(DevicePtr::new(ptr))?)) }
    })
}

/// Announces that work in `stream` uses the block too: after give-back it is not handed out again before the work that `stream` has
/// by then is finished. The block's own stream needs no announcement.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_record_stream(
    allocator: *const hw_allocator,
    ptr: hw_device_ptr,
    stream: hw_stream,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            with_layer(allocator, |layer| {
                Ok(layer.allocator.record_stream(DevicePtr::new(ptr), layer.stream(stream)?)?)
            })
        }
    })
}

/// As `hw_allocate`, with an address that is a multiple of `alignment_bytes`: a power of two up to 2 MiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_allocate_aligned(
    allocator: *const hw_allocator,
    bytes: u64,
    alignment_bytes: u64,
    stream: hw_stream,
    ptr: *mut hw_device_ptr,
) -> hw_status {
    guarded(|| {
        // SAFETY: good for a write: the caller's promise.
        let place = unsafe { out(ptr, "ptr") }?;
        // SAFETY: the stream is alive, and nobody destroys the allocator meanwhile: the caller's promises.
        let found = unsafe {
            with_layer(allocator, |layer| {
                let request = Request::new(bytes, layer.stream(stream)?).aligned_to(alignment_bytes);
                Ok(layer.allocator.allocate(request)?)
            })
        }?;
        place.write(found.raw());
        Ok(())
    })
}

/// Takes a block back for a caller who cannot be told that it failed, such as a destructor: where the driver refuses, the allocator owes
/// it the block and tries again later. Bad addresses are errors all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_give_back_or_owe(
    allocator: *const hw_allocator,
    ptr: hw_device_ptr,
) -> hw_status {
    guarded(|| {
        // SAFETY: as for `hw_give_back`.
        unsafe { with_layer(allocator, |layer| Ok(layer.allocator.give_back_or_owe(DevicePtr::new(ptr))?)) }
    })
}

/// Takes leave of a stream whose owner is about to destroy it: its memory becomes available to all streams when its work has finished.
/// After this call no work is queued in it, and no call names it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_forget_stream(allocator: *const hw_allocator, stream: hw_stream) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { object.stream(stream) }?;
        if let Some(caching) = &object.base.caching {
            caching.forget_stream(stream)?;
        }
        object.base.device.streams.forget(&**object.base.device.driver(), stream)
    })
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum hw_block_state {
    /// A caller holds it.
    Live = 0,
    /// It was given back, and cannot be handed out or returned to the driver yet.
    Pending = 1,
    /// It is ready to be handed out.
    Cached = 2,
}

impl hw_block_state {
    pub(crate) fn of(state: BlockState) -> u32 {
        match state {
            BlockState::Live => Self::Live as u32,
            BlockState::Cached => Self::Cached as u32,
            _ => Self::Pending as u32,
        }
    }
}

/// What an allocator knows about one block.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct hw_block_facts {
    /// Set by the caller to `sizeof(hw_block_facts)`.
    pub struct_bytes: u64,
    /// Its first address.
    pub ptr: hw_device_ptr,
    /// What was asked for.
    pub requested_bytes: u64,
    /// What it takes up, rounding and alignment included.
    pub allocated_bytes: u64,
    /// The stream it belongs to.
    pub stream: hw_stream,
    /// An `hw_block_state`.
    pub state: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: numbers alone, and the size first.
unsafe impl Versioned for hw_block_facts {}

/// The block that contains `ptr`, which need not be its first address. `HW_STATUS_INVALID_POINTER` where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_block_at(
    allocator: *const hw_allocator,
    ptr: hw_device_ptr,
    facts: *mut hw_block_facts,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { check_versioned(facts, "facts") }?;
        let object = handles::get(allocator)?;
        let ptr = DevicePtr::new(ptr);
        let none =
            || Failure::new(hw_status::InvalidPointer, format!("{ptr} is in no block of this allocator"));
        let found = object.base.allocator.block_at(ptr).ok_or_else(none)?;
        let found = hw_block_facts {
            struct_bytes: 0,
            ptr: found.ptr.raw(),
            requested_bytes: found.requested_bytes,
            allocated_bytes: found.allocated_bytes,
            stream: found.stream.raw(),
            state: hw_block_state::of(found.state),
            reserved: 0,
        };
        // SAFETY: the caller's promise.
        unsafe { fill_versioned(facts, &found, "facts") }
    })
}

/// Returns to the driver everything that no caller holds and no stream uses. `released_bytes` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_empty_cache(
    allocator: *const hw_allocator,
    released_bytes: *mut u64,
) -> hw_status {
    guarded(|| {
        let released = handles::get(allocator)?.top().empty_cache()?;
        // SAFETY: the caller's promise.
        unsafe { optional_out(released_bytes, "released_bytes", released) }
    })
}

/// Returns memory to the driver until at most `keep_bytes` are reserved, where so much is free. `released_bytes` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_trim(
    allocator: *const hw_allocator,
    keep_bytes: u64,
    released_bytes: *mut u64,
) -> hw_status {
    guarded(|| {
        let released = handles::get(allocator)?.base.caching()?.trim(keep_bytes)?;
        // SAFETY: the caller's promise.
        unsafe { optional_out(released_bytes, "released_bytes", released) }
    })
}

/// Looks after blocks that wait for streams, which requests do as well: for programs that give memory back and then do not ask for any
/// for long. `ended` (may be null) gets the number of waits that ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_poll(allocator: *const hw_allocator, ended: *mut u64) -> hw_status {
    guarded(|| {
        let object = handles::get(allocator)?;
        let count = match (&object.base.caching, &object.base.binned) {
            (Some(caching), _) => caching.poll()?,
            (None, Some(binned)) => binned.process_deferred()?,
            // The driver's own free waits; there is nothing to look after.
            (None, None) => 0,
        };
        // SAFETY: the caller's promise.
        unsafe { optional_out(ended, "ended", count as u64) }
    })
}

/// Walks everything there is and compares it with what is counted, for those in doubt: `HW_STATUS_INTERNAL` with the differences
/// where it does not add up. Stops the allocator meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reconcile(allocator: *const hw_allocator) -> hw_status {
    guarded(|| {
        let answer = handles::get(allocator)?.base.allocator.reconcile();
        answer.map_err(|differences| Failure::new(hw_status::Internal, differences.to_string()))
    })
}

/// Writes a result where the caller wants one.
///
/// # Safety
/// As [`out`].
pub(crate) unsafe fn optional_out<T>(place: *mut T, name: &str, value: T) -> Result<(), Failure> {
    if !place.is_null() {
        // SAFETY: passed on.
        unsafe { out(place, name) }?.write(value);
    }
    Ok(())
}
