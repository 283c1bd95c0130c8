//! The functions that PyTorch's pluggable allocator is given. Names and signatures are PyTorch's.
//!
//! They cannot return an error. A request that fails throws (`cxx_exception.rs`); give-backs of what is not ours are a mistake in
//! the caller that nothing can be done about later, and stop the process with the message; everything else that fails is said on
//! standard error, and changes nothing.

use std::ffi::{c_int, c_void};

use headwater::DeviceChoice;
use headwater_driver::DevicePtr;

use super::cxx_exception::throw_runtime_error;
use super::device_memory::DeviceMemory;
use super::process::{Process, ProcessError, ProcessOptions};

/// The process's allocators on the real device: what a hook works with. They are made here where nobody has made them before.
#[inline]
pub(super) fn process() -> Result<&'static Process, ProcessError> {
    match Process::get() {
        Some(process) => Ok(process),
        None => make_process(),
    }
}

#[cold]
fn make_process() -> Result<&'static Process, ProcessError> {
    Process::get_or_make_prepared(|| Ok(ProcessOptions { device: DeviceChoice::Cuda(0), config: None }))
}

#[inline]
pub(super) fn memory(device: c_int) -> Result<&'static DeviceMemory, ProcessError> {
    process()?.memory(i64::from(device))
}

/// The memory of a device that gave out something earlier.
#[inline]
fn used(device: c_int) -> Option<&'static DeviceMemory> {
    Process::get()?.used(usize::try_from(device).ok()?)
}

/// Says on standard error what could not be done, and why.
#[cold]
pub(super) fn complain(what: &str, why: &dyn std::fmt::Display) {
    eprintln!("headwater: {what}: {why}");
}

/// Throws, so that PyTorch raises an exception with the message. Where that cannot be done, the message goes to standard error
/// and the null address to PyTorch.
#[cold]
fn fail(what: &str, why: &dyn std::fmt::Display) -> *mut c_void {
    throw_runtime_error(format!("{what}: {why}"));
    complain(what, why);
    std::ptr::null_mut()
}

/// Gives out memory: `void* alloc(size_t size, int device, cudaStream_t stream)`.
///
/// Throws `std::runtime_error` where there is none.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn headwater_torch_alloc(
    bytes: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    match memory(device) {
        Ok(memory) => match memory.allocate(bytes as u64, stream as u64) {
            Ok(ptr) => ptr.raw() as *mut c_void,
            // The words that programs look for when they catch the error.
            Err(error) if error.is_out_of_memory() => fail("CUDA out of memory", &error),
            Err(error) => fail("Headwater cannot allocate", &error),
        },
        Err(error) => fail("Headwater cannot start", &error),
    }
}

/// Takes memory back: `void free(void* ptr, size_t size, int device, cudaStream_t stream)`.
///
/// # Safety
/// `ptr` is null, or was given out by [`headwater_torch_alloc`] and is given back once.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn headwater_torch_free(
    ptr: *mut c_void,
    _bytes: usize,
    device: c_int,
    _stream: *mut c_void,
) {
    if ptr.is_null() {
        return;
    }
    let Some(memory) = used(device) else {
        complain("cannot free", &format_args!("{ptr:?}: device {device} gave nothing out"));
        std::process::abort();
    };
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { memory.give_back(DevicePtr::new(ptr as u64)) } {
        complain("cannot free", &error);
        std::process::abort();
    }
}

/// PyTorch starts to use CUDA: `void init(int device_count)`. Opens the driver, so that what is wrong shows here.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn headwater_torch_init(_device_count: c_int) {
    if let Err(error) = process() {
        fail("Headwater cannot start", &error);
    }
}

/// `torch.cuda.empty_cache()`: `void reset(void)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn headwater_torch_reset() {
    for memory in Process::get().into_iter().flat_map(Process::all_used) {
        if let Err(error) = memory.empty_cache() {
            complain("part of the cache stays", &error);
        }
    }
}

/// `torch.cuda.set_per_process_memory_fraction`: `void fraction(double fraction, int device)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn headwater_torch_memory_fraction(fraction: f64, device: c_int) {
    match memory(device) {
        Ok(memory) => {
            if let Err(error) = memory.set_fraction(fraction) {
                fail("cannot set the memory fraction", &error);
            }
        }
        Err(error) => {
            fail("Headwater cannot start", &error);
        }
    }
}

/// The block around an address: `void* base(void* ptr, size_t* size)`.
///
/// # Safety
/// `bytes` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn headwater_torch_base_alloc(
    ptr: *mut c_void,
    bytes: *mut usize,
) -> *mut c_void {
    let wanted = DevicePtr::new(ptr as u64);
    let mut all = Process::get().into_iter().flat_map(Process::all_used);
    let Some(facts) = all.find_map(|memory| memory.front().block_at(wanted)) else {
        return ptr;
    };
    // SAFETY: the caller's promise.
    if let Some(bytes) = unsafe { bytes.as_mut() } {
        *bytes = facts.allocated_bytes as usize;
    }
    facts.ptr.raw() as *mut c_void
}

/// `Tensor.record_stream`: `void record(void* ptr, cudaStream_t stream)`.
///
/// PyTorch calls this for every tensor, whoever its memory belongs to: an address that no device gave out is nothing to do with
/// us.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn headwater_torch_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    use headwater::AllocError::{ForeignPointer, WrongDevice};
    let wanted = DevicePtr::new(ptr as u64);
    if ptr.is_null() {
        return;
    }
    for memory in Process::get().into_iter().flat_map(Process::all_used) {
        match memory.record_stream(wanted, stream as u64) {
            Ok(()) => return,
            Err(ForeignPointer { .. } | WrongDevice { .. }) => {}
            Err(error) => return complain("cannot record a stream", &error),
        }
    }
}
