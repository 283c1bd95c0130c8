//! Modules and kernel launches.

use std::collections::BTreeMap;
use std::ffi::CString;

use headwater_driver::{Call, DeviceId, Kernel, KernelArg, Kernels, LaunchShape, Module, Result, Stream};
use parking_lot::Mutex;

use crate::CudaDriver;
use crate::abi::{CuFunction, CuModule, CuResult};
use crate::image;
use crate::objects::{KernelObject, ModuleObject};
use crate::registry::Owned;

impl Kernels for CudaDriver {
    fn module_load(&self, device: DeviceId, image: &[u8]) -> Result<Module> {
        let site = self.call(Call::ModuleLoad);
        let context = site.context(device)?;
        let image = image::checked(image).map_err(|why| site.refuse(CuResult::INVALID_IMAGE, why))?;
        let mut raw = CuModule::default();
        // SAFETY: the image is as long as its own header says, or ends with a zero; `raw` lives through the call.
        site.run(context, |cuda| unsafe { (cuda.module_load_data)(&mut raw, image.as_ptr().cast()) })?;
        let key = self.new_key(device);
        let object = ModuleObject { context: context.clone(), raw, kernels: Mutex::new(BTreeMap::new()) };
        self.modules.insert(key, Owned::new(object));
        Ok(Module::from_raw(key.0, key.1))
    }

    fn module_unload(&self, module: Module) -> Result<()> {
        let site = self.call(Call::ModuleUnload);
        let key = (module.device(), module.raw());
        let Some(object) = self.modules.remove_if(key, |_| true) else { return Err(site.no_such(module)) };
        // The list after the removal: a `kernel_get` under way either is in it, or sees that the module is gone and
        // takes its own entry out.
        let kernels: Vec<u64> = object.kernels.lock().values().copied().collect();
        site.destroyed(Some(self.modules.destroy_removed(key, object)), module)?;
        for kernel in kernels {
            self.kernels.remove_if((module.device(), kernel), |_| true);
        }
        Ok(())
    }

    fn kernel_get(&self, module: Module, name: &str) -> Result<Kernel> {
        let site = self.call(Call::KernelGet);
        let module_key = (module.device(), module.raw());
        let object = self.modules.get(module_key).ok_or_else(|| site.no_such(module))?;
        if let Some(known) = object.kernels.lock().get(name) {
            return Ok(Kernel::from_raw(module.device(), *known));
        }
        let c_name =
            CString::new(name).map_err(|_| site.invalid("a kernel's name with a zero byte in it"))?;
        let mut raw = CuFunction::default();
        // SAFETY: the module is held; `raw` and `c_name` live through the call.
        site.run(&object.context, |cuda| unsafe {
            (cuda.module_get_function)(&mut raw, object.raw, c_name.as_ptr())
        })
        .map_err(|error| error.with_detail(format!("kernel {name:?} of {module}")))?;
        let key = self.new_key(module.device());
        self.kernels.insert(key, KernelObject { module: module.raw(), raw });
        // Two threads may have asked for the same name; the first entry stands.
        let entered = *object.kernels.lock().entry(name.to_owned()).or_insert(key.1);
        let module_gone = !self.modules.contains(module_key);
        if entered != key.1 || module_gone {
            self.kernels.remove_if(key, |_| true);
        }
        if module_gone { Err(site.no_such(module)) } else { Ok(Kernel::from_raw(module.device(), entered)) }
    }

    unsafe fn kernel_launch(
        &self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &[KernelArg],
        stream: Stream,
    ) -> Result<()> {
        let site = self.call(Call::KernelLaunch);
        let object = self.kernels.get((kernel.device(), kernel.raw())).ok_or_else(|| site.no_such(kernel))?;
        // Holding the module keeps the kernel's code loaded.
        let module =
            self.modules.get((kernel.device(), object.module)).ok_or_else(|| site.no_such(kernel))?;
        if kernel.device() != stream.device() {
            return Err(
                site.refuse(CuResult::INVALID_HANDLE, format!("{kernel} cannot be launched in {stream}"))
            );
        }
        let stream = site.stream(stream)?;
        let mut values: Vec<u64> = args.iter().copied().map(as_passed).collect();
        let mut params: Vec<_> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (shape.grid, shape.block);
        let no_extra = std::ptr::null_mut();
        // SAFETY: kernel (by its module) and stream are held; `values` and `params` live through the call, which copies
        // them; the caller vouches that they are the kernel's arguments and for the memory they name.
        site.run(&module.context, |cuda| unsafe {
            (cuda.launch_kernel)(
                object.raw,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                shape.shared_bytes,
                stream.raw,
                params.as_mut_ptr(),
                no_extra,
            )
        })
    }
}

/// An argument where the driver reads it: its bytes from the first on, as many as the kernel's parameter has.
fn as_passed(arg: KernelArg) -> u64 {
    let narrow = |bytes: [u8; 4]| {
        let mut wide = [0; 8];
        wide[..4].copy_from_slice(&bytes);
        u64::from_ne_bytes(wide)
    };
    match arg {
        KernelArg::Ptr(ptr) => ptr.raw(),
        KernelArg::U64(value) => value,
        KernelArg::F64(value) => value.to_bits(),
        KernelArg::U32(value) => narrow(value.to_ne_bytes()),
        KernelArg::F32(value) => narrow(value.to_ne_bytes()),
    }
}
