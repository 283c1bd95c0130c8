//! The CUDA backend of Headwater: [`CudaDriver`], a [`Driver`](headwater_driver::Driver) over the machine's `libcuda`.
//!
//! Nothing of CUDA is needed to build it. The library is loaded when [`CudaDriver::open`] is called, and where the
//! library, a call, a device or a recent enough driver is missing, that is an [`Unavailable`] which says so.
//!
//! It lives in one process with PyTorch or any other program of the CUDA runtime: it works in each device's primary
//! context, from any thread and whatever context is current there, and leaves the current context as it found it.
//!
//! There is no policy here: nothing is cached, retried, rounded or put off. What it adds to `libcuda` is that safe
//! calls are safe: a stale id or somebody else's address is an error here, and undefined behaviour or somebody else's
//! loss there.
//!
//! The nine parts of the contract are in nine files with the contract's own names. Below them:
//!
//! | file | what it is |
//! |---|---|
//! | `driver.rs` | [`CudaDriver`], opening it, the devices |
//! | `library.rs`, `table.rs`, `abi.rs` | finding the library; its calls; its types and numbers |
//! | `unavailable.rs`, `error.rs` | why it did not open; why a call failed |
//! | `call_site.rs` | one call under way: counting, checking ids, entering the context, mapping errors |
//! | `context.rs` | a device's primary context, and being in it |
//! | `registry.rs`, `objects.rs`, `ledger.rs` | what exists: objects by id, address ranges |
//! | `image.rs` | device code that is whole enough to be given to the driver |
//!
//! ```
//! use headwater_cuda::CudaDriver;
//! use headwater_driver::{DeviceId, Devices};
//!
//! match CudaDriver::open() {
//!     Ok(driver) => println!("{}: {:?}", driver.version(), driver.device_properties(DeviceId(0))),
//!     Err(why) => println!("{why}"),
//! }
//! ```

mod abi;
mod call_site;
mod capture;
mod context;
mod copies;
mod devices;
mod driver;
mod error;
mod events;
mod host_memory;
mod image;
mod kernels;
mod ledger;
mod library;
mod objects;
mod plain_memory;
mod registry;
mod streams;
mod table;
#[cfg(test)]
mod tests;
mod unavailable;
mod virtual_memory;

pub use driver::CudaDriver;
pub use unavailable::Unavailable;
