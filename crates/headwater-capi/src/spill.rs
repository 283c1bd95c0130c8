//! Spillable buffers: data that moves down when room is needed, and back up when it is used.

use std::ffi::c_void;
use std::sync::Arc;

use headwater_tiers::SpillBuffer;
use headwater_tiers::spill::GpuAccess;

use crate::allocator::flag;
use crate::arguments::{out, slice};
use crate::device::{hw_device_ptr, hw_stream};
use crate::guard::guarded;
use crate::handles::{self, handle_kind};
use crate::status::{Failure, hw_status};
use crate::tiers::{TiersObject, hw_tiers, tier_number, tier_of, wait_of};

/// Bytes that are in one tier at a time.
#[derive(Debug)]
pub struct hw_spill_buffer {
    _opaque: [u8; 0],
}

/// A spillable buffer pinned on the device: it stays where it is until the access ends.
#[derive(Debug)]
pub struct hw_spill_access {
    _opaque: [u8; 0],
}

handle_kind!(hw_spill_buffer, 12, "spillable buffer", Buffer);
handle_kind!(hw_spill_access, 13, "access to a spillable buffer", GpuAccess);

/// What is behind a spillable buffer's handle.
#[derive(Debug)]
pub struct Buffer {
    buffer: SpillBuffer<u8>,
    tiers: Arc<TiersObject>,
}

impl Buffer {
    /// `bytes` from `offset` on, where the buffer has them.
    fn check_range(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        let has = self.buffer.len() as u64;
        if offset.checked_add(bytes).is_some_and(|end| end <= has) {
            return Ok(());
        }
        Err(Failure::argument(format!("{bytes} bytes at {offset} are beyond the buffer's {has}")))
    }
}

/// Makes a buffer of `bytes` in `tier` (an `hw_tier`), with the bytes at `data`, or with zeros where that is null; zeros are made on the GPU
/// and moved down from there. Waits for room `timeout_ms` at most.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_create(
    tiers: *const hw_tiers,
    tier: u32,
    data: *const c_void,
    bytes: u64,
    timeout_ms: u32,
    buffer: *mut *mut hw_spill_buffer,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(buffer, "buffer") }?;
        let tiers = handles::get(tiers)?;
        let (spill, device, wait) = (tiers.spill()?, tiers.base.device.id(), wait_of(timeout_ms));
        let tier = tier_of(tier)?;
        let len =
            usize::try_from(bytes).map_err(|_| Failure::argument("`bytes` is beyond the address space"))?;
        let buffer = if data.is_null() {
            let buffer = spill.buffer::<u8>(len, device, &wait)?;
            buffer.spill_to(tier, &wait)?;
            buffer
        } else {
            // SAFETY: as above.
            let values = unsafe { slice(data.cast::<u8>(), len, "data") }?;
            spill.buffer_from_slice(values, tier, device, &wait)?
        };
        place.write(handles::make(Buffer { buffer, tiers }));
        Ok(())
    })
}

/// Ends a buffer's handle. The data goes with it, once accesses have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_destroy(buffer: *mut hw_spill_buffer) -> hw_status {
    guarded(|| handles::take(buffer).map(drop))
}

/// Where the data is now (an `hw_tier`), and how many bytes there are. Each may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_where(
    buffer: *const hw_spill_buffer,
    tier: *mut u32,
    bytes: *mut u64,
) -> hw_status {
    guarded(|| {
        let buffer = &handles::get(buffer)?.buffer;
        // SAFETY: the caller's promise.
        unsafe {
            crate::memory::optional_out(tier, "tier", tier_number(buffer.space().tier()))?;
            crate::memory::optional_out(bytes, "bytes", buffer.len() as u64)
        }
    })
}

/// Who stays longer when room is needed: higher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_set_priority(
    buffer: *const hw_spill_buffer,
    priority: i32,
) -> hw_status {
    guarded(|| {
        handles::get(buffer)?.buffer.set_priority(priority);
        Ok(())
    })
}

/// Pins the data on the device for work in `stream`, and moves it there first if need be, `timeout_ms` at most. `writes` is 1 for work that
/// writes: nobody else has access meanwhile. `ptr` is good until `hw_spill_access_end`; work that was queued in `stream` before that is
/// what later moves wait for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_access(
    buffer: *const hw_spill_buffer,
    stream: hw_stream,
    writes: u32,
    timeout_ms: u32,
    access: *mut *mut hw_spill_access,
    ptr: *mut hw_device_ptr,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (place, address) = unsafe { (out(access, "access")?, out(ptr, "ptr")?) };
        let object = handles::get(buffer)?;
        // SAFETY: as above.
        let stream = unsafe { object.tiers.base.device.stream(stream) }?;
        let wait = wait_of(timeout_ms);
        let access = match flag(writes, "writes")? {
            true => object.buffer.write_on_gpu(stream, &wait)?,
            false => object.buffer.read_on_gpu(stream, &wait)?,
        };
        address.write(access.ptr().raw());
        place.write(handles::make(access));
        Ok(())
    })
}

/// Ends an access: the data may move again once the work queued so far has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_access_end(access: *mut hw_spill_access) -> hw_status {
    guarded(|| handles::take(access).map(drop))
}

/// Copies `bytes` from `offset` on to host memory; the data moves to the HOST tier first if need be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_read(
    buffer: *const hw_spill_buffer,
    offset: u64,
    dst: *mut c_void,
    bytes: u64,
    timeout_ms: u32,
) -> hw_status {
    guarded(|| {
        let object = handles::get(buffer)?;
        object.check_range(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise; what is read into is overwritten whatever it held.
        let first = unsafe { out(dst.cast::<u8>(), "dst") }?.as_mut_ptr();
        let count =
            usize::try_from(bytes).map_err(|_| Failure::argument("`bytes` is beyond the address space"))?;
        // SAFETY: as above; zeroed first, because a slice of bytes must have values.
        let into = unsafe {
            first.write_bytes(0, count);
            std::slice::from_raw_parts_mut(first, count)
        };
        Ok(object.buffer.read_on_host(&wait_of(timeout_ms))?.read_at(0, offset, into)?)
    })
}

/// Copies `bytes` from host memory to `offset`; the data moves to the HOST tier first if need be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_write(
    buffer: *const hw_spill_buffer,
    offset: u64,
    src: *const c_void,
    bytes: u64,
    timeout_ms: u32,
) -> hw_status {
    guarded(|| {
        let object = handles::get(buffer)?;
        object.check_range(offset, bytes)?;
        let count =
            usize::try_from(bytes).map_err(|_| Failure::argument("`bytes` is beyond the address space"))?;
        // SAFETY: the caller's promise.
        let from = unsafe { slice(src.cast::<u8>(), count, "src") }?;
        Ok(object.buffer.write_on_host(&wait_of(timeout_ms))?.write_at(0, offset, from)?)
    })
}

/// Moves the data up to the device without using it yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_prefetch(
    buffer: *const hw_spill_buffer,
    timeout_ms: u32,
) -> hw_status {
    guarded(|| {
        let object = handles::get(buffer)?;
        Ok(object.buffer.prefetch(object.tiers.base.device.id(), &wait_of(timeout_ms))?)
    })
}

/// Moves the data down to `tier`; nothing happens where it is there or below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_spill_buffer_spill_to(
    buffer: *const hw_spill_buffer,
    tier: u32,
    timeout_ms: u32,
) -> hw_status {
    guarded(|| {
        let tier = tier_of(tier)?;
        Ok(handles::get(buffer)?.buffer.spill_to(tier, &wait_of(timeout_ms))?)
    })
}
