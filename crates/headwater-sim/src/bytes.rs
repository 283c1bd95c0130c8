//! The content of one piece of physical memory, sparse.
//!
//! A simulated H200 has 139 GiB; the host has not. So content is kept in chunks of 64 KiB, and only chunks whose bytes
//! differ take room: a chunk that was never written is absent, and a run of chunks that repeat one 32-bit pattern, which
//! is what a fill leaves behind, is one entry however long it is.
//!
//! Every byte also knows whether it was ever written, because reading one that was not is a mistake the device reports.
//! A copy carries that along: copied garbage is still garbage. Bytes that were not written read as [`UNWRITTEN`], not as
//! zero, so that a program that relies on them shows it.
//!
//! Where the host is to see device memory, content is a plain stretch of pages instead ([`visible`]).
//!
//! Ranges are checked by the machine before it comes here; one beyond the end is its mistake and stops the program.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

mod chunk;
mod visible;
mod written;

pub(crate) use chunk::UNWRITTEN;
use chunk::{Data, repeat, repeated_pattern, rotated};
use visible::HostPages;

/// A multiple of the pattern's four bytes, so that a pattern looks the same in every chunk.
const CHUNK_BYTES: u64 = 64 << 10;

/// The content of one piece of memory.
#[derive(Debug)]
pub(crate) struct Bytes {
    len: u64,
    /// The content, all of it, where the host is to see it; the maps are empty then.
    pages: Option<Box<HostPages>>,
    /// Runs by the number of their first chunk. They do not overlap; what is in neither map was never written.
    runs: BTreeMap<u64, Run>,
    /// Chunks with bytes of their own, by their number; none is in a run.
    data: BTreeMap<u64, Data>,
}

/// Chunks up to `end_chunk` that repeat `pattern`, which begins at a multiple of four.
#[derive(Clone, Copy, Debug)]
struct Run {
    end_chunk: u64,
    pattern: [u8; 4],
}

/// What is found from some offset on.
enum Content<'a> {
    Unwritten,
    /// The pattern as it appears from that offset on.
    Uniform([u8; 4]),
    Data(&'a Data, Range<usize>),
    /// What the host sees too.
    Pages(&'a [u8]),
}

impl Bytes {
    /// Memory of `len` bytes with nothing written.
    pub(crate) fn new(len: u64) -> Self {
        Self { len, pages: None, runs: BTreeMap::new(), data: BTreeMap::new() }
    }

    /// The same, for the host to see. Where the system gives no pages, the host does not see it.
    pub(crate) fn visible(len: u64) -> Self {
        Self { pages: HostPages::new(len).ok().map(Box::new), ..Self::new(len) }
    }

    /// The pages, where the host is to see them.
    pub(crate) fn pages(&self) -> Option<&HostPages> {
        self.pages.as_deref()
    }

    /// The same, to be shown and hidden.
    pub(crate) fn pages_mut(&mut self) -> Option<&mut HostPages> {
        self.pages.as_deref_mut()
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads from `offset` on, whether it was written or not.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = offset;
        let end = self.checked_end(offset, out.len() as u64);
        let mut out = out;
        while at < end {
            let (content, until) = self.content_at(at, end);
            let (part, rest) = out.split_at_mut((until - at) as usize);
            match content {
                Content::Unwritten => part.fill(UNWRITTEN),
                Content::Uniform(pattern) => repeat(part, pattern),
                Content::Data(data, inside) => part.copy_from_slice(&data.bytes[inside]),
                Content::Pages(bytes) => part.copy_from_slice(bytes),
            }
            out = rest;
            at = until;
        }
    }

    /// Writes `data` from `offset` on.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        if let Some(pages) = &mut self.pages {
            pages.bytes_mut()[offset as usize..][..data.len()].copy_from_slice(data);
            return;
        }
        let end = self.checked_end(offset, data.len() as u64);
        let mut rest = data;
        for (chunk, inside) in parts(offset..end) {
            let (part, after) = rest.split_at(inside.len());
            rest = after;
            if part.len() < self.chunk_len(chunk) {
                self.data_mut(chunk).write(inside, part);
            } else if let Some(pattern) = repeated_pattern(part) {
                self.set_uniform(chunk..chunk + 1, pattern);
            } else {
                self.remove_chunks(chunk..chunk + 1);
                self.data.insert(chunk, Data::of(part));
            }
        }
    }

    /// Repeats `pattern`, beginning with its first byte at `offset`, for `len` bytes.
    pub(crate) fn fill(&mut self, offset: u64, len: u64, pattern: [u8; 4]) {
        if let Some(pages) = &mut self.pages {
            return repeat(&mut pages.bytes_mut()[offset as usize..][..len as usize], pattern);
        }
        let end = self.checked_end(offset, len);
        let aligned = rotated(pattern, 4 - offset % 4);
        let (whole, edges) = self.whole_chunks(offset..end);
        for (chunk, inside) in edges.into_iter().flat_map(parts) {
            let here = rotated(aligned, inside.start as u64 % 4);
            self.data_mut(chunk).fill(inside, here);
        }
        self.set_uniform(whole, aligned);
    }

    /// Makes the range what it was at the beginning: not written.
    pub(crate) fn erase(&mut self, offset: u64, len: u64) {
        if self.pages.is_some() {
            // Every byte counts as written.
            return;
        }
        let end = self.checked_end(offset, len);
        let (whole, edges) = self.whole_chunks(offset..end);
        for (chunk, inside) in edges.into_iter().flat_map(parts) {
            let start = chunk * CHUNK_BYTES + inside.start as u64;
            if let (Content::Unwritten, _) = self.content_at(start, start + inside.len() as u64) {
                continue;
            }
            let data = self.data_mut(chunk);
            data.erase(inside);
            if data.is_unwritten() {
                self.data.remove(&chunk);
            }
        }
        self.remove_chunks(whole);
    }

    /// The offset of the first byte of the range that was never written.
    pub(crate) fn first_unwritten(&self, offset: u64, len: u64) -> Option<u64> {
        let mut at = offset;
        let end = self.checked_end(offset, len);
        while at < end {
            let (content, until) = self.content_at(at, end);
            match content {
                Content::Unwritten => return Some(at),
                Content::Uniform(_) | Content::Pages(_) => {}
                Content::Data(data, inside) => {
                    let start = inside.start;
                    if let Some(found) = data.written.first_clear(inside) {
                        return Some(at + (found - start) as u64);
                    }
                }
            }
            at = until;
        }
        None
    }

    /// Adds `value` to `words` little-endian words, wrapping. `offset` is a multiple of four. A word that is not wholly
    /// written stays as it is: garbage plus something is garbage.
    pub(crate) fn add_words(&mut self, offset: u64, words: u64, value: u32) {
        if let Some(pages) = &mut self.pages {
            let (words, _) = pages.bytes_mut()[offset as usize..][..words as usize * 4].as_chunks_mut::<4>();
            let sum = |word: [u8; 4]| u32::from_le_bytes(word).wrapping_add(value).to_le_bytes();
            return words.iter_mut().for_each(|word| *word = sum(*word));
        }
        let mut at = offset;
        let end = self.checked_words_end(offset, words);
        while at < end {
            let (content, until) = self.content_at(at, end);
            match content {
                Content::Unwritten => {}
                Content::Uniform(pattern) => {
                    let sum = u32::from_le_bytes(pattern).wrapping_add(value);
                    self.fill(at, until - at, sum.to_le_bytes());
                }
                Content::Data(_, inside) => self.data_mut(at / CHUNK_BYTES).add_words(inside, value),
                // Not come here: see above.
                Content::Pages(_) => {}
            }
            at = until;
        }
    }

    /// How many of `words` little-endian words are not `value`. `offset` is a multiple of four. A word that is not wholly
    /// written is different from every value.
    pub(crate) fn count_words_ne(&self, offset: u64, words: u64, value: u32) -> u64 {
        let mut at = offset;
        let end = self.checked_words_end(offset, words);
        let mut different = 0;
        while at < end {
            let (content, until) = self.content_at(at, end);
            different += match content {
                Content::Unwritten => (until - at) / 4,
                Content::Uniform(pattern) if pattern == value.to_le_bytes() => 0,
                Content::Uniform(_) => (until - at) / 4,
                Content::Data(data, inside) => data.count_words_ne(inside, value.to_le_bytes()),
                Content::Pages(bytes) => {
                    bytes.as_chunks::<4>().0.iter().filter(|word| **word != value.to_le_bytes()).count()
                        as u64
                }
            };
            at = until;
        }
        different
    }

    /// Copies a range of `other` here, with what is not written in it.
    pub(crate) fn copy_from(&mut self, other: &Bytes, src_offset: u64, dst_offset: u64, len: u64) {
        self.checked_end(dst_offset, len);
        let mut at = src_offset;
        let end = other.checked_end(src_offset, len);
        while at < end {
            let (content, until) = other.content_at(at, end);
            self.store(dst_offset + (at - src_offset), until - at, content);
            at = until;
        }
    }

    /// The same within one piece of memory. Ranges that overlap give no certain result, as on the device.
    pub(crate) fn copy_within(&mut self, src_offset: u64, dst_offset: u64, len: u64) {
        self.checked_end(dst_offset, len);
        let mut at = src_offset;
        let end = self.checked_end(src_offset, len);
        while at < end {
            let (content, until) = self.content_at(at, end);
            let dst = dst_offset + (at - src_offset);
            match content {
                Content::Unwritten => self.erase(dst, until - at),
                Content::Uniform(pattern) => self.fill(dst, until - at, pattern),
                Content::Data(data, inside) => {
                    let data = data.clone();
                    self.store(dst, until - at, Content::Data(&data, inside));
                }
                Content::Pages(bytes) => {
                    let copied = bytes.to_vec();
                    self.write(dst, &copied);
                }
            }
            at = until;
        }
    }

    /// Host memory the content takes, but for the maps' own.
    pub(crate) fn host_bytes(&self) -> u64 {
        let runs = self.runs.len() * size_of::<(u64, Run)>();
        runs as u64 + self.data.values().map(Data::host_bytes).sum::<u64>()
    }

    fn store(&mut self, offset: u64, len: u64, content: Content<'_>) {
        match content {
            Content::Unwritten => self.erase(offset, len),
            Content::Uniform(pattern) => self.fill(offset, len, pattern),
            Content::Data(data, inside) => {
                let from = inside.start;
                for (is_written, run) in data.written.runs(inside) {
                    let at = offset + (run.start - from) as u64;
                    if is_written {
                        self.write(at, &data.bytes[run]);
                    } else {
                        self.erase(at, run.len() as u64);
                    }
                }
            }
            Content::Pages(bytes) => self.write(offset, bytes),
        }
    }

    /// What is at `at`, and how far that goes, `end` at most.
    fn content_at(&self, at: u64, end: u64) -> (Content<'_>, u64) {
        if let Some(pages) = &self.pages {
            return (Content::Pages(&pages.bytes()[at as usize..end as usize]), end);
        }
        let chunk = at / CHUNK_BYTES;
        if let Some(data) = self.data.get(&chunk) {
            let start = chunk * CHUNK_BYTES;
            let until = end.min(start + CHUNK_BYTES);
            return (Content::Data(data, (at - start) as usize..(until - start) as usize), until);
        }
        if let Some(run) = self.run_of(chunk) {
            return (Content::Uniform(rotated(run.pattern, at % 4)), end.min(run.end_chunk * CHUNK_BYTES));
        }
        let next_run = self.runs.range(chunk..).next().map(|(first, _)| *first);
        let next_data = self.data.range(chunk..).next().map(|(next, _)| *next);
        let next = next_run.into_iter().chain(next_data).min();
        (Content::Unwritten, next.map_or(end, |next| end.min(next * CHUNK_BYTES)))
    }

    fn run_of(&self, chunk: u64) -> Option<Run> {
        let (_, run) = self.runs.range(..=chunk).next_back()?;
        (chunk < run.end_chunk).then_some(*run)
    }

    /// The chunk as bytes of its own, whatever it was.
    fn data_mut(&mut self, chunk: u64) -> &mut Data {
        let len = self.chunk_len(chunk);
        let run = self.run_of(chunk);
        if run.is_some() {
            // Cuts the chunk out of its run.
            self.remove_chunks(chunk..chunk + 1);
        }
        self.data.entry(chunk).or_insert_with(|| match run {
            Some(run) => Data::repeating(run.pattern, len),
            None => Data::unwritten(len),
        })
    }

    fn set_uniform(&mut self, chunks: Range<u64>, pattern: [u8; 4]) {
        if chunks.is_empty() {
            return;
        }
        if let Some((_, run)) = self.runs.range(..=chunks.start).next_back()
            && run.end_chunk >= chunks.end
            && run.pattern == pattern
        {
            return;
        }
        self.remove_chunks(chunks.clone());
        let Range { mut start, end: mut end_chunk } = chunks;
        // Joined with runs of the same pattern on both sides: fills one after the other stay one entry.
        if let Some((&before, run)) = self.runs.range(..start).next_back()
            && (run.end_chunk, run.pattern) == (start, pattern)
        {
            start = before;
        }
        if let Some(&run) = self.runs.get(&end_chunk)
            && run.pattern == pattern
        {
            self.runs.remove(&end_chunk);
            end_chunk = run.end_chunk;
        }
        self.runs.insert(start, Run { end_chunk, pattern });
    }

    fn remove_chunks(&mut self, chunks: Range<u64>) {
        if chunks.is_empty() {
            return;
        }
        self.split_run(chunks.start);
        self.split_run(chunks.end);
        while let Some((&first, _)) = self.runs.range(chunks.clone()).next() {
            self.runs.remove(&first);
        }
        while let Some((&chunk, _)) = self.data.range(chunks.clone()).next() {
            self.data.remove(&chunk);
        }
    }

    /// Makes `chunk` the beginning of a run where it is inside one.
    fn split_run(&mut self, chunk: u64) {
        let Some((_, run)) = self.runs.range_mut(..chunk).next_back() else { return };
        if chunk < run.end_chunk {
            let after = *run;
            run.end_chunk = chunk;
            self.runs.insert(chunk, after);
        }
    }

    /// The chunks wholly inside `range`, and the one or two ranges that remain beside them.
    fn whole_chunks(&self, range: Range<u64>) -> (Range<u64>, SmallVec<[Range<u64>; 2]>) {
        let first = range.start.div_ceil(CHUNK_BYTES);
        // The memory's last chunk ends with the memory.
        let end =
            if range.end == self.len { range.end.div_ceil(CHUNK_BYTES) } else { range.end / CHUNK_BYTES };
        if range.is_empty() {
            (0..0, SmallVec::new())
        } else if first >= end {
            (0..0, SmallVec::from_iter([range]))
        } else {
            (
                first..end,
                SmallVec::from_iter([range.start..first * CHUNK_BYTES, end * CHUNK_BYTES..range.end]),
            )
        }
    }

    fn chunk_len(&self, chunk: u64) -> usize {
        (self.len - chunk * CHUNK_BYTES).min(CHUNK_BYTES) as usize
    }

    fn checked_end(&self, offset: u64, len: u64) -> u64 {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        assert!(end.is_some(), "{len} bytes at {offset} of a memory of {} bytes", self.len);
        end.unwrap_or(self.len)
    }

    fn checked_words_end(&self, offset: u64, words: u64) -> u64 {
        assert!(offset.is_multiple_of(4), "words at offset {offset}, which is no multiple of 4");
        self.checked_end(offset, words.saturating_mul(4))
    }
}

/// `range` chunk by chunk: the chunk's number, and what of it is meant.
fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let chunk = at / CHUNK_BYTES;
        let start = chunk * CHUNK_BYTES;
        let until = range.end.min(start + CHUNK_BYTES);
        let inside = (at - start) as usize..(until - start) as usize;
        at = until;
        Some((chunk, inside))
    })
}

#[cfg(test)]
mod tests;
