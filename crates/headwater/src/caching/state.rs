//! What the lock protects: the core, what waits, and the history. No driver call is made in here.

use std::collections::VecDeque;

use headwater_driver::{DeviceId, DevicePtr, Event, Stream};
use smallvec::SmallVec;

use super::classic::release::Offer;
use super::classic::{BlockId, Tag, Wanted};
use super::core::Core;
use super::front::office::Office;
use super::history::{Action, History};
use super::paged::marks::Marks;
use super::threads::ThreadMark;
use super::uses::{Head, Sealing, Uses};
use crate::AllocError;
use crate::config::Config;

/// Streams are looked through for forgotten ones when there are this many, and again at twice what is left.
const SWEEP_MIN: usize = 64;

/// A pending block that is to be overwritten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) block: BlockId,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: u64,
    /// The block's own stream, where the calling thread can use it.
    pub(super) stream: Option<Stream>,
}

/// What is to be done after a give-back, without the lock: streams for which an event should be recorded at once (those that
/// the block waits for), and its own stream where others want its memory.
pub(super) type Due = (SmallVec<[Tag; 2]>, Option<Tag>);

/// Everything behind the lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) core: Core,
    pub(super) uses: Uses,
    pub(super) history: History,
    /// What streams have passed, as far as the paged backing asked.
    pub(super) marks: Marks,
    /// What thread caches need of the engine.
    pub(super) office: Office,
    device: DeviceId,
    /// Whether blocks are overwritten before they are free.
    fills: bool,
    /// Blocks whose uses have ended and that are to be overwritten.
    unfilled: VecDeque<BlockId>,
    sweep_at: usize,
}

impl State {
    pub(super) fn new(config: &Config, device: DeviceId, core: Core, office: Office) -> Self {
        Self {
            core,
            office,
            marks: Marks::default(),
            uses: Uses::default(),
            history: History::new(config.history_events()),
            device,
            fills: config.fill_on_free().byte().is_some(),
            unfilled: VecDeque::new(),
            sweep_at: SWEEP_MIN,
        }
    }

    pub(super) fn device(&self) -> DeviceId {
        self.device
    }

    /// Whether a call should look after pending blocks before it does its own work.
    pub(super) fn has_chores(&self) -> bool {
        !self.uses.is_quiet() || !self.unfilled.is_empty()
    }

    /// Whether an ordinary call leaves waiting blocks alone this time. PyTorch's rules ask at every call.
    pub(super) fn is_patient(&mut self) -> bool {
        self.core.paged().is_some() && self.marks.is_patient()
    }

    /// The number of `stream`. Good until the lock is let go: unused streams are forgotten.
    pub(super) fn tag_of(&mut self, stream: Stream) -> Tag {
        if self.core.tags().len() >= self.sweep_at && self.core.tags().find(stream).is_none() {
            let (uses, marks) = (&self.uses, &self.marks);
            self.core.sweep_tags(|tag| uses.refers_to(tag) || marks.refers_to(tag));
            self.sweep_at = SWEEP_MIN.max(2 * self.core.tags().len());
        }
        self.core.tags_mut().intern(stream)
    }

    /// Serves a request from free blocks of its stream.
    pub(super) fn take(&mut self, wanted: &Wanted, stream: Stream) -> Option<DevicePtr> {
        let tag = self.tag_of(stream);
        let ptr = self.core.take(wanted, tag)?;
        self.note_hit(ptr, wanted, stream);
        Some(ptr)
    }

    /// Serves a request from finished blocks of other streams.
    pub(super) fn take_finished(&mut self, wanted: &Wanted, stream: Stream) -> Option<DevicePtr> {
        let tag = self.tag_of(stream);
        let ptr = self.core.classic_mut()?.take_finished(wanted, tag)?;
        self.note_hit(ptr, wanted, stream);
        Some(ptr)
    }

    pub(super) fn note_hit(&mut self, ptr: DevicePtr, wanted: &Wanted, stream: Stream) {
        self.core.stats_mut().hits += 1;
        self.history.note(Action::Alloc, ptr, wanted.requested_bytes, stream);
    }

    /// Takes over a segment from the driver and serves the request it was made for.
    pub(super) fn admit(
        &mut self,
        base: DevicePtr,
        bytes: u64,
        wanted: &Wanted,
        stream: Stream,
    ) -> Option<DevicePtr> {
        let tag = self.tag_of(stream);
        let ptr = self.core.classic_mut()?.admit(base, bytes, wanted, tag);
        self.core.stats_mut().misses += 1;
        self.history.note(Action::SegmentAlloc, base, bytes, stream);
        self.history.note(Action::Alloc, ptr, wanted.requested_bytes, stream);
        Some(ptr)
    }

    /// Takes a block back that is live for the engine.
    pub(super) fn give_back(&mut self, ptr: DevicePtr) -> Result<Due, AllocError> {
        let id = self.core.give_back(ptr)?;
        let given_back = self.core.block(id).map(|block| (block.tag, block.bytes));
        let to_mark =
            given_back.filter(|(tag, bytes)| self.marks.given_back(*tag, *bytes)).map(|(tag, _)| tag);
        self.note_block(Action::FreeRequested, id);
        let mut to_record = SmallVec::new();
        let now = self.core.now();
        for tag in self.core.take_uses(id) {
            let dead = self.core.tags().get(tag).is_none_or(|entry| entry.died_at.is_some());
            if !dead {
                self.core.add_wait(id);
                if self.uses.wait(tag, id) {
                    to_record.push(tag);
                }
            } else if !self.core.tags().is_at_rest(tag) {
                self.core.add_wait(id);
                if !self.uses.wait_for_farewell(tag, id) {
                    self.core.lose_wait(id);
                    self.uses.lose(id, now);
                }
            }
        }
        if self.core.block(id).is_some_and(|block| block.waits == 0) {
            self.ready(id);
        }
        Ok((to_record, to_mark))
    }

    /// All waits of a pending block have ended.
    fn ready(&mut self, id: BlockId) {
        let filled = self.core.block(id).is_some_and(|block| block.filled);
        if self.fills && !filled {
            if !self.wait_for_own_stream(id) {
                self.unfilled.push_back(id);
            }
            return;
        }
        self.note_block(Action::FreeCompleted, id);
        self.core.free(id);
    }

    /// A block is overwritten in its own stream's order. Where that stream is gone it must have finished first: `id` waits for
    /// that, where it has not.
    fn wait_for_own_stream(&mut self, id: BlockId) -> bool {
        let Some(block) = self.core.block(id) else { return false };
        let (tag, tags) = (block.tag, self.core.tags());
        let gone = tags.get(tag).is_some_and(|entry| entry.died_at.is_some() || entry.is_lost);
        if !gone || tags.is_finished(tag, block.given_back_at) {
            return false;
        }
        self.core.add_wait(id);
        if !self.uses.wait_for_farewell(tag, id) {
            self.core.lose_wait(id);
            self.uses.lose(id, self.core.now());
        }
        true
    }

    /// The driver does not know the stream of a block that was to be overwritten in it.
    pub(super) fn own_stream_is_lost(&mut self, id: BlockId) {
        if let Some(tag) = self.core.block(id).map(|block| block.tag) {
            let sealing = self.uses.begin_sealing(tag, self.core.now());
            self.lose_waits(sealing);
        }
        self.ready(id);
    }

    fn note_block(&mut self, action: Action, id: BlockId) {
        if self.history.is_on()
            && let Some(block) = self.core.block(id)
        {
            let (ptr, bytes, tag) = (block.outer_ptr(), block.requested_bytes, block.tag);
            let stream = self.core.stream_of(tag, self.device);
            self.history.note(action, ptr, bytes, stream);
        }
    }

    /// Takes the blocks that wait for a stream out, to record an event for them. Nothing where the calling thread cannot
    /// record on it.
    pub(super) fn begin_sealing(&mut self, tag: Tag) -> Option<(Sealing, Stream)> {
        let entry = self.core.tags().get(tag)?;
        let stream = entry.stream;
        let within_reach = entry.thread.is_none() || entry.is_within_reach(ThreadMark::current().number);
        if entry.died_at.is_some() || !within_reach {
            return None;
        }
        Some((self.uses.begin_sealing(tag, self.core.now()), stream))
    }

    /// An event was recorded for the blocks. `farewell`: the stream's owner took leave, and it gets no work after it.
    pub(super) fn seal(&mut self, sealing: Sealing, event: Event, farewell: bool) {
        self.core.tags_mut().set_lost(sealing.tag, false);
        if farewell {
            self.core.tags_mut().bury(sealing.tag, sealing.mark);
        }
        self.uses.seal(sealing, event, farewell);
    }

    /// No event could be recorded this time. Where the stream has died meanwhile there is no other time.
    pub(super) fn reopen(&mut self, sealing: Sealing) {
        let dead = self.core.tags().get(sealing.tag).is_none_or(|entry| entry.died_at.is_some());
        if dead { self.lose_waits(sealing) } else { self.uses.reopen(sealing) }
    }

    /// An event turned out to be useless: the blocks that waited for it wait for another. Returns the event.
    pub(super) fn unseal(&mut self, head: &Head) -> Option<Event> {
        let batch = self.uses.finish(head)?;
        let mut sealing = self.uses.begin_sealing(head.tag, batch.mark);
        sealing.blocks.extend(batch.blocks);
        self.reopen(sealing);
        Some(batch.event)
    }

    /// The driver does not know the stream, and no event will tell when its work has finished.
    pub(super) fn lose_waits(&mut self, sealing: Sealing) {
        let tag = sealing.tag;
        self.core.tags_mut().set_lost(tag, true);
        let since = self.core.now();
        for block in self.uses.abandon(sealing) {
            self.core.lose_wait(block);
            self.uses.lose(block, since);
        }
        self.core.disown(tag);
    }

    /// The same, of a stream that surely gets no more work.
    pub(super) fn lose_dead_stream(&mut self, sealing: Sealing) {
        self.core.tags_mut().bury(sealing.tag, sealing.mark);
        self.lose_waits(sealing);
    }

    /// Gives up on events that no thread but another one could record: those blocks wait for the whole device. What
    /// belonged to threads that have ended is recovered the same way.
    pub(super) fn give_up_on_other_threads(&mut self) {
        let here = ThreadMark::current().number;
        let per_thread =
            self.core.tags().iter().filter_map(|(tag, entry)| Some((tag, entry.thread.clone()?)));
        let out_of_reach: Vec<_> = per_thread.filter(|(_, thread)| thread.number != here).collect();
        for (tag, thread) in out_of_reach {
            if thread.has_ended() {
                let mark = self.core.tick();
                let sealing = self.uses.begin_sealing(tag, mark);
                self.lose_dead_stream(sealing);
            } else if self.uses.refers_to(tag) {
                let since = self.core.now();
                let sealing = self.uses.begin_sealing(tag, since);
                for block in self.uses.abandon(sealing) {
                    self.core.lose_wait(block);
                    self.uses.lose(block, since);
                }
            }
        }
    }

    /// An event was reached: the blocks that waited for it go on. Returns how many there were.
    pub(super) fn reached(&mut self, head: &Head) -> usize {
        let Some(batch) = self.uses.finish(head) else { return 0 };
        self.uses.keep_event(batch.event);
        self.core.tags_mut().reached(head.tag, batch.mark);
        let blocks = batch.blocks.len();
        for block in batch.blocks {
            if self.core.end_wait(block) {
                self.ready(block);
            }
        }
        self.core.disown(head.tag);
        blocks
    }

    /// The driver took a segment, and in doing so waited for the whole device.
    pub(super) fn returned(&mut self, offer: &Offer) {
        self.note_segment_free(offer);
        let Some(core) = self.core.classic_mut() else { return };
        let gone = core.returned(offer);
        self.uses.forget_lost(&gone);
        self.unfilled.retain(|block| !gone.contains(block));
        self.device_was_waited_for(offer.mark);
    }

    /// All that was given back up to `mark` is finished, in every stream.
    pub(super) fn device_was_waited_for(&mut self, mark: u64) {
        self.core.tags_mut().all_reached(mark);
        for block in self.uses.end_lost(mark) {
            if self.core.end_lost_wait(block) {
                self.ready(block);
            }
        }
        let gone = self.core.tags().iter().filter(|(_, entry)| entry.died_at.is_some() || entry.is_lost);
        let gone: Vec<Tag> = gone.map(|(tag, _)| tag).collect();
        for tag in gone {
            self.core.disown(tag);
        }
    }

    fn note_segment_free(&mut self, offer: &Offer) {
        let stream = self.core.stream_of(offer.tag, self.device);
        self.history.note(Action::SegmentFree, offer.base(), offer.bytes, stream);
    }

    /// The next block to be overwritten.
    pub(super) fn next_fill(&mut self) -> Option<Fill> {
        for _ in 0..self.unfilled.len() {
            let id = self.unfilled.pop_front()?;
            if self.core.is_offered(id) {
                // Memory on its way to the driver must not be touched.
                self.unfilled.push_back(id);
                continue;
            }
            // Its stream may have gone since.
            if self.wait_for_own_stream(id) {
                continue;
            }
            let block = self.core.block(id)?;
            let here = ThreadMark::current().number;
            let entry = self.core.tags().get(block.tag);
            let entry = entry.filter(|entry| entry.is_within_reach(here) && !entry.is_lost);
            let stream = entry.map(|entry| entry.stream);
            return Some(Fill { block: id, ptr: DevicePtr::new(block.ptr), bytes: block.bytes, stream });
        }
        None
    }

    /// How many blocks are to be overwritten.
    pub(super) fn unfilled_blocks(&self) -> usize {
        self.unfilled.len()
    }

    /// The block is being overwritten in its own stream, ahead of whatever uses it next there.
    pub(super) fn filled(&mut self, id: BlockId) {
        self.core.set_filled(id);
        let tag = self.core.block(id).map_or(Tag::ANY, |block| block.tag);
        if self.core.tags().get(tag).is_some_and(|entry| entry.died_at.is_some()) {
            // The stream's owner took leave while this was on its way: its last event may have come before.
            self.core.add_wait(id);
            self.core.lose_wait(id);
            self.uses.lose(id, self.core.tick());
        } else {
            self.core.renew_give_back(id);
            self.ready(id);
        }
    }

    /// The block is being overwritten in another stream: it waits for that one. Says whether to record an event.
    #[must_use]
    pub(super) fn filled_elsewhere(&mut self, id: BlockId, stream: Stream) -> Option<Tag> {
        self.core.set_filled(id);
        self.core.add_wait(id);
        let tag = self.tag_of(stream);
        self.uses.wait(tag, id).then_some(tag)
    }

    /// The block could not be overwritten this time.
    pub(super) fn not_filled(&mut self, id: BlockId) {
        self.unfilled.push_back(id);
    }

    /// Whether what waits is exactly what the core has as waiting, for the walk.
    pub(super) fn waits_add_up(&self) -> bool {
        let waits = self.uses.waits();
        let waiting: u64 = self.core.blocks().iter().map(|block| u64::from(block.waits)).sum();
        let counted =
            |(id, count): (&BlockId, &u32)| self.core.block(*id).is_some_and(|block| block.waits == *count);
        waiting == waits.values().map(|count| u64::from(*count)).sum::<u64>() && waits.iter().all(counted)
    }
}
