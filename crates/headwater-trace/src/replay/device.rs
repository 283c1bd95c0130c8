//! The device under a replay: its streams, and work in them that ends at a chosen event.
//!
//! A block that is given back while another stream uses it has a `Complete` event later in the trace. On the simulated
//! device that use is real: the block is recorded on a side stream, and a piece of work keeps that stream busy until just
//! before the `Complete`. Virtual time makes this exact. Event `n` of the trace happens `n` seconds after the start, so no
//! sum of driver calls can reach from one event to the next, and the work ends half a second before the event that says so.
//! Where a policy waits for such work (a plain free waits for the whole device), time moves on to its end, and what
//! would have ended before has ended too.
//!
//! A real device's time cannot be told when to end, and work that spins until it is told would deadlock in the first plain
//! free. There the replay itself keeps the block until the `Complete` event (`direct` gets it at once: its plain free would
//! have waited). What is reserved is the same; the block counts as allocated meanwhile, and no events are recorded for it.
//!
//! What the replay itself asks of the device is kept apart from what the allocator asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater::Opened;
use headwater_driver::{
    Call, CallCounters, CallCounts, CallTimes, DeviceId, Driver, Result as DriverResult, Stream,
    StreamOptions,
};
use headwater_sim::{SimDriver, Work};

use crate::names::StreamId;

/// Virtual time from one event to the next.
const EVENT_NS: u64 = 1_000_000_000;

/// A device, the streams of a trace on it, and what was asked of it so far.
pub(super) struct ReplayDevice {
    driver: Arc<dyn Driver>,
    sim: Option<Arc<SimDriver>>,
    device: DeviceId,
    /// By the trace's stream.
    streams: Vec<Option<Stream>>,
    /// Side streams that nothing uses now.
    idle: Vec<Stream>,
    /// All streams made, to be destroyed.
    made: Vec<Stream>,
    start_ns: u64,
    start_driver_ns: u64,
    start_calls: CallCounts,
    start_times: CallTimes,
    own_driver_ns: u64,
    own_calls: CallCounters,
}

impl ReplayDevice {
    pub(super) fn new(on: &Opened) -> Self {
        let sim = on.sim.clone();
        on.driver.measure_calls(true);
        Self {
            driver: Arc::clone(&on.driver),
            device: on.device,
            streams: Vec::new(),
            idle: Vec::new(),
            made: Vec::new(),
            start_ns: sim.as_ref().map_or(0, |sim| sim.now_ns()),
            start_driver_ns: sim.as_ref().map_or(0, |sim| sim.modelled_driver_ns()),
            start_calls: on.driver.call_counts(),
            start_times: on.driver.call_times(),
            own_driver_ns: 0,
            own_calls: CallCounters::default(),
            sim,
        }
    }

    /// The device's stream for one of the trace.
    pub(super) fn stream(&mut self, stream: StreamId) -> DriverResult<Stream> {
        let place = usize::from(stream.0);
        if let Some(Some(known)) = self.streams.get(place) {
            return Ok(*known);
        }
        let made = self.make_stream()?;
        if self.streams.len() <= place {
            self.streams.resize(place + 1, None);
        }
        self.streams[place] = Some(made);
        Ok(made)
    }

    /// A side stream that is busy until just before event `end`; `None` on a real device.
    pub(super) fn busy_until(&mut self, end: u64) -> DriverResult<Option<Stream>> {
        let Some(sim) = self.sim.clone() else { return Ok(None) };
        let side = match self.idle.pop() {
            Some(side) => side,
            None => self.make_stream()?,
        };
        let end_ns = self.time_of(end) - EVENT_NS / 2;
        let work = Work::new("use by another stream", end_ns.saturating_sub(sim.now_ns()));
        self.own(Call::KernelLaunch, || sim.submit(side, work))?;
        Ok(Some(side))
    }

    /// Event `event` happens now: what was to end before has ended, and the side stream can be used again.
    pub(super) fn reach(&mut self, event: u64, side: Stream) {
        if let Some(sim) = &self.sim {
            sim.advance_ns(self.time_of(event).saturating_sub(sim.now_ns()));
        }
        self.idle.push(side);
    }

    /// The calls that were not the replay's own.
    pub(super) fn allocator_calls(&self) -> CallCounts {
        self.driver.call_counts().since(&self.start_calls).since(&self.own_calls.read())
    }

    /// Nanoseconds that those took, by call. The replay's own calls are of kinds that no allocator makes.
    pub(super) fn allocator_times(&self) -> BTreeMap<Call, u64> {
        let times = self.driver.call_times().since(&self.start_times);
        times.iter().filter(|(call, _)| !matches!(call, Call::StreamCreate | Call::KernelLaunch)).collect()
    }

    /// What those cost by the simulated device's model; `None` on a real one.
    pub(super) fn allocator_driver_us(&self) -> Option<f64> {
        let sim = self.sim.as_ref()?;
        let all_ns = sim.modelled_driver_ns() - self.start_driver_ns;
        Some((all_ns - self.own_driver_ns) as f64 / 1e3)
    }

    fn time_of(&self, event: u64) -> u64 {
        // Event 0 included, so that work can end before it.
        self.start_ns.saturating_add((event + 1).saturating_mul(EVENT_NS))
    }

    fn make_stream(&mut self) -> DriverResult<Stream> {
        let (driver, device) = (Arc::clone(&self.driver), self.device);
        let options = StreamOptions { non_blocking: true, priority: 0 };
        let stream = self.own(Call::StreamCreate, || driver.stream_create(device, options))?;
        self.made.push(stream);
        Ok(stream)
    }

    /// One call on the replay's own account.
    fn own<T>(&mut self, call: Call, ask: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let driver_ns = |sim: &Option<Arc<SimDriver>>| sim.as_ref().map_or(0, |sim| sim.modelled_driver_ns());
        let before_ns = driver_ns(&self.sim);
        let answer = ask();
        self.own_calls.note(call);
        self.own_driver_ns += driver_ns(&self.sim) - before_ns;
        answer
    }
}

impl Drop for ReplayDevice {
    fn drop(&mut self) {
        self.driver.measure_calls(false);
        for stream in &self.made {
            // The replay is over; a stream that cannot be destroyed changes none of its results.
            let _ = self.driver.stream_destroy(*stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater::DeviceChoice;
    use headwater_driver::{EventOptions, Events, PlainMemory, Streams};

    use super::*;

    #[test]
    fn a_side_stream_is_busy_until_its_event_and_not_longer() {
        let on = headwater::open(DeviceChoice::Sim).unwrap();
        let sim = on.sim.clone().unwrap();
        let mut device = ReplayDevice::new(&on);
        let (early, late) = (device.busy_until(3).unwrap().unwrap(), device.busy_until(5).unwrap().unwrap());
        assert_ne!(early, late);
        let mark = sim.event_create(on.device, EventOptions::default()).unwrap();
        sim.event_record(mark, early).unwrap();
        assert!(!sim.event_query(mark).unwrap());
        device.reach(3, early);
        assert!(sim.event_query(mark).unwrap());
        assert!(!sim.stream_query(late).unwrap());
        device.reach(5, late);
        assert!(sim.stream_query(late).unwrap());
    }

    #[test]
    fn a_plain_free_ends_what_it_waits_for() {
        let on = headwater::open(DeviceChoice::Sim).unwrap();
        let sim = on.sim.clone().unwrap();
        let mut device = ReplayDevice::new(&on);
        let memory = sim.mem_alloc(on.device, 512).unwrap();
        let side = device.busy_until(1000).unwrap().unwrap();
        sim.mem_free(on.device, memory).unwrap();
        assert!(sim.stream_query(side).unwrap());
    }

    #[test]
    fn the_replays_own_calls_are_not_the_allocators() {
        let on = headwater::open(DeviceChoice::Sim).unwrap();
        on.driver.mem_alloc(on.device, 512).unwrap();
        let mut device = ReplayDevice::new(&on);
        device.stream(StreamId(7)).unwrap();
        device.busy_until(9).unwrap();
        assert_eq!(device.allocator_calls().total(), 0);
        assert_eq!(device.allocator_driver_us(), Some(0.0));
        on.driver.mem_alloc(on.device, 512).unwrap();
        assert_eq!(device.allocator_calls().of(Call::MemAlloc), 1);
        assert_eq!(device.allocator_driver_us(), Some(30.7));
        assert_eq!(device.allocator_times(), BTreeMap::from([(Call::MemAlloc, 30_700)]));
    }
}
