//! Pinned host memory.

use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;

use headwater_driver::HostMemory;

use crate::abi::{CUdeviceptr, CUresult};
use crate::addresses::{Pinned, Span};
use crate::context::Context;
use crate::entry::{Answer, Out, in_context};
use crate::machine::Machine;

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED`.
const ALLOC_FLAGS: c_uint = 1 | 2 | 4;
/// `CU_MEMHOSTREGISTER_PORTABLE | ..._DEVICEMAP | ..._IOMEMORY | ..._READ_ONLY`.
const REGISTER_FLAGS: c_uint = 1 | 2 | 4 | 8;

fn alloc(machine: &Machine, context: Context, out: Out<*mut c_void>, bytes: usize, flags: c_uint) -> Answer {
    if flags & !ALLOC_FLAGS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let ptr = machine.sim.host_alloc(bytes as u64)?.as_ptr();
    let pinned = Pinned { device: context.device, registered: false, flags };
    machine.addresses().pinned.insert(ptr.expose_provenance() as u64, bytes as u64, pinned);
    out.put(ptr.cast());
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(pp: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    in_context("cuMemHostAlloc", |machine, context| {
        // SAFETY: the caller's place for the address.
        alloc(machine, context, unsafe { Out::required(pp) }?, bytes, flags)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytes: usize) -> CUresult {
    in_context("cuMemAllocHost_v2", |machine, context| {
        // SAFETY: the caller's place for the address.
        alloc(machine, context, unsafe { Out::required(pp) }?, bytes, 0)
    })
}

/// Takes a pinned range out of the books for as long as `unpin` runs, and puts it back where that fails.
fn unpin(
    machine: &Machine,
    ptr: *mut c_void,
    registered: bool,
    error: CUresult,
    unpin: impl FnOnce(NonNull<u8>) -> headwater_driver::Result<()>,
) -> Answer {
    let place = NonNull::new(ptr.cast::<u8>()).ok_or(CUresult::INVALID_VALUE)?;
    let start = place.addr().get() as u64;
    let span: Span<Pinned> = {
        let mut addresses = machine.addresses();
        let span = addresses.pinned.at(start).filter(|span| span.about.registered == registered);
        addresses.pinned.remove(span.ok_or(error)?.start).ok_or(error)?
    };
    unpin(place).map_err(|failed| {
        machine.addresses().pinned.insert(span.start, span.bytes, span.about);
        CUresult::from(failed)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(p: *mut c_void) -> CUresult {
    in_context("cuMemFreeHost", |machine, _| {
        unpin(machine, p, false, CUresult::INVALID_VALUE, |ptr| {
            // SAFETY: the caller of cuMemFreeHost has stopped using the memory.
            unsafe { machine.sim.host_free(ptr) }
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(p: *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    in_context("cuMemHostRegister_v2", |machine, context| {
        let ptr = NonNull::new(p.cast::<u8>()).ok_or(CUresult::INVALID_VALUE)?;
        if flags & !REGISTER_FLAGS != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: the caller's memory, which stays mapped until it is unregistered.
        unsafe { machine.sim.host_register(ptr, bytes as u64) }?;
        let pinned = Pinned { device: context.device, registered: true, flags };
        machine.addresses().pinned.insert(p.expose_provenance() as u64, bytes as u64, pinned);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostUnregister(p: *mut c_void) -> CUresult {
    in_context("cuMemHostUnregister", |machine, _| {
        unpin(machine, p, true, CUresult::HOST_MEMORY_NOT_REGISTERED, |ptr| {
            // SAFETY: the caller of cuMemHostUnregister waited for its copies.
            unsafe { machine.sim.host_unregister(ptr) }
        })
    })
}

/// The device uses pinned memory at the host's own address.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    dptr: *mut CUdeviceptr,
    p: *mut c_void,
    flags: c_uint,
) -> CUresult {
    in_context("cuMemHostGetDevicePointer_v2", |machine, _| {
        // SAFETY: the caller's place for the address.
        let out = unsafe { Out::required(dptr) }?;
        let address = p.addr() as u64;
        if flags != 0 || machine.addresses().pinned.containing(address).is_none() {
            return Err(CUresult::INVALID_VALUE);
        }
        out.put(address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetFlags(flags: *mut c_uint, p: *mut c_void) -> CUresult {
    in_context("cuMemHostGetFlags", |machine, _| {
        // SAFETY: the caller's place for the flags.
        let out = unsafe { Out::required(flags) }?;
        let span = machine.addresses().pinned.containing(p.addr() as u64);
        out.put(span.ok_or(CUresult::INVALID_VALUE)?.about.flags);
        Ok(())
    })
}
