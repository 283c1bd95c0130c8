//! Devices: how many there are, what they are, what they have left.

use std::ffi::{c_char, c_int, c_uint};

use headwater_driver::Devices;

use crate::abi::{CUdevice, CUresult, CUuuid};
use crate::context::device;
use crate::entry::{Answer, Out, anytime, in_context, initialised};
use crate::machine::{self, Machine};
use crate::settings;

/// No CUDA there is has an attribute of this number or a larger one: asking for it is a mistake, not a "no".
const ATTRIBUTE_END: c_uint = 200;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    anytime("cuInit", || {
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        match settings::init_result() {
            0 => machine::initialise(),
            code => Err(CUresult(code)),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    anytime("cuDriverGetVersion", || {
        // SAFETY: the caller's place for the version.
        unsafe { Out::required(version) }?.put(settings::driver_version());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    initialised("cuDeviceGetCount", |machine| {
        // SAFETY: the caller's place for the count.
        unsafe { Out::required(count) }?.put(machine.settings.devices as c_int);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(dev: *mut CUdevice, ordinal: c_int) -> CUresult {
    initialised("cuDeviceGet", |machine| {
        // SAFETY: the caller's place for the device.
        let out = unsafe { Out::required(dev) }?;
        out.put(device(machine, ordinal)?.0 as CUdevice);
        Ok(())
    })
}

/// Writes `text` and a NUL into a buffer of `len` bytes.
///
/// # Safety
/// `buffer` is null or has room for `len` bytes.
unsafe fn put_text(buffer: *mut c_char, len: c_int, text: &str, room_for_all: bool) -> Answer {
    let room = usize::try_from(len).unwrap_or(0);
    if buffer.is_null() || room == 0 || (room_for_all && room <= text.len()) {
        return Err(CUresult::INVALID_VALUE);
    }
    let bytes = text.len().min(room - 1);
    // SAFETY: `bytes < len`, for which the caller promises room; the text is another buffer.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), bytes) };
    // SAFETY: as above, and one more for the NUL.
    unsafe { buffer.add(bytes).write(0) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) -> CUresult {
    initialised("cuDeviceGetName", |machine| {
        let properties = machine.sim.device_properties(device(machine, dev)?)?;
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { put_text(name, len, &properties.name, false) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, dev: CUdevice) -> CUresult {
    initialised("cuDeviceGetPCIBusId", |machine| {
        let properties = machine.sim.device_properties(device(machine, dev)?)?;
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { put_text(id, len, &properties.pci_address, true) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) -> CUresult {
    initialised("cuDeviceGetUuid_v2", |machine| {
        // SAFETY: the caller's place for the sixteen bytes.
        let out = unsafe { Out::required(uuid) }?;
        let mut bytes = *b"headwater-sim-00";
        bytes[15] = b'0'.wrapping_add(device(machine, dev)?.0 as u8);
        out.put(CUuuid { bytes });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> CUresult {
    initialised("cuDeviceTotalMem_v2", |machine| {
        // SAFETY: the caller's place for the size.
        let out = unsafe { Out::required(bytes) }?;
        out.put(machine.sim.device_properties(device(machine, dev)?)?.total_bytes as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, dev: CUdevice) -> CUresult {
    initialised("cuDeviceGetAttribute", |machine| {
        // SAFETY: the caller's place for the value.
        let out = unsafe { Out::required(value) }?;
        out.put(attribute_of(machine, attribute, dev)?);
        Ok(())
    })
}

/// The value of an attribute. Those the simulator has no opinion on are an H200's, or zero: "cannot".
fn attribute_of(machine: &Machine, attribute: c_uint, dev: CUdevice) -> Answer<c_int> {
    let properties = machine.sim.device_properties(device(machine, dev)?)?;
    let capabilities = properties.capabilities;
    // "domain:bus:device.function", in hexadecimal.
    let pci = |part: usize| {
        let field = properties.pci_address.split([':', '.']).nth(part).unwrap_or("0");
        c_int::from_str_radix(field, 16).unwrap_or(0)
    };
    Ok(match attribute {
        1..=3 => 1024,   // threads a block, in x, in y
        4 => 64,         // threads a block in z
        5 => c_int::MAX, // blocks in x
        6 | 7 => 65_535, // blocks in y and z
        8 => 48 << 10,   // shared memory a block
        10 => 32,        // warp
        12 => 65_536,    // registers a block
        15 | 31 => 1,    // copies beside kernels; kernels beside kernels
        16 => properties.multiprocessors as c_int,
        19 | 41 => 1, // host memory can be mapped; one address space for all
        33 => pci(1),
        34 => pci(2),
        39 => 2048, // threads a multiprocessor
        40 => 3,    // copy engines
        50 => pci(0),
        75 => properties.compute_capability.0 as c_int,
        76 => properties.compute_capability.1 as c_int,
        78 => 1,                                      // stream priorities
        91 => 1,                                      // registered memory is used at the host's address
        99 => c_int::from(capabilities.host_pinning), // cuMemHostRegister
        // Virtual memory management, and network cards that reach such memory.
        102 | 110 => c_int::from(capabilities.virtual_memory && machine.settings.virtual_memory),
        // Handles as file descriptors.
        103 => c_int::from(capabilities.shareable_handles && machine.settings.virtual_memory),
        // Memory pools (115) are not here, whatever the simulator says.
        _ if attribute != 0 && attribute < ATTRIBUTE_END => 0,
        _ => return Err(CUresult::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, dev: CUdevice, peer: CUdevice) -> CUresult {
    initialised("cuDeviceCanAccessPeer", |machine| {
        // SAFETY: the caller's place for the answer.
        let out = unsafe { Out::required(can) }?;
        let (from, to) = (device(machine, dev)?, device(machine, peer)?);
        let possible = from != to && machine.sim.peer_access_possible(from, to)?;
        out.put(c_int::from(possible && machine.settings.peer_access));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    in_context("cuMemGetInfo_v2", |machine, context| {
        // SAFETY: the caller's places for the two sizes.
        let (free, total) = unsafe { (Out::required(free)?, Out::required(total)?) };
        let memory = machine.sim.memory_info(context.device)?;
        free.put(memory.free_bytes as usize);
        total.put(memory.total_bytes as usize);
        Ok(())
    })
}
