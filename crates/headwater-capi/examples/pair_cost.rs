//! What the C boundary adds to an allocation that the cache serves: pairs of asking and giving back, through the shared library as a C
//! program calls it, and through the crate directly, on the simulated device.
//!
//! `cargo build --release -p headwater-capi && cargo run --release -p headwater-capi --example pair_cost`
//!
//! Prints the least of 1,001 rounds for each, in nanoseconds a pair: noise only ever adds.

use std::error::Error;
use std::ffi::c_char;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Instant;

use headwater::{Policy, Request};
use headwater_capi::allocator::{hw_allocator, hw_allocator_options, hw_policy};
use headwater_capi::device::hw_device;
use headwater_driver::{DeviceId, Stream};
use libloading::Library;

// Short rounds, and many: on a busy machine some of them are not interrupted.
const PAIRS: u32 = 2_000;
const ROUNDS: usize = 1_001;

fn least_ns(mut pair: impl FnMut()) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..PAIRS {
            pair();
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS));
    }
    least
}

fn library() -> Result<PathBuf, Box<dyn Error>> {
    let executable = std::env::current_exe()?;
    let mut paths = executable.ancestors().skip(1).take(2).map(|folder| folder.join("libheadwater_capi.so"));
    let found = paths.find(|path| path.is_file());
    found.ok_or_else(|| "cargo build --release -p headwater-capi first".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: a Rust library without initialisers of its own.
    let library = unsafe { Library::new(library()?) }?;
    // SAFETY: the types are those of the header.
    let (open, create, allocate, give_back) = unsafe {
        (
            library
                .get::<unsafe extern "C" fn(*const c_char, *mut *mut hw_device) -> i32>(b"hw_device_open")?,
            library.get::<unsafe extern "C" fn(
                *const hw_device,
                *const hw_allocator_options,
                *mut *mut hw_allocator,
            ) -> i32>(b"hw_allocator_create")?,
            library.get::<unsafe extern "C" fn(*const hw_allocator, u64, u64, *mut u64) -> i32>(
                b"hw_allocate",
            )?,
            library.get::<unsafe extern "C" fn(*const hw_allocator, u64) -> i32>(b"hw_give_back")?,
        )
    };
    // The functions themselves: a symbol would be looked through at every call.
    let (allocate, give_back) = (*allocate, *give_back);
    let mut device: *mut hw_device = null_mut();
    // SAFETY: a text and a place.
    assert_eq!(unsafe { open(c"sim".as_ptr(), &raw mut device) }, 0);
    println!("{:<8} {:>10} {:>10} {:>10} {:>12}", "policy", "bytes", "crate ns", "C ns", "C, graphs ns");
    for (policy, number) in [
        (Policy::Binned, hw_policy::Binned),
        (Policy::Classic, hw_policy::Classic),
        (Policy::Paged, hw_policy::Paged),
    ] {
        for bytes in [512_u64, 1 << 20, 16 << 20] {
            let direct = policy.build(headwater_sim::SimDriver::new(), DeviceId(0), None)?;
            let stream = Stream::legacy_default(DeviceId(0));
            let by_crate = least_ns(|| {
                let ptr = direct.allocate(Request::new(bytes, stream)).unwrap_or_default();
                // SAFETY: the block is this loop's own.
                let _ = unsafe { direct.give_back(ptr) };
            });
            let by_c = [0, 1].map(|graph_pools| {
                let options =
                    hw_allocator_options { policy: number as u32, graph_pools, ..Default::default() };
                let mut allocator = null_mut();
                // SAFETY: a struct with its size, and a place.
                assert_eq!(unsafe { create(device, &raw const options, &raw mut allocator) }, 0);
                let allocator: *const hw_allocator = allocator;
                least_ns(|| {
                    let mut ptr = 0;
                    // SAFETY: a place, and a block that is this loop's own.
                    unsafe {
                        allocate(allocator, bytes, 0, &raw mut ptr);
                        give_back(allocator, ptr);
                    }
                })
            });
            println!("{:<8} {bytes:>10} {by_crate:>10.1} {:>10.1} {:>12.1}", policy.name(), by_c[0], by_c[1]);
        }
    }
    Ok(())
}
