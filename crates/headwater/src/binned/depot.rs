//! What all threads share of one class: free blocks by stream, blocks that wait for streams, and the class's segments.
//!
//! Plain data behind one lock a class: no driver call is made in here, and no thread slot is entered. Whoever takes blocks
//! out has them in hand until it puts them somewhere.
//!
//! A block lies in one of these places:
//! - *of a stream*: free for that stream at once. `unmarked` blocks came after the last event that was recorded in the
//!   stream, `marked` ones before; when the event has happened they are anybody's.
//! - *idle*: nothing on the device uses it. Free for every stream.
//! - *unrecorded*: given back with other users, for which no event has been recorded yet.
//! - *waiting*: as before, with an event for each user.
//! - *stuck*: used by a stream that nobody can ask any more. It serves nobody, but can go back to the driver, who waits for
//!   all work before it takes memory.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::looks::Looks;
use super::marks::Mark;
use super::segment::{Record, Segment};
use crate::thread_cache::StreamKey;

/// A block in hand, or in a place that has it in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block(pub(super) NonNull<Record>);

// SAFETY: a record may be used from any thread.
unsafe impl Send for Block {}

impl Deref for Block {
    type Target = Record;

    #[inline(always)]
    fn deref(&self) -> &Record {
        // SAFETY: records live as long as the pool, and blocks do not leave it.
        unsafe { self.0.as_ref() }
    }
}

/// A segment of this pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentRef(pub(super) NonNull<Segment>);

// SAFETY: all that changes in a segment is atomic.
unsafe impl Send for SegmentRef {}

impl Deref for SegmentRef {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        // SAFETY: bookkeeping lives as long as the pool.
        unsafe { self.0.as_ref() }
    }
}

/// Free blocks of one stream.
#[derive(Debug, Default)]
pub(super) struct StreamShelf {
    pub(super) unmarked: Vec<Block>,
    pub(super) marked: Vec<Block>,
    /// Recorded in the stream after the marked blocks were given back.
    pub(super) mark: Option<Mark>,
    /// The fewest blocks there were since another stream last looked: as many its own stream did not need.
    low_water: usize,
}

impl StreamShelf {
    fn len(&self) -> usize {
        self.unmarked.len() + self.marked.len()
    }
}

/// The streams that use a block beside its own.
pub(super) type Users = SmallVec<[StreamKey; 2]>;

/// Blocks with the same users, and an event for each of those.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) marks: SmallVec<[Mark; 2]>,
    pub(super) blocks: Vec<Block>,
}

/// A segment that is to go back to the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    pub(super) segment: SegmentRef,
    /// A thread is offering it to the driver now.
    pub(super) offered: bool,
}

/// Everything of one class.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pub(super) streams: BTreeMap<StreamKey, StreamShelf>,
    pub(super) idle: Vec<Block>,
    pub(super) unrecorded: Vec<(Block, Users)>,
    pub(super) waiting: VecDeque<Waiting>,
    stuck: Vec<Block>,
    /// Users of live blocks after the first, by address.
    pub(super) more_users: FxHashMap<u64, Users>,
    pub(super) segments: Vec<SegmentRef>,
    pub(super) owed: Vec<Owed>,
    /// What may be spent on searching threads and streams.
    pub(super) looks: Looks,
    /// Bookkeeping of segments that are gone, for the next.
    pub(super) retired: Vec<SegmentRef>,
}

impl Shelf {
    /// Puts a free block with its stream; `surplus` where its stream is known not to need it.
    pub(super) fn put(&mut self, block: Block, surplus: bool) {
        block.segment().count_free(true);
        let shelf = self.streams.entry(StreamKey(block.stream())).or_default();
        shelf.unmarked.push(block);
        shelf.low_water += usize::from(surplus);
    }

    /// Puts a block that nothing uses.
    pub(super) fn put_idle(&mut self, block: Block) {
        block.segment().count_free(true);
        self.idle.push(block);
    }

    /// Puts a block that serves nobody any more.
    pub(super) fn put_stuck(&mut self, block: Block) {
        block.segment().count_free(true);
        self.stuck.push(block);
    }

    /// Takes up to `count` blocks that `stream` may use at once: its own, then idle ones.
    pub(super) fn take(&mut self, stream: StreamKey, count: usize, out: &mut Vec<Block>) {
        self.looks.visit();
        if let Some(shelf) = self.streams.get_mut(&stream) {
            for list in [&mut shelf.unmarked, &mut shelf.marked] {
                let rest = count.saturating_sub(out.len());
                let from = list.len().saturating_sub(rest);
                out.extend(list.drain(from..));
            }
            shelf.low_water = shelf.low_water.min(shelf.len());
        }
        let rest = count.saturating_sub(out.len());
        let from = self.idle.len().saturating_sub(rest);
        out.extend(self.idle.drain(from..));
        out.iter().for_each(|block| block.segment().count_free(false));
    }

    /// Takes out free blocks of the first stream after `after` that has some to give and is not `except`: those that it did not
    /// need since the last look, or with `everything` all.
    ///
    /// Streams that take turns would otherwise take each other's blocks for ever and never have enough between them.
    pub(super) fn take_stream(
        &mut self,
        after: Option<StreamKey>,
        except: StreamKey,
        everything: bool,
    ) -> Option<(StreamKey, StreamShelf)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let others = self.streams.range_mut((from, Unbounded)).filter(|(key, _)| **key != except);
        for (key, shelf) in others {
            let count = if everything { shelf.len() } else { shelf.low_water };
            if count == 0 {
                shelf.low_water = shelf.len();
                continue;
            }
            let mut taken = StreamShelf { mark: shelf.mark.clone(), ..StreamShelf::default() };
            let marked = count.min(shelf.marked.len());
            taken.marked.extend(shelf.marked.drain(..marked));
            taken.unmarked.extend(shelf.unmarked.drain(..count - marked));
            shelf.low_water = shelf.len();
            taken.unmarked.iter().chain(&taken.marked).for_each(|block| block.segment().count_free(false));
            return Some((*key, taken));
        }
        None
    }

    /// Puts back what [`take_stream`](Self::take_stream) took, with the mark that covers what is marked of it.
    pub(super) fn put_stream(&mut self, key: StreamKey, back: StreamShelf) {
        back.unmarked.iter().chain(&back.marked).for_each(|block| block.segment().count_free(true));
        let shelf = self.streams.entry(key).or_default();
        shelf.low_water += back.len();
        shelf.unmarked.extend(back.unmarked);
        if shelf.marked.is_empty() {
            shelf.marked = back.marked;
            shelf.mark = back.mark;
        } else if shelf.mark == back.mark {
            shelf.marked.extend(back.marked);
        } else {
            // One mark is kept a stream. A later one covers these too.
            shelf.unmarked.extend(back.marked);
        }
    }

    /// Moves every segment whose blocks are all here to those that are owed to the driver.
    pub(super) fn owe_free_segments(&mut self) {
        if !self.segments.iter().any(|segment| segment.is_free()) {
            return;
        }
        let stays = |block: &Block| !block.segment().is_free();
        for shelf in self.streams.values_mut() {
            shelf.unmarked.retain(stays);
            shelf.marked.retain(stays);
        }
        self.streams.retain(|_, shelf| !shelf.unmarked.is_empty() || !shelf.marked.is_empty());
        self.idle.retain(stays);
        self.stuck.retain(stays);
        let owed = &mut self.owed;
        self.segments.retain(|segment| {
            let free = segment.is_free();
            if free {
                owed.push(Owed { segment: *segment, offered: false });
            }
            !free
        });
    }
}

/// The shelf of one class, and its lock. In cache lines of its own: threads that use different classes share nothing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Depot {
    shelf: Mutex<Shelf>,
    /// Requests of this class that needed the driver.
    pub(super) misses: AtomicU64,
}

impl Depot {
    pub(super) fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock()
    }

    pub(super) fn get_mut(&mut self) -> &mut Shelf {
        self.shelf.get_mut()
    }

    pub(super) fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }
}
