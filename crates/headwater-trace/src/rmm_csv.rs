//! The log of RMM's logging adaptor (`RMM_LOG_FILE`, or `rmm.reinitialize(logging=True)`).
//!
//! A CSV with the header `Thread,Time,Action,Pointer,Size,Stream` and rows such as
//! `25141,10:17:43.527212,allocate,0x7f2c40000000,1048576,0x2`. Actions are `allocate`, `allocate failure` (pointer
//! `(nil)`) and `free`. Older versions write `:` before the microseconds. Streams are hexadecimal handles; RMM's own
//! reader takes them for decimal numbers and so reads every one as 0.
//!
//! Three things need care:
//! - Allocations are known by address. A free of an address that is not live is of memory allocated before the log
//!   began: it becomes an initial allocation. An allocation at an address that is still live means that its free was
//!   not logged: one is put in front of it, and `implied_frees` in the header's `extra` counts it.
//! - Zero bytes are logged at `(nil)`, many at a time; they are given back last in, first out.
//! - Times are of day, without a date. A step back of more than half a day is midnight.
//!
//! The thread becomes the event's label (`thread 25141`): it is the only caller the log knows.

use std::collections::HashMap;
use std::io::BufRead;

use crate::error::{Format, Result, TraceError};
use crate::limits::Limits;
use crate::lines::{Line, Lines, decimal, hexadecimal};
use crate::model::{Event, Trace};
use crate::names::{LabelId, StreamId};

/// The first line.
pub(crate) const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream";

const DAY_US: u64 = 24 * 3600 * 1_000_000;

/// Reads a trace from unpacked text.
///
/// ```
/// let log = b"Thread,Time,Action,Pointer,Size,Stream\n\
///     7,10:00:00.000010,allocate,0x7f00,256,0x2\n\
///     7,10:00:00.000025,free,0x7f00,256,0x2\n";
/// let trace = headwater_trace::rmm_csv::read(&log[..], &Default::default())?;
/// assert_eq!((trace.events.len(), trace.names.streams()), (2, &[2][..]));
/// # Ok::<(), headwater_trace::TraceError>(())
/// ```
///
/// # Errors
/// The first row that is not as above, by its byte.
pub fn read(reader: impl BufRead, limits: &Limits) -> Result<Trace> {
    let mut lines = Lines::new(reader, Format::RmmCsv, limits);
    match lines.next()? {
        Some(line) if line.text == HEADER => {}
        _ => {
            let problem = format!("the first line is not \"{}\"", HEADER.escape_ascii());
            return Err(TraceError::malformed(Format::RmmCsv, 0, problem));
        }
    }
    let mut log = Log::default();
    log.trace.header.source = Format::RmmCsv;
    while let Some(line) = lines.next()? {
        // A row makes two events at most: one for it, and one it implies.
        if (log.trace.events.len() + log.initial.len()) as u64 + 2 > limits.events {
            let (format, what) = (Format::RmmCsv, "the number of events");
            return Err(TraceError::Limit { format, offset: line.offset, what, limit: limits.events });
        }
        if !line.text.is_empty() {
            log.row(line)?;
        }
    }
    Ok(log.finish())
}

#[derive(Debug, Default)]
struct Log {
    trace: Trace,
    /// By address: the id and the stream of what is live there.
    live: HashMap<u64, (u64, StreamId)>,
    /// Ids of live allocations of zero bytes, which all have no address.
    live_empty: Vec<u64>,
    initial: Vec<Event>,
    next_id: u64,
    implied_frees: u64,
    /// Midnights passed, in microseconds.
    days_us: u64,
    last_us: u64,
}

impl Log {
    fn row(&mut self, line: Line<'_>) -> Result<()> {
        let mut fields = line.fields(b',');
        let thread = fields.text("a thread")?;
        let time = fields.text("a time")?;
        let t_us = self.time_us(time).ok_or_else(|| line.error_at(time, "a time as HH:MM:SS.micros"))?;
        let action = fields.text("an action")?;
        let pointer = fields.text("a pointer")?;
        let address = if pointer == b"(nil)" || pointer == b"0" { Some(0) } else { hexadecimal(pointer) };
        let address = address.ok_or_else(|| line.error_at(pointer, "a pointer as 0x... or (nil)"))?;
        let bytes = fields.number("a size in bytes")?;
        let handle = fields.text("a stream")?;
        let raw = hexadecimal(handle).or_else(|| decimal(handle)).or((handle == b"(nil)").then_some(0));
        let raw = raw.ok_or_else(|| line.error_at(handle, "a stream"))?;
        fields.end()?;

        let stream = self.trace.names.stream(raw)?;
        let label = self.trace.names.text(&format!("thread {}", String::from_utf8_lossy(thread)))?;
        match action {
            b"allocate" => self.allocate(address, bytes, t_us, label, stream),
            b"free" => self.free(address, bytes, t_us, label, stream),
            b"allocate failure" => {
                self.trace.events.push(Event::Oom { bytes, free_bytes: 0, t_us, label, stream, device: 0 });
            }
            _ => return Err(line.error_at(action, "allocate, free or allocate failure")),
        }
        Ok(())
    }

    fn allocate(&mut self, address: u64, bytes: u64, t_us: u64, label: LabelId, stream: StreamId) {
        let id = self.new_id();
        if address == 0 {
            self.live_empty.push(id);
        } else if let Some((before, stream)) = self.live.insert(address, (id, stream)) {
            self.implied_frees += 1;
            let label = LabelId::NONE;
            self.trace.events.push(Event::Free { id: before, t_us, label, stream, device: 0 });
        }
        self.trace.events.push(Event::Alloc { id, bytes, t_us, label, stream, device: 0 });
    }

    fn free(&mut self, address: u64, bytes: u64, t_us: u64, label: LabelId, stream: StreamId) {
        let live =
            if address == 0 { self.live_empty.pop() } else { self.live.remove(&address).map(|(id, _)| id) };
        let id = live.unwrap_or_else(|| {
            let id = self.new_id();
            // The time is set when the first recorded event is known.
            self.initial.push(Event::Alloc { id, bytes, t_us: 0, label: LabelId::NONE, stream, device: 0 });
            id
        });
        self.trace.events.push(Event::Free { id, t_us, label, stream, device: 0 });
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// `HH:MM:SS.micros` or `HH:MM:SS:micros` in microseconds, days added.
    fn time_us(&mut self, text: &[u8]) -> Option<u64> {
        let mut parts = text.splitn(4, |&byte| byte == b':' || byte == b'.');
        let mut part = |limit: u64| decimal(parts.next()?).filter(|&number| number < limit);
        let (hours, minutes, seconds, micros) = (part(24)?, part(60)?, part(61)?, part(1_000_000)?);
        let of_day_us = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros;
        if self.last_us > of_day_us + DAY_US / 2 {
            self.days_us += DAY_US;
        }
        self.last_us = of_day_us;
        Some(self.days_us + of_day_us)
    }

    fn finish(mut self) -> Trace {
        let start_us = self.trace.events.first().map_or(0, Event::t_us);
        for event in &mut self.initial {
            if let Event::Alloc { t_us, .. } = event {
                *t_us = start_us;
            }
        }
        self.trace.header.initial_events = self.initial.len() as u64;
        if !self.initial.is_empty() {
            self.initial.append(&mut self.trace.events);
            self.trace.events = self.initial;
        }
        if self.implied_frees > 0 {
            self.trace.header.extra.insert("implied_frees".into(), self.implied_frees.into());
        }
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(rows: &str) -> Result<Trace> {
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}");
        read(text.as_bytes(), &Limits::default())
    }

    #[test]
    fn real_streams_failures_and_midnight_are_read() {
        let trace = log("1,23:59:59.999999,allocate,0xa0,8,0x55d0c0ffee00\n\
             2,00:00:00:000004,allocate failure,(nil),1099511627776,0x2\n\
             2,00:00:00:000005,free,0xa0,8,0x2\n")
        .unwrap();
        trace.check().unwrap();
        assert_eq!(trace.names.streams(), [0x55d0_c0ff_ee00, 2]);
        assert_eq!((trace.summary().ooms, trace.summary().duration_us), (1, 6));
        assert_eq!(trace.names.describe(trace.events[0].label()), "thread 1");
    }

    #[test]
    fn a_free_without_its_allocation_is_memory_from_before_the_log() {
        let trace = log("1,01:00:00.000007,allocate,0xb0,1,0\n1,01:00:00.000008,free,0xa0,64,0\n").unwrap();
        trace.check().unwrap();
        assert_eq!(trace.header.initial_events, 1);
        let Event::Alloc { bytes: 64, t_us, .. } = trace.events[0] else { panic!("{:?}", trace.events) };
        assert_eq!(t_us, 3_600_000_007);
    }

    #[test]
    fn an_address_given_out_twice_implies_a_free() {
        let trace =
            log("1,01:00:00.000007,allocate,0xb0,1,0\n1,01:00:00.000008,allocate,0xb0,2,0\n").unwrap();
        trace.check().unwrap();
        assert_eq!(trace.header.extra["implied_frees"], 1);
        assert_eq!(trace.summary().final_live_bytes, 2);
    }

    #[test]
    fn empty_allocations_share_no_address() {
        let rows = "1,01:00:00.000001,allocate,(nil),0,0\n1,01:00:00.000002,allocate,(nil),0,0\n\
             1,01:00:00.000003,free,(nil),0,0\n1,01:00:00.000004,free,(nil),0,0\n";
        let trace = log(rows).unwrap();
        trace.check().unwrap();
        assert_eq!((trace.summary().allocs, trace.summary().final_live), (2, 0));
    }

    #[test]
    fn errors_name_the_byte() {
        let message = |rows: &str| log(rows).unwrap_err().to_string();
        assert_eq!(
            message("1,1:2,allocate,0x1,1,0\n"),
            "RMM log: byte 41: expected a time as HH:MM:SS.micros, found \"1:2\""
        );
        let found = "expected allocate, free or allocate failure, found \"realloc\"";
        assert_eq!(message("1,01:02:03.4,realloc,0x1,1,0\n"), format!("RMM log: byte 52: {found}"));
        assert!(message("1,01:02:03.4,free,7f00,1,0\n").contains("byte 57: expected a pointer"));
        assert!(read(&b"Time,Thread\n"[..], &Limits::default()).is_err());
    }
}
