//! Refuses data that contradicts itself, before a page is made of it.

use super::data::{Block, PolicyReport, ReportData};
use super::error::ReportError;

/// The largest whole number below which JavaScript's numbers are exact.
pub(super) const EXACT_MAX: u64 = 1 << 53;

/// The first contradiction in `data`, if any.
pub(super) fn check(data: &ReportData) -> Result<(), ReportError> {
    let events = data.events();
    if events >= u32::MAX as usize {
        return Err(ReportError::TooManyEvents { events });
    }
    for &time_us in &data.event_times_us {
        exact("time", time_us)?;
    }
    for &frame in data.labels.iter().flatten() {
        known("frame", u64::from(frame), data.frames.len())?;
    }
    data.policies.iter().try_for_each(|policy| check_policy(data, policy))
}

fn check_policy(data: &ReportData, policy: &PolicyReport) -> Result<(), ReportError> {
    let place = Place { policy, events: data.events() };
    let sampled = policy.timeline.iter().map(|sample| sample.event);
    place.rising("sample", sampled)?;
    place.rising("failed request", policy.oom_events.iter().copied())?;
    for sample in &policy.timeline {
        for bytes in [sample.live, sample.allocated, sample.active, sample.reserved] {
            exact("size", bytes)?;
        }
    }
    for (index, span) in policy.spans.iter().enumerate() {
        exact("address", span.address.saturating_add(span.bytes))?;
        place.life("span", index, span.born, span.died)?;
    }
    for (index, block) in policy.blocks.iter().enumerate() {
        let Block { address, bytes, requested_bytes, stream, label, born, died, completed } = *block;
        exact("address", address.saturating_add(bytes))?;
        exact("size", requested_bytes)?;
        known("stream", u64::from(stream), data.streams.len().max(1))?;
        known("label", u64::from(label), data.labels.len().max(1))?;
        place.life("block", index, born, died)?;
        match (died, completed) {
            (Some(died), _) => place.life("block", index, died, completed)?,
            (None, Some(_)) => return Err(place.backwards("block", index)),
            (None, None) => {}
        }
    }
    Ok(())
}

fn exact(what: &'static str, value: u64) -> Result<(), ReportError> {
    if value <= EXACT_MAX { Ok(()) } else { Err(ReportError::TooLarge { what, value }) }
}

fn known(what: &'static str, id: u64, known: usize) -> Result<(), ReportError> {
    if id < known as u64 { Ok(()) } else { Err(ReportError::UnknownName { what, id, known }) }
}

struct Place<'a> {
    policy: &'a PolicyReport,
    events: usize,
}

impl Place<'_> {
    fn name(&self) -> String {
        self.policy.figures.policy.clone()
    }

    fn backwards(&self, what: &'static str, index: usize) -> ReportError {
        ReportError::EndsBeforeItBegins { policy: self.name(), what, index }
    }

    fn event(&self, what: &'static str, index: usize, event: u32) -> Result<(), ReportError> {
        if (event as usize) < self.events {
            return Ok(());
        }
        Err(ReportError::UnknownEvent { policy: self.name(), what, index, event, events: self.events })
    }

    fn rising(&self, what: &'static str, events: impl Iterator<Item = u32>) -> Result<(), ReportError> {
        let mut before = None;
        for (index, event) in events.enumerate() {
            self.event(what, index, event)?;
            if before.is_some_and(|before| before >= event) {
                return Err(ReportError::OutOfOrder { policy: self.name(), what, index });
            }
            before = Some(event);
        }
        Ok(())
    }

    fn life(
        &self,
        what: &'static str,
        index: usize,
        born: u32,
        died: Option<u32>,
    ) -> Result<(), ReportError> {
        self.event(what, index, born)?;
        let Some(died) = died else { return Ok(()) };
        self.event(what, index, died)?;
        if died < born { Err(self.backwards(what, index)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Sample, Span};

    fn data_with(policy: PolicyReport) -> ReportData {
        ReportData {
            event_times_us: vec![0; 4],
            streams: vec!["stream 0".into()],
            labels: vec![vec![]],
            policies: vec![policy],
            ..ReportData::default()
        }
    }

    fn refusal(change: impl FnOnce(&mut PolicyReport)) -> String {
        let mut policy = PolicyReport::new("p");
        change(&mut policy);
        check(&data_with(policy)).unwrap_err().to_string()
    }

    #[test]
    fn contradictions_are_named_with_their_place() {
        let late = refusal(|p| p.timeline.push(Sample { event: 4, ..Sample::default() }));
        assert_eq!(late, "policy p: sample 0 names event 4 of 4");
        let twice = refusal(|p| p.oom_events = vec![2, 2]);
        assert_eq!(twice, "policy p: failed request 1 is not after the one before it");
        let undead = refusal(|p| p.spans.push(Span { born: 3, died: Some(1), ..Span::default() }));
        assert_eq!(undead, "policy p: span 0 ends before it begins");
        let early = Block { died: Some(2), completed: Some(1), ..Block::default() };
        assert_eq!(refusal(|p| p.blocks.push(early)), "policy p: block 0 ends before it begins");
        let nameless = Block { label: 1, ..Block::default() };
        assert_eq!(refusal(|p| p.blocks.push(nameless)), "label 1 is not in the table of 1");
        let huge = Block { address: u64::MAX, bytes: 9, ..Block::default() };
        assert!(refusal(|p| p.blocks.push(huge)).contains("beyond 2^53"));
    }

    #[test]
    fn a_consistent_policy_is_accepted() {
        let mut policy = PolicyReport::new("p");
        policy.blocks.push(Block { died: Some(2), completed: Some(3), ..Block::default() });
        policy.spans.push(Span { died: Some(3), ..Span::default() });
        check(&data_with(policy)).unwrap();
    }
}
