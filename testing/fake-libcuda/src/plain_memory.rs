//! Plain device memory, and what an address is.

use std::ffi::{c_int, c_uint, c_void};

use headwater_driver::{DevicePtr, PlainMemory};

use crate::abi::{CUcontext, CUdeviceptr, CUresult, MEMORY_TYPE_DEVICE, MEMORY_TYPE_HOST};
use crate::addresses::Span;
use crate::context::Context;
use crate::entry::{Out, in_context};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytes: usize) -> CUresult {
    in_context("cuMemAlloc_v2", |machine, context| {
        // SAFETY: the caller's place for the address.
        let out = unsafe { Out::required(dptr) }?;
        let ptr = machine.sim.mem_alloc(context.device, bytes as u64)?;
        machine.addresses().plain.insert(ptr.raw(), bytes as u64, context.device);
        out.put(ptr.raw());
        Ok(())
    })
}

/// The current context need not be the one the memory was allocated in: addresses are the process's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    in_context("cuMemFree_v2", |machine, _| {
        // Out of the books first: were it the other way round, another thread could be given the same address
        // between the free and the removal.
        let span = machine.addresses().plain.remove(dptr).ok_or(CUresult::INVALID_VALUE)?;
        machine.sim.mem_free(span.about, DevicePtr::new(dptr)).map_err(|error| {
            machine.addresses().plain.insert(span.start, span.bytes, span.about);
            CUresult::from(error)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    dptr: CUdeviceptr,
) -> CUresult {
    in_context("cuMemGetAddressRange_v2", |machine, _| {
        let span = machine.addresses().device_memory(dptr).ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: the caller's places for the answers, which may be left out.
        let (base, size) = unsafe { (Out::optional(base), Out::optional(bytes)) };
        if let Some(base) = base {
            base.put(span.start);
        }
        if let Some(size) = size {
            size.put(span.bytes as usize);
        }
        Ok(())
    })
}

/// The attributes that programs ask for to tell whose memory an address is.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: c_uint,
    dptr: CUdeviceptr,
) -> CUresult {
    in_context("cuPointerGetAttribute", |machine, _| {
        let (span, memory_type) = {
            let addresses = machine.addresses();
            let host = addresses.pinned.containing(dptr);
            match addresses.device_memory(dptr) {
                Some(span) => (span, MEMORY_TYPE_DEVICE),
                None => {
                    let Span { start, bytes, about } = host.ok_or(CUresult::INVALID_VALUE)?;
                    (Span { start, bytes, about: about.device }, MEMORY_TYPE_HOST)
                }
            }
        };
        let on_host = memory_type == MEMORY_TYPE_HOST;
        // SAFETY: for each of them, the attribute fixes the type that the caller's place has room for.
        unsafe {
            match attribute {
                1 => Out::required(data.cast::<CUcontext>())?.put(Context { device: span.about }.handle()),
                2 => Out::required(data.cast::<c_uint>())?.put(memory_type),
                3 => Out::required(data.cast::<CUdeviceptr>())?.put(dptr),
                4 if on_host => Out::required(data.cast::<u64>())?.put(dptr),
                8 => Out::required(data.cast::<c_uint>())?.put(0),
                9 => Out::required(data.cast::<c_int>())?.put(span.about.0 as c_int),
                11 => Out::required(data.cast::<CUdeviceptr>())?.put(span.start),
                12 => Out::required(data.cast::<usize>())?.put(span.bytes as usize),
                13 => Out::required(data.cast::<c_uint>())?.put(1),
                _ => return Err(CUresult::INVALID_VALUE),
            }
        }
        Ok(())
    })
}
