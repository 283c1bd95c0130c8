//! From Headwater's own snapshot to PyTorch's form of it: for PyTorch's viewer, and for the report.

use headwater::caching::history;
use headwater::caching::snapshot::{BlockSnapshot, SegmentSnapshot, Snapshot as Taken, SnapshotState};
use headwater::stats::PoolKind;
use serde_json::Value;

use super::model::{Action, Block, BlockState, Segment, SegmentKind, Snapshot, TraceEntry};
use crate::error::{Format, Result, TraceError};
use crate::names::{LabelId, Names};

impl Snapshot {
    /// What [`CachingAllocator::snapshot`](headwater::caching::CachingAllocator::snapshot) took. Labels of the history become
    /// `user_metadata`; its times are microseconds since the allocator was made, not since 1970.
    ///
    /// ```
    /// use headwater::caching::CachingAllocator;
    /// use headwater::config::Config;
    /// use headwater::{Block, Request};
    /// use headwater_driver::{DeviceId, Stream};
    /// use headwater_trace::snapshot::Snapshot;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///
    /// let config = Config::parse("history_events:1000")?;
    /// let allocator = CachingAllocator::new(headwater_sim::SimDriver::new(), DeviceId(0), config)?;
    /// drop(Block::allocate(&*allocator, Request::new(4096, Stream::legacy_default(DeviceId(0))))?);
    ///
    /// let trace = Snapshot::from_allocator(&allocator.snapshot())?.to_trace("one block")?;
    /// assert_eq!(trace.summary().peak_live_bytes, 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A device with an ordinal beyond 255; more labels than fit.
    pub fn from_allocator(taken: &Taken) -> Result<Self> {
        let device = u8::try_from(taken.device.0).map_err(|_| TraceError::Unwritable {
            format: Format::TorchSnapshot,
            problem: format!("{} has an ordinal beyond 255", taken.device),
        })?;
        let mut names = Names::default();
        let entries: Result<Vec<TraceEntry>> =
            taken.trace.iter().filter_map(|event| entry(event, &mut names).transpose()).collect();
        let mut device_traces = vec![Vec::new(); usize::from(device)];
        device_traces.push(entries?);
        let mut out = Self {
            names,
            segments: taken.segments.iter().map(|segment| self::segment(segment, device)).collect(),
            device_traces,
            ..Self::default()
        };
        out.allocator_settings.insert("settings".to_owned(), Value::from(taken.settings.as_str()));
        Ok(out)
    }
}

fn segment(taken: &SegmentSnapshot, device: u8) -> Segment {
    Segment {
        device,
        address: taken.address.raw(),
        bytes: taken.total_bytes,
        allocated_bytes: taken.allocated_bytes,
        active_bytes: taken.active_bytes,
        requested_bytes: taken.requested_bytes,
        stream: taken.stream.raw(),
        kind: if taken.pool == PoolKind::SmallPool { SegmentKind::Small } else { SegmentKind::Large },
        is_expandable: taken.is_expandable,
        blocks: taken.blocks.iter().map(block).collect(),
        ..Segment::default()
    }
}

fn block(taken: &BlockSnapshot) -> Block {
    Block {
        address: taken.address.raw(),
        bytes: taken.bytes,
        requested_bytes: taken.requested_bytes,
        state: match taken.state {
            SnapshotState::ActiveAllocated => BlockState::Allocated,
            SnapshotState::ActivePendingFree => BlockState::PendingFree,
            SnapshotState::Inactive => BlockState::Inactive,
        },
        stack: LabelId::NONE,
    }
}

/// `None` for a kind of event that PyTorch's history has no word for.
fn entry(event: &history::HistoryEvent, names: &mut Names) -> Result<Option<TraceEntry>> {
    let Some(action) = Action::ALL.into_iter().find(|action| action.word() == event.action.name()) else {
        return Ok(None);
    };
    let user_metadata = match &event.label {
        Some(label) => names.text(label)?,
        None => LabelId::NONE,
    };
    Ok(Some(TraceEntry {
        action,
        address: event.ptr.raw(),
        bytes: event.bytes,
        stream: event.stream.raw(),
        t_us: event.time_us,
        stack: LabelId::NONE,
        compile_context: LabelId::NONE,
        user_metadata,
        pool_id: None,
    }))
}

#[cfg(test)]
mod tests {
    use headwater::caching::{CachingAllocator, label};
    use headwater::config::Config;
    use headwater::{Allocator, Block, Request};
    use headwater_driver::{DeviceId, Stream};
    use headwater_sim::SimDriver;

    use super::*;
    use crate::Event;

    fn taken(settings: &str) -> Taken {
        let config = Config::parse(settings).unwrap();
        let allocator = CachingAllocator::new(SimDriver::new(), DeviceId(0), config).unwrap();
        let request = |bytes| Request::new(bytes, Stream::legacy_default(DeviceId(0)));
        let _early = Block::allocate(&*allocator, request(3 << 20)).unwrap();
        let step = label::scope("step 1");
        let kept = Block::allocate(&*allocator, request(5000)).unwrap();
        drop(Block::allocate(&*allocator, request(30 << 20)).unwrap());
        drop(step);
        allocator.empty_cache().unwrap();
        drop(kept);
        allocator.snapshot()
    }

    #[test]
    fn the_history_becomes_a_trace_with_labels_and_the_segments_stay() {
        for backing in ["classic", "paged"] {
            let taken = taken(&format!("backing:{backing},history_events:1000"));
            let snapshot = Snapshot::from_allocator(&taken).unwrap();
            let reserved = |segments: &[Segment]| segments.iter().map(|segment| segment.bytes).sum::<u64>();
            assert_eq!(
                reserved(&snapshot.segments),
                taken.segments.iter().map(|segment| segment.total_bytes).sum::<u64>()
            );
            let trace = snapshot.to_trace("test").unwrap();
            trace.check().unwrap();
            let summary = trace.summary();
            assert_eq!((summary.allocs, summary.peak_live_bytes), (3, (33 << 20) + 5000), "{backing}");
            let labelled = trace.events.iter().filter(|event| match event {
                Event::Alloc { label, .. } => trace.names.describe(*label) == "step 1",
                _ => false,
            });
            assert_eq!(labelled.count(), 2, "{backing}");
        }
    }

    #[test]
    fn what_the_history_dropped_was_there_before() {
        let snapshot = Snapshot::from_allocator(&taken("backing:classic,history_events:1")).unwrap();
        let trace = snapshot.to_trace("test").unwrap();
        trace.check().unwrap();
        assert!(trace.header.initial_events > 0);
    }

    #[test]
    fn a_written_snapshot_is_read_back_the_same() {
        let snapshot = Snapshot::from_allocator(&taken("history_events:1000")).unwrap();
        let bytes = snapshot.write(Vec::new()).unwrap();
        let read = Snapshot::from_pickle(&bytes, &crate::Limits::default()).unwrap();
        assert_eq!((read.segments, read.device_traces.len()), (snapshot.segments, 1));
    }
}
