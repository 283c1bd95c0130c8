//! Memory tiers: GPU, HOST and DISK, and reservations that are promises kept.
//!
//! | where | what |
//! |---|---|
//! | [`tier`] | [`Tier`] and [`SpaceId`]: the names of things |
//! | [`manager`] | [`Tiers`], all spaces of a machine: strategies, topology, configuration |
//! | [`space`] | [`Space`], one tier at one place: gauge, streams, news |
//! | [`thresholds`] | fractions of a capacity: how much can be reserved, when to move data down |
//! | [`reservation`] | [`Reservation`]: grown, shrunk, split, merged, given back; and what allocations claim of it |
//! | `waiting` | who gets room and when: accounts and one queue, pure; the lock around it; [`Wait`], [`CancelToken`] |
//! | [`allocation`] | device memory inside reservations, by stream or by thread |
//! | [`host`] | pinned blocks: pool and multi-block buffers |
//! | [`disk`] | the spill file of a DISK space: direct I/O with deep queues, checksums, compression |
//! | [`spill`] | the engine: buffers and tables that move down under pressure and up on use; movers, tasks, figures |
//! | [`Survey`] | what tiers this machine can have, for people |
//! | [`metrics`] | Prometheus' text format, and a small server that hands it out |
//! | [`demo`] | a working set larger than the GPU, worked through to the right answer |
//! | [`clock`], [`error`] | time that tests can move; what can go wrong, with the numbers |
//!
//! Lock order: a promise, then the book, then a channel. A pool's lock is taken alone, and no lock is held across a driver
//! call.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use headwater::{Direct, Request};
//! use headwater_driver::{DeviceId, Stream};
//! use headwater_tiers::{
//!     FailAtOnce, GpuConfig, HostConfig, OverPolicy, Strategy, Tier, Tiers, TiersConfig, Wait,
//! };
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let driver = headwater_sim::SimDriver::new();
//! let device = DeviceId(0);
//! let direct = Arc::new(Direct::new(driver.clone(), device)?);
//! let mut host = HostConfig::new(0, 64 << 20);
//! host.pinned.initial_slabs = 0;
//! let config = TiersConfig::default().driver(driver).gpu(GpuConfig::new(direct, 1 << 30)).host(host);
//! let tiers = Tiers::new(config)?;
//!
//! // Room first, on the GPU if there is some and on the host otherwise; then memory that cannot fail for want of it.
//! let wait = Wait::at_most(Duration::from_secs(10));
//! let wanted = Strategy::Tiers(vec![Tier::Gpu, Tier::Host]);
//! let reservation = tiers.request_reservation(&wanted, 1 << 20, &wait)?;
//! let space = tiers.space(reservation.space())?;
//! let request = Request::new(1 << 20, Stream::legacy_default(device));
//! let block = space.allocate(&reservation, request, OverPolicy::Fail, &FailAtOnce)?;
//! assert_eq!(reservation.unused_bytes(), 0);
//! drop(block);
//! # Ok(())
//! # }
//! ```

pub mod allocation;
pub mod clock;
pub mod demo;
pub mod disk;
pub mod error;
pub mod host;
pub mod manager;
pub mod metrics;
pub mod reservation;
mod shortage;
pub mod space;
pub mod spill;
mod survey;
mod sync;
pub mod thresholds;
pub mod tier;
mod waiting;

pub use allocation::{
    Attached, EmptyCacheAndRetry, FailAtOnce, OomAction, OomPolicy, ReservedAllocator, ReservedBlock,
    RetryWith, Tracking, Unreserved,
};
pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{Shortage, TierError};
pub use host::{HostBuffer, PinnedConfig, PinnedPool, Placement};
pub use manager::{Shares, Strategy, Tiers, TiersConfig, Topology};
pub use reservation::{Claim, Increase, OverPolicy, Reservation};
pub use space::{
    BorrowedStream, DiskConfig, GpuConfig, HostConfig, Listener, News, NotificationChannel, Notifier, Space,
    SpaceUse, StreamPolicy, StreamPool,
};
pub use spill::{Spill, SpillBuffer, SpillConfig, SpillFigures, SpillTable, Task};
pub use survey::{DiskSurvey, Survey};
pub use thresholds::{Fraction, Thresholds};
pub use tier::{SpaceId, Tier};
pub use waiting::{CancelToken, Wait};
