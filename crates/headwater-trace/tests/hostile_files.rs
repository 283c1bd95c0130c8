//! No file makes a reader panic or take more memory than the file is worth: valid files are damaged in 10,000 ways for
//! every reader, and every error that is about a place names it.
//!
//! The damage is drawn from a fixed seed, so that a failure repeats; proptest then adds damage of its own.
#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use headwater_trace::snapshot::Snapshot;
use headwater_trace::{Event, Limits, Trace, TraceError, alloctrace, hwt, read};
use proptest::prelude::*;

/// A number generator of one line (xorshift*): the tests need damage, not randomness.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }
}

fn damage(file: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..=dice.roll(3) {
        let at = dice.roll(file.len());
        let length = dice.roll(16).min(file.len() - at);
        match dice.roll(8) {
            0 => file.truncate(at),
            1 => file[at] ^= 1 << dice.roll(8),
            2 => file[at] = dice.roll(256) as u8,
            3 => _ = file.drain(at..at + length),
            4 => {
                let copied = file[at..at + length].to_vec();
                let to = dice.roll(file.len());
                file.splice(to..to, copied);
            }
            5 => file[at..at + length].fill(0xff),
            6 => file[at..at + length].fill(0),
            _ => file.insert(at, *b".(}]eutsa\x94hjX\x8d\x8b\x95,\n 9".get(dice.roll(20)).unwrap()),
        }
        if file.is_empty() {
            break;
        }
    }
    file
}

/// Reads damaged bytes; what comes out is a trace or an error that is about a place.
fn survives(file: &[u8]) -> bool {
    let limits = Limits { unpacked_bytes: 1 << 22, ..Limits::default() };
    match read(file, &limits) {
        Ok(trace) => {
            // Whatever was read can be looked at and written without a panic, too.
            _ = trace.check();
            assert!(trace.summary().events < 1 << 20);
            hwt::write(&trace, Vec::new()).unwrap();
            _ = Snapshot::from_trace(&trace);
            true
        }
        Err(error) => {
            let placeless = matches!(error, TraceError::TooManyNames { .. });
            assert!(error.offset().is_some() || placeless, "{error}");
            assert!(error.to_string().len() < 1_000, "{error}");
            false
        }
    }
}

fn sample() -> Trace {
    let mut trace = Trace::new("sample");
    let streams = [0, 0x7f00_1234].map(|raw| trace.names.stream(raw).unwrap());
    let frame = trace.names.frame("model.py", 3, "forward").unwrap();
    let labels = [trace.names.stack(&[frame, frame]).unwrap(), trace.names.text("weights").unwrap()];
    for id in 0..20u64 {
        let (stream, label, device) =
            (streams[id as usize % 2], labels[id as usize / 10], (id % 3 / 2) as u8);
        trace.events.push(Event::Alloc { id, bytes: 1 << id, t_us: 1000 + id, label, stream, device });
        if id % 3 != 1 {
            trace.events.push(Event::Free { id, t_us: 1000 + id, label, stream, device });
        }
    }
    trace
}

fn files() -> Vec<(&'static str, Vec<u8>)> {
    let trace = sample();
    let mut text = Vec::new();
    alloctrace::write(&trace, &mut text).unwrap();
    let mut gzipped = GzEncoder::new(Vec::new(), Compression::default());
    gzipped.write_all(&text).unwrap();
    let pickle = Snapshot::from_trace(&trace).unwrap().0.write(Vec::new()).unwrap();
    let mut rmm = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    for row in 0..20 {
        rmm += &format!(
            "{row},10:00:{row:02}.000{row:03},allocate,{:#x},{},0x2\n",
            4096 * (row % 5 + 1),
            row * 100
        );
        rmm +=
            &format!("{row},10:00:{row:02}.001{row:03},free,{:#x},{},0x2\n", 4096 * (row % 7 + 1), row * 100);
    }
    vec![
        ("alloctrace", text),
        ("gzip", gzipped.finish().unwrap()),
        ("snapshot", pickle),
        ("RMM log", rmm.into_bytes()),
        ("hwt", hwt::write(&trace, Vec::new()).unwrap()),
    ]
}

#[test]
fn ten_thousand_damaged_files_of_every_format_are_read_or_refused() {
    for (format, file) in files() {
        assert!(survives(&file), "{format}: the file itself is good");
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        let good = (0..10_000).filter(|_| survives(&damage(&file, &mut dice))).count();
        assert!(good < 10_000, "{format}: damage is noticed at least sometimes");
    }
}

#[test]
fn hwt_blocks_with_good_checksums_and_bad_content_are_read_or_refused() {
    let file = hwt::write(&sample(), Vec::new()).unwrap();
    // The head of the first block is where its kind is; its payload is damaged and both checksums made good again.
    let block = file.windows(4).position(|four| four == b"EVTS").unwrap();
    let length = u32::from_le_bytes(file[block + 4..block + 8].try_into().unwrap()) as usize;
    let crc = |bytes: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum().to_le_bytes()
    };
    let mut dice = Dice(7);
    for _ in 0..10_000 {
        let payload = damage(&file[block + 20..block + 20 + length], &mut dice);
        let mut damaged = file[..block + 20].to_vec();
        damaged[block + 4..block + 8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let payload_crc = crc(&payload);
        damaged[block + 12..block + 16].copy_from_slice(&payload_crc);
        let head_crc = crc(&damaged[block..block + 16]);
        damaged[block + 16..block + 20].copy_from_slice(&head_crc);
        damaged.extend(payload);
        damaged.extend_from_slice(&file[block + 20 + length..]);
        survives(&damaged);
    }
}

#[test]
fn a_file_cut_at_any_byte_is_read_or_refused() {
    for (format, file) in files() {
        for length in 0..file.len() {
            let whole = survives(&file[..length]);
            assert!(
                !whole || format != "snapshot" && format != "gzip",
                "{format}: cut at {length} and not noticed"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes_after_a_good_beginning_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), which in 0usize..5, keep in 0.0..1.0f64
    ) {
        let (_, file) = &files()[which];
        let kept = (file.len() as f64 * keep) as usize;
        survives(&[&file[..kept], &bytes].concat());
    }
}
