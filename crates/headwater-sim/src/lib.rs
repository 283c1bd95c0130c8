//! A simulated GPU that keeps CUDA's rules and finds what CUDA hides.
//!
//! [`SimDriver`] is a [`Driver`](headwater_driver::Driver) with no device behind it: memory that holds bytes (and takes host
//! memory only where written), streams, events, capture, virtual memory, pinned memory, copies and kernels, on virtual
//! time. The same program gives the same result, every time.
//!
//! ```
//! use headwater_driver::{DeviceId, PlainMemory, Streams, StreamOptions};
//! use headwater_sim::{Hazard, SimDriver, Work};
//!
//! # fn main() -> headwater_driver::Result<()> {
//! let sim = SimDriver::new();
//! let device = DeviceId(0);
//! let block = sim.mem_alloc(device, 4096)?.raw();
//! let one = sim.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
//! let other = sim.stream_create(device, StreamOptions { non_blocking: true, priority: 0 })?;
//!
//! sim.submit(one, Work::new("writer", 50_000).writes(block..block + 4096))?;
//! sim.submit(other, Work::new("reader", 50_000).reads(block..block + 4096))?; // nobody told `other` to wait
//! assert!(matches!(sim.hazards()[0], Hazard::Race { .. }));
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! | files | what |
//! |---|---|
//! | `sim_driver.rs`, `builder.rs` | the driver: how it is made, and what it offers beyond the contract |
//! | `devices.rs` ... `kernels.rs` | the nine parts of the contract, in files named as in `headwater-driver`; thin |
//! | `machine.rs`, `machine/` | the machine: time, memory, streams, captures, graphs |
//! | `work.rs`, `builtin_kernels.rs`, `ptx.rs` | what runs on it |
//! | `bytes.rs` | memory contents |
//! | `shadow.rs`, `vector_clock.rs`, `hazards.rs`, `leaks.rs` | what it finds |
//! | `exports.rs` | what a file descriptor for exported memory holds |
//! | `memory_map.rs` | which addresses have memory behind them, for tools |
//! | `cost.rs`, `faults.rs` | what calls cost, and which are made to fail |
//! | `refusal.rs`, `slots.rs` | CUDA's error codes; tables of objects |

mod builder;
mod builtin_kernels;
mod bytes;
mod capture;
mod copies;
mod cost;
mod devices;
mod events;
mod exports;
mod faults;
mod hazards;
mod host_memory;
mod kernels;
mod leaks;
mod machine;
mod memory_map;
mod plain_memory;
mod ptx;
mod refusal;
mod shadow;
mod sim_driver;
mod slots;
mod streams;
mod vector_clock;
mod virtual_memory;
mod work;

pub use builder::SimBuilder;
pub use builtin_kernels::{CustomEffect, DeviceView, Effect, KernelPlan, ParamKind, PlanFn, SimKernel};
pub use cost::CostModel;
pub use faults::FaultPlan;
pub use hazards::{Hazard, Party, Place, Removal, UseKind};
pub use leaks::{Leak, LeakKind};
pub use memory_map::MemoryRange;
pub use sim_driver::SimDriver;
pub use work::Work;
