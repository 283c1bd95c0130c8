//! What the engine counts, as a plain struct.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::tier::Tier;

macro_rules! routes {
    ($($variant:ident $name:literal $from:ident $to:ident,)*) => {
        /// From where to where a move goes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Route {
            $(#[doc = $name] $variant,)*
        }

        impl Route {
            /// All routes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The route in words.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub(crate) fn between(from: Tier, to: Tier) -> Option<Self> {
                match (from, to) {
                    $((Tier::$from, Tier::$to) => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

routes! {
    GpuToHost "gpu_to_host" Gpu Host,
    GpuToDisk "gpu_to_disk" Gpu Disk,
    HostToDisk "host_to_disk" Host Disk,
    HostToGpu "host_to_gpu" Host Gpu,
    DiskToGpu "disk_to_gpu" Disk Gpu,
    DiskToHost "disk_to_host" Disk Host,
    GpuToGpu "gpu_to_gpu" Gpu Gpu,
    HostToHost "host_to_host" Host Host,
}

/// What was moved along one route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteFigures {
    /// Moves that succeeded.
    pub moves: u64,
    /// What they moved.
    pub bytes: u64,
    /// How long they took, added up.
    pub time: Duration,
    /// Moves that failed; the data stayed where it was.
    pub failed: u64,
    /// Moves that were called off.
    pub cancelled: u64,
}

/// What the engine has counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillFigures {
    /// By route, in the order of [`Route::ALL`].
    pub routes: Vec<RouteFigures>,
    /// Moves under way.
    pub moves_in_flight: u64,
    /// Disk transfers under way.
    pub disk_in_flight: u64,
    /// Requests for room that wait.
    pub waiting: u64,
    /// Waits of tasks that have ended.
    pub waits: u64,
    /// How long they took, added up.
    pub wait_time: Duration,
    /// Tasks there are.
    pub tasks: u64,
    /// Tasks asked to roll back.
    pub rollbacks: u64,
    /// Tasks asked to split their work.
    pub splits: u64,
    /// Times that an allocator that had run out of memory asked for room.
    pub callbacks: u64,
    /// Times that it got some.
    pub callbacks_helped: u64,
    /// Victims that no lower tier had room for.
    pub no_room_below: u64,
    /// Chunks read twice because their checksum was wrong at first.
    pub disk_rereads: u64,
    /// Bytes of spillable data by tier: GPU, HOST, DISK.
    pub bytes_by_tier: [u64; 3],
}

impl SpillFigures {
    /// What was moved along `route`.
    pub fn route(&self, route: Route) -> RouteFigures {
        self.routes.get(route as usize).copied().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    routes: [RouteCounters; Route::ALL.len()],
    pub(crate) moves_in_flight: AtomicU64,
    pub(crate) callbacks: AtomicU64,
    pub(crate) callbacks_helped: AtomicU64,
    pub(crate) no_room_below: AtomicU64,
}

#[derive(Debug, Default)]
struct RouteCounters {
    moves: AtomicU64,
    bytes: AtomicU64,
    ns: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

/// How a move ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveEnd {
    Done { bytes: u64 },
    Failed,
    Cancelled,
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    // Relaxed: a count orders nothing.
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn note(&self, route: Route, end: MoveEnd, took: Duration) {
        let counters = &self.routes[route as usize];
        add(&counters.ns, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        match end {
            MoveEnd::Done { bytes } => {
                add(&counters.moves, 1);
                add(&counters.bytes, bytes);
            }
            MoveEnd::Failed => add(&counters.failed, 1),
            MoveEnd::Cancelled => add(&counters.cancelled, 1),
        }
    }

    pub(crate) fn fill(&self, figures: &mut SpillFigures) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let route = |counters: &RouteCounters| RouteFigures {
            moves: read(&counters.moves),
            bytes: read(&counters.bytes),
            time: Duration::from_nanos(read(&counters.ns)),
            failed: read(&counters.failed),
            cancelled: read(&counters.cancelled),
        };
        figures.routes = self.routes.iter().map(route).collect();
        figures.moves_in_flight = read(&self.moves_in_flight);
        figures.callbacks = read(&self.callbacks);
        figures.callbacks_helped = read(&self.callbacks_helped);
        figures.no_room_below = read(&self.no_room_below);
    }
}
