//! The contract between Headwater and a GPU, and nothing else.
//!
//! Everything above this crate talks to a device through [`Driver`], used as `Arc<dyn Driver>`. A driver call
//! costs 300 ns or more on real hardware, so dynamic dispatch is free and nothing above is generic over the backend.
//!
//! `Driver` is the sum of nine small traits, one a file. A backend is a folder with the same nine file names, so
//! that the simulated and the real implementation of a call are found in the same place:
//!
//! | file | trait | what it covers |
//! |---|---|---|
//! | `devices.rs` | [`Devices`] | devices, properties, capabilities, free memory, peers, call counts |
//! | `plain_memory.rs` | [`PlainMemory`] | `cuMemAlloc` and `cuMemFree` |
//! | `virtual_memory.rs` | [`VirtualMemory`] | address ranges, physical handles, mapping, access |
//! | `host_memory.rs` | [`HostMemory`] | pinned host memory |
//! | `streams.rs` | [`Streams`] | streams, ours and somebody else's |
//! | `events.rs` | [`Events`] | events |
//! | `copies.rs` | [`Copies`] | copies and fills |
//! | `capture.rs` | [`Capture`] | stream capture and graphs |
//! | `kernels.rs` | [`Kernels`] | modules and launches |
//!
//! [`capture_guard`] is the one thing here that acts: it makes calls legal that somebody's capture would forbid.
//!
//! There is deliberately no device-wide synchronisation here: nothing in Headwater may need one.
//!
//! ```
//! use headwater_driver::{DeviceId, Driver, Result};
//!
//! /// Works on the simulated and the real device alike.
//! fn free_share(driver: &dyn Driver, device: DeviceId) -> Result<f64> {
//!     let memory = driver.memory_info(device)?;
//!     Ok(memory.free_bytes as f64 / memory.total_bytes as f64)
//! }
//! ```

mod call;
mod call_times;
mod capture;
pub mod capture_guard;
mod copies;
mod devices;
mod error;
mod events;
mod host_memory;
mod ids;
mod kernels;
mod plain_memory;
mod streams;
mod virtual_memory;

pub use call::{Call, CallCounters, CallCounts};
pub use call_times::{CallClocks, CallTimes};
pub use capture::{Capture, CaptureMode, CaptureNode, CaptureStatus};
pub use copies::Copies;
pub use devices::{Capabilities, DeviceProperties, Devices, MemoryInfo};
pub use error::{DriverError, ErrorClass, Result};
pub use events::{EventOptions, Events};
pub use host_memory::HostMemory;
pub use ids::{CaptureId, DeviceId, DevicePtr, Event, Graph, GraphExec, Handle, Kernel, Module, Stream};
pub use kernels::{KernelArg, Kernels, LaunchShape};
pub use plain_memory::PlainMemory;
pub use streams::{StreamOptions, Streams};
pub use virtual_memory::VirtualMemory;

/// A backend: everything Headwater may ask of a machine with GPUs.
///
/// Implemented for every type that implements the nine parts; backends do not implement it by hand.
pub trait Driver:
    Devices
    + PlainMemory
    + VirtualMemory
    + HostMemory
    + Streams
    + Events
    + Copies
    + Capture
    + Kernels
    + std::fmt::Debug
    + Send
    + Sync
{
}

impl<T> Driver for T where
    T: Devices
        + PlainMemory
        + VirtualMemory
        + HostMemory
        + Streams
        + Events
        + Copies
        + Capture
        + Kernels
        + std::fmt::Debug
        + Send
        + Sync
{
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_is_object_safe_and_shareable() {
        fn shareable<T: Send + Sync + ?Sized>() {}
        shareable::<dyn Driver>();
        shareable::<std::sync::Arc<dyn Driver>>();
    }
}
