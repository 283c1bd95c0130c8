//! What happens to a `.hwt` file whose writer or whose disk failed.

use std::io::{self, Write};

use super::*;
use crate::{Event, Format, LabelId, Limits, Names, StreamId, Trace, TraceError, TraceHeader};

fn sample(events: u64) -> Trace {
    let mut trace = Trace::new("sample");
    let stream = trace.names.stream(0x7fff_0000).unwrap();
    let frame = trace.names.frame("model.py", 7, "forward").unwrap();
    let label = trace.names.stack(&[frame]).unwrap();
    for id in 0..events {
        trace.events.push(Event::Alloc { id, bytes: 512 * id, t_us: 1_000 * id, label, stream, device: 0 });
        trace.events.push(Event::Free { id, t_us: 1_000 * id + 7, label, stream, device: 0 });
    }
    trace
}

fn without_source(mut trace: Trace) -> Trace {
    trace.header.source = Format::Memory;
    trace
}

#[test]
fn a_trace_of_many_blocks_comes_back_as_it_was() {
    let trace = sample(20_000);
    let file = write(&trace, Vec::new()).unwrap();
    assert!(file.len() > 3 * layout::BLOCK_TARGET_BYTES, "several blocks");
    assert_eq!(without_source(read(&file[..], &Limits::default()).unwrap()), trace);
}

#[test]
fn a_file_cut_anywhere_after_its_header_reads_up_to_the_last_whole_block() {
    let trace = sample(5);
    let mut ends = Vec::new();
    let mut writer = HwtWriter::new(Vec::new(), &trace.header).unwrap();
    for pair in trace.events.chunks(2) {
        pair.iter().for_each(|event| writer.push(event, &trace.names).unwrap());
        writer.flush().unwrap();
        ends.push(writer.events());
    }
    let file = writer.finish(&trace.header).unwrap();
    let header_end = layout::FILE_HEAD_BYTES + serde_json::to_vec(&trace.header).unwrap().len();
    let mut seen = Vec::new();
    for length in 0..file.len() {
        let result = read(&file[..length], &Limits::default());
        if length < header_end {
            assert!(matches!(result, Err(TraceError::Truncated { .. } | TraceError::Malformed { .. })));
            continue;
        }
        let cut = result.unwrap();
        assert!(cut.header.cut_at.is_some_and(|at| at as usize <= length));
        assert_eq!(cut.events, trace.events[..cut.events.len()]);
        seen.push(cut.events.len() as u64);
    }
    seen.dedup();
    assert_eq!(seen, [&[0][..], &ends].concat(), "every flush is a point of return");
    assert_eq!(read(&file[..], &Limits::default()).unwrap().header.cut_at, None);
}

#[test]
fn every_flipped_bit_is_found() {
    let trace = sample(3);
    let file = write(&trace, Vec::new()).unwrap();
    for bit in 0..file.len() * 8 {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let error = read(&damaged[..], &Limits::default()).expect_err("a damaged file");
        // Damage to the file's head shows in the header behind it.
        let latest = (bit / 8).max(layout::FILE_HEAD_BYTES) as u64;
        assert!(error.offset().is_some_and(|at| at <= latest), "{error} for bit {bit}");
    }
}

#[test]
fn an_event_of_a_name_the_table_lacks_is_refused_and_leaves_the_file_good() {
    let mut names = Names::default();
    let stream = names.stream(5).unwrap();
    let mut writer = HwtWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    let label = LabelId::NONE;
    let bad_stream = Event::Free { id: 0, t_us: 0, label, stream: StreamId(3), device: 0 };
    assert!(matches!(
        writer.push(&bad_stream, &names),
        Err(TraceError::UnknownName { what: "stream", id: 3, .. })
    ));
    let bad_label = Event::Annotation { label: LabelId(9), t_us: 0, device: 0 };
    assert!(matches!(
        writer.push(&bad_label, &names),
        Err(TraceError::UnknownName { what: "label", id: 9, .. })
    ));
    let good = Event::Oom { bytes: u64::MAX, free_bytes: 3, t_us: 0, label, stream, device: 255 };
    writer.push(&good, &names).unwrap();
    let file = writer.finish(&TraceHeader::default()).unwrap();
    assert_eq!(read(&file[..], &Limits::default()).unwrap().events, [good]);
}

/// Takes so many bytes, then fails for ever.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_a_failed_write_nothing_more_is_written() {
    let trace = sample(1);
    let mut writer = HwtWriter::new(Full(300), &trace.header).unwrap();
    writer.push(&trace.events[0], &trace.names).unwrap();
    writer.sink.0 = 10;
    assert!(matches!(writer.flush(), Err(TraceError::Write(_))));
    writer.sink.0 = 1_000;
    assert!(matches!(writer.push(&trace.events[1], &trace.names), Err(TraceError::Unwritable { .. })));
    assert!(writer.finish(&trace.header).is_err());
}

#[test]
fn limits_and_a_later_version_are_said() {
    let file = write(&sample(3), Vec::new()).unwrap();
    let few = Limits { events: 5, ..Limits::default() };
    assert!(matches!(read(&file[..], &few), Err(TraceError::Limit { limit: 5, .. })));
    let mut later = file.clone();
    later[8] = 2;
    let message = read(&later[..], &Limits::default()).unwrap_err().to_string();
    assert_eq!(message, "hwt: byte 8: version 2 of the format; this program reads version 1");
    let longer = [&file[..], b"x"].concat();
    assert!(
        read(&longer[..], &Limits::default()).unwrap_err().to_string().contains("bytes after the last block")
    );
}
