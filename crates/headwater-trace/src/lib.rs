//! Allocation traces: what a program asked its allocator for, recorded, read, written, replayed and looked at.
//!
//! A [`Trace`] is a header, a table of [`Names`] and [`Event`]s in host order. [`open`] reads one from a file of any
//! format it knows:
//!
//! | module | format | read | write |
//! |---|---|---|---|
//! | [`alloctrace`] | `alloctrace 1`, gzipped text | yes | yes |
//! | [`snapshot`] | the pickle of `torch.cuda.memory._dump_snapshot`, with stacks | yes | yes |
//! | [`rmm_csv`] | the log of RMM's logging adaptor | yes | no |
//! | [`hwt`] | Headwater's own, streamed and crash-proof | yes | yes |
//!
//! What is done with one: [`record`] writes what an allocator is asked for, [`replay`] asks it again of any policy on any
//! device, [`report`] shows where the memory went.
//!
//! [`pickle`] is the safe reader under [`snapshot`]. Readers take hostile files: an error names the byte, nothing
//! panics, and memory stays linear in the bytes really read ([`Limits`]).
//!
//! Where things are: `model.rs` the trace, `names.rs` its table, `check.rs` whether it can have happened and what it adds
//! up to, `open.rs` which format a file is, `bundled.rs` a trace that is always at hand, `error.rs` and `limits.rs` as they
//! say; `unpack.rs` (gzip), `lines.rs` (text) and `ids.rs` are shared by the readers.
//!
//! ```no_run
//! let trace = headwater_trace::open("gpt2_varlen.trace.gz")?;
//! trace.check()?;
//! let summary = trace.summary();
//! println!("{} allocations, {} bytes at the peak", summary.allocs, summary.peak_live_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod alloctrace;
mod bundled;
mod check;
mod error;
pub mod hwt;
mod ids;
mod limits;
mod lines;
mod model;
mod name_import;
mod names;
mod open;
pub mod pickle;
pub mod record;
pub mod replay;
pub mod report;
pub mod rmm_csv;
pub mod snapshot;
mod unpack;

pub use bundled::bundled_trace;
pub use check::{Fault, Summary};
pub use error::{Format, Result, TraceError};
pub use limits::Limits;
pub use model::{Event, Reported, Trace, TraceHeader};
pub use names::{Frame, FrameId, Label, LabelId, Names, StreamId};
pub use open::{open, open_with, read};
