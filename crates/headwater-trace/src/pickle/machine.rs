//! The machine that runs a pickle's opcodes: a stack of values, a stack of marks, a memo.

use super::arena::Arena;
use super::opcodes as op;
use super::value::{Kind, Pickle, Value, long};
use crate::error::{Format, Result, TraceError};
use crate::limits::Limits;

/// Sequential memo indices are what every pickler writes; beyond this gap they are an attempt at our memory.
const MEMO_SLACK: usize = 1024;

/// Reads a pickle of plain data.
///
/// ```
/// use headwater_trace::pickle::{View, parse};
///
/// // pickle.dumps(["a", 1, "a"], protocol=2)
/// let bytes = b"\x80\x02]q\x00(X\x01\x00\x00\x00aq\x01K\x01h\x01e.";
/// let pickle = parse(bytes, &Default::default())?;
/// let View::List(items) = pickle.root().view() else { panic!("a list") };
/// assert_eq!(items.count(), 3);
///
/// // Anything more than data is refused: pickle.dumps(print)
/// let error = parse(b"\x80\x02cbuiltins\nprint\n.", &Default::default()).unwrap_err();
/// assert_eq!(error.to_string(), "pickle: byte 2: opcode GLOBAL refused: it imports code by name");
/// # Ok::<(), headwater_trace::TraceError>(())
/// ```
///
/// # Errors
/// [`TraceError::Refused`] for an opcode that does more than build plain data, [`TraceError::Truncated`],
/// [`TraceError::Malformed`] and [`TraceError::Limit`] as their names say; all with the byte.
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Result<Pickle<'a>> {
    let mut machine = Machine {
        input,
        at: 0,
        next: 0,
        stack: Vec::with_capacity(4096),
        marks: Vec::new(),
        fence: 0,
        memo: Vec::new(),
        puts: 0,
        arena: Arena::default(),
        limits,
    };
    let root = machine.run()?;
    if machine.next < input.len() {
        return Err(TraceError::malformed(
            Format::TorchSnapshot,
            machine.next as u64,
            "bytes after the pickle's end",
        ));
    }
    Ok(Pickle { input, arena: machine.arena, root })
}

struct Machine<'a> {
    input: &'a [u8],
    /// The opcode being run.
    at: usize,
    /// The first byte that is not read yet.
    next: usize,
    stack: Vec<Value>,
    /// Heights of the stack at each open mark but the last; `fence` is that of the last.
    marks: Vec<usize>,
    /// Values below this height belong to outer marks.
    fence: usize,
    memo: Vec<Value>,
    puts: usize,
    arena: Arena,
    limits: &'a Limits,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Value> {
        loop {
            self.at = self.next;
            let [opcode] = self.take("an opcode")?;
            match opcode {
                op::BINGET => {
                    let [index] = self.take("a memo index")?;
                    self.get(usize::from(index))?;
                }
                op::LONG_BINGET => {
                    let index = u32::from_le_bytes(self.take("a memo index")?);
                    self.get(index as usize)?;
                }
                op::MEMOIZE => self.put(self.puts)?,
                op::BININT1 => {
                    let [number] = self.take("an integer")?;
                    self.push_int(i64::from(number))?;
                }
                op::BININT2 => {
                    let number = u16::from_le_bytes(self.take("an integer")?);
                    self.push_int(i64::from(number))?;
                }
                op::BININT => {
                    let number = i32::from_le_bytes(self.take("an integer")?);
                    self.push_int(i64::from(number))?;
                }
                op::LONG1 => {
                    let [length] = self.take("the length of an integer")?;
                    self.long(u64::from(length))?;
                }
                op::MARK => self.mark()?,
                op::EMPTY_DICT => self.push_container(Kind::Dict, 0)?,
                op::SETITEMS => self.fill_from_mark(Kind::Dict)?,
                op::EMPTY_LIST => self.push_container(Kind::List, 0)?,
                op::APPENDS => self.fill_from_mark(Kind::List)?,
                op::SHORT_BINUNICODE => {
                    let [length] = self.take("the length of a string")?;
                    self.string(u64::from(length))?;
                }
                op::BINUNICODE => {
                    let length = u32::from_le_bytes(self.take("the length of a string")?);
                    self.string(u64::from(length))?;
                }
                op::BINUNICODE8 => {
                    let length = u64::from_le_bytes(self.take("the length of a string")?);
                    self.string(length)?;
                }
                op::SHORT_BINBYTES => {
                    let [length] = self.take("the length of bytes")?;
                    self.bytes(u64::from(length))?;
                }
                op::BINBYTES => {
                    let length = u32::from_le_bytes(self.take("the length of bytes")?);
                    self.bytes(u64::from(length))?;
                }
                op::BINBYTES8 | op::BYTEARRAY8 => {
                    let length = u64::from_le_bytes(self.take("the length of bytes")?);
                    self.bytes(length)?;
                }
                op::NONE => self.stack.push(Value::new(Kind::None, 0)),
                op::NEWTRUE => self.stack.push(Value::new(Kind::True, 0)),
                op::NEWFALSE => self.stack.push(Value::new(Kind::False, 0)),
                op::BINFLOAT => {
                    let _: [u8; 8] = self.take("a float")?;
                    self.stack.push(Value::new(Kind::Float, self.at as u64));
                }
                op::TUPLE1 => self.push_container(Kind::Tuple, 1)?,
                op::TUPLE2 => self.push_container(Kind::Tuple, 2)?,
                op::TUPLE3 => self.push_container(Kind::Tuple, 3)?,
                op::EMPTY_TUPLE => self.push_container(Kind::Tuple, 0)?,
                op::TUPLE => self.container_from_mark(Kind::Tuple)?,
                op::LIST => self.container_from_mark(Kind::List)?,
                op::DICT => self.container_from_mark(Kind::Dict)?,
                op::APPEND => self.fill(Kind::List, 1)?,
                op::SETITEM => self.fill(Kind::Dict, 2)?,
                op::BINPUT => {
                    let [index] = self.take("a memo index")?;
                    self.put(usize::from(index))?;
                }
                op::LONG_BINPUT => {
                    let index = u32::from_le_bytes(self.take("a memo index")?);
                    self.put(index as usize)?;
                }
                op::LONG4 => {
                    let length = i32::from_le_bytes(self.take("the length of an integer")?);
                    let length =
                        u64::try_from(length).map_err(|_| self.error("an integer of negative length"))?;
                    self.long(length)?;
                }
                op::PROTO => {
                    let [version] = self.take("a protocol")?;
                    if version > 5 {
                        return Err(self.error(format!("protocol {version}; protocols 2 to 5 are read")));
                    }
                }
                op::FRAME => {
                    let length = u64::from_le_bytes(self.take("the length of a frame")?);
                    self.require(length, "a frame")?;
                }
                op::POP => self.pop()?,
                op::POP_MARK => _ = self.close_mark()?,
                op::STOP => return self.result(),
                _ => return Err(self.refused(opcode)),
            }
        }
    }

    #[cold]
    fn refused(&self, opcode: u8) -> TraceError {
        match op::refusal(opcode) {
            Some((opcode, why)) => TraceError::Refused { offset: self.at as u64, opcode, why },
            None => self.error(format!("no opcode of pickle: {opcode:#04x}")),
        }
    }

    #[cold]
    fn error(&self, problem: impl Into<String>) -> TraceError {
        TraceError::malformed(Format::TorchSnapshot, self.at as u64, problem)
    }

    #[cold]
    fn truncated(&self, what: &'static str, needed_bytes: u64) -> TraceError {
        let left_bytes = (self.input.len() - self.next) as u64;
        let (format, offset) = (Format::TorchSnapshot, self.next as u64);
        TraceError::Truncated { format, offset, what, needed_bytes, left_bytes }
    }

    #[cold]
    fn limit(&self, what: &'static str, limit: u64) -> TraceError {
        TraceError::Limit { format: Format::TorchSnapshot, offset: self.at as u64, what, limit }
    }

    #[inline]
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        match self.input.get(self.next..).and_then(|rest| rest.first_chunk::<N>()) {
            Some(bytes) => {
                self.next += N;
                Ok(*bytes)
            }
            None => Err(self.truncated(what, N as u64)),
        }
    }

    /// That so many bytes are left, as a length that is safe to use.
    fn require(&self, length: u64, what: &'static str) -> Result<usize> {
        match usize::try_from(length) {
            Ok(fits) if fits <= self.input.len() - self.next => Ok(fits),
            _ => Err(self.truncated(what, length)),
        }
    }

    fn take_content(&mut self, length: u64, what: &'static str) -> Result<&'a [u8]> {
        if length > self.limits.pickle_string_bytes {
            return Err(self.limit(what, self.limits.pickle_string_bytes));
        }
        let length = self.require(length, what)?;
        let content = &self.input[self.next..self.next + length];
        self.next += length;
        Ok(content)
    }

    fn string(&mut self, length: u64) -> Result<()> {
        let content = self.take_content(length, "a string")?;
        if !is_python_utf8(content) {
            return Err(self.error("a string that is not UTF-8"));
        }
        self.stack.push(Value::new(Kind::Str, self.at as u64));
        Ok(())
    }

    fn bytes(&mut self, length: u64) -> Result<()> {
        self.take_content(length, "bytes")?;
        self.stack.push(Value::new(Kind::Bytes, self.at as u64));
        Ok(())
    }

    #[inline]
    fn push_int(&mut self, number: i64) -> Result<()> {
        let value = Value::int(number).ok_or_else(|| self.error("an integer beyond 60 bits"))?;
        self.stack.push(value);
        Ok(())
    }

    fn long(&mut self, length: u64) -> Result<()> {
        // Addresses and times are integers of 6 and 7 bytes. Away from the file's end they are cut out of one load.
        if let 1..=8 = length
            && let Some(bytes) = self.input.get(self.next..).and_then(|rest| rest.first_chunk::<8>())
        {
            let unused_bits = 64 - 8 * length as u32;
            let number = (u64::from_le_bytes(*bytes) << unused_bits) as i64 >> unused_bits;
            self.next += length as usize;
            self.stack.push(Value::int(number).unwrap_or(Value::new(Kind::Long, self.at as u64)));
            return Ok(());
        }
        let content = self.take_content(length, "an integer")?;
        // The 9th byte is the sign of an unsigned 64-bit number.
        let number = if content.len() <= 9 { long(content) } else { None };
        let fits = number.filter(|&n| i128::from(i64::MIN) <= n && n <= i128::from(u64::MAX));
        let Some(number) = fits else { return Err(self.error("an integer of more than 64 bits")) };
        let small = i64::try_from(number).ok().and_then(Value::int);
        self.stack.push(small.unwrap_or(Value::new(Kind::Long, self.at as u64)));
        Ok(())
    }

    #[inline]
    fn get(&mut self, index: usize) -> Result<()> {
        match self.memo.get(index) {
            Some(&value) if value != Value::ABSENT => {
                self.stack.push(value);
                Ok(())
            }
            _ => Err(self.error(format!("memo entry {index} was never put"))),
        }
    }

    #[inline]
    fn put(&mut self, index: usize) -> Result<()> {
        if self.stack.len() <= self.fence {
            return Err(self.error("nothing on the stack to remember"));
        }
        let value = self.stack[self.stack.len() - 1];
        self.puts += 1;
        if index == self.memo.len() {
            self.memo.push(value);
            return Ok(());
        }
        if index >= self.memo.len() {
            if index > 2 * self.puts + MEMO_SLACK {
                return Err(self.limit("the gap between memo indices", (2 * self.puts + MEMO_SLACK) as u64));
            }
            self.memo.resize(index + 1, Value::ABSENT);
        }
        self.memo[index] = value;
        Ok(())
    }

    fn mark(&mut self) -> Result<()> {
        if self.marks.len() as u64 >= self.limits.pickle_depth {
            return Err(self.limit("the depth of nesting", self.limits.pickle_depth));
        }
        self.marks.push(self.fence);
        self.fence = self.stack.len();
        Ok(())
    }

    /// Closes the last mark; its values stay from the height that is returned upwards.
    fn close_mark(&mut self) -> Result<usize> {
        let outer = self.marks.pop().ok_or_else(|| self.error("no mark is open"))?;
        let height = std::mem::replace(&mut self.fence, outer);
        Ok(height)
    }

    fn pop(&mut self) -> Result<()> {
        // As CPython: on an empty part of the stack `POP` takes the mark.
        if self.stack.len() > self.fence {
            self.stack.pop();
            return Ok(());
        }
        self.close_mark().map(|_| ())
    }

    /// A new container of the topmost `count` values.
    fn push_container(&mut self, kind: Kind, count: usize) -> Result<()> {
        if self.stack.len() - self.fence < count {
            return Err(self.error("too few values on the stack"));
        }
        self.container_from(kind, self.stack.len() - count)
    }

    fn container_from_mark(&mut self, kind: Kind) -> Result<()> {
        let height = self.close_mark()?;
        self.container_from(kind, height)
    }

    fn container_from(&mut self, kind: Kind, height: usize) -> Result<()> {
        self.check_elements(kind, height)?;
        let container = self.arena.container(kind, self.at as u64, &self.stack[height..]);
        self.stack.truncate(height);
        self.stack.push(container);
        Ok(())
    }

    /// Adds the values above the mark to the container below it.
    fn fill_from_mark(&mut self, kind: Kind) -> Result<()> {
        let height = self.close_mark()?;
        self.fill_from(kind, height)
    }

    fn fill(&mut self, kind: Kind, count: usize) -> Result<()> {
        if self.stack.len() - self.fence < count {
            return Err(self.error("too few values on the stack"));
        }
        self.fill_from(kind, self.stack.len() - count)
    }

    fn fill_from(&mut self, kind: Kind, height: usize) -> Result<()> {
        let container = height.checked_sub(1).filter(|&below| below >= self.fence);
        let container = container.and_then(|below| self.stack.get(below)).copied();
        let Some(container) = container.filter(|value| value.kind() == kind) else {
            return Err(self.error("no container of this kind below the values"));
        };
        self.check_elements(kind, height)?;
        self.arena.extend(container, &self.stack[height..]);
        self.stack.truncate(height);
        Ok(())
    }

    /// That there is room for the values from `height` upwards, and that they can be elements.
    fn check_elements(&self, kind: Kind, height: usize) -> Result<()> {
        let elements = &self.stack[height..];
        // Slots and containers are numbered in 32 bits.
        let limit = self.limits.pickle_values.min(u64::from(u32::MAX) - 1);
        if self.arena.values() + elements.len() as u64 + 1 > limit {
            return Err(self.limit("the number of values", limit));
        }
        if kind == Kind::Dict {
            if !elements.len().is_multiple_of(2) {
                return Err(self.error("a key without a value"));
            }
            if elements.iter().step_by(2).any(|key| matches!(key.kind(), Kind::List | Kind::Dict)) {
                return Err(self.error("a list or dictionary as a key"));
            }
        }
        Ok(())
    }

    fn result(&self) -> Result<Value> {
        match (self.stack.as_slice(), self.marks.is_empty()) {
            (&[root], true) => Ok(root),
            (left, _) => Err(self.error(format!("the pickle ends with {} values on the stack", left.len()))),
        }
    }
}

/// Whether Python decodes these bytes: UTF-8, in which surrogates may occur alone (file names that are not Unicode).
fn is_python_utf8(mut bytes: &[u8]) -> bool {
    loop {
        let Err(error) = std::str::from_utf8(bytes) else { return true };
        match bytes.get(error.valid_up_to()..) {
            Some([0xed, 0xa0..=0xbf, 0x80..=0xbf, rest @ ..]) => bytes = rest,
            _ => return false,
        }
    }
}
