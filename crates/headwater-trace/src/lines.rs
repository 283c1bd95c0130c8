//! Lines of a text format, one at a time, with the byte at which each begins.

use std::io::{BufRead, Read};

use crate::error::{Format, Result, TraceError};
use crate::limits::Limits;
use crate::unpack::read_error;

/// Reads lines no longer than a limit into one buffer that is used again.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    format: Format,
    limit_bytes: u64,
    buffer: Vec<u8>,
    /// Where the line after the one in `buffer` begins.
    next_offset: u64,
}

/// A line without its end, and where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) offset: u64,
    pub(crate) format: Format,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(reader: R, format: Format, limits: &Limits) -> Self {
        Self { reader, format, limit_bytes: limits.line_bytes, buffer: Vec::new(), next_offset: 0 }
    }

    /// The next line, or `None` after the last. The last line must end too: a file cut in the middle of a number would
    /// otherwise read as a smaller number.
    pub(crate) fn next(&mut self) -> Result<Option<Line<'_>>> {
        let (format, offset) = (self.format, self.next_offset);
        self.buffer.clear();
        let mut bounded = (&mut self.reader).take(self.limit_bytes);
        let length = match bounded.read_until(b'\n', &mut self.buffer) {
            Ok(length) => length as u64,
            Err(error) => return Err(read_error(format, offset + self.buffer.len() as u64, error)),
        };
        if length == 0 {
            return Ok(None);
        }
        self.next_offset = offset + length;
        let Some(text) = self.buffer.strip_suffix(b"\n") else {
            return Err(if length >= self.limit_bytes {
                TraceError::Limit { format, offset, what: "the length of a line", limit: self.limit_bytes }
            } else {
                let (what, needed_bytes) = ("a line and its end", length + 1);
                TraceError::Truncated { format, offset, what, needed_bytes, left_bytes: length }
            });
        };
        Ok(Some(Line { text: text.strip_suffix(b"\r").unwrap_or(text), offset, format }))
    }
}

impl<'a> Line<'a> {
    /// An error about this line.
    pub(crate) fn error(&self, problem: impl Into<String>) -> TraceError {
        TraceError::malformed(self.format, self.offset, problem)
    }

    /// An error about a part of this line.
    pub(crate) fn error_at(&self, part: &[u8], what: &str) -> TraceError {
        // The part is a subslice of the line: the difference of their addresses is its column.
        let column = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize) as u64;
        let shown = part.get(..part.len().min(40)).unwrap_or(part).escape_ascii();
        TraceError::malformed(
            self.format,
            self.offset + column,
            format!("expected {what}, found \"{shown}\""),
        )
    }

    /// The parts between separators.
    pub(crate) fn fields(&self, separator: u8) -> Fields<'a> {
        Fields { rest: Some(self.text), separator, line: *self }
    }
}

/// The parts of a line, in order.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
    line: Line<'a>,
}

impl<'a> Fields<'a> {
    pub(crate) fn text(&mut self, what: &str) -> Result<&'a [u8]> {
        let Some(rest) = self.rest else {
            return Err(self.line.error(format!("the line ends before {what}")));
        };
        let end = rest.iter().position(|&byte| byte == self.separator);
        let field = end.map_or(rest, |end| &rest[..end]);
        self.rest = end.map(|end| &rest[end + 1..]);
        Ok(field)
    }

    /// A decimal number.
    pub(crate) fn number(&mut self, what: &str) -> Result<u64> {
        let field = self.text(what)?;
        decimal(field).ok_or_else(|| self.line.error_at(field, what))
    }

    /// That nothing is left.
    pub(crate) fn end(&self) -> Result<()> {
        self.rest.map_or(Ok(()), |rest| Err(self.line.error_at(rest, "the end of the line")))
    }
}

/// The number these digits are, if they are digits and it fits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The number that `0x` and hexadecimal digits are.
pub(crate) fn hexadecimal(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"))?;
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        char::from(byte).to_digit(16).map(|digit| number << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_do_not_fit_are_not_numbers() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for wrong in [&b"18446744073709551616"[..], b"", b"-1", b"1 ", b"0x1", b"+1"] {
            assert_eq!(decimal(wrong), None);
        }
        assert_eq!(hexadecimal(b"0xffffffffffffffff"), Some(u64::MAX));
        assert_eq!(hexadecimal(b"0x10000000000000000"), None);
        assert_eq!(hexadecimal(b"ff"), None);
    }

    #[test]
    fn a_line_longer_than_the_limit_is_an_error_and_not_memory() {
        let limits = Limits { line_bytes: 8, ..Limits::default() };
        let mut lines = Lines::new(&b"short\n0123456789\n"[..], Format::Alloctrace, &limits);
        assert_eq!(lines.next().unwrap().unwrap().text, b"short");
        let error = lines.next().unwrap_err();
        assert!(matches!(error, TraceError::Limit { offset: 6, limit: 8, .. }), "{error}");
    }

    #[test]
    fn a_last_line_without_its_end_is_cut_short() {
        let mut lines = Lines::new(&b"a 1\na 1"[..], Format::Alloctrace, &Limits::default());
        lines.next().unwrap();
        assert!(matches!(lines.next(), Err(TraceError::Truncated { offset: 4, left_bytes: 3, .. })));
    }
}
