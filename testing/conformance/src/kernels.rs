//! The test kernels: real work for a device, with a memory of who wrote what.
//!
//! [`TestKernels`] loads `kernels/test_kernels.ptx` on a device and launches its kernels. The conformance suite, the
//! stress tests and the command's demo use it. The simulated device runs its own implementation of the same names.

use std::sync::Arc;

use headwater_driver::{DeviceId, DevicePtr, Driver, Kernel, KernelArg, LaunchShape, Module, Result, Stream};

/// The kernels as PTX text, ending in the NUL that `cuModuleLoadData` needs to find the end of a text.
pub const PTX: &[u8] = concat!(include_str!("../kernels/test_kernels.ptx"), "\0").as_bytes();

/// The test kernels, loaded on one device.
///
/// ```
/// use headwater_conformance::kernels::TestKernels;
/// use headwater_driver::{DeviceId, DevicePtr, Driver, Result, Stream};
/// use std::sync::Arc;
///
/// fn counts_wrong_words(driver: &Arc<dyn Driver>, device: DeviceId) -> Result<()> {
///     let stream = Stream::per_thread_default(device);
///     let memory = driver.mem_alloc(device, 4096)?;
///     let kernels = TestKernels::load(driver, device)?;
///     // SAFETY: the memory has room for 1024 words, and is freed below: freeing waits for the work.
///     unsafe { kernels.fill(memory, 1024, 7, stream)? };
///     driver.stream_synchronize(stream)?;
///     kernels.unload()?;
///     driver.mem_free(device, memory)
/// }
/// ```
#[derive(Debug)]
pub struct TestKernels {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    /// `None` once unloaded.
    module: Option<Module>,
    spin: Kernel,
    fill: Kernel,
    fill_late: Kernel,
    add: Kernel,
    copy: Kernel,
    check: Kernel,
}

impl TestKernels {
    /// Loads the kernels and runs each of them once.
    ///
    /// CUDA loads a kernel when it is first launched, and may wait for all running work to do so. Running each once here
    /// keeps that wait, and its effect on the order of things, out of what is tested.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn load(driver: &Arc<dyn Driver>, device: DeviceId) -> Result<Self> {
        let module = driver.module_load(device, PTX)?;
        let kernels = Self::find(driver, device, module).inspect_err(|_| {
            // The first error is the one to tell; the module goes with it.
            let _ = driver.module_unload(module);
        })?;
        kernels.warm_up()?;
        Ok(kernels)
    }

    fn find(driver: &Arc<dyn Driver>, device: DeviceId, module: Module) -> Result<Self> {
        Ok(Self {
            driver: Arc::clone(driver),
            device,
            module: Some(module),
            spin: driver.kernel_get(module, "hw_spin")?,
            fill: driver.kernel_get(module, "hw_fill")?,
            fill_late: driver.kernel_get(module, "hw_fill_late")?,
            add: driver.kernel_get(module, "hw_add")?,
            copy: driver.kernel_get(module, "hw_copy")?,
            check: driver.kernel_get(module, "hw_check")?,
        })
    }

    fn warm_up(&self) -> Result<()> {
        let scratch = self.driver.mem_alloc(self.device, 256)?;
        let there = |words: u64| DevicePtr::new(scratch.raw() + 4 * words);
        let stream = Stream::per_thread_default(self.device);
        let run = || {
            self.spin(0, stream)?;
            // SAFETY: words 0 to 2 of the scratch memory are allocated, and no word is both read and written by one kernel.
            unsafe {
                self.fill(there(0), 3, 0, stream)?;
                self.fill_late(there(0), 1, 0, 0, stream)?;
                self.add(there(0), 1, 0, stream)?;
                self.copy(there(1), there(0), 1, stream)?;
                self.check(there(0), 1, 0, there(2), stream)?;
            }
            self.driver.stream_synchronize(stream)
        };
        let ran = run();
        let freed = self.driver.mem_free(self.device, scratch);
        ran.and(freed)
    }

    /// The device they are loaded on.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Keeps `stream` busy for `us` microseconds.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn spin(&self, us: u64, stream: Stream) -> Result<()> {
        // SAFETY: the kernel takes one 64-bit number and touches no memory.
        unsafe { self.driver.kernel_launch(self.spin, LaunchShape::SINGLE, &[KernelArg::U64(us)], stream) }
    }

    /// Sets `words` 32-bit words at `dst` to `value`.
    ///
    /// # Safety
    /// The words are valid for the stream's device until the kernel has finished, and nobody else touches them meanwhile.
    ///
    /// # Errors
    /// What the driver answers.
    pub unsafe fn fill(&self, dst: DevicePtr, words: u64, value: u32, stream: Stream) -> Result<()> {
        let args = [KernelArg::Ptr(dst), KernelArg::U64(words), KernelArg::U32(value)];
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.fill, LaunchShape::for_elements(words), &args, stream) }
    }

    /// As [`fill`](Self::fill), but writes only `us` microseconds after it has started: whoever reuses the memory too
    /// early is overwritten and can notice.
    ///
    /// # Safety
    /// As [`fill`](Self::fill).
    ///
    /// # Errors
    /// What the driver answers.
    pub unsafe fn fill_late(
        &self,
        dst: DevicePtr,
        words: u64,
        value: u32,
        us: u64,
        stream: Stream,
    ) -> Result<()> {
        let args = [KernelArg::Ptr(dst), KernelArg::U64(words), KernelArg::U32(value), KernelArg::U64(us)];
        // Every block waits on its own, so all blocks must fit on the device at once for the wait to be `us` and no more.
        let mut shape = LaunchShape::for_elements(words);
        shape.grid[0] = shape.grid[0].min(16);
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.fill_late, shape, &args, stream) }
    }

    /// Adds `value` to each of `words` 32-bit words at `dst`.
    ///
    /// # Safety
    /// As [`fill`](Self::fill).
    ///
    /// # Errors
    /// What the driver answers.
    pub unsafe fn add(&self, dst: DevicePtr, words: u64, value: u32, stream: Stream) -> Result<()> {
        let args = [KernelArg::Ptr(dst), KernelArg::U64(words), KernelArg::U32(value)];
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.add, LaunchShape::for_elements(words), &args, stream) }
    }

    /// Copies `words` 32-bit words from `src` to `dst`, which do not overlap.
    ///
    /// # Safety
    /// As [`fill`](Self::fill), for both ranges.
    ///
    /// # Errors
    /// What the driver answers.
    pub unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, words: u64, stream: Stream) -> Result<()> {
        let args = [KernelArg::Ptr(dst), KernelArg::Ptr(src), KernelArg::U64(words)];
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.copy, LaunchShape::for_elements(words), &args, stream) }
    }

    /// Adds to the 32-bit word at `wrong` how many of `words` words at `src` are not `value`.
    ///
    /// # Safety
    /// As [`fill`](Self::fill), for the words and the counter, which do not overlap.
    ///
    /// # Errors
    /// What the driver answers.
    pub unsafe fn check(
        &self,
        src: DevicePtr,
        words: u64,
        value: u32,
        wrong: DevicePtr,
        stream: Stream,
    ) -> Result<()> {
        let args = [KernelArg::Ptr(src), KernelArg::U64(words), KernelArg::U32(value), KernelArg::Ptr(wrong)];
        // SAFETY: the arguments are those of the kernel; the memory is the caller's promise.
        unsafe { self.driver.kernel_launch(self.check, LaunchShape::for_elements(words), &args, stream) }
    }

    /// Unloads the kernels. Dropping does the same, but cannot tell of an error.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn unload(mut self) -> Result<()> {
        self.module.take().map_or(Ok(()), |module| self.driver.module_unload(module))
    }
}

impl Drop for TestKernels {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // Nobody is left to tell; `unload` is for those who want to know.
            let _ = self.driver.module_unload(module);
        }
    }
}
