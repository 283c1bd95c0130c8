//! Give-backs that wait for streams.
//!
//! A block that other streams use is put down as it is given back, without a driver call. Later, in a call that is slow
//! anyway, one event is recorded in each stream that has such blocks, however many they are; a later moment covers the
//! earlier one. When a block's events have happened it is free for its own stream.

use std::collections::BTreeMap;

use headwater_driver::DriverError;

use super::Slot;
use super::depot::{Block, Users, Waiting};
use super::marks::{Mark, Marked};
use super::pool::Pool;
use crate::thread_cache::State;
use crate::thread_cache::StreamKey;

/// How many blocks may wait for their events to be recorded before a give-back does it.
pub(super) const UNRECORDED_MAX: usize = 64;

/// What is known of a user by now.
enum User {
    At(Mark),
    Later,
    Gone,
}

impl Pool {
    /// Records what is to be recorded and asks about what was, for one class. Says how many blocks became free.
    ///
    /// After an error the blocks concerned are where they were.
    pub(super) fn settle(&self, slot: &Slot, class: usize) -> Result<usize, DriverError> {
        let recorded = self.record_users(slot, class);
        let freed = self.ask_about_waiting(slot, class)?;
        recorded.map(|()| freed)
    }

    fn record_users(&self, slot: &Slot, class: usize) -> Result<(), DriverError> {
        let unrecorded = std::mem::take(&mut self.depots[class].lock().unrecorded);
        if unrecorded.is_empty() {
            return Ok(());
        }
        let (mut known, mut failure) = (BTreeMap::new(), None);
        let (mut later, mut stuck) = (Vec::new(), Vec::new());
        let mut waiting: BTreeMap<Users, Waiting> = BTreeMap::new();
        for (block, users) in unrecorded {
            for user in &users {
                if failure.is_none() && !known.contains_key(user) {
                    match self.ask_user(slot, *user) {
                        Ok(answer) => drop(known.insert(*user, answer)),
                        Err(error) => failure = Some(error),
                    }
                }
            }
            let answers: Option<Vec<&User>> = users.iter().map(|user| known.get(user)).collect();
            match answers {
                Some(answers) if answers.iter().any(|answer| matches!(answer, User::Gone)) => {
                    stuck.push(block)
                }
                Some(answers) if answers.iter().all(|answer| matches!(answer, User::At(_))) => {
                    let marks = answers.into_iter().filter_map(|answer| match answer {
                        User::At(mark) => Some(mark.clone()),
                        _ => None,
                    });
                    let marks = marks.collect();
                    let group = waiting.entry(users).or_insert_with(|| Waiting { marks, blocks: Vec::new() });
                    group.blocks.push(block);
                }
                _ => later.push((block, users)),
            }
        }
        let mut shelf = self.depots[class].lock();
        shelf.unrecorded.extend(later);
        shelf.waiting.extend(waiting.into_values());
        stuck.into_iter().for_each(|block| shelf.put_stuck(block));
        failure.map_or(Ok(()), Err)
    }

    fn ask_user(&self, slot: &Slot, user: StreamKey) -> Result<User, DriverError> {
        if !user.is_known_in(slot.thread()) {
            // Another thread's default stream: that thread can record in it, and does so at the latest when it ends.
            let alive = user.thread().is_some_and(|thread| self.caches.has_thread(thread));
            return Ok(if alive { User::Later } else { User::Gone });
        }
        Ok(match self.marker.mark(user.stream(self.device))? {
            Marked::At(mark) => User::At(mark),
            Marked::Later => User::Later,
            Marked::StreamGone => User::Gone,
        })
    }

    fn ask_about_waiting(&self, slot: &Slot, class: usize) -> Result<usize, DriverError> {
        let waiting = std::mem::take(&mut self.depots[class].lock().waiting);
        let (mut free, mut rest, mut failure) = (Vec::new(), Vec::new(), None);
        for group in waiting {
            match failure.is_none().then(|| self.all_passed(&group)) {
                Some(Ok(true)) => free.extend(group.blocks),
                Some(Err(error)) => {
                    failure = Some(error);
                    rest.push(group);
                }
                _ => rest.push(group),
            }
        }
        let freed = free.len();
        self.end_pending(slot, class, &free);
        let mut shelf = self.depots[class].lock();
        rest.into_iter().rev().for_each(|group| shelf.waiting.push_front(group));
        free.into_iter().for_each(|block| shelf.put(block, false));
        drop(shelf);
        failure.map_or(Ok(freed), Err)
    }

    fn all_passed(&self, group: &Waiting) -> Result<bool, DriverError> {
        for mark in &group.marks {
            if !self.marker.has_passed(mark)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Blocks in hand that waited, and wait no longer.
    pub(super) fn end_pending(&self, slot: &Slot, class: usize, blocks: &[Block]) {
        if blocks.is_empty() {
            return;
        }
        slot.own(|cache| {
            self.peaks.absorb(cache);
            for block in blocks {
                block.word.set(block.word.address(), State::Cached);
                let block_bytes = block.segment().block_bytes();
                cache.counts[class].unpended += 1;
                if class == self.straight_class() {
                    cache.straight.unpended += block_bytes;
                }
                self.peaks.pend(block_bytes, false);
            }
        });
    }

    /// Waits on the host for the blocks of any class that wait longest. Says whether there were any to wait for.
    pub(super) fn wait_for_oldest(&self) -> Result<bool, DriverError> {
        for depot in &self.depots {
            let marks = depot.lock().waiting.front().map(|group| group.marks.clone());
            if let Some(marks) = marks {
                for mark in &marks {
                    self.marker.wait(mark)?;
                }
                return Ok(true);
            }
        }
        Ok(false)
    }
}
