//! The loop over events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater::{AllocError, Allocator, Opened, OutOfMemoryReport, Request};
use headwater_driver::{DevicePtr, DriverError, Stream};
use rustc_hash::FxHashMap;

use super::device::ReplayDevice;
use super::error::ReplayError;
use super::outcome::{Figures, Outcome, RanOut, fragmentation};
use super::placement::Placement;
use super::timeline::Timeline;
use super::{Policy, Replay};
use crate::ids::IdTable;
use crate::model::{Event, Trace};
use crate::names::{LabelId, StreamId};

/// How many events pass between two words about progress.
const PROGRESS_EVENTS: u64 = 4096;

pub(super) fn run(
    replay: &Replay,
    trace: &Trace,
    on: &Opened,
    progress: &mut dyn FnMut(u64),
) -> Result<Outcome, ReplayError> {
    trace.check()?;
    let devices: BTreeSet<u8> = trace.events.iter().map(Event::device).collect();
    if devices.len() > 1 {
        return Err(ReplayError::SeveralDevices { devices: devices.len() });
    }
    let events = replay.events(trace);
    let mut run = Run::new(replay, trace, on)?;
    let start = Instant::now();
    for (at, event) in (0..events).zip(&trace.events) {
        if at % PROGRESS_EVENTS == 0 {
            progress(at);
        }
        if let Some(report) = run.event(at, event)? {
            run.ran_out = Some(RanOut { event: at, report });
        }
        run.observe(at);
        if run.ran_out.is_some() {
            break;
        }
    }
    let host_time = start.elapsed().saturating_sub(run.observing);
    progress(events);
    Ok(run.finish(trace, on, events, host_time))
}

/// A block that the program holds, or that waits for another stream.
#[derive(Clone, Copy, Debug)]
struct Held {
    ptr: DevicePtr,
    bytes: u64,
    stream: StreamId,
    /// The side stream that still uses it.
    side: Option<Stream>,
    /// The replay itself keeps it back until its `Complete`.
    kept: bool,
}

const NOTHING: Held = Held { ptr: DevicePtr::NULL, bytes: 0, stream: StreamId(0), side: None, kept: false };

struct Run {
    policy: Policy,
    // Before the device: an allocator that is dropped may still ask something of its streams.
    allocator: Arc<dyn Allocator>,
    device: ReplayDevice,
    held: IdTable<Held>,
    /// The event at which the wait of a give-back ends, by the event of the give-back.
    waits: FxHashMap<u64, u64>,
    live_bytes: u64,
    peak_live_bytes: u64,
    ran_out: Option<RanOut>,
    timeline: Option<Timeline>,
    placement: Option<Placement>,
    /// Time spent on looking, which is no part of the replay's own.
    observing: Duration,
}

impl Run {
    fn new(replay: &Replay, trace: &Trace, on: &Opened) -> Result<Self, ReplayError> {
        let device = ReplayDevice::new(on);
        Ok(Self {
            policy: replay.policy,
            allocator: replay
                .policy
                .build(Arc::clone(&on.driver), on.device, replay.limit_bytes)
                .map_err(|error| ReplayError::Allocator { policy: replay.policy, event: 0, error })?,
            device,
            held: IdTable::new(NOTHING),
            waits: waits_of(trace),
            live_bytes: 0,
            peak_live_bytes: 0,
            ran_out: None,
            timeline: replay.timeline.then(Timeline::default),
            placement: replay.placement.then(|| Placement::new(replay.policy, on)),
            observing: Duration::ZERO,
        })
    }

    /// Replays one event; the report where memory ran out.
    fn event(&mut self, at: u64, event: &Event) -> Result<Option<Box<OutOfMemoryReport>>, ReplayError> {
        match *event {
            Event::Alloc { id, bytes, label, stream, .. } => {
                return self.allocate(at, id, bytes, label, stream);
            }
            Event::Free { id, stream, .. } => self.give_back(at, id, stream)?,
            Event::Complete { id, .. } => self.complete(at, id)?,
            _ => {}
        }
        Ok(None)
    }

    fn allocate(
        &mut self,
        at: u64,
        id: u64,
        bytes: u64,
        label: LabelId,
        stream: StreamId,
    ) -> Result<Option<Box<OutOfMemoryReport>>, ReplayError> {
        let device_stream = self.device.stream(stream).map_err(on_device(at))?;
        let ptr = match self.allocator.allocate(Request::new(bytes, device_stream)) {
            Ok(ptr) => ptr,
            Err(AllocError::OutOfMemory(report)) => return Ok(Some(report)),
            Err(error) => return Err(self.refused(at, error)),
        };
        self.held.set(id, Held { ptr, bytes, stream, side: None, kept: false });
        self.live_bytes += bytes;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        if let Some(placement) = &mut self.placement {
            let start = Instant::now();
            placement.given_out(at, id, ptr, &*self.allocator, label, stream);
            self.observing += start.elapsed();
        }
        Ok(None)
    }

    fn give_back(&mut self, at: u64, id: u64, stream: StreamId) -> Result<(), ReplayError> {
        let mut held = self.held.get(id);
        self.live_bytes -= held.bytes;
        let wait_ends = if self.waits.is_empty() { None } else { self.waits.get(&at).copied() };
        if stream != held.stream && !held.ptr.is_null() {
            // Given back on another stream (RMM's programs do): that stream used it too.
            let user = self.device.stream(stream).map_err(on_device(at))?;
            self.record_stream(at, held.ptr, user)?;
        }
        if let Some(end) = wait_ends
            && !held.ptr.is_null()
        {
            held.side = self.device.busy_until(end).map_err(on_device(at))?;
            // A plain free would have waited, here or on any device.
            held.kept = held.side.is_none() && self.policy != Policy::Direct;
            self.held.set(id, held);
            if held.kept {
                return Ok(());
            }
            if let Some(side) = held.side {
                self.record_stream(at, held.ptr, side)?;
            }
        }
        self.return_block(at, held.ptr)?;
        if let Some(placement) = &mut self.placement {
            let start = Instant::now();
            placement.given_back(at, id, wait_ends.is_some(), &*self.allocator);
            self.observing += start.elapsed();
        }
        Ok(())
    }

    fn complete(&mut self, at: u64, id: u64) -> Result<(), ReplayError> {
        let held = self.held.get(id);
        if let Some(side) = held.side {
            self.device.reach(at, side);
        }
        if held.kept {
            self.return_block(at, held.ptr)?;
        }
        if let Some(placement) = &mut self.placement {
            placement.completed(at, id);
        }
        Ok(())
    }

    fn return_block(&mut self, at: u64, ptr: DevicePtr) -> Result<(), ReplayError> {
        // SAFETY: a checked trace gives each block back once, and nothing but the trace owns it.
        unsafe { self.allocator.give_back(ptr) }.map_err(|error| self.refused(at, error))
    }

    fn record_stream(&self, at: u64, ptr: DevicePtr, stream: Stream) -> Result<(), ReplayError> {
        self.allocator.record_stream(ptr, stream).map_err(|error| self.refused(at, error))
    }

    /// Looks at the state after an event, where somebody wants to know.
    fn observe(&mut self, at: u64) {
        if self.timeline.is_none() && self.placement.is_none() {
            return;
        }
        let start = Instant::now();
        if let Some(timeline) = &mut self.timeline {
            timeline.observe(at, self.live_bytes, &self.allocator.stats());
        }
        if let Some(placement) = &mut self.placement {
            placement.look_at_memory(at, &*self.allocator);
        }
        self.observing += start.elapsed();
    }

    fn refused(&self, event: u64, error: AllocError) -> ReplayError {
        ReplayError::Allocator { policy: self.policy, event, error }
    }

    fn finish(self, trace: &Trace, on: &Opened, events: u64, host_time: Duration) -> Outcome {
        let stats = self.allocator.stats();
        let done = self.ran_out.as_ref().map_or(events, |ran_out| ran_out.event + 1);
        let peak_reserved_bytes = stats.reserved_bytes.all.peak;
        let calls = self.device.allocator_calls();
        let times = self.device.allocator_times();
        let figures = Figures {
            trace: trace.header.name.clone(),
            policy: self.policy.name(),
            device: device_name(on),
            events: done,
            peak_live_bytes: self.peak_live_bytes,
            peak_reserved_bytes,
            fragmentation: fragmentation(self.peak_live_bytes, peak_reserved_bytes),
            driver_calls: calls.iter().map(|(call, count)| (call.name(), count)).collect(),
            modelled_driver_us: self.device.allocator_driver_us(),
            driver_us: times.iter().map(|(call, ns)| (call.name(), *ns as f64 / 1e3)).collect(),
            measured_driver_us: on.sim.is_none().then(|| times.values().sum::<u64>() as f64 / 1e3),
            host_ns_per_event: host_time.as_nanos() as f64 / done.max(1) as f64,
            ooms: u64::from(self.ran_out.is_some()),
        };
        let timeline = self.timeline.map(Timeline::into_samples).unwrap_or_default();
        Outcome { figures, stats, ran_out: self.ran_out, timeline, placement: self.placement }
    }
}

fn on_device(event: u64) -> impl Fn(DriverError) -> ReplayError {
    move |error| ReplayError::Device { event, error }
}

fn device_name(on: &Opened) -> String {
    match on.sim {
        Some(_) => on.driver.backend().to_owned(),
        None => format!("{}:{}", on.driver.backend(), on.device.0),
    }
}

/// For each give-back that a `Complete` finishes, where that is.
fn waits_of(trace: &Trace) -> FxHashMap<u64, u64> {
    let mut freed_at = IdTable::new(u64::MAX);
    let mut waits = FxHashMap::default();
    for (at, event) in (0..).zip(&trace.events) {
        match *event {
            Event::Free { id, .. } => freed_at.set(id, at),
            Event::Complete { id, .. } => _ = waits.insert(freed_at.get(id), at),
            _ => {}
        }
    }
    waits
}
