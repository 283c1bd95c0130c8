//! The kernels, loaded on a device.

use std::sync::Arc;

use headwater::Opened;
use headwater_driver::{DevicePtr, Driver, Kernel, KernelArg, LaunchShape, Module, Result, Stream};

use super::host_kernels;

/// PTX ends with a NUL, which `cuModuleLoadData` needs to find the end of a text.
const PTX: &[u8] = concat!(include_str!("kernels.ptx"), "\0").as_bytes();

/// How many blocks [`McKernels::sum`] has: two a processor of an H200. Each leaves a sum and a sum of squares.
pub(crate) const SUM_BLOCKS: usize = 264;

/// What random walks are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// Random draws of four steps each, and the first of them.
    pub(crate) draws: u32,
    pub(crate) first_draw: u32,
    pub(crate) batch: u32,
    pub(crate) seed: u64,
    /// Of one step, in log2.
    pub(crate) drift: f32,
    pub(crate) volatility: f32,
}

/// The three kernels of the simulation.
#[derive(Debug)]
pub(crate) struct McKernels {
    driver: Arc<dyn Driver>,
    module: Module,
    evolve: Kernel,
    payoff: Kernel,
    sum: Kernel,
}

impl McKernels {
    pub(crate) fn load(opened: &Opened) -> Result<Self> {
        if let Some(sim) = &opened.sim {
            host_kernels::register(sim);
        }
        let driver = &opened.driver;
        let module = driver.module_load(opened.device, PTX)?;
        Ok(Self {
            driver: Arc::clone(driver),
            module,
            evolve: driver.kernel_get(module, "mc_evolve")?,
            payoff: driver.kernel_get(module, "mc_payoff")?,
            sum: driver.kernel_get(module, "mc_sum")?,
        })
    }

    /// Moves `paths` prices at `src` forward in time, to `dst`.
    ///
    /// # Safety
    /// Both have room for `paths` 32-bit floats until the kernel has finished, and nobody else touches them meanwhile.
    pub(crate) unsafe fn evolve(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        paths: u64,
        steps: &Steps,
        stream: Stream,
    ) -> Result<()> {
        let args = [
            KernelArg::Ptr(dst),
            KernelArg::Ptr(src),
            KernelArg::U64(paths),
            KernelArg::U32(steps.draws),
            KernelArg::U32(steps.first_draw),
            KernelArg::U32(steps.batch),
            KernelArg::U64(steps.seed),
            KernelArg::F32(steps.drift),
            KernelArg::F32(steps.volatility),
        ];
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.evolve, LaunchShape::for_elements(paths), &args, stream) }
    }

    /// What a call with `strike` pays at the prices at `src`, discounted, to `dst`.
    ///
    /// # Safety
    /// As [`evolve`](Self::evolve).
    pub(crate) unsafe fn payoff(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        paths: u64,
        strike: f32,
        discount: f32,
        stream: Stream,
    ) -> Result<()> {
        let args = [
            KernelArg::Ptr(dst),
            KernelArg::Ptr(src),
            KernelArg::U64(paths),
            KernelArg::F32(strike),
            KernelArg::F32(discount),
        ];
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.payoff, LaunchShape::for_elements(paths), &args, stream) }
    }

    /// Sums, and sums of squares, of `paths` values at `src`: [`SUM_BLOCKS`] pairs of 64-bit floats at `sums`.
    ///
    /// # Safety
    /// As [`evolve`](Self::evolve), with room for the pairs.
    pub(crate) unsafe fn sum(
        &self,
        sums: DevicePtr,
        src: DevicePtr,
        paths: u64,
        stream: Stream,
    ) -> Result<()> {
        let shape = LaunchShape { grid: [SUM_BLOCKS as u32, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
        let args = [KernelArg::Ptr(sums), KernelArg::Ptr(src), KernelArg::U64(paths)];
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.sum, shape, &args, stream) }
    }

    pub(crate) fn unload(self) -> Result<()> {
        self.driver.module_unload(self.module)
    }
}
