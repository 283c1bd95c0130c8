//! Modules and kernel launches: what tests, examples and benchmarks need to put real work on a device.

use crate::{DeviceId, DevicePtr, Kernel, Module, Result, Stream};

/// How many threads a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory a block.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// Enough blocks of 256 threads for one thread an element, but no more than 65,535: kernels loop over the rest.
    ///
    /// ```
    /// use headwater_driver::LaunchShape;
    /// assert_eq!(LaunchShape::for_elements(1000).grid, [4, 1, 1]);
    /// ```
    pub fn for_elements(elements: u64) -> Self {
        let blocks = elements.div_ceil(256).clamp(1, 65_535) as u32;
        Self { grid: [blocks, 1, 1], block: [256, 1, 1], shared_bytes: 0 }
    }

    /// One thread.
    pub const SINGLE: Self = Self { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0 };
}

/// One argument of a kernel, by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelArg {
    /// An address.
    Ptr(DevicePtr),
    /// A 32-bit number.
    U32(u32),
    /// A 64-bit number.
    U64(u64),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
}

/// Modules and launches.
pub trait Kernels {
    /// Loads device code: PTX text or a compiled image. The simulated device reads the entry points' names from PTX and
    /// runs its own implementation of those it knows.
    ///
    /// # Errors
    /// `InvalidValue` where the image cannot be used; `NotSupported` where it was made for another device.
    fn module_load(&self, device: DeviceId, image: &[u8]) -> Result<Module>;

    /// Unloads a module and the kernels in it.
    ///
    /// # Errors
    /// `InvalidHandle` where it does not exist (any more).
    fn module_unload(&self, module: Module) -> Result<()>;

    /// The kernel called `name`.
    ///
    /// # Errors
    /// `InvalidHandle` for the module; `InvalidValue` where it has no such kernel.
    fn kernel_get(&self, module: Module, name: &str) -> Result<Kernel>;

    /// Launches a kernel in `stream`.
    ///
    /// # Safety
    /// The arguments are those the kernel was compiled for, and the memory they name is valid until it has finished.
    ///
    /// # Errors
    /// `InvalidHandle`; `InvalidValue` for a shape the device cannot run; `DeviceLost` where an earlier failure surfaces.
    unsafe fn kernel_launch(
        &self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &[KernelArg],
        stream: Stream,
    ) -> Result<()>;
}
