//! Streams as the allocator knows them: small numbers, with what is known to have finished in each.
//!
//! Time is counted in ticks, one a give-back: each is later than all marks taken before it. A block that was given back at tick
//! n is *finished* in its stream when an event recorded on that stream at a mark of n or later has been reached: the caller
//! queued all its work before giving the block back. So one number a stream, the mark of the latest event reached, answers the
//! question for every block of it. A stream's death is a tick of its own, because it too comes after work that no
//! earlier mark covers.
//!
//! A stream can die: its owner takes leave of it, or the thread of a per-thread default stream ends. Nothing is queued in it
//! any more, so its last mark is the tick of its death. A stream can also be *out of reach*: the driver does not know it, most
//! likely because it was destroyed without a word. Then nothing is certain but what a wait for the whole device proves.
//! [`Tag::ANY`] is where memory of either goes once it is finished: memory that nobody uses and that belongs to no stream.

use headwater_driver::Stream;
use rustc_hash::FxHashMap;

use crate::caching::threads::ThreadMark;

/// A stream's number in one allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tag(u32);

impl Tag {
    /// No stream: memory that every stream may use.
    pub(crate) const ANY: Self = Self(0);

    pub(crate) fn at(place: usize) -> Self {
        // Tags are made from u32 numbers, so places are in range.
        Self(place as u32)
    }

    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }
}

/// One stream.
#[derive(Clone, Debug)]
pub(crate) struct TaggedStream {
    pub(crate) stream: Stream,
    /// The thread, where the stream is a per-thread default one.
    pub(crate) thread: Option<ThreadMark>,
    /// Everything given back up to this tick is finished in it.
    finished_mark: u64,
    /// The tick at which it died.
    pub(crate) died_at: Option<u64>,
    /// Whether the driver did not know it when it was last named.
    pub(crate) is_lost: bool,
}

impl TaggedStream {
    /// Whether events can be recorded on it by the calling thread.
    pub(crate) fn is_within_reach(&self, thread: u64) -> bool {
        self.died_at.is_none() && self.thread.as_ref().is_none_or(|owner| owner.number == thread)
    }
}

/// All streams of one allocator.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    entries: Vec<Option<TaggedStream>>,
    by_name: FxHashMap<(Stream, u64), Tag>,
    vacant: Vec<Tag>,
    /// Everything given back up to this tick is finished in every stream: a plain free waited for the whole device.
    barrier_mark: u64,
}

impl Tags {
    /// The number of `stream` in the calling thread.
    pub(crate) fn intern(&mut self, stream: Stream) -> Tag {
        let thread = stream.is_per_thread_default().then(ThreadMark::current);
        let name = (stream, thread.as_ref().map_or(0, |thread| thread.number));
        if let Some(tag) = self.by_name.get(&name) {
            return *tag;
        }
        let entry = TaggedStream { stream, thread, finished_mark: 0, died_at: None, is_lost: false };
        let tag = self.vacant.pop().unwrap_or_else(|| {
            if self.entries.is_empty() {
                // The place of `Tag::ANY`.
                self.entries.push(None);
            }
            self.entries.push(None);
            Tag::at(self.entries.len() - 1)
        });
        self.entries[tag.place()] = Some(entry);
        self.by_name.insert(name, tag);
        tag
    }

    /// The number of `stream`, where the calling thread used it before.
    pub(crate) fn find(&self, stream: Stream) -> Option<Tag> {
        let thread = if stream.is_per_thread_default() { ThreadMark::current().number } else { 0 };
        self.by_name.get(&(stream, thread)).copied()
    }

    pub(crate) fn get(&self, tag: Tag) -> Option<&TaggedStream> {
        self.entries.get(tag.place())?.as_ref()
    }

    /// Whether what was given back at `tick` is finished in its stream.
    pub(crate) fn is_finished(&self, tag: Tag, tick: u64) -> bool {
        if tag == Tag::ANY || tick <= self.barrier_mark {
            return true;
        }
        self.get(tag).is_some_and(|entry| tick <= entry.finished_mark)
    }

    /// An event recorded at `mark` was reached.
    pub(crate) fn reached(&mut self, tag: Tag, mark: u64) {
        if let Some(Some(entry)) = self.entries.get_mut(tag.place()) {
            entry.finished_mark = entry.finished_mark.max(mark);
        }
    }

    /// The whole device was waited for, at `mark`.
    pub(crate) fn all_reached(&mut self, mark: u64) {
        self.barrier_mark = self.barrier_mark.max(mark);
    }

    /// The stream is gone. Its name may come to mean another stream.
    pub(crate) fn bury(&mut self, tag: Tag, tick: u64) {
        let Some(Some(entry)) = self.entries.get_mut(tag.place()) else { return };
        if entry.died_at.is_none() {
            entry.died_at = Some(tick);
            let name = (entry.stream, entry.thread.as_ref().map_or(0, |thread| thread.number));
            self.by_name.remove(&name);
        }
    }

    /// The tick that stands for `tick` in the stream: nothing happens in a dead stream after its death.
    pub(crate) fn tick_in(&self, tag: Tag, tick: u64) -> u64 {
        self.get(tag).and_then(|entry| entry.died_at).map_or(tick, |died_at| died_at.min(tick))
    }

    /// Whether the driver knew the stream when it was named.
    pub(crate) fn set_lost(&mut self, tag: Tag, is_lost: bool) {
        if let Some(Some(entry)) = self.entries.get_mut(tag.place()) {
            entry.is_lost = is_lost;
        }
    }

    /// Whether the stream has no use for memory given back at `tick` any more, and nobody else does either.
    pub(crate) fn is_ownerless(&self, tag: Tag, tick: u64) -> bool {
        let gone = self.get(tag).is_some_and(|entry| entry.died_at.is_some() || entry.is_lost);
        gone && self.is_finished(tag, tick)
    }

    /// Whether the stream is dead and all that was ever in it is finished.
    pub(crate) fn is_at_rest(&self, tag: Tag) -> bool {
        let died_at = self.get(tag).and_then(|entry| entry.died_at);
        died_at.is_some_and(|died_at| self.is_finished(tag, died_at))
    }

    /// The streams there are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Tag, &TaggedStream)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(place, entry)| entry.as_ref().map(|entry| (Tag::at(place), entry)))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Forgets the streams that `is_used` says nothing refers to. They get a number again when they are seen again.
    pub(crate) fn sweep(&mut self, is_used: impl Fn(Tag) -> bool) {
        for place in 1..self.entries.len() {
            let tag = Tag::at(place);
            if is_used(tag) {
                continue;
            }
            if let Some(entry) = self.entries[place].take() {
                let name = (entry.stream, entry.thread.as_ref().map_or(0, |thread| thread.number));
                if entry.died_at.is_none() {
                    self.by_name.remove(&name);
                }
                self.vacant.push(tag);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_driver::DeviceId;

    use super::*;

    const DEVICE: DeviceId = DeviceId(0);

    #[test]
    fn the_per_thread_stream_is_another_one_in_every_thread() {
        let mut tags = Tags::default();
        let stream = Stream::per_thread_default(DEVICE);
        let here = tags.intern(stream);
        assert_eq!(tags.intern(stream), here);
        let mut tags = std::thread::spawn(move || {
            let there = tags.intern(stream);
            assert_ne!(there, here);
            assert!(tags.get(here).is_some_and(|entry| !entry.is_within_reach(ThreadMark::current().number)));
            tags
        })
        .join()
        .unwrap();
        assert_eq!(tags.intern(stream), here);
    }

    #[test]
    fn a_reached_mark_finishes_what_was_given_back_before_it_in_its_stream_alone() {
        let mut tags = Tags::default();
        let (a, b) = (tags.intern(Stream::from_raw(DEVICE, 16)), tags.intern(Stream::from_raw(DEVICE, 32)));
        tags.reached(a, 5);
        assert!(tags.is_finished(a, 5) && !tags.is_finished(a, 6) && !tags.is_finished(b, 5));
        tags.all_reached(7);
        assert!(tags.is_finished(a, 7) && tags.is_finished(b, 7) && !tags.is_finished(b, 8));
    }

    #[test]
    fn a_dead_stream_comes_to_rest_at_its_last_mark_and_its_name_is_free() {
        let mut tags = Tags::default();
        let stream = Stream::from_raw(DEVICE, 16);
        let old = tags.intern(stream);
        tags.bury(old, 9);
        assert_eq!(tags.tick_in(old, 20), 9);
        assert!(!tags.is_at_rest(old));
        assert_ne!(tags.intern(stream), old);
        tags.reached(old, 9);
        assert!(tags.is_at_rest(old));
        tags.sweep(|tag| tag != old);
        assert_eq!(tags.intern(Stream::from_raw(DEVICE, 48)), old, "the number is used again");
    }
}
