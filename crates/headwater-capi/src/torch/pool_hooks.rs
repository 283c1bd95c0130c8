//! The functions that PyTorch is given for pools: a graph's capture, `use_mem_pool` and compiled graphs come here.
//!
//! `MempoolId_t` is a pair of 64-bit numbers, which C++ passes as two. The filter is passed by the address of a temporary.

use std::ffi::{c_int, c_void};

use super::cxx_exception::throw_runtime_error;
use super::hooks::{complain, memory};
use super::std_function::StdFunction;

/// Throws: a capture that goes on without its pool would have addresses in it that are not its own.
#[cold]
fn refuse(what: &str, why: &dyn std::fmt::Display) {
    throw_runtime_error(format!("Headwater cannot {what}: {why}"));
    complain(what, why);
}

/// Requests of streams that the filter accepts come from a pool:
/// `void begin(int device, MempoolId_t id, std::function<bool(cudaStream_t)> filter)`.
///
/// # Safety
/// `filter` points to such a function of libstdc++.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn headwater_torch_begin_allocate_to_pool(
    device: c_int,
    id_first: u64,
    id_second: u64,
    filter: *const StdFunction,
) {
    // SAFETY: the caller's promise.
    let Some(filter) = (unsafe { StdFunction::copy_of(filter) }) else {
        return refuse("allocate to a pool", &"the filter is empty");
    };
    let begun = memory(device).map_err(|error| error.to_string()).and_then(|memory| {
        let accepts = move |stream: u64| filter.accepts(stream as *mut c_void);
        memory.begin_allocate_to_pool((id_first, id_second), accepts).map_err(|error| error.to_string())
    });
    if let Err(why) = begun {
        refuse("allocate to a pool", &why);
    }
}

/// The end of that: `void end(int device, MempoolId_t id)`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn headwater_torch_end_allocate_to_pool(device: c_int, id_first: u64, id_second: u64) {
    let ended = memory(device).map_err(|error| error.to_string()).and_then(|memory| {
        memory.end_allocate_to_pool((id_first, id_second)).map_err(|error| error.to_string())
    });
    if let Err(why) = ended {
        refuse("end allocating to a pool", &why);
    }
}

/// One user of the pool less: `void release(int device, MempoolId_t id)`. Called by destructors, so nothing is thrown.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn headwater_torch_release_pool(device: c_int, id_first: u64, id_second: u64) {
    let released = memory(device)
        .map_err(|error| error.to_string())
        .and_then(|memory| memory.release_pool((id_first, id_second)).map_err(|error| error.to_string()));
    if let Err(why) = released {
        complain("cannot release a pool", &why);
    }
}
