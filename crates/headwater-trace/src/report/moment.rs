//! The state of one policy after one event, counted from its lists of blocks and spans.
//!
//! The page counts the same in `assets/moment.js` with an index that makes it quick. This is the plain form: it walks all
//! blocks, which is fine for one moment (a line of the command's output) and is what the page is tested against.

use super::data::{PolicyReport, ReportData, Sample};

/// The state of a policy after one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The policy.
    pub policy: String,
    /// The event.
    pub event: u32,
    /// Its time since the first event, in microseconds.
    pub time_us: u64,
    /// What the policy counted.
    pub sample: Sample,
    /// Blocks that the program holds.
    pub blocks: u64,
    /// Runs of addresses with memory behind them: segments, or stretches of an arena.
    pub runs: u64,
    /// Bytes of those runs.
    pub mapped_bytes: u64,
    /// Bytes of them that are in no block.
    pub free_bytes: u64,
    /// Pieces those bytes are in.
    pub holes: u64,
    /// The largest of them.
    pub largest_hole_bytes: u64,
}

impl Moment {
    /// The state of `policy` after `event`. A block that was given back counts as in use until it is completed.
    pub fn at(data: &ReportData, policy: &PolicyReport, event: u32) -> Self {
        let after = policy.timeline.partition_point(|sample| sample.event <= event);
        let sample = after.checked_sub(1).and_then(|last| policy.timeline.get(last)).copied();
        let time_us = elapsed_us(&data.event_times_us, event);
        let mut moment = Self {
            policy: policy.figures.policy.clone(),
            event,
            time_us,
            sample: Sample { event, ..sample.unwrap_or_default() },
            ..Self::default()
        };
        let alive = policy.blocks.iter().filter(|block| block.born <= event);
        let mut used = Vec::new();
        for block in alive.filter(|block| block.completed.is_none_or(|completed| event < completed)) {
            moment.blocks += u64::from(block.died.is_none_or(|died| event < died));
            used.push((block.address, block.address.saturating_add(block.bytes)));
        }
        used.sort_unstable();
        moment.count_holes(&runs_at(policy, event), &used);
        moment
    }

    fn count_holes(&mut self, runs: &[(u64, u64)], used: &[(u64, u64)]) {
        self.runs = runs.len() as u64;
        let mut next = 0;
        for &(begin, end) in runs {
            self.mapped_bytes += end - begin;
            let mut reached = begin;
            while let Some(&(block_begin, block_end)) = used.get(next).filter(|block| block.0 < end) {
                self.count_hole(reached, block_begin);
                reached = reached.max(block_end);
                next += 1;
            }
            self.count_hole(reached, end);
        }
    }

    fn count_hole(&mut self, begin: u64, end: u64) {
        let bytes = end.saturating_sub(begin);
        self.holes += u64::from(bytes > 0);
        self.free_bytes += bytes;
        self.largest_hole_bytes = self.largest_hole_bytes.max(bytes);
    }
}

/// Times of real logs step back by microseconds: a moment is as late as the latest event so far.
fn elapsed_us(times_us: &[u64], event: u32) -> u64 {
    let until = times_us.get(..=event as usize).unwrap_or(times_us);
    let latest = until.iter().copied().max().unwrap_or(0);
    latest - times_us.first().copied().unwrap_or(0)
}

/// Spans at `event`, with neighbours of one arena joined.
fn runs_at(policy: &PolicyReport, event: u32) -> Vec<(u64, u64)> {
    let there = |born: u32, died: Option<u32>| born <= event && died.is_none_or(|died| event < died);
    let mut spans: Vec<_> = policy.spans.iter().filter(|span| there(span.born, span.died)).collect();
    spans.sort_unstable_by_key(|span| span.address);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut arena_before = None;
    for span in spans {
        let end = span.address + span.bytes;
        match runs.last_mut() {
            Some(run) if run.1 == span.address && arena_before == Some(span.arena) => run.1 = end,
            _ => runs.push((span.address, end)),
        }
        arena_before = Some(span.arena);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Block, Span};

    fn span(address: u64, bytes: u64, arena: u32) -> Span {
        Span { address, bytes, arena, born: 0, died: None }
    }

    fn block(address: u64, bytes: u64, born: u32, died: Option<u32>, completed: Option<u32>) -> Block {
        Block { address, bytes, requested_bytes: bytes, born, died, completed, ..Block::default() }
    }

    fn at(policy: &PolicyReport, event: u32) -> Moment {
        let data = ReportData { event_times_us: vec![10, 30, 20, 40], ..ReportData::default() };
        Moment::at(&data, policy, event)
    }

    #[test]
    fn holes_join_across_spans_of_one_arena_only() {
        let mut policy = PolicyReport::new("p");
        policy.spans = vec![span(200, 100, 0), span(100, 100, 0), span(300, 100, 1)];
        policy.blocks = vec![block(100, 50, 0, None, None)];
        let moment = at(&policy, 0);
        assert_eq!((moment.runs, moment.mapped_bytes, moment.free_bytes), (2, 300, 250));
        assert_eq!((moment.holes, moment.largest_hole_bytes), (2, 150));
    }

    #[test]
    fn a_block_is_used_until_it_is_completed_and_held_until_it_died() {
        let mut policy = PolicyReport::new("p");
        policy.spans = vec![span(0, 100, 0)];
        policy.blocks = vec![block(0, 60, 0, Some(1), Some(3))];
        let seen = |event| (at(&policy, event).blocks, at(&policy, event).free_bytes);
        assert_eq!([seen(0), seen(1), seen(2), seen(3)], [(1, 40), (0, 40), (0, 40), (0, 100)]);
    }

    #[test]
    fn time_does_not_step_back() {
        let policy = PolicyReport::new("p");
        assert_eq!([0, 1, 2, 3].map(|event| at(&policy, event).time_us), [0, 20, 20, 30]);
    }

    #[test]
    fn between_samples_the_last_one_holds() {
        let mut policy = PolicyReport::new("p");
        policy.timeline = vec![Sample { event: 1, live: 5, ..Sample::default() }];
        assert_eq!([0, 1, 3].map(|event| at(&policy, event).sample.live), [0, 5, 5]);
    }
}
