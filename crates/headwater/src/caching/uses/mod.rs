//! Pending give-backs: who waits for which stream, and which event will tell.
//!
//! A block that other streams use is given back before they have finished with it. It then waits, once for each such
//! stream, in that stream's queue. A queue has two parts:
//! - *open*: blocks that wait for the stream and have no event yet;
//! - *sealed*: batches of blocks, each with an event that was recorded after all of them were given back, oldest first.
//!
//! **One event serves a batch.** An event marks the present end of its stream, so it covers the uses of every block that was
//! given back before it was recorded, however many they are; an event of its own for each would tell nothing more. A give-back
//! records an event at once where its stream has none on the way: a single block is free as early as it can be. While one is on the
//! way, blocks gather; the next request (or every 32nd block) seals them with one event. Recording late is always safe and
//! costs at most that the work queued in between is waited for as well. An event is never shared between streams, and never
//! moved while a batch waits for it.
//!
//! **Streams do not hold each other up.** Each queue is asked about its oldest batch only, and each for itself: a stream with
//! long work keeps its own blocks waiting and nobody else's. A call asks a bounded number of queues and goes on from there
//! the next time.
//!
//! **What no event can answer is lost, not forgotten.** Of a stream that its owner destroyed, or of another thread's default
//! stream, no event can be had. Its work finishes all the same, but nothing says when, except a plain free: the driver waits for
//! the whole device in it. So lost waits end with the next segment that goes back to the driver after the give-back; and a
//! segment in which only lost waits are left can itself go.
//!
//! Everything here is bookkeeping. The driver calls are in `chores.rs`, and made without the lock.

use std::collections::{BTreeMap, VecDeque};

use headwater_driver::Event;

use super::classic::{BlockId, Tag};

/// So many blocks gather at most before an event is recorded for them.
const GATHER_MAX: usize = 32;

/// Blocks that wait for one event.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Rising in the order of sealing, over all streams.
    pub(crate) number: u64,
    pub(crate) event: Event,
    /// The time that the event covers.
    pub(crate) mark: u64,
    pub(crate) blocks: Vec<BlockId>,
    /// Whether nothing is queued in the stream after it.
    farewell: bool,
}

/// A batch that is being sealed: taken out of its queue while the driver records the event.
#[derive(Debug)]
pub(crate) struct Sealing {
    pub(crate) tag: Tag,
    pub(crate) mark: u64,
    pub(crate) blocks: Vec<BlockId>,
}

/// The oldest batch of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) tag: Tag,
    pub(crate) number: u64,
    pub(crate) event: Event,
}

/// What waits for one stream.
#[derive(Debug, Default)]
struct Queue {
    open: Vec<BlockId>,
    /// Whether an event is wanted even where no block waits for it.
    mark_wanted: bool,
    sealed: VecDeque<Batch>,
    /// How many events are being recorded.
    sealing: u32,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.sealed.is_empty() && self.sealing == 0 && !self.mark_wanted
    }
}

/// A wait that no event can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostWait {
    pub(crate) block: BlockId,
    /// The tick from which on a wait for the whole device ends it.
    pub(crate) since: u64,
}

/// All pending give-backs.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    queues: BTreeMap<Tag, Queue>,
    lost: Vec<LostWait>,
    /// Events to be recorded again.
    spare: Vec<Event>,
    /// How many threads are asking events, without the lock.
    asking: u32,
    /// Events that became spare meanwhile. One of those threads may still ask for its old use; recorded again in a stream whose
    /// capture has just begun, the question would destroy the capture.
    resting: Vec<Event>,
    last_number: u64,
    /// The queue after which the next round of questions begins.
    asked_last: Option<Tag>,
}

impl Uses {
    /// `block` waits for the stream. Says whether an event should be recorded at once.
    #[must_use]
    pub(crate) fn wait(&mut self, tag: Tag, block: BlockId) -> bool {
        let queue = self.queues.entry(tag).or_default();
        queue.open.push(block);
        let on_the_way = !queue.sealed.is_empty() || queue.sealing > 0;
        // Only the block that starts a batch asks: where recording has to wait, the others do not ask again.
        (queue.open.len() == 1 && !on_the_way) || queue.open.len().is_multiple_of(GATHER_MAX)
    }

    /// `block` waits for the last event of a stream that is gone. Says no where there is none on the way.
    #[must_use]
    pub(crate) fn wait_for_farewell(&mut self, tag: Tag, block: BlockId) -> bool {
        let batches = self.queues.get_mut(&tag).into_iter().flat_map(|queue| queue.sealed.iter_mut());
        match batches.rev().find(|batch| batch.farewell) {
            Some(batch) => {
                batch.blocks.push(block);
                true
            }
            None => false,
        }
    }

    /// An event of the stream that covers `mark` is wanted, whether or not a block waits. Nothing where one is on the way.
    pub(crate) fn want_mark(&mut self, tag: Tag, mark: u64) {
        let queue = self.queues.entry(tag).or_default();
        let covered = queue.sealing > 0 || queue.sealed.back().is_some_and(|batch| batch.mark >= mark);
        queue.mark_wanted = queue.mark_wanted || !covered;
    }

    /// The streams for which an event has to be recorded.
    pub(crate) fn unsealed(&self) -> impl Iterator<Item = Tag> + '_ {
        let queues = self.queues.iter();
        queues.filter(|(_, queue)| !queue.open.is_empty() || queue.mark_wanted).map(|(tag, _)| *tag)
    }

    /// Takes the open part of a queue out, to be sealed with an event that covers `mark`.
    pub(crate) fn begin_sealing(&mut self, tag: Tag, mark: u64) -> Sealing {
        let queue = self.queues.entry(tag).or_default();
        queue.sealing += 1;
        queue.mark_wanted = false;
        Sealing { tag, mark, blocks: std::mem::take(&mut queue.open) }
    }

    /// The event is recorded. `farewell`: the stream gets no work after it.
    pub(crate) fn seal(&mut self, sealing: Sealing, event: Event, farewell: bool) {
        self.last_number += 1;
        let Sealing { tag, mark, blocks } = sealing;
        let queue = self.queues.entry(tag).or_default();
        queue.sealing = queue.sealing.saturating_sub(1);
        queue.sealed.push_back(Batch { number: self.last_number, event, mark, blocks, farewell });
    }

    /// No event could be recorded this time.
    pub(crate) fn reopen(&mut self, sealing: Sealing) {
        let queue = self.queues.entry(sealing.tag).or_default();
        queue.sealing = queue.sealing.saturating_sub(1);
        queue.open.extend(sealing.blocks);
    }

    /// No event can be recorded on the stream any more. Returns every block that waited for one.
    pub(crate) fn abandon(&mut self, sealing: Sealing) -> Vec<BlockId> {
        let Sealing { tag, mut blocks, .. } = sealing;
        if let Some(queue) = self.queues.get_mut(&tag) {
            queue.sealing = queue.sealing.saturating_sub(1);
            queue.mark_wanted = false;
            blocks.append(&mut queue.open);
        }
        self.drop_if_empty(tag);
        blocks
    }

    /// The oldest batch of each stream, `most` of them, beginning after those given last time.
    pub(crate) fn heads(&mut self, most: usize) -> Vec<Head> {
        use std::ops::Bound::{Excluded, Unbounded};
        let head = |(tag, queue): (&Tag, &Queue)| {
            let batch = queue.sealed.front()?;
            Some(Head { tag: *tag, number: batch.number, event: batch.event })
        };
        let heads: Vec<Head> = match self.asked_last {
            None => self.queues.iter().filter_map(head).take(most).collect(),
            Some(last) => {
                let after = self.queues.range((Excluded(last), Unbounded));
                after.chain(self.queues.range(..=last)).filter_map(head).take(most).collect()
            }
        };
        self.asked_last = heads.last().map(|head| head.tag);
        heads
    }

    /// The batch that was sealed first, of all streams.
    pub(crate) fn oldest(&self) -> Option<Head> {
        let heads = self.queues.iter().filter_map(|(tag, queue)| {
            queue.sealed.front().map(|batch| Head { tag: *tag, number: batch.number, event: batch.event })
        });
        heads.min_by_key(|head| head.number)
    }

    /// Takes out the batch that `head` named, where it is still the oldest of its stream: another thread may have been
    /// quicker.
    pub(crate) fn finish(&mut self, head: &Head) -> Option<Batch> {
        let queue = self.queues.get_mut(&head.tag)?;
        let is_oldest = queue.sealed.front().is_some_and(|batch| batch.number == head.number);
        let batch = if is_oldest { queue.sealed.pop_front()? } else { return None };
        self.drop_if_empty(head.tag);
        Some(batch)
    }

    /// Notes a wait that no event can answer.
    pub(crate) fn lose(&mut self, block: BlockId, since: u64) {
        self.lost.push(LostWait { block, since });
    }

    /// Takes out the lost waits that a wait for the whole device at `mark` ended.
    pub(crate) fn end_lost(&mut self, mark: u64) -> Vec<BlockId> {
        let (ended, lost) = std::mem::take(&mut self.lost).into_iter().partition(|wait| wait.since <= mark);
        self.lost = lost;
        let ended: Vec<LostWait> = ended;
        ended.into_iter().map(|wait| wait.block).collect()
    }

    /// Whether anything waits that no event can answer.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Forgets the lost waits of blocks that are no more.
    pub(crate) fn forget_lost(&mut self, gone: &[BlockId]) {
        self.lost.retain(|wait| !gone.contains(&wait.block));
    }

    /// An event to record, where one is spare.
    pub(crate) fn spare_event(&mut self) -> Option<Event> {
        self.spare.pop()
    }

    /// Keeps an event for later.
    pub(crate) fn keep_event(&mut self, event: Event) {
        if self.asking == 0 { self.spare.push(event) } else { self.resting.push(event) }
    }

    /// A thread is about to ask events without the lock.
    pub(crate) fn begin_asking(&mut self) {
        self.asking += 1;
    }

    /// A thread has its answers.
    pub(crate) fn end_asking(&mut self) {
        self.asking = self.asking.saturating_sub(1);
        if self.asking == 0 {
            self.spare.append(&mut self.resting);
        }
    }

    /// Takes all spare events out, to be destroyed.
    pub(crate) fn take_spare(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.spare)
    }

    /// Every event there is, to be destroyed: nothing waits any more.
    pub(crate) fn take_all_events(&mut self) -> Vec<Event> {
        let batches = std::mem::take(&mut self.queues).into_values().flat_map(|queue| queue.sealed);
        let idle = self.spare.drain(..).chain(self.resting.drain(..));
        batches.map(|batch| batch.event).chain(idle).collect()
    }

    /// Whether there is nothing to record and nothing to ask.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether anything still refers to the stream.
    pub(crate) fn refers_to(&self, tag: Tag) -> bool {
        self.queues.contains_key(&tag)
    }

    /// How often each block waits, for the walk.
    pub(crate) fn waits(&self) -> BTreeMap<BlockId, u32> {
        let mut waits = BTreeMap::new();
        let queued = self
            .queues
            .values()
            .flat_map(|queue| queue.open.iter().chain(queue.sealed.iter().flat_map(|batch| &batch.blocks)));
        for block in queued.chain(self.lost.iter().map(|wait| &wait.block)) {
            *waits.entry(*block).or_default() += 1;
        }
        waits
    }

    fn drop_if_empty(&mut self, tag: Tag) {
        if self.queues.get(&tag).is_some_and(Queue::is_empty) {
            self.queues.remove(&tag);
        }
    }
}
