//! Writing pickles of protocol 4 with the few opcodes that PyTorch's viewer knows.
//!
//! The viewer (`MemoryViz.js`) has an unpickler of its own: protocols 2 to 4, no `BINUNICODE8`, no `LONG4`. CPython 3.14
//! writes protocol 5 by default, which is why its snapshots show as a blank page (pytorch#183842).
//! Frames (`FRAME`) are optional in protocol 4 and not written.

use std::io::Write;

use super::opcodes as op;
use crate::error::{Format, Result, TraceError};

/// A thing that was written and can be referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memo(u32);

/// Elements of a list or dictionary are written in batches, as CPython does: the viewer spreads a batch over the
/// arguments of one call, whose number is limited.
pub(crate) const BATCH: usize = 1000;

#[derive(Debug)]
pub(crate) struct PickleWriter<W> {
    sink: W,
    buffer: Vec<u8>,
    memos: u32,
}

impl<W: Write> PickleWriter<W> {
    pub(crate) fn new(sink: W) -> Self {
        let mut buffer = Vec::with_capacity(1 << 17);
        buffer.extend_from_slice(&[op::PROTO, 4]);
        Self { sink, buffer, memos: 0 }
    }

    pub(crate) fn finish(mut self) -> Result<W> {
        self.buffer.push(op::STOP);
        self.sink.write_all(&self.buffer).and_then(|()| self.sink.flush()).map_err(TraceError::Write)?;
        Ok(self.sink)
    }

    /// Gives what is buffered to the sink if it is much. To be called between values.
    pub(crate) fn drain(&mut self) -> Result<()> {
        if self.buffer.len() >= 1 << 16 {
            self.sink.write_all(&self.buffer).map_err(TraceError::Write)?;
            self.buffer.clear();
        }
        Ok(())
    }

    pub(crate) fn op(&mut self, opcode: u8) {
        self.buffer.push(opcode);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.op(if value { op::NEWTRUE } else { op::NEWFALSE });
    }

    pub(crate) fn int(&mut self, number: i128) {
        if let Ok(byte) = u8::try_from(number) {
            self.buffer.extend_from_slice(&[op::BININT1, byte]);
        } else if let Ok(two) = u16::try_from(number) {
            self.buffer.push(op::BININT2);
            self.buffer.extend_from_slice(&two.to_le_bytes());
        } else if let Ok(four) = i32::try_from(number) {
            self.buffer.push(op::BININT);
            self.buffer.extend_from_slice(&four.to_le_bytes());
        } else {
            // The fewest bytes that keep the sign.
            let bytes = number.to_le_bytes();
            let mut length = bytes.len();
            while length > 1 {
                let (top, below) = (bytes[length - 1], bytes[length - 2]);
                if !(top == 0 && below < 0x80 || top == 0xff && below >= 0x80) {
                    break;
                }
                length -= 1;
            }
            self.buffer.extend_from_slice(&[op::LONG1, length as u8]);
            self.buffer.extend_from_slice(&bytes[..length]);
        }
    }

    pub(crate) fn float(&mut self, number: f64) {
        self.op(op::BINFLOAT);
        self.buffer.extend_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn string(&mut self, text: &str) -> Result<()> {
        if let Ok(length) = u8::try_from(text.len()) {
            self.buffer.extend_from_slice(&[op::SHORT_BINUNICODE, length]);
        } else {
            let length = u32::try_from(text.len()).map_err(|_| TraceError::Unwritable {
                format: Format::TorchSnapshot,
                problem: format!("a text of {} bytes", text.len()),
            })?;
            self.op(op::BINUNICODE);
            self.buffer.extend_from_slice(&length.to_le_bytes());
        }
        self.buffer.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Remembers the value just written.
    pub(crate) fn memoize(&mut self) -> Memo {
        self.op(op::MEMOIZE);
        self.memos += 1;
        Memo(self.memos - 1)
    }

    /// Writes a remembered value again, as the same object.
    pub(crate) fn get(&mut self, Memo(index): Memo) {
        if let Ok(byte) = u8::try_from(index) {
            self.buffer.extend_from_slice(&[op::BINGET, byte]);
        } else {
            self.op(op::LONG_BINGET);
            self.buffer.extend_from_slice(&index.to_le_bytes());
        }
    }
}
