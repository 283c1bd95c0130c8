//! Which bytes of a chunk were ever written.

use std::ops::Range;

/// One bit a byte, or nothing at all once every byte was written, which is soon true of most chunks.
#[derive(Clone, Debug)]
pub(super) enum Written {
    All,
    /// Bits beyond the chunk's end are set, so that "all" is all ones. Never all ones: that is `All`.
    Some(Box<[u64]>),
}

impl Written {
    /// Nothing of `len` bytes is written.
    pub(super) fn none(len: usize) -> Self {
        let mut bits = vec![0; len.div_ceil(64)].into_boxed_slice();
        if let Some(last) = bits.last_mut().filter(|_| !len.is_multiple_of(64)) {
            *last = u64::MAX << (len % 64);
        }
        Self::Some(bits)
    }

    pub(super) fn set(&mut self, range: Range<usize>) {
        let Self::Some(bits) = self else { return };
        for (word, mask) in masks(range) {
            bits[word] |= mask;
        }
        if bits.iter().all(|word| *word == u64::MAX) {
            *self = Self::All;
        }
    }

    /// Clears bytes of a chunk of `len`.
    pub(super) fn clear(&mut self, range: Range<usize>, len: usize) {
        if range.is_empty() {
            return;
        }
        if let Self::All = self {
            *self = Self::Some(vec![u64::MAX; len.div_ceil(64)].into_boxed_slice());
        }
        if let Self::Some(bits) = self {
            for (word, mask) in masks(range) {
                bits[word] &= !mask;
            }
        }
    }

    /// The first byte of `range` that is not written.
    pub(super) fn first_clear(&self, range: Range<usize>) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Some(bits) => first_where(range, |word| !bits[word]),
        }
    }

    /// The first byte of `range` that is written.
    pub(super) fn first_set(&self, range: Range<usize>) -> Option<usize> {
        match self {
            Self::All => (!range.is_empty()).then_some(range.start),
            Self::Some(bits) => first_where(range, |word| bits[word]),
        }
    }

    /// `range` in runs of bytes that are all written, or all not.
    pub(super) fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (bool, Range<usize>)> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let rest = at..range.end;
            if rest.is_empty() {
                return None;
            }
            let is_written = self.first_set(at..at + 1).is_some();
            let end = if is_written { self.first_clear(rest) } else { self.first_set(rest) };
            let run = at..end.unwrap_or(range.end);
            at = run.end;
            Some((is_written, run))
        })
    }

    /// Host memory it takes.
    pub(super) fn host_bytes(&self) -> u64 {
        match self {
            Self::All => 0,
            Self::Some(bits) => size_of_val::<[u64]>(bits) as u64,
        }
    }
}

/// The words that hold `range`, each with a mask of the bits inside.
fn masks(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = if range.is_empty() { 0..0 } else { range.start / 64..range.end.div_ceil(64) };
    words.map(move |word| {
        let below = range.start.saturating_sub(word * 64);
        let above = ((word + 1) * 64).saturating_sub(range.end);
        (word, (u64::MAX << below) & (u64::MAX >> above))
    })
}

fn first_where(range: Range<usize>, bits: impl Fn(usize) -> u64) -> Option<usize> {
    masks(range).find_map(|(word, mask)| {
        let found = bits(word) & mask;
        (found != 0).then(|| word * 64 + found.trailing_zeros() as usize)
    })
}
