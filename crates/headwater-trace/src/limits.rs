//! How much a file may make us hold.

/// Limits a reader keeps to, whatever the file says.
///
/// All memory a reader takes is linear in the bytes it has really read: a length written in the file is compared with
/// what is left before anything is allocated for it. These limits cap the rest.
///
/// ```
/// use headwater_trace::Limits;
/// let small = Limits { events: 1_000, ..Limits::default() };
/// assert!(small.unpacked_bytes > 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes a file may have, after unpacking.
    pub unpacked_bytes: u64,
    /// How many times larger than its packed bytes a gzip file may become, beyond the first 64 MiB. Deflate reaches
    /// 1,032; the recorded traces are at 4, a pickle of one repeated event at about 40.
    pub unpack_ratio: u64,
    /// The most events a trace may have. An event takes 32 bytes.
    pub events: u64,
    /// The longest line of a text format.
    pub line_bytes: u64,
    /// The most containers that may be open at once in a pickle (its mark stack). CPython cannot write more than about
    /// 1,000; a snapshot has 6.
    pub pickle_depth: u64,
    /// The most values a pickle may build, counting each element of each container.
    pub pickle_values: u64,
    /// The longest string of a pickle.
    pub pickle_string_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unpacked_bytes: 16 << 30,
            unpack_ratio: 256,
            events: 1 << 28,
            line_bytes: 1 << 20,
            pickle_depth: 2_000,
            pickle_values: (1 << 32) - 2,
            pickle_string_bytes: 16 << 20,
        }
    }
}
