//! A reader of pickles that hold plain data, made for PyTorch's memory snapshots of hundreds of megabytes.
//!
//! Safe: a pickle is a program, and this machine has only the instructions that build `None`, booleans, integers of up
//! to 64 bits, floats, strings, bytes, lists, tuples and dictionaries. Whatever would import, call or look up something
//! (`GLOBAL`, `REDUCE`, persistent ids, extensions, ...) is an error that names the opcode and its byte.
//!
//! Quick: scalars are not built at all. A value is 8 bytes: a small integer, or where in the file its bytes are, or the
//! number of a container. Snapshots are mostly references to things built before (in a file of 20,000 events 279,770
//! `BINGET`s to 41,249 memo entries), and a reference is a copy of those 8 bytes: what the file shares stays shared.
//!
//! Bounded: there is no recursion, so no depth of nesting overflows the stack. Lengths are compared with what is left of
//! the file. One byte of the file makes at most 40 bytes of memory; a real snapshot with stacks takes about three
//! times its size (measured: 88 MB of pickle, 1.5 million entries).

mod arena;
mod machine;
pub(crate) mod opcodes;
mod value;
mod writer;

pub use machine::parse;
pub(crate) use opcodes as op;
pub(crate) use value::Value;
pub use value::{Items, Node, Pairs, Pickle, View};
pub(crate) use writer::{BATCH, Memo, PickleWriter};

#[cfg(test)]
mod tests;
