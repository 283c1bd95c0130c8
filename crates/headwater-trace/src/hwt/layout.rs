//! The byte values of the format, and its numbers: shared by the writer and the reader.

use flate2::Crc;

/// As PNG's: not text, and damaged by anything that treats it as text.
pub(crate) const MAGIC: [u8; 8] = *b"\x89HWT\r\n\x1a\n";
pub(crate) const VERSION: u16 = 1;
/// Magic, version, zero, length, crc.
pub(crate) const FILE_HEAD_BYTES: usize = 20;
/// Kind, length, events, payload crc, head crc.
pub(crate) const BLOCK_HEAD_BYTES: usize = 20;

pub(crate) const KIND_EVENTS: [u8; 4] = *b"EVTS";
pub(crate) const KIND_TAIL: [u8; 4] = *b"TAIL";

/// A block is written when it has this much: large enough that its head is noise, small enough that a crash loses
/// little (about 10,000 events).
pub(crate) const BLOCK_TARGET_BYTES: usize = 64 << 10;
/// The longest string that is written, so that a block stays below what a reader accepts.
pub(crate) const STRING_LIMIT_BYTES: usize = 1 << 20;
/// The deepest stack that is written, likewise.
pub(crate) const STACK_LIMIT: usize = 100_000;
/// The longest payload that is read.
pub(crate) const PAYLOAD_LIMIT_BYTES: u64 = 4 << 20;
/// The longest header that is read or written.
pub(crate) const HEADER_LIMIT_BYTES: u64 = 4 << 20;

pub(crate) const ALLOC: u8 = 0;
pub(crate) const FREE: u8 = 1;
pub(crate) const COMPLETE: u8 = 2;
pub(crate) const SEGMENT_ALLOC: u8 = 3;
pub(crate) const SEGMENT_FREE: u8 = 4;
pub(crate) const SEGMENT_MAP: u8 = 5;
pub(crate) const SEGMENT_UNMAP: u8 = 6;
pub(crate) const OOM: u8 = 7;
pub(crate) const ANNOTATION: u8 = 8;
pub(crate) const DEFINE_STRING: u8 = 10;
pub(crate) const DEFINE_STREAM: u8 = 11;
pub(crate) const DEFINE_TEXT: u8 = 12;
pub(crate) const DEFINE_FRAME: u8 = 13;
pub(crate) const DEFINE_STACK: u8 = 14;

pub(crate) const KIND_MASK: u8 = 0x0f;
pub(crate) const STREAM: u8 = 0x10;
pub(crate) const DEVICE: u8 = 0x20;
pub(crate) const LABEL: u8 = 0x40;
pub(crate) const UNUSED: u8 = 0x80;

/// What differences are taken against; set back at the start of every block, so that a block needs no other to be read
/// except for definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) t_us: u64,
    pub(crate) alloc_id: u64,
    pub(crate) stream: u16,
    pub(crate) device: u8,
}

impl Default for Before {
    fn default() -> Self {
        Self { t_us: 0, alloc_id: u64::MAX, stream: 0, device: 0 }
    }
}

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

pub(crate) fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// The difference `to - from`, modulo 2^64, as a zigzag varint: small for small steps either way.
pub(crate) fn put_step(into: &mut Vec<u8>, from: u64, to: u64) {
    let step = to.wrapping_sub(from) as i64;
    put_varint(into, (step << 1 ^ step >> 63) as u64);
}

/// The number at the front of `bytes`, which then begins after it. `None` where it is cut or does not fit 64 bits.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if index == 9 && byte > 1 {
            return None;
        }
        value |= bits << (7 * index);
        if byte < 0x80 {
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

/// The number that [`put_step`] wrote as a step from `from`.
pub(crate) fn take_step(bytes: &mut &[u8], from: u64) -> Option<u64> {
    let zigzag = take_varint(bytes)?;
    Some(from.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            put_step(&mut bytes, 77, value);
            put_step(&mut bytes, value, 77);
            let mut rest = &bytes[..];
            assert_eq!(take_varint(&mut rest), Some(value));
            assert_eq!(take_step(&mut rest, 77), Some(value));
            assert_eq!(take_step(&mut rest, value), Some(77));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_or_without_end_is_none() {
        assert_eq!(take_varint(&mut &[0x80; 9][..]), None);
        assert_eq!(take_varint(&mut &[0xff; 12][..]), None);
        assert_eq!(take_varint(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]), None);
        assert_eq!(take_varint(&mut &[][..]), None);
    }
}
