//! What one thread keeps: recently given back blocks by stream and size class.
//!
//! A thread works in a few streams, and mostly in one at a time, so the hit path looks at the bins of the stream used last and
//! at no other; a change of stream is a step aside ([`Bins::select`]). The block given back last goes out first, because its
//! bookkeeping is still in the processor's cache.
//!
//! Bounded in blocks a bin, streams and bytes. The last block may exceed the bytes, so that one block of any size can be kept,
//! and a loop that takes and gives back one huge block runs at full speed. A thread that has too much gives up the largest
//! blocks until it has half of what it may: the next time is then far away.
//!
//! Each bin knows how many of its blocks were never needed since somebody last looked. Those are surplus, and whoever is about
//! to ask the driver for more takes them first ([`Bins::take_surplus`]). A thread that is idle is emptied in this way by the
//! second look; one that goes up and down keeps what it goes down to nothing with.

use std::ptr::NonNull;

use super::bin::{Bin, Free, Tally};

/// The most blocks in one bin.
const BLOCKS_MAX: usize = 64;

/// The most streams with bins in one thread. One more, and the one unused for longest is emptied.
const STREAMS_MAX: usize = 16;

/// The name of no stream.
const NO_STREAM: u64 = u64::MAX;

/// The bins of one stream, owned.
#[derive(Debug)]
struct StreamBins<T> {
    /// The stream as this thread names it.
    name: u64,
    /// What tells the stream from all others, whoever asks.
    key: u64,
    /// By class. Out of a box, and back into it when dropped; a pointer, because `Bins` has another to the same.
    bins: NonNull<[Bin<T>]>,
    /// When it was last selected, by the clock of `Bins`.
    used_at: u64,
}

impl<T> StreamBins<T> {
    fn bins(&mut self) -> &mut [Bin<T>] {
        // SAFETY: it points to a box's content that lives as long as this; and the hit path, which has a pointer to it too,
        // needs `&mut Bins`, which is borrowed as long as this is.
        unsafe { self.bins.as_mut() }
    }

    fn shared(&self) -> &[Bin<T>] {
        // SAFETY: as above.
        unsafe { self.bins.as_ref() }
    }
}

impl<T> Drop for StreamBins<T> {
    fn drop(&mut self) {
        // SAFETY: it came out of a box in `prepare`, and goes back once.
        drop(unsafe { Box::from_raw(self.bins.as_ptr()) });
    }
}

/// All bins of one thread.
#[derive(Debug)]
pub(crate) struct Bins<T> {
    /// The stream used last: its name, its key, and the first of its bins.
    name: u64,
    key: u64,
    current: NonNull<Bin<T>>,
    streams: Vec<StreamBins<T>>,
    block_bytes: Box<[u64]>,
    bytes_held: u64,
    bytes_max: u64,
    /// Of bins that are no more, by class.
    former: Box<[Tally]>,
    /// Counts changes of the stream.
    clock: u64,
}

// SAFETY: the pointers are to the bins it owns, and to things that may be used from any thread.
unsafe impl<T: Send + Sync> Send for Bins<T> {}

impl<T> Bins<T> {
    /// No blocks, for classes of these sizes, with room for `bytes_max`. Without room nothing is ever kept.
    pub(crate) fn new(block_bytes: Box<[u64]>, bytes_max: u64) -> Self {
        let former = vec![Tally::default(); block_bytes.len()].into();
        Self {
            name: NO_STREAM,
            key: NO_STREAM,
            current: NonNull::dangling(),
            streams: Vec::new(),
            block_bytes,
            bytes_held: 0,
            bytes_max,
            former,
            clock: 0,
        }
    }

    /// A block of the stream used last, if that is the one called `name`, and of `class`; counted as handed out for a request
    /// of `requested_bytes`. With the size of the class.
    ///
    /// # Safety
    /// There is such a class.
    #[inline(always)]
    pub(crate) unsafe fn hand_out(
        &mut self,
        name: u64,
        class: usize,
        requested_bytes: u64,
    ) -> Option<(Free<T>, u64)> {
        if self.name != name {
            return None;
        }
        // SAFETY: with a name there are bins, one for each class.
        let bin = unsafe { self.current.add(class).as_mut() };
        let free = bin.pop()?;
        bin.tally.handed_out += 1;
        bin.tally.requested_bytes_out += requested_bytes;
        self.bytes_held -= bin.block_bytes;
        Some((free, bin.block_bytes))
    }

    /// Keeps a block, if the stream used last has this `key` and there is room; counted as given back from a request of
    /// `requested_bytes`. Returns the size of the class where it is kept.
    ///
    /// # Safety
    /// There is such a class.
    #[inline(always)]
    pub(crate) unsafe fn give_back(
        &mut self,
        key: u64,
        class: usize,
        free: Free<T>,
        requested_bytes: u64,
    ) -> Option<u64> {
        if self.key != key || self.bytes_held >= self.bytes_max {
            return None;
        }
        // SAFETY: with a key there are bins, one for each class.
        let bin = unsafe { self.current.add(class).as_mut() };
        if !bin.push(free) {
            return None;
        }
        bin.tally.given_back += 1;
        bin.tally.requested_bytes_back += requested_bytes;
        self.bytes_held += bin.block_bytes;
        Some(bin.block_bytes)
    }

    /// Makes the stream with this `key` the one used last, if it has bins here. Says whether.
    pub(crate) fn select(&mut self, key: u64) -> bool {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) else { return false };
        self.clock += 1;
        stream.used_at = self.clock;
        (self.name, self.key, self.current) = (stream.name, stream.key, stream.bins.cast());
        true
    }

    /// Makes the stream the one used last, with a bin for `class`. What must leave for it goes to `out`.
    pub(crate) fn prepare(
        &mut self,
        name: u64,
        key: u64,
        class: usize,
        out: &mut impl FnMut(usize, NonNull<T>),
    ) {
        if self.bytes_max == 0 {
            return;
        }
        if !self.select(key) {
            if self.streams.len() == STREAMS_MAX {
                let places = 0..self.streams.len();
                if let Some(oldest) = places.min_by_key(|place| self.streams[*place].used_at) {
                    let mut stream = self.streams.swap_remove(oldest);
                    self.bytes_held -= empty_and_count(&mut stream, &mut self.former, out);
                }
            }
            let bins: Box<[Bin<T>]> = self.block_bytes.iter().map(|bytes| Bin::new(*bytes)).collect();
            let bins = NonNull::from(Box::leak(bins));
            self.streams.push(StreamBins { name, key, bins, used_at: self.clock });
            self.select(key);
        }
        if let Some(bin) = self.bin(key, class).filter(|bin| bin.capacity() == 0) {
            bin.furnish(BLOCKS_MAX);
        }
    }

    fn bin(&mut self, key: u64, class: usize) -> Option<&mut Bin<T>> {
        self.streams.iter_mut().find(|stream| stream.key == key)?.bins().get_mut(class)
    }

    /// Keeps a block that was counted already, where its stream has a bin and there is room. Says whether.
    pub(crate) fn keep(&mut self, key: u64, class: usize, free: Free<T>) -> bool {
        if self.bytes_held >= self.bytes_max {
            return false;
        }
        let kept = self.bin(key, class).filter(|bin| bin.capacity() > 0).and_then(|bin| {
            let kept = bin.push(free);
            kept.then_some(bin.block_bytes)
        });
        self.bytes_held += kept.unwrap_or(0);
        kept.is_some()
    }

    /// Makes room: the older half of a full bin leaves; and where the thread has too much, the largest blocks until it has half
    /// of what it may.
    pub(crate) fn make_room(&mut self, key: u64, class: usize, out: &mut impl FnMut(usize, NonNull<T>)) {
        if let Some(bin) = self.bin(key, class).filter(|bin| bin.len() == bin.capacity()) {
            let half = bin.len().div_ceil(2);
            bin.take_oldest(half, |thing| out(class, thing));
            let bytes = half as u64 * bin.block_bytes;
            self.bytes_held -= bytes;
        }
        if self.bytes_held < self.bytes_max {
            return;
        }
        for class in (0..self.block_bytes.len()).rev() {
            for stream in &mut self.streams {
                let bin = &mut stream.bins()[class];
                let excess = self.bytes_held.saturating_sub(self.bytes_max / 2).div_ceil(bin.block_bytes);
                let count = bin.len().min(excess as usize);
                bin.take_oldest(count, |thing| out(class, thing));
                self.bytes_held -= count as u64 * bin.block_bytes;
            }
        }
    }

    /// Takes out what was not needed since the last look, of `class` or of all.
    pub(crate) fn take_surplus(&mut self, only: Option<usize>, out: &mut impl FnMut(usize, NonNull<T>)) {
        for stream in &mut self.streams {
            for (class, bin) in stream.bins().iter_mut().enumerate() {
                if only.is_none_or(|only| only == class) {
                    let count = bin.take_surplus(|thing| out(class, thing));
                    self.bytes_held -= count as u64 * bin.block_bytes;
                }
            }
        }
    }

    /// Takes out everything.
    pub(crate) fn take_all(&mut self, out: &mut impl FnMut(usize, NonNull<T>)) {
        for stream in &mut self.streams {
            for (class, bin) in stream.bins().iter_mut().enumerate() {
                bin.take_oldest(usize::MAX, |thing| out(class, thing));
            }
        }
        self.bytes_held = 0;
    }

    /// Takes out everything and forgets the streams: for a thread that ends.
    pub(crate) fn take_all_and_forget(&mut self, out: &mut impl FnMut(usize, NonNull<T>)) {
        (self.name, self.key, self.current) = (NO_STREAM, NO_STREAM, NonNull::dangling());
        for mut stream in self.streams.drain(..) {
            empty_and_count(&mut stream, &mut self.former, out);
        }
        self.bytes_held = 0;
    }

    /// What went through the bins of `class`.
    pub(crate) fn tally(&self, class: usize) -> Tally {
        let mut sum = self.former.get(class).copied().unwrap_or_default();
        let bins = self.streams.iter().filter_map(|stream| stream.shared().get(class));
        bins.for_each(|bin| sum.add(&bin.tally));
        sum
    }
}

/// Takes everything out of bins that are about to go, and keeps what went through them. Says how many bytes that was.
fn empty_and_count<T>(
    stream: &mut StreamBins<T>,
    former: &mut [Tally],
    out: &mut impl FnMut(usize, NonNull<T>),
) -> u64 {
    let mut bytes = 0;
    for (class, (bin, former)) in stream.bins().iter_mut().zip(former).enumerate() {
        bytes += bin.len() as u64 * bin.block_bytes;
        bin.take_oldest(usize::MAX, |thing| out(class, thing));
        former.add(&bin.tally);
    }
    bytes
}
