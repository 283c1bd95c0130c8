//! The C ABI of Headwater: what `include/headwater.h` declares.
//!
//! Thin by intent: arguments are checked, handles looked up, the crates below do the work, and errors become codes. The header is
//! written from this code by a test (`tests/header.rs`), which fails where the two differ.
//!
//! | where | what |
//! |---|---|
//! | [`status`], `failures` | how a call ended: codes, the thread's message, the numbers of out of memory |
//! | [`guard`], [`arguments`] | the boundary: no panic crosses it, wrong arguments are errors |
//! | [`handles`] | numbers in the shape of pointers, looked up and never followed |
//! | [`device`], [`streams`], [`copies`] | devices by name; streams, events and copies for programs without CUDA |
//! | [`allocator`], [`memory`] | allocators from options; memory out and back |
//! | [`layers`] | what is behind an allocator handle, and the short cut that keeps a hit a hit |
//! | [`oom`], [`log`] | callbacks |
//! | [`sleep`] | memory behind live blocks, put away and brought back |
//! | [`graph_pool`], [`pools`], [`captures`] | memory for CUDA graphs, by hand and by capture |
//! | [`statistics`], [`snapshot`], [`recording`] | being seen |
//! | [`tiers`], [`reservations`], [`spill`] | room first, and data that moves out of the way |
//! | [`torch`] | what PyTorch and the Python package call: one set of allocators for the process |
//!
//! **The contract of all functions.** Pointers are null or good for what the function does with them; texts end with a zero byte; a
//! stream is a live stream of the device; device addresses that are copied to or from are good. What the library can check it checks:
//! null, handles, constants, sizes, UTF-8. Names are C's, in C's case, so that one name is one thing in both languages.
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc, reason = "one contract for all exported functions, stated above")]

pub mod allocator;
pub mod arguments;
pub mod captures;
pub mod copies;
pub mod device;
mod failures;
pub mod graph_pool;
pub mod guard;
pub mod handles;
mod known_streams;
pub mod layers;
pub mod log;
pub mod memory;
pub mod oom;
pub mod pools;
pub mod recording;
pub mod reservations;
pub mod sleep;
pub mod snapshot;
pub mod spill;
pub mod statistics;
pub mod status;
pub mod streams;
pub mod tiers;
pub mod torch;
