//! Opening a trace file whatever its format: the content says what it is, not the name.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::error::{Format, Result, TraceError};
use crate::hwt::layout::MAGIC as HWT_MAGIC;
use crate::limits::Limits;
use crate::model::Trace;
use crate::snapshot::Snapshot;
use crate::unpack::{read_all, read_error, unpacked};
use crate::{alloctrace, hwt, rmm_csv};

/// Reads the trace in a file: `alloctrace 1`, a PyTorch snapshot, an RMM log or `.hwt`, gzipped or not.
///
/// ```no_run
/// let trace = headwater_trace::open("montecarlo.trace.gz")?;
/// println!("{}: {} events", trace.header.name, trace.events.len());
/// # Ok::<(), headwater_trace::TraceError>(())
/// ```
///
/// # Errors
/// A file that cannot be read, that is in no known format, or that is damaged; with the path and the byte.
pub fn open(path: impl AsRef<Path>) -> Result<Trace> {
    open_with(path, &Limits::default())
}

/// As [`open`], with other limits than the usual.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Trace> {
    let path = path.as_ref();
    let in_file = |error| TraceError::InFile { path: path.to_owned(), error: Box::new(error) };
    let cannot_open = |error| in_file(TraceError::Read { format: Format::Memory, offset: 0, error });
    let file = File::open(path).map_err(cannot_open)?;
    let length = file.metadata().map_err(cannot_open)?.len();
    let reader = BufReader::with_capacity(1 << 16, file);
    let mut trace = read_sized(reader, length, limits).map_err(in_file)?;
    if trace.header.name.is_empty() {
        trace.header.name = file_stem(path);
    }
    Ok(trace)
}

/// Reads a trace of any format from bytes, gzipped or not.
///
/// # Errors
/// As [`open`], without the path.
pub fn read(reader: impl BufRead, limits: &Limits) -> Result<Trace> {
    read_sized(reader, 0, limits)
}

/// `packed_bytes` is what the source is known to have, zero where it is not known.
fn read_sized(reader: impl BufRead, packed_bytes: u64, limits: &Limits) -> Result<Trace> {
    let unknown = |error| read_error(Format::Memory, 0, error);
    let mut reader = unpacked(reader, limits).map_err(unknown)?;
    let beginning = reader.fill_buf().map_err(unknown)?;
    match sniff(beginning) {
        Some(Format::Alloctrace) => alloctrace::read(reader, limits),
        Some(Format::RmmCsv) => rmm_csv::read(reader, limits),
        Some(Format::Hwt) => hwt::read(reader, limits),
        Some(Format::TorchSnapshot) => {
            let expected = usize::try_from(packed_bytes.min(limits.unpacked_bytes)).unwrap_or(0);
            let bytes = read_all(&mut *reader, expected, Format::TorchSnapshot)?;
            let snapshot = Snapshot::from_pickle(&bytes, limits)?;
            drop(bytes);
            snapshot.to_trace("")
        }
        _ => {
            let beginning = beginning.get(..16).unwrap_or(beginning).to_vec();
            Err(TraceError::UnknownFormat { beginning })
        }
    }
}

/// What content that begins so is. A pickle of protocol 2 or later begins with the opcode `PROTO`.
fn sniff(beginning: &[u8]) -> Option<Format> {
    if beginning.starts_with(b"# alloctrace ") {
        Some(Format::Alloctrace)
    } else if beginning.starts_with(&HWT_MAGIC) {
        Some(Format::Hwt)
    } else if beginning.starts_with(rmm_csv::HEADER) {
        Some(Format::RmmCsv)
    } else if matches!(beginning, [0x80, 2..=5, ..]) {
        Some(Format::TorchSnapshot)
    } else {
        None
    }
}

/// The file's name up to its first dot.
fn file_stem(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.split('.').find(|part| !part.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_decides_and_not_the_name() {
        let limits = Limits::default();
        let pickle = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]u.";
        assert_eq!(read(&pickle[..], &limits).unwrap().header.source, Format::TorchSnapshot);
        let text = b"# alloctrace 1 {}\n";
        assert_eq!(read(&text[..], &limits).unwrap().header.source, Format::Alloctrace);
        let error = read(&b"PK\x03\x04 something else"[..], &limits).unwrap_err();
        assert!(
            error.to_string().starts_with("not a trace in a known format: begins with PK\\x03"),
            "{error}"
        );
        assert!(matches!(read(&b""[..], &limits), Err(TraceError::UnknownFormat { .. })));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = open("no/such/file.trace.gz").unwrap_err();
        assert!(error.to_string().starts_with("no/such/file.trace.gz: "), "{error}");
    }
}
