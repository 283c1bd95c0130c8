//! Sleep and wake: physical memory released behind live blocks, and brought back at the same addresses.

use std::sync::Arc;

use headwater::caching::{Contents, SleepId};
use headwater_driver::DevicePtr;

use crate::allocator::hw_allocator;
use crate::arguments::{out, slice};
use crate::device::{hw_device_ptr, hw_stream};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::layers::Base;
use crate::memory::optional_out;
use crate::status::{Failure, hw_status};

/// Blocks that sleep together.
#[derive(Debug)]
pub struct hw_sleep {
    _opaque: [u8; 0],
}

handle_kind!(hw_sleep, 3, "sleeping group", Sleeping);

/// What is behind the handle of a group that sleeps.
#[derive(Debug)]
pub struct Sleeping {
    base: Arc<Base>,
    id: SleepId,
}

/// What happens to the contents of blocks that sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum hw_contents {
    /// They are copied to pinned host memory, and back on waking.
    Saved = 0,
    /// They are lost.
    Lost = 1,
}

/// Releases the physical memory behind `count` live blocks, whose addresses stay theirs. Until `hw_wake` nothing touches them, a launch
/// of a captured graph included, and they can neither be given back nor recorded on streams. Every other stream that used them has
/// finished, or was ordered before `stream`, which is waited for. `released_bytes` may be null. Paged policy only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_sleep_blocks(
    allocator: *const hw_allocator,
    ptrs: *const hw_device_ptr,
    count: usize,
    contents: u32,
    stream: hw_stream,
    group: *mut *mut hw_sleep,
    released_bytes: *mut u64,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(group, "group") }?;
        let object = handles::get(allocator)?;
        let ptrs: Vec<_> =
            // SAFETY: as above.
            unsafe { slice(ptrs, count, "ptrs") }?.iter().map(|ptr| DevicePtr::new(*ptr)).collect();
        let contents = match contents {
            contents if contents == hw_contents::Saved as u32 => Contents::Saved,
            contents if contents == hw_contents::Lost as u32 => Contents::Lost,
            other => return Err(Failure::argument(format!("{other} is no hw_contents"))),
        };
        // SAFETY: as above.
        let stream = unsafe { object.stream(stream) }?;
        // SAFETY: nothing uses the blocks until they are awake again: the caller's promise.
        let (id, released) = unsafe { object.base.caching()?.sleep(&ptrs, contents, stream) }?;
        place.write(handles::make(Sleeping { base: Arc::clone(&object.base), id }));
        // SAFETY: as above.
        unsafe { optional_out(released_bytes, "released_bytes", released) }
    })
}

/// Brings the memory of a group back at its addresses, with its contents where they were saved, and ends the handle. Where there is no
/// room the group still sleeps, and can be woken later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_wake(group: *mut hw_sleep, stream: hw_stream) -> hw_status {
    guarded(|| {
        let sleeping = handles::get(group)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { sleeping.base.device.stream(stream) }?;
        sleeping.base.caching()?.wake(sleeping.id, stream)?;
        handles::take(group).map(drop)
    })
}
