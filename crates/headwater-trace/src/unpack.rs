//! The bytes of a file, unpacked where it is gzipped, and never more of them than the limits allow.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use crate::error::{Format, Result, TraceError};
use crate::limits::Limits;

/// Below this many unpacked bytes the ratio is not looked at: tiny files of zeros are not attacks.
const RATIO_FREE_BYTES: u64 = 64 << 20;

/// How every gzip file begins.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The content of `packed`, bounded.
///
/// # Errors
/// When the first bytes cannot be read.
pub(crate) fn unpacked<'a>(
    mut packed: impl BufRead + 'a,
    limits: &Limits,
) -> io::Result<Box<dyn BufRead + 'a>> {
    let gzipped = packed.fill_buf()?.starts_with(&GZIP_MAGIC);
    let bytes_limit = limits.unpacked_bytes;
    if gzipped {
        let inner = MultiGzDecoder::new(Counted { inner: packed, bytes: 0 });
        let bounded = Unpacked { inner, bytes: 0, bytes_limit, ratio_limit: limits.unpack_ratio };
        Ok(Box::new(BufReader::with_capacity(1 << 16, bounded)))
    } else {
        Ok(Box::new(BufReader::with_capacity(1 << 16, Plain { inner: packed, bytes: 0, bytes_limit })))
    }
}

/// All that is left of `reader`, which has its own limit.
pub(crate) fn read_all(reader: &mut dyn BufRead, expected_bytes: usize, format: Format) -> Result<Vec<u8>> {
    let mut content = Vec::with_capacity(expected_bytes);
    match reader.read_to_end(&mut content) {
        Ok(_) => Ok(content),
        Err(error) => Err(read_error(format, content.len() as u64, error)),
    }
}

/// The error of a read as ours: a limit keeps its numbers, the end of a gzip file in its middle is a cut.
pub(crate) fn read_error(format: Format, offset: u64, error: io::Error) -> TraceError {
    let passed = error.get_ref().and_then(|inner| inner.downcast_ref::<LimitPassed>());
    match passed {
        Some(&LimitPassed { what, limit }) => TraceError::Limit { format, offset, what, limit },
        None => TraceError::Read { format, offset, error },
    }
}

/// Travels through `io::Error` from the reader to [`read_error`].
#[derive(Clone, Copy, Debug)]
struct LimitPassed {
    what: &'static str,
    limit: u64,
}

impl fmt::Display for LimitPassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} beyond the limit of {}", self.what, self.limit)
    }
}

impl std::error::Error for LimitPassed {}

impl LimitPassed {
    fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::FileTooLarge, self)
    }
}

/// Counts what the decoder has consumed.
#[derive(Debug)]
struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.bytes += length as u64;
        Ok(length)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.bytes += amount as u64;
        self.inner.consume(amount);
    }
}

#[derive(Debug)]
struct Unpacked<R> {
    inner: MultiGzDecoder<Counted<R>>,
    bytes: u64,
    bytes_limit: u64,
    ratio_limit: u64,
}

impl<R: BufRead> Read for Unpacked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.bytes += length as u64;
        if self.bytes > self.bytes_limit {
            return Err(LimitPassed { what: "the unpacked bytes", limit: self.bytes_limit }.into_io());
        }
        let packed_bytes = self.inner.get_ref().bytes;
        if self.bytes > RATIO_FREE_BYTES && self.bytes / packed_bytes.max(1) > self.ratio_limit {
            return Err(LimitPassed {
                what: "the ratio of unpacked to packed bytes",
                limit: self.ratio_limit,
            }
            .into_io());
        }
        Ok(length)
    }
}

#[derive(Debug)]
struct Plain<R> {
    inner: R,
    bytes: u64,
    bytes_limit: u64,
}

impl<R: BufRead> Read for Plain<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(into)?;
        self.bytes += length as u64;
        if self.bytes > self.bytes_limit {
            return Err(LimitPassed { what: "the bytes of the file", limit: self.bytes_limit }.into_io());
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn gzipped_zeros(bytes: usize) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&vec![0; bytes]).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_gzip_bomb_stops_at_the_ratio() {
        let packed = gzipped_zeros(80 << 20);
        let limits = Limits { unpack_ratio: 50, ..Limits::default() };
        let mut reader = unpacked(&packed[..], &limits).unwrap();
        let error = read_all(&mut *reader, 0, Format::Hwt).unwrap_err();
        assert!(
            matches!(error, TraceError::Limit { limit: 50, offset, .. } if offset >= 64 << 20),
            "{error}"
        );
    }

    #[test]
    fn more_bytes_than_allowed_are_not_read() {
        let limits = Limits { unpacked_bytes: 1000, ..Limits::default() };
        for content in [vec![1; 1001], gzipped_zeros(1001)] {
            let mut reader = unpacked(&content[..], &limits).unwrap();
            let error = read_all(&mut *reader, 0, Format::Hwt).unwrap_err();
            assert!(matches!(error, TraceError::Limit { limit: 1000, .. }), "{error}");
        }
    }
}
