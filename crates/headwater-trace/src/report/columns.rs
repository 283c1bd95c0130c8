//! Numbers in little room: a column is delta-coded, varint-coded and base64-coded, and kept once.
//!
//! A column is `unit`, `count`, then tokens. All values are multiples of `unit` (their greatest common divisor:
//! addresses and rounded sizes lose nine bits or more). Each token is the difference to the value before, divided by
//! the unit, as a zigzag LEB128 number; a difference of zero is followed by how many more zeros come, so a column that
//! hardly changes costs next to nothing. A million events with four policies make about 40 MB.
//!
//! Two columns of the same content (what the trace says is the same for every policy) are embedded once.
//! `assets/columns.js` reads them back.

use std::collections::BTreeMap;

/// The columns of a page, by number.
#[derive(Debug, Default)]
pub(super) struct Columns {
    texts: Vec<String>,
    known: BTreeMap<Vec<u8>, usize>,
}

impl Columns {
    /// Adds a column and gives its number.
    pub(super) fn add(&mut self, values: impl IntoIterator<Item = i64>) -> usize {
        let values: Vec<i64> = values.into_iter().collect();
        let bytes = encode(&values);
        if let Some(&number) = self.known.get(&bytes) {
            return number;
        }
        self.texts.push(base64(&bytes));
        self.known.insert(bytes, self.texts.len() - 1);
        self.texts.len() - 1
    }

    /// The base64 text of every column.
    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }
}

fn encode(values: &[i64]) -> Vec<u8> {
    let unit = values.iter().map(|value| value.unsigned_abs()).fold(0, gcd).max(1);
    let mut out = Vec::with_capacity(values.len() * 2);
    put_varint(&mut out, unit);
    put_varint(&mut out, values.len() as u64);
    let mut before = 0i64;
    let mut zeros = 0u64;
    // Values are at most 2^53 (check.rs): neither the division nor the difference can overflow.
    for value in values.iter().map(|value| value / unit as i64) {
        if value == before {
            zeros += 1;
            continue;
        }
        put_zeros(&mut out, &mut zeros);
        let delta = value - before;
        put_varint(&mut out, ((delta << 1) ^ (delta >> 63)) as u64);
        before = value;
    }
    put_zeros(&mut out, &mut zeros);
    out
}

fn put_zeros(out: &mut Vec<u8>, zeros: &mut u64) {
    if *zeros > 0 {
        out.push(0);
        put_varint(out, *zeros - 1);
        *zeros = 0;
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// RFC 4648 with padding, which `atob` and `Uint8Array.fromBase64` read.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            out.push(if digit <= group.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The steps of `assets/columns.js`, one by one.
    fn decode(text: &str) -> Vec<i64> {
        let bytes = decode_base64(text);
        let mut at = 0;
        let mut next = || {
            let (mut value, mut scale) = (0u64, 0);
            loop {
                let byte = bytes[at];
                at += 1;
                value |= u64::from(byte & 0x7f) << scale;
                scale += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        };
        let (unit, count) = (next() as i64, next());
        let mut values = Vec::new();
        let mut value = 0i64;
        while (values.len() as u64) < count {
            let token = next();
            if token == 0 {
                let run = next() + 1;
                values.extend((0..run).map(|_| value * unit));
                continue;
            }
            let half = (token >> 1) as i64;
            value += if token & 1 == 0 { half } else { -half - 1 };
            values.push(value * unit);
        }
        values
    }

    fn decode_base64(text: &str) -> Vec<u8> {
        let digit = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => 0,
        };
        let padding = text.bytes().rev().take_while(|&c| c == b'=').count();
        let mut out = Vec::new();
        for group in text.as_bytes().chunks(4) {
            let bits = group.iter().fold(0u32, |bits, &c| bits << 6 | u32::from(digit(c)));
            out.extend_from_slice(&bits.to_be_bytes()[1..]);
        }
        out.truncate(out.len() - padding);
        out
    }

    #[test]
    fn base64_agrees_with_the_vectors_of_rfc_4648() {
        for (plain, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn a_column_that_does_not_change_costs_a_few_bytes() {
        assert!(encode(&vec![7 << 30; 1_000_000]).len() < 16);
    }

    #[test]
    fn equal_columns_are_kept_once() {
        let mut columns = Columns::default();
        let (a, b, c) = (columns.add([1, 2, 3]), columns.add([1, 2, 3]), columns.add([1, 2]));
        assert_eq!((a == b, a == c, columns.texts().len()), (true, false, 2));
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(
            values in prop::collection::vec(prop_oneof![-4i64..4, 0i64..1 << 53, Just(1 << 53)], 0..200),
            unit in prop_oneof![Just(1i64), Just(512)],
        ) {
            let values: Vec<i64> = values.iter().map(|v| v / unit * unit).collect();
            prop_assert_eq!(decode(&base64(&encode(&values))), values);
        }
    }
}
