//! Recording: any allocator, wrapped at run time, writes what it is asked for into an `.hwt` file.
//!
//! ```text
//! caller ──► Recorder ──► the allocator
//!               │ an entry of 64 bytes, under a short lock
//!               ▼
//!            the queue (two buffers of fixed length) ──► a thread of its own ──► HwtWriter ──► the sink
//! ```
//!
//! The caller pays for reading the clock and one push; names, ids, encoding and writing are the thread's work. Where the
//! thread falls two buffers behind, callers wait for it: a trace with holes could not be replayed. The thread flushes
//! after every buffer, and at least five times a second, so that a crash loses that much and no more.
//!
//! Measured with `examples/record_overhead.rs` on two cores that others used too: 85 to 97 ns an event in bursts, of which
//! reading the clock is at least 30; 200 to 230 ns where a program does nothing but ask and give back without a pause. The
//! latter should be less where the thread has a core to itself; that was not measured.
//!
//! **Order.** A give-back is noted before it is made, and a request after it was served. So an address is never noted as
//! given out before it was noted as given back, whatever the threads do. A give-back that then fails is taken back by
//! noting the block as given out again.
//!
//! **Waits.** A block that other streams were recorded on may be in use after its give-back. The recorder looks at such
//! blocks at later requests, a few each time, and notes the first moment at which the allocator no longer waits for them.
//!
//! | file | what |
//! |---|---|
//! | `entry.rs` | what a caller notes |
//! | `queue.rs` | from callers to the thread: bounded, in order |
//! | `scribe.rs` | the thread: entries become events of a file |
//! | `waits.rs` | blocks that other streams still use |
//! | `sampling.rs` | recording a part only |
//! | `recorder.rs` | all of it around an allocator |

mod entry;
mod queue;
mod recorder;
mod sampling;
mod scribe;
#[cfg(test)]
mod tests;
mod waits;

pub use recorder::{RecordOptions, Recorded, Recorder};
pub use sampling::Sampling;
