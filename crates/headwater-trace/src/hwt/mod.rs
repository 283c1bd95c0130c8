//! `.hwt`: Headwater's own trace format. Compact, written while the program runs, and whole up to the last flushed
//! block whatever happens to the program.
//!
//! All fixed-size numbers are little-endian; `varint` is LEB128 of at most 64 bits; `signed` is a varint of the zigzag
//! form. The byte values are in `layout.rs`.
//!
//! ```text
//! file    = magic[8] version:u16 zero:u16 length:u32 crc:u32 header[length]  block*
//! block   = kind[4] length:u32 events:u32 payload_crc:u32 head_crc:u32  payload[length]
//! ```
//!
//! The header is the JSON of a [`TraceHeader`](crate::TraceHeader); every crc is CRC-32 (that of gzip). `head_crc` covers
//! the 16 bytes before it, so that a damaged length is told from a cut file. There are two kinds of block:
//!
//! - `EVTS`: `events` events and the definitions they need, as records.
//! - `TAIL`: the last block, written when the trace is closed. Its payload is the number of all events as `u64`, then
//!   the JSON of the final header, which replaces the first: peaks are known only at the end.
//!
//! A file without its `TAIL`, or whose last block is not whole, was cut: it reads up to its last whole block, and
//! [`TraceHeader::cut_at`](crate::TraceHeader::cut_at) says where.
//!
//! ```text
//! record  = tag:u8 [stream:varint] [device:u8] [label:varint] fields
//! tag     = kind (bits 0-3) | STREAM (bit 4) | DEVICE (bit 5) | LABEL (bit 6)
//! ```
//!
//! Without the bit, an event's stream and device are those of the event before it in the block (0 at its start), and its
//! label is none. `t` is a signed difference to the event before it in the block.
//!
//! | kind | record | fields |
//! |---|---|---|
//! | 0 | alloc | `t`, signed id minus (last allocated id + 1), varint bytes |
//! | 1, 2 | free, complete | `t`, signed last allocated id minus id |
//! | 3, 4, 5, 6 | segment alloc, free, map, unmap | `t`, varint address, varint bytes |
//! | 7 | out of memory | `t`, varint bytes, varint free bytes |
//! | 8 | annotation | `t` |
//! | 10 | define string | varint length, UTF-8 |
//! | 11 | define stream | varint raw handle |
//! | 12 | define label: text | varint string |
//! | 13 | define frame | varint file string, varint line, varint function string |
//! | 14 | define label: stack | varint count, varint frame each |
//!
//! Definitions are numbered from 0 in the order they come (labels from 1), for the whole file, and come before their
//! first use. "Last allocated id" starts each block at the largest 64-bit number, so that the first id may be 0.

pub(crate) mod layout;
mod reader;
mod writer;

pub use reader::{HwtReader, read};
pub use writer::{HwtWriter, write};

#[cfg(test)]
mod tests;
