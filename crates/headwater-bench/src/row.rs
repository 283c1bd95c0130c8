//! One line of the result.

use std::fmt;

use serde::Serialize;

/// What one allocator did in one benchmark. Times are nanoseconds an operation, as the row's benchmark defines one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The benchmark.
    pub bench: String,
    /// The allocator; `malloc` is the C library's 64-byte malloc/free pair, measured in turns with the others.
    pub allocator: String,
    /// The size of a request; 0 where sizes are mixed.
    pub size: u64,
    /// How many threads worked.
    pub threads: usize,
    /// The mean of the best round: what the machine can do when nobody disturbs it.
    pub ns: f64,
    /// The mean over all rounds.
    pub mean: f64,
    /// The shortest single operation, the clock's own cost taken off. 0, as the percentiles, where single operations were
    /// not timed.
    pub min: f64,
    /// Half of the single operations were at most this.
    pub p50: f64,
    /// 99 of 100 were.
    pub p99: f64,
    /// 999 of 1000 were.
    pub p999: f64,
    /// Million operations a second, all threads together, in the best round.
    pub mops: f64,
}

impl Row {
    /// The names of the columns, in the order of [`cells`](Self::cells).
    pub const HEADINGS: [&'static str; 11] =
        ["bench", "allocator", "size", "threads", "ns", "mean", "min", "p50", "p99", "p99.9", "Mops/s"];

    /// The row as text for a table.
    pub fn cells(&self) -> [String; 11] {
        let number = |value: f64| if value == 0.0 { "-".to_owned() } else { format!("{value:.1}") };
        [
            self.bench.clone(),
            self.allocator.clone(),
            if self.size == 0 { "mixed".to_owned() } else { headwater::HumanBytes(self.size).to_string() },
            self.threads.to_string(),
            number(self.ns),
            number(self.mean),
            number(self.min),
            number(self.p50),
            number(self.p99),
            number(self.p999),
            if self.mops == 0.0 { "-".to_owned() } else { format!("{:.3}", self.mops) },
        ]
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bench, allocator, size, threads, ns, _, _, p50, p99, p999, mops] = self.cells();
        write!(
            f,
            "{bench:<22} {allocator:<10} {size:>10} x{threads:<3} {ns:>10} ns  p50 {p50:>8} p99 {p99:>8} p99.9 {p999:>8}  \
             {mops:>9} Mops/s"
        )
    }
}
