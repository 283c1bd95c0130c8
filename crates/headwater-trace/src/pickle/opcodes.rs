//! The opcodes of pickle, by the names Python's `pickletools` gives them.

pub(crate) const PROTO: u8 = 0x80;
pub(crate) const FRAME: u8 = 0x95;
pub(crate) const STOP: u8 = b'.';
pub(crate) const MARK: u8 = b'(';
pub(crate) const POP: u8 = b'0';
pub(crate) const POP_MARK: u8 = b'1';

pub(crate) const NONE: u8 = b'N';
pub(crate) const NEWTRUE: u8 = 0x88;
pub(crate) const NEWFALSE: u8 = 0x89;
pub(crate) const BININT: u8 = b'J';
pub(crate) const BININT1: u8 = b'K';
pub(crate) const BININT2: u8 = b'M';
pub(crate) const LONG1: u8 = 0x8a;
pub(crate) const LONG4: u8 = 0x8b;
pub(crate) const BINFLOAT: u8 = b'G';

pub(crate) const SHORT_BINUNICODE: u8 = 0x8c;
pub(crate) const BINUNICODE: u8 = b'X';
pub(crate) const BINUNICODE8: u8 = 0x8d;
pub(crate) const SHORT_BINBYTES: u8 = b'C';
pub(crate) const BINBYTES: u8 = b'B';
pub(crate) const BINBYTES8: u8 = 0x8e;
pub(crate) const BYTEARRAY8: u8 = 0x96;

pub(crate) const EMPTY_LIST: u8 = b']';
pub(crate) const LIST: u8 = b'l';
pub(crate) const APPEND: u8 = b'a';
pub(crate) const APPENDS: u8 = b'e';
pub(crate) const EMPTY_TUPLE: u8 = b')';
pub(crate) const TUPLE: u8 = b't';
pub(crate) const TUPLE1: u8 = 0x85;
pub(crate) const TUPLE2: u8 = 0x86;
pub(crate) const TUPLE3: u8 = 0x87;
pub(crate) const EMPTY_DICT: u8 = b'}';
pub(crate) const DICT: u8 = b'd';
pub(crate) const SETITEM: u8 = b's';
pub(crate) const SETITEMS: u8 = b'u';

pub(crate) const BINGET: u8 = b'h';
pub(crate) const LONG_BINGET: u8 = b'j';
pub(crate) const BINPUT: u8 = b'q';
pub(crate) const LONG_BINPUT: u8 = b'r';
pub(crate) const MEMOIZE: u8 = 0x94;

/// Why an opcode that exists is not executed; `None` where there is no such opcode.
pub(crate) fn refusal(opcode: u8) -> Option<(&'static str, &'static str)> {
    const IMPORTS: &str = "it imports code by name";
    const CALLS: &str = "it calls a function or constructor";
    const OUTSIDE: &str = "it refers to something outside the file";
    const SETS: &str = "sets are not part of a snapshot";
    const TEXT: &str = "it is of protocols 0 and 1; protocols 2 to 5 are read";
    Some(match opcode {
        b'c' => ("GLOBAL", IMPORTS),
        0x93 => ("STACK_GLOBAL", IMPORTS),
        b'i' => ("INST", CALLS),
        b'o' => ("OBJ", CALLS),
        b'R' => ("REDUCE", CALLS),
        b'b' => ("BUILD", CALLS),
        0x81 => ("NEWOBJ", CALLS),
        0x92 => ("NEWOBJ_EX", CALLS),
        b'P' => ("PERSID", OUTSIDE),
        b'Q' => ("BINPERSID", OUTSIDE),
        0x82 => ("EXT1", OUTSIDE),
        0x83 => ("EXT2", OUTSIDE),
        0x84 => ("EXT4", OUTSIDE),
        0x97 => ("NEXT_BUFFER", OUTSIDE),
        0x98 => ("READONLY_BUFFER", OUTSIDE),
        0x8f => ("EMPTY_SET", SETS),
        0x90 => ("ADDITEMS", SETS),
        0x91 => ("FROZENSET", SETS),
        b'I' => ("INT", TEXT),
        b'L' => ("LONG", TEXT),
        b'F' => ("FLOAT", TEXT),
        b'S' => ("STRING", TEXT),
        b'T' => ("BINSTRING", TEXT),
        b'U' => ("SHORT_BINSTRING", TEXT),
        b'V' => ("UNICODE", TEXT),
        b'g' => ("GET", TEXT),
        b'p' => ("PUT", TEXT),
        b'2' => ("DUP", TEXT),
        _ => return None,
    })
}
