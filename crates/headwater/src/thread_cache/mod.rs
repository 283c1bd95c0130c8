//! Caches of free blocks that a thread has to itself, for allocators to put in front of what they share.
//!
//! A hit takes no lock, makes no driver call and no atomic exchange, in either direction. What travels between threads does
//! so in batches. The parts know nothing of devices or policies; an allocator puts them together:
//!
//! | file | what |
//! |---|---|
//! | `slots.rs` | a slot a thread and allocator: found in a nanosecond, visited from outside, handed over when the thread ends |
//! | `latch.rs`, `barrier.rs` | the lock of a slot, which costs its owner two plain stores |
//! | `bins.rs`, `bin.rs` | what is in a slot: free blocks by stream and size class |
//! | `inbox.rs` | blocks that other threads gave back, on their way to a slot |
//! | `stream_key.rs` | a number for a stream, also where it is one thread's own |
//! | `word.rs` | a block's address and state in one word: foreign pointers and double give-backs cost one comparison |
//! | `sync.rs` | the atomics, exchanged for a model checker's under `--cfg loom` |

pub(crate) mod barrier;
pub(crate) mod bin;
pub(crate) mod bins;
pub(crate) mod inbox;
pub(crate) mod latch;
#[cfg(all(loom, test))]
mod loom_models;
pub(crate) mod slots;
pub(crate) mod stream_key;
pub(crate) mod sync;
#[cfg(test)]
#[cfg(not(loom))] // under the model checker, atomics are good for models only
mod tests;
pub(crate) mod word;

pub(crate) use bin::{Free, Tally};
pub(crate) use bins::Bins;
pub(crate) use inbox::Message;
pub(crate) use slots::{Slot, Tenant, ThreadCaches};
pub(crate) use stream_key::StreamKey;
pub(crate) use word::{State, Word};
