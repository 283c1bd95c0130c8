//! Copies, fills and pinned host memory, for programs that have no CUDA of their own.
//!
//! Copies are asynchronous and run in the order of their stream. From pageable host memory the source has been read when the call returns,
//! and to pageable host memory the call returns when the copy has finished, as in CUDA.

use std::ffi::c_void;
use std::ptr::NonNull;

use headwater_driver::DevicePtr;

use crate::arguments::out;
use crate::device::{hw_device, hw_device_ptr, hw_stream};
use crate::guard::guarded;
use crate::handles;
use crate::status::{Failure, hw_status};

/// Copies `bytes` from the host to the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_copy_to_device(
    device: *const hw_device,
    dst: hw_device_ptr,
    src: *const c_void,
    bytes: u64,
    stream: hw_stream,
) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        if src.is_null() && bytes > 0 {
            return Err(Failure::argument("`src` is null"));
        }
        // SAFETY: the ranges are good until the copy has finished, and the stream is alive: the caller's promise.
        unsafe {
            let stream = device.stream(stream)?;
            Ok(device.driver().copy_to_device(DevicePtr::new(dst), src.cast(), bytes, stream)?)
        }
    })
}

/// Copies `bytes` from the device to the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_copy_to_host(
    device: *const hw_device,
    dst: *mut c_void,
    src: hw_device_ptr,
    bytes: u64,
    stream: hw_stream,
) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        if dst.is_null() && bytes > 0 {
            return Err(Failure::argument("`dst` is null"));
        }
        // SAFETY: as above.
        unsafe {
            let stream = device.stream(stream)?;
            Ok(device.driver().copy_to_host(dst.cast(), DevicePtr::new(src), bytes, stream)?)
        }
    })
}

/// Copies `bytes` within the device's memory. The ranges do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_copy_on_device(
    device: *const hw_device,
    dst: hw_device_ptr,
    src: hw_device_ptr,
    bytes: u64,
    stream: hw_stream,
) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        // SAFETY: as above.
        unsafe {
            let stream = device.stream(stream)?;
            Ok(device.driver().copy_on_device(DevicePtr::new(dst), DevicePtr::new(src), bytes, stream)?)
        }
    })
}

/// Sets `bytes` bytes to `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_fill(
    device: *const hw_device,
    dst: hw_device_ptr,
    value: u8,
    bytes: u64,
    stream: hw_stream,
) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        // SAFETY: as above.
        unsafe {
            let stream = device.stream(stream)?;
            Ok(device.driver().fill_bytes(DevicePtr::new(dst), value, bytes, stream)?)
        }
    })
}

/// Allocates `bytes` of pinned host memory, aligned to a page. Slow: 1.6 ms for 1 MiB on an H200's host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_host_allocate(
    device: *const hw_device,
    bytes: u64,
    ptr: *mut *mut c_void,
) -> hw_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { out(ptr, "ptr") }?;
        let device = handles::get(device)?;
        place.write(device.driver().host_alloc(bytes)?.as_ptr().cast());
        Ok(())
    })
}

/// Frees what `hw_host_allocate` gave out; waits for running work. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_host_free(device: *const hw_device, ptr: *mut c_void) -> hw_status {
    guarded(|| {
        let device = handles::get(device)?;
        let Some(ptr) = NonNull::new(ptr.cast()) else { return Ok(()) };
        // SAFETY: nothing on the host uses the memory any more: the caller's promise.
        Ok(unsafe { device.driver().host_free(ptr) }?)
    })
}
