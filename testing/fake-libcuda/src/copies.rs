//! Copies and fills. The synchronous ones go through the legacy default stream and wait for it.

use std::ffi::{c_uchar, c_uint, c_void};

use headwater_driver::{Copies, DevicePtr, Stream, Streams};

use crate::abi::{CUcontext, CUdeviceptr, CUresult, CUstream};
use crate::context::{Context, named};
use crate::entry::{Answer, in_context};
use crate::machine::Machine;

/// Gives `work` to the legacy default stream and waits for it.
fn now(machine: &Machine, context: Context, work: impl FnOnce(Stream) -> Answer) -> Answer {
    let stream = Stream::legacy_default(context.device);
    work(stream)?;
    Ok(machine.sim.stream_synchronize(stream)?)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    in_context("cuMemcpyHtoDAsync_v2", |machine, context| {
        let stream = machine.stream(context, stream)?;
        // SAFETY: the caller's ranges, valid until the copy has finished in stream order.
        Ok(unsafe { machine.sim.copy_to_device(DevicePtr::new(dst), src.cast(), bytes as u64, stream) }?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) -> CUresult {
    in_context("cuMemcpyHtoD_v2", |machine, context| {
        now(machine, context, |stream| {
            // SAFETY: the caller's ranges, valid until the call returns.
            Ok(unsafe { machine.sim.copy_to_device(DevicePtr::new(dst), src.cast(), bytes as u64, stream) }?)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    in_context("cuMemcpyDtoHAsync_v2", |machine, context| {
        let stream = machine.stream(context, stream)?;
        // SAFETY: the caller's ranges, valid until the copy has finished in stream order.
        Ok(unsafe { machine.sim.copy_to_host(dst.cast(), DevicePtr::new(src), bytes as u64, stream) }?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> CUresult {
    in_context("cuMemcpyDtoH_v2", |machine, context| {
        now(machine, context, |stream| {
            // SAFETY: the caller's ranges, valid until the call returns.
            Ok(unsafe { machine.sim.copy_to_host(dst.cast(), DevicePtr::new(src), bytes as u64, stream) }?)
        })
    })
}

/// A copy between two device addresses. They may be of two devices: the addresses say so, and it is a peer copy then.
///
/// # Safety
/// As for [`Copies`].
unsafe fn device_to_device(
    machine: &Machine,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: u64,
    stream: Stream,
) -> Answer {
    let (to, from) = {
        let addresses = machine.addresses();
        let owner = |address| addresses.device_memory(address).map_or(stream.device(), |span| span.about);
        (owner(dst), owner(src))
    };
    let (dst, src) = (DevicePtr::new(dst), DevicePtr::new(src));
    if to == from && to == stream.device() {
        // SAFETY: the caller's promise.
        Ok(unsafe { machine.sim.copy_on_device(dst, src, bytes, stream) }?)
    } else {
        // SAFETY: the caller's promise.
        Ok(unsafe { machine.sim.copy_peer((to, dst), (from, src), bytes, stream) }?)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    in_context("cuMemcpyDtoDAsync_v2", |machine, context| {
        let stream = machine.stream(context, stream)?;
        // SAFETY: the caller's ranges, valid until the copy has finished in stream order.
        unsafe { device_to_device(machine, dst, src, bytes as u64, stream) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CUresult {
    in_context("cuMemcpyDtoD_v2", |machine, context| {
        now(machine, context, |stream| {
            // SAFETY: the caller's ranges, valid until the call returns.
            unsafe { device_to_device(machine, dst, src, bytes as u64, stream) }
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyPeerAsync(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    in_context("cuMemcpyPeerAsync", |machine, context| {
        let stream = machine.stream(context, stream)?;
        let to = named(machine, dst_context)?.device;
        let from = named(machine, src_context)?.device;
        let (dst, src) = (DevicePtr::new(dst), DevicePtr::new(src));
        // SAFETY: the caller's ranges, valid until the copy has finished in stream order.
        Ok(unsafe { machine.sim.copy_peer((to, dst), (from, src), bytes as u64, stream) }?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8Async(
    dst: CUdeviceptr,
    value: c_uchar,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    in_context("cuMemsetD8Async", |machine, context| {
        let stream = machine.stream(context, stream)?;
        // SAFETY: the caller's range, valid until the fill has finished in stream order.
        Ok(unsafe { machine.sim.fill_bytes(DevicePtr::new(dst), value, bytes as u64, stream) }?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD32Async(
    dst: CUdeviceptr,
    value: c_uint,
    words: usize,
    stream: CUstream,
) -> CUresult {
    in_context("cuMemsetD32Async", |machine, context| {
        let stream = machine.stream(context, stream)?;
        // SAFETY: the caller's range, valid until the fill has finished in stream order.
        Ok(unsafe { machine.sim.fill_words(DevicePtr::new(dst), value, words as u64, stream) }?)
    })
}

// Fills of device memory do not wait, asynchronous by name or not: libcuda returns before they have run.

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8_v2(dst: CUdeviceptr, value: c_uchar, bytes: usize) -> CUresult {
    in_context("cuMemsetD8_v2", |machine, context| {
        let stream = Stream::legacy_default(context.device);
        // SAFETY: the caller's range, valid until the fill has finished in stream order.
        Ok(unsafe { machine.sim.fill_bytes(DevicePtr::new(dst), value, bytes as u64, stream) }?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD32_v2(dst: CUdeviceptr, value: c_uint, words: usize) -> CUresult {
    in_context("cuMemsetD32_v2", |machine, context| {
        let stream = Stream::legacy_default(context.device);
        // SAFETY: the caller's range, valid until the fill has finished in stream order.
        Ok(unsafe { machine.sim.fill_words(DevicePtr::new(dst), value, words as u64, stream) }?)
    })
}
