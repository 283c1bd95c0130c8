//! The work, one kind a file.

mod capture;
mod cold;
mod mixed;
mod pair;
mod seeds;
mod streams;
mod threads;

use headwater_driver::{Driver, Stream, StreamOptions};

use crate::contestant::{BenchError, Contestant};
use crate::options::BenchOptions;
use crate::row::Row;

/// What every benchmark is given.
pub(crate) struct Ground<'a> {
    pub(crate) contestants: &'a [&'a Contestant],
    pub(crate) options: &'a BenchOptions,
    pub(crate) report: &'a mut dyn FnMut(Row),
}

type Bench = fn(&mut Ground<'_>) -> Result<(), BenchError>;

const ALL: [(&str, Bench); 9] = [
    ("pair", pair::run),
    ("mixed", mixed::run),
    ("threads", threads::run),
    ("record_stream", streams::record_stream),
    ("cross_stream", streams::cross_stream),
    ("miss", cold::miss),
    ("seed_001", seeds::pool_tables),
    ("seed_000", seeds::tensor_tables),
    ("capture", capture::run),
];

/// The names of the benchmarks, in the order in which they run. Some report rows under names that begin with theirs.
pub const BENCHES: [&str; ALL.len()] = {
    let (mut names, mut place) = ([""; ALL.len()], 0);
    while place < ALL.len() {
        names[place] = ALL[place].0;
        place += 1;
    }
    names
};

/// Runs the benchmarks that `options` names on all contestants, and tells `progress` of each row as it is there.
///
/// # Errors
/// The first thing that went wrong: an unknown name, an allocator or a device that refused.
pub fn run(
    contestants: &[Contestant],
    options: &BenchOptions,
    progress: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>, BenchError> {
    if let Some(name) = options.only.iter().find(|name| !BENCHES.contains(&name.as_str())) {
        return Err(BenchError::UnknownBench { name: name.clone(), known: BENCHES.join(", ") });
    }
    let mut rows = Vec::new();
    let mut report = |row: Row| {
        progress(&row);
        rows.push(row);
    };
    for (name, bench) in ALL {
        if options.only.is_empty() || options.only.iter().any(|only| only == name) {
            let contestants: Vec<&Contestant> =
                contestants.iter().filter(|contestant| contestant.takes_part_in(name)).collect();
            bench(&mut Ground { contestants: &contestants, options, report: &mut report })?;
        }
    }
    Ok(rows)
}

/// Streams of a benchmark's own, gone when it ends.
pub(crate) struct Streams<'a> {
    driver: &'a dyn Driver,
    streams: Vec<Stream>,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(
        allocator: &'a dyn headwater::Allocator,
        count: usize,
    ) -> Result<Self, headwater_driver::DriverError> {
        let driver: &dyn Driver = &**allocator.driver();
        let mut streams = Self { driver, streams: Vec::new() };
        for _ in 0..count {
            let options = StreamOptions { non_blocking: true, priority: 0 };
            streams.streams.push(driver.stream_create(allocator.device(), options)?);
        }
        Ok(streams)
    }

    pub(crate) fn get(&self, place: usize) -> Stream {
        self.streams[place % self.streams.len()]
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for stream in &self.streams {
            // The benchmark is over; a stream that cannot be destroyed changes no figure.
            let _ = self.driver.stream_destroy(*stream);
        }
    }
}

/// The same pseudo-random numbers on every machine (Knuth's linear congruential generator).
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    /// A size of 512 bytes to 16 MiB, every doubling as likely.
    pub(crate) fn size(&mut self) -> u64 {
        let magnitude = 512 << self.below(15);
        magnitude + self.below(magnitude)
    }
}
