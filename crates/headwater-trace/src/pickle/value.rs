//! What a pickle built, to be looked at.
//!
//! A [`Value`] has its kind in the top 4 bits and 60 bits of payload: an integer that fits, the place of the opcode that
//! made it (strings, bytes, floats, large integers: they are decoded from the file when looked at), or the number of a
//! container in the arena.

use std::borrow::Cow;
use std::fmt;

use super::arena::{Arena, NO_RUN, Run};
use super::opcodes as op;

/// One value; what it means is known with its [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Value(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    None = 0,
    False,
    True,
    Int,
    Long,
    Float,
    Str,
    Bytes,
    List,
    Tuple,
    Dict,
    /// No value: a memo entry that was never put.
    Absent,
}

const KINDS: [Kind; 16] = [
    Kind::None,
    Kind::False,
    Kind::True,
    Kind::Int,
    Kind::Long,
    Kind::Float,
    Kind::Str,
    Kind::Bytes,
    Kind::List,
    Kind::Tuple,
    Kind::Dict,
    Kind::Absent,
    Kind::Absent,
    Kind::Absent,
    Kind::Absent,
    Kind::Absent,
];

const PAYLOAD_BITS: u32 = 60;
const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;

impl Value {
    pub(crate) const ABSENT: Self = Self::new(Kind::Absent, 0);

    pub(crate) const fn new(kind: Kind, payload: u64) -> Self {
        Self((kind as u64) << PAYLOAD_BITS | payload & PAYLOAD_MASK)
    }

    /// An integer, if it fits 60 bits.
    pub(crate) fn int(number: i64) -> Option<Self> {
        let value = Self::new(Kind::Int, number as u64);
        (value.as_int() == number).then_some(value)
    }

    pub(crate) fn kind(self) -> Kind {
        KINDS[(self.0 >> PAYLOAD_BITS) as usize]
    }

    pub(crate) const fn payload(self) -> u64 {
        self.0 & PAYLOAD_MASK
    }

    pub(crate) const fn as_int(self) -> i64 {
        (self.0 << (64 - PAYLOAD_BITS)) as i64 >> (64 - PAYLOAD_BITS)
    }
}

/// What a pickle holds. Made by [`parse`](super::parse).
#[derive(Debug)]
pub struct Pickle<'a> {
    pub(super) input: &'a [u8],
    pub(super) arena: Arena,
    pub(super) root: Value,
}

impl Pickle<'_> {
    /// The value the pickle is.
    pub fn root(&self) -> Node<'_> {
        Node { pickle: self, value: self.root }
    }

    /// How many lists, tuples and dictionaries the file builds, each counted once however often it is referred to.
    pub fn containers(&self) -> usize {
        self.arena.containers()
    }
}

/// A value within its pickle.
#[derive(Clone, Copy)]
pub struct Node<'p> {
    pickle: &'p Pickle<'p>,
    value: Value,
}

impl fmt::Debug for Node<'_> {
    /// One level deep: containers may contain themselves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.view() {
            View::List(items) => write!(f, "list of {}", items.remaining()),
            View::Tuple(items) => write!(f, "tuple of {}", items.remaining()),
            View::Dict(pairs) => write!(f, "dict of {}", pairs.0.remaining() / 2),
            View::Str(text) | View::Bytes(text) => {
                write!(f, "\"{}\"", text.get(..40).unwrap_or(text).escape_ascii())
            }
            other => fmt::Debug::fmt(&other, f),
        }
    }
}

/// What a value is.
#[derive(Clone, Debug)]
pub enum View<'p> {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of up to 64 bits, signed or not.
    Int(i128),
    /// A float.
    Float(f64),
    /// A string: UTF-8, in which lone surrogates may occur as Python writes them.
    Str(&'p [u8]),
    /// Bytes.
    Bytes(&'p [u8]),
    /// A list.
    List(Items<'p>),
    /// A tuple.
    Tuple(Items<'p>),
    /// A dictionary; where a key occurs twice the later pair holds.
    Dict(Pairs<'p>),
}

impl<'p> Node<'p> {
    /// What the value is.
    pub fn view(self) -> View<'p> {
        let (input, at) = (self.pickle.input, self.value.payload() as usize);
        match self.value.kind() {
            Kind::None | Kind::Absent => View::None,
            Kind::False => View::Bool(false),
            Kind::True => View::Bool(true),
            Kind::Int => View::Int(i128::from(self.value.as_int())),
            Kind::Long => View::Int(long_at(input, at)),
            Kind::Float => {
                let bytes = input.get(at + 1..).and_then(|rest| rest.first_chunk::<8>());
                View::Float(bytes.map_or(0.0, |bytes| f64::from_be_bytes(*bytes)))
            }
            Kind::Str => View::Str(bytes_at(input, at)),
            Kind::Bytes => View::Bytes(bytes_at(input, at)),
            Kind::List => View::List(self.items()),
            Kind::Tuple => View::Tuple(self.items()),
            Kind::Dict => View::Dict(Pairs(self.items())),
        }
    }

    /// The integer, if it is one that fits.
    pub fn as_i64(self) -> Option<i64> {
        match self.value.kind() {
            Kind::Int => Some(self.value.as_int()),
            Kind::Long => i64::try_from(long_at(self.pickle.input, self.value.payload() as usize)).ok(),
            _ => None,
        }
    }

    /// The string's bytes, if it is a string.
    pub fn as_str_bytes(self) -> Option<&'p [u8]> {
        let string = self.value.kind() == Kind::Str;
        string.then(|| bytes_at(self.pickle.input, self.value.payload() as usize))
    }

    /// The string, if it is one; lone surrogates are replaced.
    pub fn as_text(self) -> Option<Cow<'p, str>> {
        self.as_str_bytes().map(String::from_utf8_lossy)
    }

    /// The byte of the file at which a list, tuple or dictionary begins.
    pub fn container_offset(self) -> Option<u64> {
        self.container_index().and_then(|at| self.pickle.arena.offset(at))
    }

    /// The container's number, below [`Pickle::containers`]: the same for every reference to it.
    pub fn container_index(self) -> Option<usize> {
        matches!(self.value.kind(), Kind::List | Kind::Tuple | Kind::Dict)
            .then_some(self.value.payload() as usize)
    }

    pub(crate) fn value(self) -> Value {
        self.value
    }

    fn items(self) -> Items<'p> {
        let arena = &self.pickle.arena;
        let first = arena.first_run(self.value.payload() as usize);
        let mut items = Items { pickle: self.pickle, run: [].iter(), next: NO_RUN };
        if let Some(first) = first {
            items.enter(first);
        }
        items
    }
}

/// The number that `LONG1` or `LONG4` at `at` has: little-endian two's complement of at most 9 bytes.
fn long_at(input: &[u8], at: usize) -> i128 {
    let bytes = match input.get(at) {
        Some(&op::LONG1) => input.get(at + 2..).zip(input.get(at + 1).map(|&length| usize::from(length))),
        _ => input.get(at + 5..).zip(u32_at(input, at + 1)),
    };
    let bytes = bytes.and_then(|(rest, length)| rest.get(..length)).unwrap_or(&[]);
    long(bytes).unwrap_or(0)
}

/// Little-endian two's complement.
pub(super) fn long(bytes: &[u8]) -> Option<i128> {
    let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { 0xff } else { 0 };
    let mut wide = [sign; 16];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i128::from_le_bytes(wide))
}

fn u32_at(input: &[u8], at: usize) -> Option<usize> {
    let bytes = input.get(at..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

/// The content of the string or bytes opcode at `at`. The machine has checked that it is there.
fn bytes_at(input: &[u8], at: usize) -> &[u8] {
    let (head, length) = match input.get(at) {
        Some(&(op::SHORT_BINUNICODE | op::SHORT_BINBYTES)) => {
            (2, input.get(at + 1).map_or(0, |&length| usize::from(length)))
        }
        Some(&(op::BINUNICODE | op::BINBYTES)) => (5, u32_at(input, at + 1).unwrap_or(0)),
        _ => (9, u32_at(input, at + 1).unwrap_or(0)),
    };
    input.get(at + head..at + head + length).unwrap_or(&[])
}

/// The elements of a list or tuple.
#[derive(Clone)]
pub struct Items<'p> {
    pickle: &'p Pickle<'p>,
    run: std::slice::Iter<'p, Value>,
    next: u32,
}

impl fmt::Debug for Items<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} items", self.remaining())
    }
}

impl Items<'_> {
    /// How many are left.
    pub fn remaining(&self) -> usize {
        let mut count = self.run.len();
        let mut next = self.next;
        while let Some(run) = self.pickle.arena.run(next) {
            count += run.length as usize;
            next = run.next;
        }
        count
    }

    fn enter(&mut self, run: Run) {
        (self.run, self.next) = (self.pickle.arena.slots(run).iter(), run.next);
    }
}

impl<'p> Iterator for Items<'p> {
    type Item = Node<'p>;

    fn next(&mut self) -> Option<Node<'p>> {
        loop {
            if let Some(&value) = self.run.next() {
                return Some(Node { pickle: self.pickle, value });
            }
            let run = self.pickle.arena.run(self.next)?;
            self.enter(run);
        }
    }
}

/// The pairs of a dictionary, in the order they were set.
#[derive(Clone, Debug)]
pub struct Pairs<'p>(Items<'p>);

impl<'p> Iterator for Pairs<'p> {
    type Item = (Node<'p>, Node<'p>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }
}
