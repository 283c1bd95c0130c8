//! Modules and launches.

use std::sync::Arc;

use headwater_driver::{
    Call, DeviceId, DriverError, Kernel, KernelArg, Kernels, LaunchShape, Module, Result, Stream,
};

use crate::machine::{KernelState, ModuleState};
use crate::ptx;
use crate::refusal::Refusal;
use crate::shadow::AccessKind;
use crate::sim_driver::SimDriver;
use crate::work::{Access, Effect, Operation, Reach};

/// What compute capability 9.0 can run (CUDA C++ programming guide, technical specifications).
const THREADS_A_BLOCK_MAX: u64 = 1024;
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const SHARED_BYTES_MAX: u32 = 227 << 10;

fn check_shape(call: Call, shape: LaunchShape) -> Result<()> {
    let fits =
        |size: [u32; 3], most: [u32; 3]| size.iter().zip(most).all(|(size, most)| (1..=most).contains(size));
    let threads: u64 = shape.block.iter().map(|size| u64::from(*size)).product();
    if fits(shape.grid, GRID_MAX)
        && fits(shape.block, BLOCK_MAX)
        && threads <= THREADS_A_BLOCK_MAX
        && shape.shared_bytes <= SHARED_BYTES_MAX
    {
        return Ok(());
    }
    Err(Refusal::InvalidValue.of(call).with_detail(format!("{shape:?}")))
}

fn no_module(call: Call, module: Module) -> DriverError {
    Refusal::InvalidHandle.of(call).with_detail(format!("{module} does not exist"))
}

impl Kernels for SimDriver {
    fn module_load(&self, device: DeviceId, image: &[u8]) -> Result<Module> {
        let call = Call::ModuleLoad;
        let mut machine = self.enter_on(call, device, image.len() as u64)?;
        let names = ptx::entries(image).map_err(|why| Refusal::InvalidImage.of(call).with_detail(why))?;
        let entries = names.into_iter().map(|name| (name, None)).collect();
        let made_at_ns = machine.now_ns;
        Ok(Module::from_raw(device, machine.modules.insert(ModuleState { device, entries, made_at_ns })))
    }

    fn module_unload(&self, module: Module) -> Result<()> {
        let mut machine = self.enter(Call::ModuleUnload, 0)?;
        machine.forbid_unsafe(Call::ModuleUnload)?;
        let state = machine.modules.remove(module.raw());
        let state = state.ok_or_else(|| no_module(Call::ModuleUnload, module))?;
        for kernel in state.entries.values().flatten() {
            machine.kernels.remove(*kernel);
        }
        Ok(())
    }

    fn kernel_get(&self, module: Module, name: &str) -> Result<Kernel> {
        let call = Call::KernelGet;
        let mut guard = self.enter(call, 0)?;
        let machine = &mut *guard;
        let state = machine.modules.get_mut(module.raw()).ok_or_else(|| no_module(call, module))?;
        let device = state.device;
        let Some(number) = state.entries.get_mut(name) else {
            let why = format!("{module} has no kernel `{name}`");
            return Err(Refusal::NotFound.of(call).with_detail(why));
        };
        let kernels = &mut machine.kernels;
        let raw = *number.get_or_insert_with(|| kernels.insert(KernelState { device, name: name.into() }));
        Ok(Kernel::from_raw(device, raw))
    }

    unsafe fn kernel_launch(
        &self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &[KernelArg],
        stream: Stream,
    ) -> Result<()> {
        let call = Call::KernelLaunch;
        let known = {
            let machine = self.enter(call, 0)?;
            machine.device(call, stream.device())?;
            let state = match machine.kernels.get(kernel.raw()) {
                Some(state) if state.device == kernel.device() && state.device == stream.device() => state,
                _ => {
                    let why = format!("{kernel} does not exist on {}", stream.device());
                    return Err(Refusal::InvalidHandle.of(call).with_detail(why));
                }
            };
            check_shape(call, shape)?;
            machine.known_kernels.get(&state.name).map(Arc::clone).ok_or_else(|| {
                let why = format!("the simulated device has no implementation of `{}`", state.name);
                Refusal::NotSupported.of(call).with_detail(why)
            })?
        };
        // Planned without the lock: the plan may be a caller's code.
        let plan =
            known.plan_launch(args, shape).map_err(|why| Refusal::InvalidValue.of(call).with_detail(why))?;
        let reach = Reach::Kernel(stream.device());
        let reads = plan.reads.into_iter().map(|range| Access::read(range, reach));
        let writes = plan.writes.into_iter().map(|range| Access::write(range, reach));
        let atomics = plan.atomics.into_iter().map(|range| Access { range, kind: AccessKind::Atomic, reach });
        let operation = Operation {
            label: known.name.clone(),
            stream,
            accesses: reads.chain(writes).chain(atomics).collect(),
            duration_ns: plan.duration_ns,
            effect: Effect::Kernel(plan.effect),
        };
        let mut machine = self.machine();
        let key = machine.stream_key(call, self.view(), stream)?;
        machine.submit(call, key, operation, None).map(drop)
    }
}
