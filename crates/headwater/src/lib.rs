//! GPU memory for Rust programs: allocators that share one trait, and handles that give memory back by themselves.
//!
//! | where | what |
//! |---|---|
//! | [`open`](mod@open) | choosing a device: the real one, or the simulated one |
//! | [`allocator`] | [`Allocator`], the trait that all allocators share, and [`Request`], what one is asked for |
//! | [`caching`] | [`CachingAllocator`]: keeps what was given back, by PyTorch's rules |
//! | [`direct`] | [`Direct`]: no cache, every request is a driver call |
//! | [`binned`] | [`Binned`]: blocks of fixed sizes, cached by thread |
//! | [`graph`] | [`GraphAllocator`], [`GraphPool`]: addresses that stay fixed, for captured graphs |
//! | [`block`] | [`Block`]: memory that gives itself back when dropped |
//! | [`device_vec`] | [`DeviceVec`]: a typed buffer with copies to and from host slices |
//! | [`current_stream`](mod@current_stream) | a current stream per thread and device |
//! | [`adaptors`] | small allocators around another: limit, failure callback, log |
//! | [`error`] | [`AllocError`]: what can go wrong, with the numbers |
//! | [`sharing`] | blocks that other processes use |
//! | [`policy`] | [`Policy`]: the allocators by name |
//! | [`config`] | settings, from code and from the environment |
//! | [`stats`] | what is counted, and how it adds up |
//!
//! Everything here talks to a device through [`headwater_driver::Driver`] and does no file I/O. Nothing waits for a whole
//! device to serve a request or to take one back, with one exception: memory whose users cannot be asked (streams that were
//! destroyed without a word, graphs launched by somebody else) is recovered when a cache is emptied, a pool is closed, or as
//! the very last step before a request fails, and then the driver waits for the device.
//!
//! ```
//! use std::sync::Arc;
//! use headwater::{Allocator, DeviceChoice, DeviceVec, Direct};
//! use headwater_driver::Stream;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//!
//! let opened = headwater::open(DeviceChoice::Sim)?; // `Auto` takes the GPU where there is one
//! let allocator: Arc<dyn Allocator> = Arc::new(Direct::new(opened.driver, opened.device)?);
//!
//! let stream = Stream::legacy_default(allocator.device());
//! let numbers = DeviceVec::from_slice(allocator.clone(), &[1.0_f32, 2.0, 3.0], stream)?;
//! assert_eq!(numbers.to_vec(stream)?, [1.0, 2.0, 3.0]);
//! # Ok(())
//! # }
//! ```

pub mod adaptors;
mod address_table;
pub mod allocator;
pub mod binned;
pub mod block;
pub mod caching;
pub mod config;
pub mod current_stream;
pub mod device_vec;
pub mod direct;
pub mod error;
pub mod graph;
mod human_bytes;
pub mod open;
pub mod policy;
pub mod sharing;
pub mod stats;
mod thread_cache;

pub(crate) use headwater_driver::capture_guard;

pub use allocator::{Allocator, BlockFacts, Request};
pub use binned::Binned;
pub use block::Block;
pub use caching::CachingAllocator;
pub use current_stream::{CurrentStream, current_stream};
pub use device_vec::{DeviceVec, Plain};
pub use direct::Direct;
pub use error::{AllocError, OutOfMemoryReport};
pub use graph::{GraphAllocator, GraphPool};
pub use human_bytes::HumanBytes;
pub use open::{DeviceChoice, OpenError, Opened, open};
pub use policy::{Policy, UnknownPolicy};
