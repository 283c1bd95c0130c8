//! `alloctrace 1`: lines of text, most often gzipped.
//!
//! The first line is `# alloctrace 1 {json}` with what the recording allocator said of itself. Then one event a line,
//! in host order, with single spaces:
//! - `a ID BYTES STREAM T_US`: memory asked for
//! - `f ID STREAM T_US`: given back
//! - `c ID T_US`: only where other streams still used it: the moment it could really be reused
//!
//! The format has one device and no labels; [`write()`] says how much of a richer trace it had to leave out.

use std::io::{BufRead, Write};

use serde_json::{Map, Value};

use crate::error::{Format, Result, TraceError};
use crate::limits::Limits;
use crate::lines::{Line, Lines};
use crate::model::{Event, Reported, Trace, TraceHeader};
use crate::names::{LabelId, StreamId};

/// How the first line begins.
pub(crate) const MAGIC: &[u8] = b"# alloctrace 1 ";

/// The header key for [`TraceHeader::initial_events`], which the format itself does not know.
const INITIAL_EVENTS: &str = "initial_events";

/// Reads a trace from unpacked text.
///
/// ```
/// let text = b"# alloctrace 1 {\"name\": \"tiny\"}\na 0 4096 0 5\nf 0 0 9\n";
/// let trace = headwater_trace::alloctrace::read(&text[..], &Default::default())?;
/// assert_eq!((trace.header.name.as_str(), trace.events.len()), ("tiny", 2));
/// # Ok::<(), headwater_trace::TraceError>(())
/// ```
///
/// # Errors
/// The first line that is not as above, by its byte.
pub fn read(reader: impl BufRead, limits: &Limits) -> Result<Trace> {
    let mut lines = Lines::new(reader, Format::Alloctrace, limits);
    let Some(first) = lines.next()? else {
        let problem = "the file is empty";
        return Err(TraceError::malformed(Format::Alloctrace, 0, problem));
    };
    let mut trace = Trace { header: read_header(first)?, ..Trace::default() };
    while let Some(line) = lines.next()? {
        if trace.events.len() as u64 >= limits.events {
            let (format, what) = (Format::Alloctrace, "the number of events");
            return Err(TraceError::Limit { format, offset: line.offset, what, limit: limits.events });
        }
        let event = read_event(line, &mut trace)?;
        trace.events.push(event);
    }
    trace.header.initial_events = trace.header.initial_events.min(trace.events.len() as u64);
    Ok(trace)
}

fn read_header(line: Line<'_>) -> Result<TraceHeader> {
    let Some(json) = line.text.strip_prefix(MAGIC) else {
        return Err(line.error("the first line is not \"# alloctrace 1 {json}\""));
    };
    let bad_json = |error: serde_json::Error| {
        let offset = line.offset + MAGIC.len() as u64 + error.column().saturating_sub(1) as u64;
        TraceError::malformed(Format::Alloctrace, offset, format!("the header's JSON: {error}"))
    };
    let mut extra: Map<String, Value> = serde_json::from_slice(json).map_err(bad_json)?;
    let reported = Value::Object(extra.clone());
    let reported: Reported = serde_json::from_value(reported).map_err(bad_json)?;
    // What has a field of its own does not stay among the rest.
    if let Value::Object(known) = serde_json::to_value(&reported).map_err(bad_json)? {
        for key in known.keys() {
            extra.remove(key);
        }
    }
    let mut header = TraceHeader { source: Format::Alloctrace, reported, ..TraceHeader::default() };
    if let Some(Value::String(name)) = extra.get("name") {
        header.name.clone_from(name);
        extra.remove("name");
    }
    if let Some(initial) = extra.get(INITIAL_EVENTS).and_then(Value::as_u64) {
        header.initial_events = initial;
        extra.remove(INITIAL_EVENTS);
    }
    header.extra = extra;
    Ok(header)
}

fn read_event(line: Line<'_>, trace: &mut Trace) -> Result<Event> {
    let mut fields = line.fields(b' ');
    let (label, device) = (LabelId::NONE, 0);
    let mut stream = |raw: u64| -> Result<StreamId> { trace.names.stream(raw) };
    let kind = fields.text("an event")?;
    let event = match kind {
        b"a" => Event::Alloc {
            id: fields.number("an id")?,
            bytes: fields.number("a size in bytes")?,
            stream: stream(fields.number("a stream")?)?,
            t_us: fields.number("a time in microseconds")?,
            label,
            device,
        },
        b"f" => Event::Free {
            id: fields.number("an id")?,
            stream: stream(fields.number("a stream")?)?,
            t_us: fields.number("a time in microseconds")?,
            label,
            device,
        },
        b"c" => Event::Complete {
            id: fields.number("an id")?,
            t_us: fields.number("a time in microseconds")?,
            device,
        },
        _ => return Err(line.error_at(kind, "a, f or c")),
    };
    fields.end()?;
    Ok(event)
}

/// What a format had no place for, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Events of segments, failed requests and annotations, which were not written.
    pub events: u64,
    /// Events that were written without their label.
    pub labels: u64,
    /// Events that were written without saying that they are of another device than 0.
    pub devices: u64,
}

/// Writes a trace as plain text; wrap the sink in `flate2::write::GzEncoder` for the usual gzipped file.
///
/// # Errors
/// A sink that does not take the bytes, or an event that names a stream the table does not have.
pub fn write(trace: &Trace, mut sink: impl Write) -> Result<LeftOut> {
    let failed = TraceError::Write;
    let mut left_out = LeftOut::default();
    sink.write_all(MAGIC).map_err(failed)?;
    let header = serde_json::to_vec(&header_json(&trace.header)).map_err(|error| failed(error.into()))?;
    sink.write_all(&header).map_err(failed)?;
    sink.write_all(b"\n").map_err(failed)?;
    // Lines are gathered so that a sink without a buffer sees few writes.
    let mut lines = String::with_capacity(1 << 16);
    for event in &trace.events {
        let raw = match event.stream() {
            None => 0,
            Some(stream) => trace.names.stream_raw(stream).ok_or(TraceError::UnknownName {
                what: "stream",
                id: u64::from(stream.0),
                known: trace.names.streams().len() as u64,
            })?,
        };
        write_event(event, raw, &mut lines, &mut left_out);
        if lines.len() >= (1 << 16) - 128 {
            sink.write_all(lines.as_bytes()).map_err(failed)?;
            lines.clear();
        }
    }
    sink.write_all(lines.as_bytes()).and_then(|()| sink.flush()).map_err(failed)?;
    Ok(left_out)
}

fn header_json(header: &TraceHeader) -> Value {
    let mut json = header.extra.clone();
    json.insert("name".into(), header.name.clone().into());
    if header.initial_events > 0 {
        json.insert(INITIAL_EVENTS.into(), header.initial_events.into());
    }
    if let Ok(Value::Object(reported)) = serde_json::to_value(&header.reported) {
        json.extend(reported);
    }
    Value::Object(json)
}

fn write_event(event: &Event, stream: u64, lines: &mut String, left_out: &mut LeftOut) {
    use std::fmt::Write as _;
    // Writing to a string cannot fail.
    _ = match *event {
        Event::Alloc { id, bytes, t_us, .. } => writeln!(lines, "a {id} {bytes} {stream} {t_us}"),
        Event::Free { id, t_us, .. } => writeln!(lines, "f {id} {stream} {t_us}"),
        Event::Complete { id, t_us, .. } => writeln!(lines, "c {id} {t_us}"),
        _ => {
            left_out.events += 1;
            return;
        }
    };
    left_out.labels += u64::from(!event.label().is_none());
    left_out.devices += u64::from(event.device() != 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        read(text.as_bytes(), &Limits::default()).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_byte() {
        let head = "# alloctrace 1 {}\n";
        assert_eq!(error(""), "alloctrace: byte 0: the file is empty");
        assert_eq!(
            error(&format!("{head}a 0 1 0\n")),
            "alloctrace: byte 18: the line ends before a time in microseconds"
        );
        let message = "alloctrace: byte 22: expected a size in bytes, found \"x\"";
        assert_eq!(error(&format!("{head}a 0 x 0 1\n")), message);
        assert_eq!(error(&format!("{head}q 0\n")), "alloctrace: byte 18: expected a, f or c, found \"q\"");
        assert_eq!(
            error(&format!("{head}c 0 1 \n")),
            "alloctrace: byte 24: expected the end of the line, found \"\""
        );
        assert!(error("# alloctrace 1 {\"name\": }\n").starts_with("alloctrace: byte 24: the header's JSON"));
        assert!(error("# alloctrace 2 {}\n").contains("first line"));
    }

    #[test]
    fn too_many_events_are_a_limit() {
        let limits = Limits { events: 1, ..Limits::default() };
        let error = read(&b"# alloctrace 1 {}\na 0 1 0 0\na 1 1 0 0\n"[..], &limits).unwrap_err();
        assert!(matches!(error, TraceError::Limit { offset: 28, limit: 1, .. }), "{error}");
    }

    #[test]
    fn what_the_format_cannot_hold_is_counted() {
        let mut trace = Trace::new("rich");
        let (label, stream) = (trace.names.text("here").unwrap(), trace.names.stream(9).unwrap());
        trace.events.push(Event::Alloc { id: 0, bytes: 1, t_us: 0, label, stream, device: 2 });
        trace.events.push(Event::Annotation { label, t_us: 1, device: 0 });
        let mut text = Vec::new();
        assert_eq!(write(&trace, &mut text).unwrap(), LeftOut { events: 1, labels: 1, devices: 1 });
        assert_eq!(String::from_utf8(text).unwrap(), "# alloctrace 1 {\"name\":\"rich\"}\na 0 1 9 0\n");
    }
}
