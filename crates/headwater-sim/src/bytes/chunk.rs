//! One chunk of content that is neither unwritten nor uniform, and the patterns of those that are.

use std::ops::Range;

use super::written::Written;

/// What a byte that was never written reads as.
pub(crate) const UNWRITTEN: u8 = 0xCD;

/// One chunk with bytes of its own. The last one of the memory may be shorter than the others.
#[derive(Clone, Debug)]
pub(super) struct Data {
    /// Holds [`UNWRITTEN`] wherever nothing is written.
    pub(super) bytes: Box<[u8]>,
    pub(super) written: Written,
}

impl Data {
    /// Nothing is written of `len` bytes.
    pub(super) fn unwritten(len: usize) -> Self {
        Self { bytes: vec![UNWRITTEN; len].into(), written: Written::none(len) }
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), written: Written::All }
    }

    pub(super) fn repeating(pattern: [u8; 4], len: usize) -> Self {
        let mut bytes = vec![0; len];
        repeat(&mut bytes, pattern);
        Self { bytes: bytes.into(), written: Written::All }
    }

    pub(super) fn host_bytes(&self) -> u64 {
        (size_of::<(u64, Self)>() + self.bytes.len()) as u64 + self.written.host_bytes()
    }

    pub(super) fn write(&mut self, inside: Range<usize>, part: &[u8]) {
        self.bytes[inside.clone()].copy_from_slice(part);
        self.written.set(inside);
    }

    /// Repeats `pattern` from the first byte of `inside` on.
    pub(super) fn fill(&mut self, inside: Range<usize>, pattern: [u8; 4]) {
        repeat(&mut self.bytes[inside.clone()], pattern);
        self.written.set(inside);
    }

    pub(super) fn erase(&mut self, inside: Range<usize>) {
        self.bytes[inside.clone()].fill(UNWRITTEN);
        self.written.clear(inside, self.bytes.len());
    }

    pub(super) fn is_unwritten(&self) -> bool {
        self.written.first_set(0..self.bytes.len()).is_none()
    }

    pub(super) fn add_words(&mut self, inside: Range<usize>, value: u32) {
        let Self { bytes, written } = self;
        let mut add = |run: Range<usize>| {
            let (words, _) = bytes[run].as_chunks_mut::<4>();
            for word in words {
                *word = u32::from_le_bytes(*word).wrapping_add(value).to_le_bytes();
            }
        };
        written.runs(inside).filter(|(is_written, _)| *is_written).for_each(|(_, run)| add(whole_words(run)));
    }

    pub(super) fn count_words_ne(&self, inside: Range<usize>, value: [u8; 4]) -> u64 {
        let words = inside.len() / 4;
        let equal_in = |run: Range<usize>| {
            let (words, _) = self.bytes[run].as_chunks::<4>();
            words.iter().filter(|word| **word == value).count()
        };
        let runs = self.written.runs(inside).filter(|(is_written, _)| *is_written);
        (words - runs.map(|(_, run)| equal_in(whole_words(run))).sum::<usize>()) as u64
    }
}

/// The aligned words inside a run of written bytes.
fn whole_words(run: Range<usize>) -> Range<usize> {
    let (start, end) = (run.start.next_multiple_of(4), run.end / 4 * 4);
    start..end.max(start)
}

/// The pattern as it appears `by` bytes further on.
pub(super) fn rotated(mut pattern: [u8; 4], by: u64) -> [u8; 4] {
    pattern.rotate_left((by % 4) as usize);
    pattern
}

pub(super) fn repeat(out: &mut [u8], pattern: [u8; 4]) {
    let (words, rest) = out.as_chunks_mut::<4>();
    words.fill(pattern);
    let len = rest.len();
    rest.copy_from_slice(&pattern[..len]);
}

/// The pattern that `bytes` repeat, if they do.
pub(super) fn repeated_pattern(bytes: &[u8]) -> Option<[u8; 4]> {
    let pattern = *bytes.first_chunk::<4>()?;
    (bytes[4..] == bytes[..bytes.len() - 4]).then_some(pattern)
}
