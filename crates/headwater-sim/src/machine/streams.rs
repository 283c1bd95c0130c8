//! Streams: which exist, who may name them, and what is ordered before their next piece of work.

use headwater_driver::{Call, DeviceId, DriverError, ErrorClass, Result, Stream};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Machine, this_thread};
use crate::refusal::Refusal;
use crate::vector_clock::{Actor, VectorClock};

/// A stream's number in the machine, default streams included.
pub(crate) type StreamKey = u64;

/// The per-thread default streams, by thread and device.
pub(crate) type ThreadStreams = FxHashMap<(u64, DeviceId), StreamKey>;

/// One stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) device: DeviceId,
    pub(crate) role: Role,
    pub(crate) non_blocking: bool,
    pub(crate) made_at_ns: u64,
    /// When all it was given has ended.
    pub(crate) tail_ns: u64,
    /// What is ordered before its next piece of work.
    pub(crate) clock: VectorClock,
    pub(crate) actor: Actor,
    /// Up to which version the host's and the legacy default stream's clock are in `clock`.
    pub(crate) host_version: u64,
    pub(crate) legacy_version: u64,
    /// The capture it takes part in.
    pub(crate) capture: Option<Membership>,
}

/// Whose a stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Made by this view, and known to those that adopted it.
    Made { by: u32, adopted_by: SmallVec<[u32; 2]> },
    /// The device's default stream.
    Legacy,
    /// A thread's default stream.
    PerThread,
}

/// A stream's part in a capture.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) capture: u64,
    /// The nodes that its next node comes after.
    pub(crate) frontier: SmallVec<[u32; 4]>,
}

/// What is left of destroyed streams: when they end, and what they did.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    pub(crate) tail_ns: u64,
    pub(crate) clock: VectorClock,
}

impl Departed {
    fn add(&mut self, stream: &StreamState) {
        self.tail_ns = self.tail_ns.max(stream.tail_ns);
        self.clock.join(&stream.clock);
    }
}

impl Machine {
    fn new_stream(&mut self, device: DeviceId, role: Role, non_blocking: bool) -> StreamKey {
        let (actor, clock) = self.detector.new_actor();
        let host_version = self.detector.host().1;
        self.streams.insert(StreamState {
            device,
            role,
            non_blocking,
            made_at_ns: self.now_ns,
            tail_ns: 0,
            clock,
            actor,
            host_version,
            legacy_version: 0,
            capture: None,
        })
    }

    pub(super) fn new_legacy_stream(&mut self, device: DeviceId) -> StreamKey {
        self.new_stream(device, Role::Legacy, false)
    }

    /// Makes a stream for `view`.
    pub(crate) fn create_stream(&mut self, view: u32, device: DeviceId, non_blocking: bool) -> Stream {
        let role = Role::Made { by: view, adopted_by: SmallVec::new() };
        let key = self.new_stream(device, role, non_blocking);
        if !non_blocking {
            self.devices[device.0 as usize].blocking.insert(key);
        }
        Stream::from_raw(device, key)
    }

    /// The stream that `stream` names in this thread and view.
    pub(crate) fn stream_key(&mut self, call: Call, view: u32, stream: Stream) -> Result<StreamKey> {
        let device = stream.device();
        if device.0 as usize >= self.devices.len() {
            return Err(self.no_such_stream(call, stream));
        }
        self.device(call, device)?;
        if stream.is_legacy_default() {
            return Ok(self.devices[device.0 as usize].legacy);
        }
        if stream.is_per_thread_default() {
            return Ok(self.per_thread_stream(device));
        }
        match self.streams.get(stream.raw()) {
            Some(state) if state.device == device && state.is_known_to(view) => Ok(stream.raw()),
            _ => Err(self.no_such_stream(call, stream)),
        }
    }

    fn per_thread_stream(&mut self, device: DeviceId) -> StreamKey {
        let name = (this_thread(), device);
        if let Some(key) = self.thread_streams.get(&name) {
            return *key;
        }
        let key = self.new_stream(device, Role::PerThread, false);
        self.devices[device.0 as usize].blocking.insert(key);
        self.thread_streams.insert(name, key);
        key
    }

    pub(crate) fn no_such_stream(&self, call: Call, stream: Stream) -> DriverError {
        Refusal::InvalidHandle.of(call).with_detail(format!("{stream} does not exist or was not adopted"))
    }

    /// Destroys a stream that `view` made. Its work still finishes.
    pub(crate) fn destroy_stream(&mut self, call: Call, view: u32, stream: Stream) -> Result<()> {
        let key = self.stream_key(call, view, stream)?;
        let made_here = self
            .streams
            .get(key)
            .is_some_and(|state| matches!(&state.role, Role::Made { by, .. } if *by == view));
        if !made_here {
            let detail = format!("{stream} is not ours to destroy");
            return Err(Refusal::InvalidHandle.of(call).with_detail(detail));
        }
        if let Some(state) = self.streams.remove(key) {
            self.leave_capture(key, &state);
            let device = &mut self.devices[state.device.0 as usize];
            device.departed.add(&state);
            if device.blocking.remove(&key) {
                device.departed_blocking.add(&state);
            }
            self.detector.retire_actor(state.actor, &state.clock);
        }
        Ok(())
    }

    /// Makes a stream that another view made known to `view`.
    pub(crate) fn adopt_stream(&mut self, call: Call, view: u32, stream: Stream) -> Result<Stream> {
        self.device(call, stream.device()).map_err(|error| match error.class() {
            ErrorClass::InvalidValue => self.no_such_stream(call, stream),
            _ => error,
        })?;
        if stream.is_legacy_default() || stream.is_per_thread_default() {
            return Ok(stream);
        }
        match self.streams.get_mut(stream.raw()) {
            Some(StreamState { device, role: Role::Made { adopted_by, .. }, .. })
                if *device == stream.device() =>
            {
                if !adopted_by.contains(&view) {
                    adopted_by.push(view);
                }
                Ok(stream)
            }
            _ => Err(self.no_such_stream(call, stream)),
        }
    }

    /// Takes an adopted stream out of `view` again.
    pub(crate) fn forget_stream(&mut self, call: Call, view: u32, stream: Stream) -> Result<()> {
        if let Some(StreamState { device, role: Role::Made { adopted_by, .. }, .. }) =
            self.streams.get_mut(stream.raw())
            && *device == stream.device()
            && let Some(index) = adopted_by.iter().position(|by| *by == view)
        {
            adopted_by.remove(index);
            return Ok(());
        }
        Err(self.no_such_stream(call, stream))
    }

    /// Brings the clock of a stream up to everything that CUDA orders before its next piece of work, and returns when
    /// that can start.
    pub(super) fn ready_ns(&mut self, key: StreamKey) -> u64 {
        let Some(stream) = self.streams.get_mut(key) else { return self.now_ns };
        let (host_clock, host_version) = self.detector.host();
        if stream.host_version != host_version {
            stream.clock.join(host_clock);
            stream.host_version = host_version;
        }
        let (non_blocking, ordinal) = (stream.non_blocking, stream.device.0 as usize);
        let mut tail_ns = stream.tail_ns;
        let device = &mut self.devices[ordinal];
        if key == device.legacy {
            // The legacy default stream comes after all blocking streams of its device.
            let mut clock = std::mem::take(&mut stream.clock);
            tail_ns = tail_ns.max(device.departed_blocking.tail_ns);
            clock.join(&device.departed_blocking.clock);
            for other in device.blocking.iter().filter_map(|other| self.streams.get(*other)) {
                tail_ns = tail_ns.max(other.tail_ns);
                clock.join(&other.clock);
            }
            device.legacy_version += 1;
            self.put_back(key, clock, tail_ns);
        } else if !non_blocking && stream.legacy_version != device.legacy_version {
            // And they come after it.
            stream.legacy_version = device.legacy_version;
            let mut clock = std::mem::take(&mut stream.clock);
            if let Some(legacy) = self.streams.get(device.legacy) {
                tail_ns = tail_ns.max(legacy.tail_ns);
                clock.join(&legacy.clock);
            }
            self.put_back(key, clock, tail_ns);
        }
        self.now_ns.max(tail_ns)
    }

    fn put_back(&mut self, key: StreamKey, clock: VectorClock, tail_ns: u64) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.clock = clock;
            stream.tail_ns = tail_ns;
        }
    }

    /// Host waits for everything in the stream. The legacy default stream stands for the blocking ones too.
    pub(crate) fn wait_for_stream(&mut self, key: StreamKey) {
        let (until_ns, clock) = self.end_of(key);
        self.advance_to(until_ns);
        self.detector.host_learns(&clock);
    }

    /// Whether everything in the stream has ended; if so, the host knows it.
    pub(crate) fn stream_is_done(&mut self, key: StreamKey) -> bool {
        let (end_ns, clock) = self.end_of(key);
        if end_ns > self.now_ns {
            self.poll();
            return false;
        }
        self.detector.host_learns(&clock);
        true
    }

    /// When everything in the stream has ended, and what that covers. Asking is no work of the stream: it orders nothing.
    fn end_of(&self, key: StreamKey) -> (u64, VectorClock) {
        let Some(stream) = self.streams.get(key) else { return (0, VectorClock::new()) };
        let (mut end_ns, mut clock) = (stream.tail_ns, stream.clock.clone());
        let device = &self.devices[stream.device.0 as usize];
        if key == device.legacy {
            end_ns = end_ns.max(device.departed_blocking.tail_ns);
            clock.join(&device.departed_blocking.clock);
            for other in device.blocking.iter().filter_map(|other| self.streams.get(*other)) {
                end_ns = end_ns.max(other.tail_ns);
                clock.join(&other.clock);
            }
        }
        (end_ns, clock)
    }
}

impl StreamState {
    fn is_known_to(&self, view: u32) -> bool {
        match &self.role {
            Role::Made { by, adopted_by } => *by == view || adopted_by.contains(&view),
            Role::Legacy | Role::PerThread => true,
        }
    }
}
