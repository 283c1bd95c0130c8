//! Modules and launches.

use std::ffi::{CStr, c_char, c_uint, c_void};

use headwater_driver::{DevicePtr, KernelArg, Kernels, LaunchShape};
use headwater_sim::ParamKind;

use crate::abi::{CUfunction, CUmodule, CUresult, CUstream};
use crate::context::Context;
use crate::entry::{Answer, Out, in_context, text};
use crate::machine::Machine;
use crate::objects::KernelObject;

/// The first bytes of compiled code: an ELF file, and a bundle of several. Only PTX is text.
const COMPILED: [[u8; 4]; 2] = [*b"\x7fELF", 0xba55_ed50_u32.to_le_bytes()];

/// Loads an image.
///
/// # Safety
/// `image` is null, or points to PTX text that ends in NUL, or to compiled code.
unsafe fn load(machine: &Machine, context: Context, out: Out<CUmodule>, image: *const c_void) -> Answer {
    if image.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for magic in COMPILED {
        // Byte by byte: text may end before the fourth.
        // SAFETY: a byte is read only where all before it were those of compiled code, which is longer.
        let starts = (0..4).all(|place| unsafe { image.cast::<u8>().add(place).read() } == magic[place]);
        if starts {
            // Made for a device that is not here.
            return Err(CUresult::NO_BINARY_FOR_GPU);
        }
    }
    // SAFETY: not compiled code, so text that ends in NUL.
    let ptx = unsafe { CStr::from_ptr(image.cast()) };
    let module = machine.sim.module_load(context.device, ptx.to_bytes())?;
    out.put(CUmodule::from_raw(machine.objects().modules.insert(module)));
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    in_context("cuModuleLoadData", |machine, context| {
        // SAFETY: the caller's place for the module.
        let out = unsafe { Out::required(module) }?;
        // SAFETY: the caller's image.
        unsafe { load(machine, context, out, image) }
    })
}

/// The options are for a compiler that is not here; they change nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    _option_count: c_uint,
    _options: *mut c_uint,
    _values: *mut *mut c_void,
) -> CUresult {
    in_context("cuModuleLoadDataEx", |machine, context| {
        // SAFETY: the caller's place for the module.
        let out = unsafe { Out::required(module) }?;
        // SAFETY: the caller's image.
        unsafe { load(machine, context, out, image) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    in_context("cuModuleUnload", |machine, _| {
        let object = machine.live(&machine.objects().modules, module.raw(), CUresult::INVALID_HANDLE)?;
        machine.sim.module_unload(object)?;
        let mut objects = machine.objects();
        objects.modules.remove(module.raw());
        objects.kernels.take(|kernel| kernel.module == module.raw());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    in_context("cuModuleGetFunction", |machine, _| {
        // SAFETY: the caller's place for the function.
        let out = unsafe { Out::required(function) }?;
        // SAFETY: the caller's C string, which outlives the call.
        let name = unsafe { text(name) }?;
        let object = machine.live(&machine.objects().modules, module.raw(), CUresult::INVALID_HANDLE)?;
        let kernel = machine.sim.kernel_get(object, name)?;
        let mut objects = machine.objects();
        // The same function is the same value, however often it is asked for.
        let known = objects.kernels.find(|known| known.module == module.raw() && known.name == name);
        let value = known.unwrap_or_else(|| {
            objects.kernels.insert(KernelObject { kernel, module: module.raw(), name: name.to_owned() })
        });
        out.put(CUfunction::from_raw(value));
        Ok(())
    })
}

/// Reads one argument through its pointer.
///
/// # Safety
/// `place` points to a value of the kind.
unsafe fn argument(kind: ParamKind, place: *const c_void) -> KernelArg {
    // SAFETY: for each of them, the caller's promise. Callers align as they like.
    unsafe {
        match kind {
            ParamKind::Ptr => KernelArg::Ptr(DevicePtr::new(place.cast::<u64>().read_unaligned())),
            ParamKind::U32 => KernelArg::U32(place.cast::<u32>().read_unaligned()),
            ParamKind::U64 => KernelArg::U64(place.cast::<u64>().read_unaligned()),
            ParamKind::F32 => KernelArg::F32(place.cast::<f32>().read_unaligned()),
            ParamKind::F64 => KernelArg::F64(place.cast::<f64>().read_unaligned()),
        }
    }
}

/// Arguments come as one pointer each; their number and types are the kernel's, as compiled. The packed form (`extra`)
/// is not supported.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    in_context("cuLaunchKernel", |machine, context| {
        let kernel =
            machine.live(&machine.objects().kernels, function.raw(), CUresult::INVALID_HANDLE)?.kernel;
        let stream = machine.stream(context, stream)?;
        // A launch, unlike a copy, must be into the current context, with a kernel and a stream of it.
        if kernel.device() != context.device || stream.device() != context.device {
            return Err(CUresult::INVALID_HANDLE);
        }
        if !extra.is_null() {
            return Err(if params.is_null() { CUresult::NOT_SUPPORTED } else { CUresult::INVALID_VALUE });
        }
        let kinds = machine.sim.kernel_params(kernel).ok_or(CUresult::INVALID_HANDLE)?;
        if params.is_null() && !kinds.is_empty() {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut args = Vec::with_capacity(kinds.len());
        for (place, kind) in kinds.into_iter().enumerate() {
            // SAFETY: the caller gives one pointer for each parameter of the kernel.
            let pointer = unsafe { params.add(place).read() };
            if pointer.is_null() {
                return Err(CUresult::INVALID_VALUE);
            }
            // SAFETY: the pointer is to an argument of the kernel's own type.
            args.push(unsafe { argument(kind, pointer) });
        }
        let shape =
            LaunchShape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        // SAFETY: the caller vouches for the arguments and for the memory they name.
        Ok(unsafe { machine.sim.kernel_launch(kernel, shape, &args, stream) }?)
    })
}
