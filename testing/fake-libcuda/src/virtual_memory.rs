//! Virtual memory management. None of it needs a context: physical memory and addresses belong to the process.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};

use headwater_driver::{DeviceId, DevicePtr, VirtualMemory};

use crate::abi::{
    ACCESS_READ_WRITE, ALLOCATION_TYPE_PINNED, CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp,
    CUmemHandle, CUmemLocation, CUresult, LOCATION_DEVICE,
};
use crate::addresses::Mapping;
use crate::context::{self, device};
use crate::entry::{Answer, Out, initialised};
use crate::machine::Machine;
use crate::objects::HandleObject;

/// As `initialised`, on devices that have virtual memory management.
fn supported(name: &'static str, body: impl FnOnce(&Machine) -> Answer) -> CUresult {
    initialised(name, |machine| {
        if machine.settings.virtual_memory { body(machine) } else { Err(CUresult::NOT_SUPPORTED) }
    })
}

/// The device that a location names.
fn located(machine: &Machine, location: CUmemLocation) -> Answer<DeviceId> {
    match location.kind {
        LOCATION_DEVICE => device(machine, location.id),
        0 => Err(CUresult::INVALID_VALUE),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

/// The device that allocation properties name, where they ask for what there is.
///
/// # Safety
/// `prop` is null or valid for reading.
unsafe fn properties(
    machine: &Machine,
    prop: *const CUmemAllocationProp,
) -> Answer<(DeviceId, CUmemAllocationProp)> {
    if prop.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and readable by the caller's promise.
    let prop = unsafe { prop.read() };
    if prop.kind != ALLOCATION_TYPE_PINNED || prop.reserved != [0; 4] {
        return Err(CUresult::INVALID_VALUE);
    }
    // Only file descriptors can be had, as on Linux.
    if prop.requested_handle_types & !HANDLE_TYPE_FD != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    Ok((located(machine, prop.location)?, prop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    option: c_uint,
) -> CUresult {
    supported("cuMemGetAllocationGranularity", |machine| {
        // SAFETY: the caller's place for the size.
        let out = unsafe { Out::required(granularity) }?;
        // SAFETY: the caller's properties.
        let (device, _) = unsafe { properties(machine, prop) }?;
        // Minimum and recommended granularity are the same on today's devices.
        if option > 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        out.put(machine.sim.granularity(device)? as usize);
        Ok(())
    })
}

/// The wished-for address is not granted; libcuda need not either.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    _wished: CUdeviceptr,
    flags: c_ulonglong,
) -> CUresult {
    supported("cuMemAddressReserve", |machine| {
        // SAFETY: the caller's place for the address.
        let out = unsafe { Out::required(ptr) }?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        // CUDA's addresses belong to no device, the simulator wants one named: the current one where there is one.
        let device = context::current(machine).map_or(DeviceId(0), |context| context.device);
        let start = machine.sim.address_reserve(device, bytes as u64, alignment as u64)?;
        machine.addresses().reserved.insert(start.raw(), bytes as u64, device);
        out.put(start.raw());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressFree(ptr: CUdeviceptr, bytes: usize) -> CUresult {
    supported("cuMemAddressFree", |machine| {
        let span = machine.addresses().reserved.remove(ptr).ok_or(CUresult::INVALID_VALUE)?;
        machine.sim.address_free(span.about, DevicePtr::new(ptr), bytes as u64).map_err(|error| {
            machine.addresses().reserved.insert(span.start, span.bytes, span.about);
            CUresult::from(error)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemHandle,
    bytes: usize,
    prop: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> CUresult {
    supported("cuMemCreate", |machine| {
        // SAFETY: the caller's place for the handle.
        let out = unsafe { Out::required(handle) }?;
        // SAFETY: the caller's properties.
        let (device, properties) = unsafe { properties(machine, prop) }?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let exportable = properties.requested_handle_types & HANDLE_TYPE_FD != 0;
        let handle = if exportable {
            machine.sim.handle_create_exportable(device, bytes as u64)?
        } else {
            machine.sim.handle_create(device, bytes as u64)?
        };
        let object = HandleObject { handle, properties, holds: 1, mappings: 0 };
        out.put(machine.objects().handles.insert(object));
        Ok(())
    })
}

/// Changes a handle's counts; gives it back to the simulator when nobody holds it and nothing maps it.
fn release_if_unused(machine: &Machine, value: u64, change: impl FnOnce(&mut HandleObject)) -> Answer {
    let unused = {
        let mut objects = machine.objects();
        let Some(object) = objects.handles.get_mut(value) else { return Ok(()) };
        change(object);
        if object.holds > 0 || object.mappings > 0 {
            return Ok(());
        }
        objects.handles.remove(value)
    };
    match unused {
        Some(object) => Ok(machine.sim.handle_release(object.handle)?),
        None => Ok(()),
    }
}

/// A handle that its caller still holds.
fn held(machine: &Machine, value: CUmemHandle) -> Answer<HandleObject> {
    let object = machine.live(&machine.objects().handles, value, CUresult::INVALID_VALUE)?;
    if object.holds == 0 {
        return Err(machine.undefined(CUresult::INVALID_VALUE));
    }
    Ok(object)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemRelease(handle: CUmemHandle) -> CUresult {
    supported("cuMemRelease", |machine| {
        held(machine, handle)?;
        release_if_unused(machine, handle, |object| object.holds = object.holds.saturating_sub(1))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemMap(
    ptr: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemHandle,
    flags: c_ulonglong,
) -> CUresult {
    supported("cuMemMap", |machine| {
        let object = held(machine, handle)?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        // Measured: an offset into a handle is not supported.
        if offset != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        machine.sim.handle_map(DevicePtr::new(ptr), bytes as u64, object.handle)?;
        let mapping = Mapping { device: object.handle.device(), handle, access: 0 };
        machine.addresses().mapped.insert(ptr, bytes as u64, mapping);
        if let Some(object) = machine.objects().handles.get_mut(handle) {
            object.mappings += 1;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemUnmap(ptr: CUdeviceptr, bytes: usize) -> CUresult {
    supported("cuMemUnmap", |machine| {
        let first = machine.addresses().mapped.containing(ptr).ok_or(CUresult::INVALID_VALUE)?;
        machine.sim.handle_unmap(first.about.device, DevicePtr::new(ptr), bytes as u64)?;
        let unmapped = machine.addresses().mapped.take_within(ptr, bytes as u64);
        for span in unmapped {
            release_if_unused(machine, span.about.handle, |object| {
                object.mappings = object.mappings.saturating_sub(1);
            })?;
        }
        Ok(())
    })
}

/// Only reading and writing can be granted, and nothing taken back: the simulator knows no other access.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(
    ptr: CUdeviceptr,
    bytes: usize,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    supported("cuMemSetAccess", |machine| {
        if desc.is_null() || count == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut devices = Vec::new();
        for place in 0..count {
            // SAFETY: the caller's `count` descriptions start at `desc`.
            let access = unsafe { desc.add(place).read() };
            if access.flags != ACCESS_READ_WRITE {
                return Err(CUresult::NOT_SUPPORTED);
            }
            devices.push(located(machine, access.location)?);
        }
        machine.sim.access_set(DevicePtr::new(ptr), bytes as u64, &devices)?;
        let granted = devices.iter().fold(0, |bits, device| bits | access_bit(*device));
        machine.addresses().mapped.change_within(ptr, bytes as u64, |mapping| mapping.access |= granted);
        Ok(())
    })
}

/// The device's bit in [`Mapping::access`]; devices past the 64th share none.
fn access_bit(device: DeviceId) -> u64 {
    1_u64.checked_shl(device.0).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> CUresult {
    supported("cuMemGetAccess", |machine| {
        // SAFETY: the caller's place for the flags.
        let out = unsafe { Out::required(flags) }?;
        // SAFETY: the caller's location, null or readable.
        let location = unsafe { location.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
        let device = located(machine, *location)?;
        let span = machine.addresses().mapped.containing(ptr).ok_or(CUresult::INVALID_VALUE)?;
        let granted = span.about.access & access_bit(device) != 0;
        out.put(if granted { c_ulonglong::from(ACCESS_READ_WRITE) } else { 0 });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemHandle,
) -> CUresult {
    supported("cuMemGetAllocationPropertiesFromHandle", |machine| {
        // SAFETY: the caller's place for the properties.
        let out = unsafe { Out::required(prop) }?;
        out.put(held(machine, handle)?.properties);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemRetainAllocationHandle(handle: *mut CUmemHandle, addr: *mut c_void) -> CUresult {
    supported("cuMemRetainAllocationHandle", |machine| {
        // SAFETY: the caller's place for the handle.
        let out = unsafe { Out::required(handle) }?;
        let span = machine.addresses().mapped.containing(addr.addr() as u64);
        let value = span.ok_or(CUresult::INVALID_VALUE)?.about.handle;
        machine.objects().handles.get_mut(value).ok_or(CUresult::INVALID_VALUE)?.holds += 1;
        out.put(value);
        Ok(())
    })
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const HANDLE_TYPE_FD: c_uint = 1;

/// Good in this process, where the simulated machine is; another process is refused when it imports.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemHandle,
    kind: c_uint,
    flags: c_ulonglong,
) -> CUresult {
    supported("cuMemExportToShareableHandle", |machine| {
        // SAFETY: the caller's place for the descriptor.
        let out = unsafe { Out::required(shareable.cast::<c_int>()) }?;
        let object = held(machine, handle)?;
        let asked_for = object.properties.requested_handle_types & HANDLE_TYPE_FD != 0;
        if kind != HANDLE_TYPE_FD || flags != 0 || !asked_for {
            return Err(CUresult::INVALID_VALUE);
        }
        out.put(machine.sim.handle_export(object.handle)?.into_raw_fd());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemHandle,
    os_handle: *mut c_void,
    kind: c_uint,
) -> CUresult {
    supported("cuMemImportFromShareableHandle", |machine| {
        // SAFETY: the caller's place for the handle.
        let out = unsafe { Out::required(handle) }?;
        let number = c_int::try_from(os_handle.addr()).map_err(|_| CUresult::INVALID_VALUE)?;
        if kind != HANDLE_TYPE_FD {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: not -1, being no address above `c_int`; one that is not open is refused when it is looked at.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        // Measured: this code, and no harm done.
        let (device, bytes) = machine.sim.exported_memory(fd).ok_or(CUresult::UNKNOWN)?;
        let imported = machine.sim.handle_import(device, fd, bytes)?;
        let location = CUmemLocation { kind: LOCATION_DEVICE, id: device.0 as c_int };
        let properties = CUmemAllocationProp {
            kind: ALLOCATION_TYPE_PINNED,
            requested_handle_types: HANDLE_TYPE_FD,
            location,
            win32_handle_meta_data: std::ptr::null_mut(),
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let object = HandleObject { handle: imported, properties, holds: 1, mappings: 0 };
        out.put(machine.objects().handles.insert(object));
        Ok(())
    })
}
